/* The simulated device: its memory, which is addresses alone, and the vtable over its clock. */
#include "simulated/sim.h"

#include <assert.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/errno_text.h"
#include "base/status.h"
#include "simulated/sim_run.h"

#define DEFAULT_IO_THREADS 4u

static mp_sim *of(mp_device *device)
{
    return (mp_sim *)device;
}

static mp_sim *owner_of(const mp_stream *stream)
{
    return (mp_sim *)((char *)stream->queues - offsetof(mp_sim, queues));
}

/* ---- memory ---- */

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A PROT_NONE reservation: unique addresses that fault when they are used. */
static moepage_status take_addresses(uint64_t bytes, void **out)
{
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "sim: %llu bytes of address space: %s",
                       (unsigned long long)bytes, mp_errno_text_of(errno).text);
    *out = base;
    return MOEPAGE_OK;
}

/* Counts bytes against the machine's memory. */
static moepage_status charge(mp_sim *sim, bool host, uint64_t bytes)
{
    uint64_t *given = host ? &sim->host_bytes : &sim->device_bytes;
    uint64_t most = host ? sim->profile.host_memory_bytes : sim->profile.memory_bytes;
    if (bytes > most - *given)
        return mp_fail(MOEPAGE_E_NO_MEMORY,
                       "sim: %llu bytes of %s memory: %s has %llu, and %llu are given out",
                       (unsigned long long)bytes, host ? "host" : "device", sim->profile.name,
                       (unsigned long long)most, (unsigned long long)*given);
    *given += bytes;
    return MOEPAGE_OK;
}

static void discharge(mp_sim *sim, bool host, uint64_t bytes)
{
    *(host ? &sim->host_bytes : &sim->device_bytes) -= bytes;
}

static moepage_status take(mp_sim *sim, bool host, uint64_t bytes, void **out)
{
    moepage_status status = charge(sim, host, bytes);
    if (status)
        return status;
    status = take_addresses(bytes, out);
    if (status)
        discharge(sim, host, bytes);
    return status;
}

static void give(mp_sim *sim, bool host, void *memory, uint64_t bytes)
{
    munmap(memory, bytes);
    discharge(sim, host, bytes);
}

static moepage_status second_arena(void)
{
    return mp_fail(MOEPAGE_E_STATE, "sim: the device has its arena already, and can have one only");
}

static void begin_arena(mp_sim *sim, uint64_t backed)
{
    sim->has_arena = true;
    sim->arena_backed = backed;
    sim->device.part_bytes = sim->device.arena_align;
}

static moepage_status sim_alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes, void **out)
{
    mp_sim *sim = of(device);
    assert(bytes > 0);
    if (kind == MP_MEMORY_ARENA && sim->has_arena)
        return second_arena();
    moepage_status status = take(sim, kind == MP_MEMORY_HOST, bytes, out);
    if (!status && kind == MP_MEMORY_ARENA)
        begin_arena(sim, bytes);
    return status;
}

static void sim_free(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes)
{
    mp_sim *sim = of(device);
    if (kind != MP_MEMORY_ARENA) {
        give(sim, kind == MP_MEMORY_HOST, memory, bytes);
        return;
    }
    munmap(memory, bytes);
    discharge(sim, false, sim->arena_backed);
    sim->has_arena = false;
    sim->device.part_bytes = 0;
}

static moepage_status sim_reserve(mp_device *device, uint64_t bytes, void **out)
{
    mp_sim *sim = of(device);
    if (sim->has_arena)
        return second_arena();
    moepage_status status = take_addresses(bytes, out);
    if (!status)
        begin_arena(sim, 0);
    return status;
}

/* Memory is a count here: which bytes of the arena it is behind makes no difference. */
static moepage_status sim_back(mp_device *device, uint64_t offset, uint64_t bytes)
{
    mp_sim *sim = of(device);
    (void)offset;
    moepage_status status = charge(sim, false, bytes);
    sim->arena_backed += status ? 0 : bytes;
    return status;
}

static void sim_unback(mp_device *device, uint64_t offset, uint64_t bytes)
{
    mp_sim *sim = of(device);
    (void)offset;
    discharge(sim, false, bytes);
    sim->arena_backed -= bytes;
}

static moepage_status sim_available(mp_device *device, uint64_t *out)
{
    *out = of(device)->profile.memory_bytes - of(device)->device_bytes;
    return MOEPAGE_OK;
}

static moepage_status sim_host_map(mp_device *device, uint64_t bytes, mp_host_memory *out)
{
    void *base;
    assert(bytes > 0);
    moepage_status status = take(of(device), true, bytes, &base);
    if (status)
        return status;
    *out = (mp_host_memory){.base = base,
                            .bytes = bytes,
                            .page_bytes = (uint32_t)page_bytes(),
                            .node = -1};
    return MOEPAGE_OK;
}

static void sim_host_unmap(mp_device *device, const mp_host_memory *memory)
{
    give(of(device), true, memory->base, memory->bytes);
}

/* ---- streams ---- */

static moepage_status sim_stream_create(mp_device *device, mp_stream_class cls, mp_stream **out)
{
    mp_stream *stream = mp_sim_stream_new(&of(device)->queues, cls);
    if (!stream)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "sim: no memory for a stream");
    *out = stream;
    return MOEPAGE_OK;
}

static void sim_stream_destroy(mp_stream *stream)
{
    mp_sim_run_out(owner_of(stream), stream);
    mp_sim_stream_drop_waits(stream);
    mp_sim_stream_release(stream);
}

static moepage_status sim_copy(mp_stream *stream, const mp_copy *copies, uint32_t n, mp_tick *out)
{
    const mp_sim *sim = owner_of(stream);
    moepage_status status = mp_sim_stream_reserve(stream, n);
    if (status)
        return status;
    mp_tick tick = stream->submitted;
    for (uint32_t i = 0; i < n; i++) {
        mp_sim_entry entry = mp_sim_copy_work(&sim->profile, stream->cls, copies[i].bytes);
        tick = mp_sim_stream_work(stream, &entry, &copies[i]);
    }
    *out = tick;
    return MOEPAGE_OK;
}

static moepage_status sim_launch(mp_stream *stream, mp_kernel kernel, const void *args,
                                 mp_tick *out)
{
    assert((uint32_t)kernel < MP_KERNEL_COUNT);
    if (stream->cls != MP_STREAM_COMPUTE && stream->cls != MP_STREAM_BACKGROUND)
        return mp_fail(MOEPAGE_E_ARGUMENT, "sim: a kernel was launched on a stream for transfers; "
                                           "it needs a compute or background stream");
    moepage_status status = mp_sim_stream_reserve(stream, 1);
    if (status)
        return status;
    mp_sim_entry entry = mp_sim_kernel_work(&owner_of(stream)->profile, kernel, args);
    *out = mp_sim_stream_work(stream, &entry, NULL);
    return MOEPAGE_OK;
}

static moepage_status sim_wait(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    if (stream == other || other->completed >= tick)
        return MOEPAGE_OK;
    moepage_status status = mp_sim_stream_reserve(stream, 1);
    if (!status)
        mp_sim_stream_wait(stream, other, tick);
    return status;
}

static moepage_status sim_mark(mp_stream *stream, mp_tick *out)
{
    moepage_status status = mp_sim_stream_reserve(stream, 1);
    if (!status)
        *out = mp_sim_stream_mark(stream);
    return status;
}

static mp_tick sim_completed(const mp_stream *stream)
{
    return stream->completed;
}

static moepage_status sim_sync(mp_stream *stream, mp_tick tick)
{
    mp_sim *sim = owner_of(stream);
    if (stream->completed < tick)
        mp_sim_run_to_tick(sim, stream, tick);
    if (sim->poisoned)
        return mp_fail(MOEPAGE_E_DEVICE, "sim: %s", sim->poison_text);
    return MOEPAGE_OK;
}

/* The caller has no streams: its work is done when its calls have returned. */
static moepage_status sim_enter(mp_stream *stream, void *native)
{
    (void)stream;
    (void)native;
    return MOEPAGE_OK;
}

static moepage_status sim_follow(void *native, mp_stream *stream, mp_tick tick)
{
    (void)native;
    return sim_sync(stream, tick);
}

static void sim_post(mp_device *device, mp_stream *stream, mp_tick tick, mp_task *task)
{
    if (stream)
        mp_sim_stream_post(stream, tick, task);
    else
        mp_sim_task_due(&of(device)->queues, task);
}

static uint64_t sim_now_ns(mp_device *device)
{
    return of(device)->now_ns;
}

/* ---- life ---- */

static void sim_close(mp_device *device)
{
    mp_sim *sim = of(device);
    mp_sim_run_out(sim, NULL);
    if (sim->caller_bus)
        sim_stream_destroy(sim->caller_bus);
    if (sim->caller_compute)
        sim_stream_destroy(sim->caller_compute);
    mp_free(sim);
}

static const mp_device_ops sim_ops = {
    .version = MP_DEVICE_OPS_VERSION,
    .close = sim_close,
    .alloc = sim_alloc,
    .free = sim_free,
    .reserve = sim_reserve,
    .back = sim_back,
    .unback = sim_unback,
    .available = sim_available,
    .host_map = sim_host_map,
    .host_unmap = sim_host_unmap,
    .stream_create = sim_stream_create,
    .stream_destroy = sim_stream_destroy,
    .copy = sim_copy,
    .launch = sim_launch,
    .wait = sim_wait,
    .mark = sim_mark,
    .enter = sim_enter,
    .follow = sim_follow,
    .completed = sim_completed,
    .settle = sim_sync,
    .sync = sim_sync,
    .post = sim_post,
    .now_ns = sim_now_ns,
};

moepage_status mp_sim_open(const mp_sim_profile *profile, const moepage_device_config *config,
                           mp_device **out)
{
    uint32_t io_threads = config->io_threads ? config->io_threads : DEFAULT_IO_THREADS;
    if (io_threads > MP_SIM_MOST_READS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "sim: io_threads is %u, at most %u are supported",
                       io_threads, MP_SIM_MOST_READS);
    mp_sim *sim = mp_alloc(sizeof *sim);
    if (!sim)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a simulated device");
    sim->profile = *profile;
    if (config->bus_bytes_per_s)
        sim->profile.bus_bytes_per_s = config->bus_bytes_per_s;
    sim->cold.most = io_threads;
    sim->cold.next_ns = UINT64_MAX;
    sim->device = (mp_device){
        .ops = &sim_ops,
        .caps = MP_CAP_SYNC_CALLER | MP_CAP_NO_BYTES |
                (profile->host_memory_bytes_per_s ? MP_CAP_ON_HOST : 0),
        .arena_align = 4096,
        .name = "sim",
        .kernels = sim->profile.name,
        .threads = 1,
        .io_threads = io_threads,
        .bus_bytes_per_s = sim->profile.bus_bytes_per_s,
        .log = {.fn = config->log, .user = config->log_user},
    };
    moepage_status status =
        sim_stream_create(&sim->device, MP_STREAM_COMPUTE, &sim->caller_compute);
    if (!status)
        status = sim_stream_create(&sim->device, MP_STREAM_DEMAND, &sim->caller_bus);
    if (status) {
        sim_close(&sim->device);
        return status;
    }
    *out = &sim->device;
    return MOEPAGE_OK;
}

/* ---- the caller's own work ---- */

/* Cannot fail: each call waits, so that the stream always has room. */
static void do_work(mp_sim *sim, mp_stream *stream, const mp_sim_entry *entry)
{
    mp_sim_run_to_tick(sim, stream, mp_sim_stream_work(stream, entry, NULL));
}

void mp_sim_work(mp_device *device, uint64_t flops, uint64_t bytes)
{
    mp_sim *sim = of(device);
    assert(device->ops == &sim_ops);
    mp_sim_entry entry = {.unit = MP_SIM_COMPUTE,
                          .ns = mp_sim_compute_ns(&sim->profile, flops, bytes)};
    do_work(sim, sim->caller_compute, &entry);
}

void mp_sim_transfer(mp_device *device, uint64_t bytes)
{
    mp_sim *sim = of(device);
    assert(device->ops == &sim_ops);
    mp_sim_entry entry = mp_sim_copy_work(&sim->profile, MP_STREAM_DEMAND, bytes);
    do_work(sim, sim->caller_bus, &entry);
}

void mp_sim_pass(mp_device *device, uint64_t ns)
{
    mp_sim_run_to_time(of(device), of(device)->now_ns + ns);
}

void mp_sim_idle_until(mp_device *device, uint64_t ns)
{
    mp_sim_run_to_time(of(device), ns);
}

void mp_sim_get_usage(const mp_device *device, mp_sim_usage *out)
{
    const mp_sim *sim = (const mp_sim *)device;
    uint64_t left[MP_SIM_COLD] = {0};
    for (int u = 0; u < MP_SIM_COLD; u++)
        if (sim->engines[u].stream)
            left[u] = sim->engines[u].end_ns - sim->now_ns;
    *out = sim->usage;
    out->now_ns = sim->now_ns;
    out->bus_ns -= left[MP_SIM_BUS];
    out->compute_ns -= left[MP_SIM_COMPUTE];
    out->decode_ns -= left[MP_SIM_DECODER];
    if (sim->cold.n)
        out->cold_ns += sim->now_ns - sim->cold.since_ns;
}
