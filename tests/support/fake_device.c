/* The deterministic device: work at submission, tasks on demand, faults on request. */
#include "fake_device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "device/host_decode.h"

typedef struct fake_stream {
    fake_device *fake;
    mp_tick tick;
} fake_stream;

static fake_device *fake_of(mp_device *device)
{
    return (fake_device *)device;
}

static fake_stream *fake_stream_of(const mp_stream *stream)
{
    return (fake_stream *)(uintptr_t)stream;
}

static bool strikes(fake_device *fake, uint64_t *countdown)
{
    if (!*countdown || --*countdown)
        return false;
    *countdown = fake->faults.persistent;
    return true;
}

static void fake_close(mp_device *device)
{
    assert(!fake_of(device)->streams && !fake_of(device)->first);
}

static moepage_status fake_alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes, void **out)
{
    fake_device *fake = fake_of(device);
    assert(bytes > 0);
    if (strikes(fake, &fake->faults.alloc))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "the fake device was told to fail this allocation");
    size_t align = kind == MP_MEMORY_ARENA ? 4096 : 64;
    *out = aligned_alloc(align, (bytes + align - 1) / align * align);
    assert(*out);
    memset(*out, 0xa5, bytes);
    fake->held_bytes[kind] += bytes;
    fake->arena_bytes = kind == MP_MEMORY_ARENA ? bytes : fake->arena_bytes;
    return MOEPAGE_OK;
}

/* Memory that is not there is full of something else. */
static moepage_status fake_reserve(mp_device *device, uint64_t bytes, void **out)
{
    fake_device *fake = fake_of(device);
    moepage_status status = fake_alloc(device, MP_MEMORY_ARENA, bytes, out);
    fake->held_bytes[MP_MEMORY_ARENA] -= status ? 0 : bytes;
    return status;
}

static moepage_status fake_back(mp_device *device, uint64_t offset, uint64_t bytes)
{
    fake_device *fake = fake_of(device);
    assert(bytes > 0 && offset % 4096 == 0 && offset + bytes <= fake->arena_bytes);
    if (strikes(fake, &fake->faults.alloc))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "the fake device was told to fail this allocation");
    fake->held_bytes[MP_MEMORY_ARENA] += bytes;
    return MOEPAGE_OK;
}

static void fake_unback(mp_device *device, uint64_t offset, uint64_t bytes)
{
    fake_device *fake = fake_of(device);
    assert(bytes > 0 && offset % 4096 == 0 && offset + bytes <= fake->arena_bytes);
    assert(fake->held_bytes[MP_MEMORY_ARENA] >= bytes);
    fake->held_bytes[MP_MEMORY_ARENA] -= bytes;
}

static moepage_status fake_available(mp_device *device, uint64_t *out)
{
    *out = fake_of(device)->available;
    return MOEPAGE_OK;
}

static void fake_free(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes)
{
    fake_device *fake = fake_of(device);
    assert(fake->held_bytes[kind] >= bytes || kind == MP_MEMORY_ARENA);
    fake->held_bytes[kind] -= kind == MP_MEMORY_ARENA ? fake->held_bytes[kind] : bytes;
    free(memory);
}

static moepage_status fake_host_map(mp_device *device, uint64_t bytes, mp_host_memory *out)
{
    fake_device *fake = fake_of(device);
    assert(bytes > 0);
    if (strikes(fake, &fake->faults.alloc))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "the fake device was told to fail this mapping");
    bytes = (bytes + 4095) / 4096 * 4096;
    *out = (mp_host_memory){.base = aligned_alloc(4096, bytes),
                            .bytes = bytes,
                            .page_bytes = 4096,
                            .node = -1};
    assert(out->base);
    memset(out->base, 0, bytes);
    fake->mapped_bytes += bytes;
    return MOEPAGE_OK;
}

static void fake_host_unmap(mp_device *device, const mp_host_memory *memory)
{
    assert(fake_of(device)->mapped_bytes >= memory->bytes);
    fake_of(device)->mapped_bytes -= memory->bytes;
    free(memory->base);
}

static moepage_status fake_stream_create(mp_device *device, mp_stream_class cls, mp_stream **out)
{
    (void)cls;
    fake_device *fake = fake_of(device);
    if (strikes(fake, &fake->faults.stream))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "the fake device was told to fail this stream");
    fake_stream *stream = calloc(1, sizeof *stream);
    assert(stream);
    stream->fake = fake;
    fake->streams++;
    *out = (mp_stream *)stream;
    return MOEPAGE_OK;
}

static void fake_stream_destroy(mp_stream *stream)
{
    fake_stream_of(stream)->fake->streams--;
    free(stream);
}

static void transfer(fake_device *fake, const mp_copy *copy)
{
    bool fails = strikes(fake, &fake->faults.transfer);
    uint64_t bytes = fails ? copy->bytes / 2 : copy->bytes;
    moepage_status status = fails ? MOEPAGE_E_DEVICE : MOEPAGE_OK;
    if (!copy->fill)
        memcpy(copy->dst, copy->src, bytes);
    else if (!fails)
        status = copy->fill(copy, copy->dst);
    if (status && copy->result)
        atomic_store(copy->result, status);
    else if (status)
        fake->poisoned = true;
    fake->copies++;
    fake->copied_bytes += bytes;
}

static moepage_status accept_submission(fake_device *fake)
{
    if (fake->poisoned)
        return mp_fail(MOEPAGE_E_DEVICE, "the fake device is poisoned");
    if (strikes(fake, &fake->faults.submit))
        return mp_fail(MOEPAGE_E_DEVICE, "the fake device was told to refuse this submission");
    return MOEPAGE_OK;
}

static moepage_status fake_copy(mp_stream *stream, const mp_copy *copies, uint32_t n, mp_tick *out)
{
    fake_device *fake = fake_stream_of(stream)->fake;
    assert(n > 0);
    moepage_status status = accept_submission(fake);
    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++)
        transfer(fake, &copies[i]);
    *out = fake_stream_of(stream)->tick += n;
    return MOEPAGE_OK;
}

static moepage_status fake_launch(mp_stream *stream, mp_kernel kernel, const void *args,
                                  mp_tick *out)
{
    fake_device *fake = fake_stream_of(stream)->fake;
    const mp_kernel_decode_args *decode = args;
    if (kernel != MP_KERNEL_DECODE)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "the fake device has no kernel %d", (int)kernel);
    moepage_status status = accept_submission(fake);
    if (status)
        return status;
    fake->launches++;
    mp_host_decode(mp_exph_decoder_best(), decode, 0, 1);
    *out = ++fake_stream_of(stream)->tick;
    return MOEPAGE_OK;
}

static moepage_status fake_wait(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    (void)stream;
    assert(tick <= fake_stream_of(other)->tick);
    return MOEPAGE_OK;
}

static moepage_status fake_mark(mp_stream *stream, mp_tick *out)
{
    *out = ++fake_stream_of(stream)->tick;
    return MOEPAGE_OK;
}

static moepage_status fake_enter(mp_stream *stream, void *native)
{
    (void)stream;
    (void)native;
    return MOEPAGE_OK;
}

static moepage_status fake_follow(void *native, mp_stream *stream, mp_tick tick)
{
    (void)native;
    assert(tick <= fake_stream_of(stream)->tick);
    return MOEPAGE_OK;
}

static mp_tick fake_completed(const mp_stream *stream)
{
    return fake_stream_of(stream)->tick;
}

static moepage_status fake_sync(mp_stream *stream, mp_tick tick)
{
    assert(tick <= fake_stream_of(stream)->tick);
    if (fake_stream_of(stream)->fake->poisoned)
        return mp_fail(MOEPAGE_E_DEVICE, "the fake device is poisoned");
    return MOEPAGE_OK;
}

static void fake_post(mp_device *device, mp_stream *stream, mp_tick tick, mp_task *task)
{
    fake_device *fake = fake_of(device);
    assert(!stream || tick <= fake_stream_of(stream)->tick);
    task->next = NULL;
    *fake->last = task;
    fake->last = &task->next;
}

static uint64_t fake_now_ns(mp_device *device)
{
    return fake_of(device)->now_ns;
}

static const mp_device_ops fake_ops = {
    .version = MP_DEVICE_OPS_VERSION,
    .close = fake_close,
    .alloc = fake_alloc,
    .free = fake_free,
    .reserve = fake_reserve,
    .back = fake_back,
    .unback = fake_unback,
    .available = fake_available,
    .host_map = fake_host_map,
    .host_unmap = fake_host_unmap,
    .stream_create = fake_stream_create,
    .stream_destroy = fake_stream_destroy,
    .copy = fake_copy,
    .launch = fake_launch,
    .wait = fake_wait,
    .mark = fake_mark,
    .enter = fake_enter,
    .follow = fake_follow,
    .completed = fake_completed,
    .settle = fake_sync,
    .sync = fake_sync,
    .post = fake_post,
    .now_ns = fake_now_ns,
};

void fake_device_init(fake_device *fake)
{
    *fake = (fake_device){
        .device = {.ops = &fake_ops,
                   .caps = MP_CAP_SYNC_CALLER,
                   .arena_align = 4096,
                   .part_bytes = 4096,
                   .name = "fake",
                   .kernels = "none",
                   .threads = 1,
                   .io_threads = 1},
        .last = &fake->first,
    };
}

uint32_t fake_device_pump(fake_device *fake)
{
    uint32_t n = 0;
    for (; fake->first; n++) {
        mp_task *task = fake->first;
        fake->first = task->next;
        if (!fake->first)
            fake->last = &fake->first;
        task->run(task);
    }
    return n;
}

struct moepage_device *fake_home_open_part(fake_device *fake, uint64_t max_arena_bytes,
                                           uint64_t arena_bytes, uint64_t workspace_bytes)
{
    assert(arena_bytes % 4096 == 0 && max_arena_bytes % 4096 == 0);
    moepage_device_config config = {
        .budget_bytes = arena_bytes + workspace_bytes,
        .max_budget_bytes = max_arena_bytes + workspace_bytes,
        .workspace_bytes = workspace_bytes,
        .reserve_bytes = 8192,
    };
    struct moepage_device *home = NULL;
    moepage_status status = mp_home_open(&fake->device, &config, &home);
    assert(!status);
    (void)status;
    return home;
}

struct moepage_device *fake_home_open(fake_device *fake, uint64_t arena_bytes,
                                      uint64_t workspace_bytes)
{
    return fake_home_open_part(fake, arena_bytes, arena_bytes, workspace_bytes);
}

void fake_home_close(struct moepage_device *home)
{
    fake_device *fake = fake_of(home->device);
    mp_home_close(home);
    for (int kind = 0; kind < 3; kind++)
        assert(!fake->held_bytes[kind]);
    assert(!fake->mapped_bytes);
}
