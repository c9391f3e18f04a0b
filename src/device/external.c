/* The device "external": it is the host device, but for its arena, which is another runtime's. Transfers hand that
 * runtime bytes; its addresses are numbers here, which nothing follows. */
#include "device/external.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/status.h"
#include "device/host.h"

#define BOUNCE_BYTES (1u << 20)
#define ALIGNMENT 64u

typedef struct external_device {
    mp_host_device host;
    mp_device_ops ops;
    moepage_external_memory memory;
    mp_far_memory arena;
    unsigned char bounce[BOUNCE_BYTES]; /* what a fill callback has produced */
} external_device;

static external_device *of(mp_device *device)
{
    return (external_device *)device;
}

/* ---- transfers ---- */

static moepage_status write_bytes(const external_device *external, void *to, const void *from,
                                  uint64_t bytes)
{
    return external->memory.write(external->memory.user, to, from, bytes);
}

/* What a fill callback produces is handed over in parts. */
static moepage_status deliver(void *context, const mp_copy *copy)
{
    external_device *external = context;
    moepage_status status = MOEPAGE_OK;
    if (!copy->fill)
        return write_bytes(external, copy->dst, copy->src, copy->bytes);
    for (uint64_t done = 0; done < copy->bytes && !status; done += BOUNCE_BYTES) {
        mp_copy part = *copy;
        part.bytes = copy->bytes - done < BOUNCE_BYTES ? copy->bytes - done : BOUNCE_BYTES;
        part.dst = (unsigned char *)copy->dst + done;
        part.fill_offset += done;
        status = copy->fill(&part, external->bounce);
        if (!status)
            status = write_bytes(external, part.dst, external->bounce, part.bytes);
    }
    return status;
}

static moepage_status external_launch(mp_stream *stream, mp_kernel kernel, const void *args,
                                      mp_tick *out)
{
    (void)stream, (void)kernel, (void)args, (void)out;
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "device external has no kernels: the runtime that has the memory computes a "
                   "plan's experts, and none may be compressed");
}

/* ---- the arena ---- */

static moepage_status arena_alloc(external_device *external, uint64_t bytes, void **out)
{
    const moepage_external_memory *memory = &external->memory;
    void *base = NULL;
    if (external->arena.base)
        return mp_fail(MOEPAGE_E_STATE,
                       "external: the device has its arena already, and can have one only");
    moepage_status status = memory->alloc(memory->user, bytes, &base);
    if (status)
        return mp_fail(status, "external: there is no memory for an arena of %llu bytes",
                       (unsigned long long)bytes);
    if (!base || (uintptr_t)base % ALIGNMENT) {
        if (base)
            memory->free(memory->user, base, bytes);
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "external: the arena was given the address %p, which is no multiple of %u "
                       "above 0",
                       base, ALIGNMENT);
    }
    external->arena.base = base;
    external->arena.bytes = bytes;
    *out = base;
    return MOEPAGE_OK;
}

static moepage_status external_alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes,
                                     void **out)
{
    if (kind == MP_MEMORY_ARENA)
        return arena_alloc(of(device), bytes, out);
    return mp_host_ops.alloc(device, kind, bytes, out);
}

static void external_free(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes)
{
    external_device *external = of(device);
    if (kind != MP_MEMORY_ARENA) {
        mp_host_ops.free(device, kind, memory, bytes);
        return;
    }
    external->memory.free(external->memory.user, memory, bytes);
    external->arena.base = NULL;
}

/* ---- opening ---- */

static moepage_status read_memory(const moepage_external_memory *given,
                                  moepage_external_memory *out)
{
    moepage_status status =
        mp_config_read(out, sizeof *out, sizeof *out, given, "config: external");
    if (!status && out->reserved)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "config: external: reserved is %u, it must be 0",
                         out->reserved);
    if (!status && (!out->alloc || !out->free || !out->write))
        status = mp_fail(MOEPAGE_E_ARGUMENT, "config: external: %s is NULL",
                         !out->alloc  ? "alloc"
                         : !out->free ? "free"
                                      : "write");
    return status;
}

moepage_status mp_external_open(const moepage_device_config *config, mp_device **out)
{
    external_device *external = mp_alloc(sizeof *external);
    if (!external)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the device");
    external->arena = (mp_far_memory){.deliver = deliver, .context = external};
    moepage_status status = read_memory(config->external, &external->memory);
    if (!status)
        status = mp_host_init(&external->host, config, &external->arena);
    if (status) {
        mp_free(external);
        return status;
    }
    external->ops = mp_host_ops;
    external->ops.alloc = external_alloc;
    external->ops.free = external_free;
    external->ops.launch = external_launch;
    external->ops.run_part = NULL;
    external->ops.reserve = NULL;
    external->ops.back = NULL;
    external->ops.unback = NULL;
    external->ops.available = NULL;
    mp_device *device = &external->host.device;
    device->ops = &external->ops;
    device->caps = MP_CAP_SYNC_CALLER | MP_CAP_WRITE_ONLY;
    device->name = "external";
    device->kernels = "none";
    device->view_bytes = 0;
    *out = device;
    return MOEPAGE_OK;
}
