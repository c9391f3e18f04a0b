/* The host device: its memory, and the vtable over the executor. */
#include "device/host.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/errno_text.h"
#include "base/file.h"
#include "base/status.h"
#include "device/available.h"
#include "device/executor.h"
#include "device/host_kernels.h"
#include "device/host_memory.h"
#include "device/host_views.h"
#include "device/numa.h"
#include "device/thread.h"

#define ALIGNMENT 64u /* a cache line, and the widest vector */

#define MAX_THREADS 1024u
#define MAX_IO_THREADS 64u
#define DEFAULT_IO_THREADS 4u

/* ---- The arena -------------------------------------------------------------------------- */

/* Lengthening a file past the process's limit on the size of files ends the program (SIGXFSZ). */
static moepage_status check_file_limit(uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || bytes <= limit.rlim_cur)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_NO_MEMORY,
                   "host: the arena of %llu bytes is a file in memory, and this process may not "
                   "have files over %llu bytes (RLIMIT_FSIZE): raise that limit, or open the "
                   "device with a smaller budget",
                   (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
}

static moepage_status arena_failed(uint64_t bytes, const char *what, int error)
{
    return mp_fail(MOEPAGE_E_NO_MEMORY,
                   "host: %llu bytes of the arena could not be %s: %s; a smaller budget would need "
                   "less",
                   (unsigned long long)bytes, what, mp_errno_text_of(error).text);
}

/* An anonymous file, so that any part of it can be mapped at a second address too, and addresses for all of
 * it, which cannot be touched yet. */
static moepage_status arena_reserve(mp_host_device *host, uint64_t bytes, void **out)
{
    if (host->arena_file >= 0)
        return mp_fail(MOEPAGE_E_STATE,
                       "host: the device has its arena already, and can have one only");
    moepage_status status = check_file_limit(bytes);
    if (status)
        return status;
    int file = mp_file_keep_apart(memfd_create("moepage-arena", MFD_CLOEXEC));
    if (file < 0 || ftruncate(file, (off_t)bytes)) {
        status = arena_failed(bytes, "reserved", errno);
        goto fail;
    }
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) {
        status = arena_failed(bytes, "mapped", errno);
        goto fail;
    }
    (void)madvise(base, bytes, MADV_HUGEPAGE); /* where the system allows: fewer TLB misses */
    host->arena_file = file;
    host->arena = *out = base;
    host->arena_bytes = bytes;
    host->device.part_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    return MOEPAGE_OK;

fail:
    if (file >= 0)
        close(file);
    return status;
}

static void arena_unback(mp_host_device *host, uint64_t offset, uint64_t bytes)
{
    if (fallocate(host->arena_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)bytes))
        mp_log_write(&host->device.log, MOEPAGE_LOG_WARNING,
                     "host: %llu bytes of the arena could not be given back: %s",
                     (unsigned long long)bytes, mp_errno_text_of(errno).text);
    (void)mprotect(host->arena + offset, bytes, PROT_NONE); /* whoever uses them now is found out */
}

/* `apart`: not on the team, which may have work that waits for what the caller holds. */
static moepage_status arena_back(mp_host_device *host, uint64_t offset, uint64_t bytes, bool apart)
{
    uint64_t available = mp_available_bytes("");
    if (bytes > available)
        return mp_fail(MOEPAGE_E_NO_MEMORY,
                       "host: the arena takes %llu bytes, and the system has %llu available; a "
                       "smaller budget would need less",
                       (unsigned long long)bytes, (unsigned long long)available);
    unsigned char *base = host->arena + offset;
    if (mprotect(base, bytes, PROT_READ | PROT_WRITE))
        return arena_failed(bytes, "opened", errno);
    mp_pages pages = {.base = base, .bytes = bytes, .file = host->arena_file};
    pages.file_offset = offset;
    pages.page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    int error = 0;
    moepage_status status = MOEPAGE_OK;
    if (apart)
        error = mp_host_pages_touch_here(&pages);
    else
        status = mp_host_pages_touch(host->executor, host->device.threads, &pages, &error);
    if (!status && error)
        status = arena_failed(bytes, "filled with pages", error);
    if (status)
        arena_unback(host, offset, bytes);
    return status;
}

static void arena_free(mp_host_device *host)
{
    munmap(host->arena, host->arena_bytes);
    close(host->arena_file);
    host->arena_file = -1;
    host->arena = NULL;
    host->device.part_bytes = 0;
}

static moepage_status arena_alloc(mp_host_device *host, uint64_t bytes, void **out)
{
    void *base = NULL;
    moepage_status status = arena_reserve(host, bytes, &base);
    if (status)
        return status;
    status = arena_back(host, 0, bytes, false);
    if (status)
        arena_free(host);
    else
        *out = base;
    return status;
}

/* ---- Other memory ----------------------------------------------------------------------- */

/* Aligned inside a larger block, whose address is kept right before it. */
static moepage_status aligned_alloc_bytes(uint64_t bytes, void **out)
{
    size_t total;
    unsigned char *block = NULL;
    if (!__builtin_add_overflow(bytes, ALIGNMENT + sizeof block, &total))
        block = mp_alloc(total);
    if (!block)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "host: no memory for %llu bytes",
                       (unsigned long long)bytes);
    uintptr_t first = (uintptr_t)block + sizeof block;
    unsigned char *memory = block + sizeof block + (-first & (ALIGNMENT - 1));
    memcpy(memory - sizeof block, &block, sizeof block);
    *out = memory;
    return MOEPAGE_OK;
}

static void aligned_free(void *memory)
{
    void *block;
    memcpy(&block, (unsigned char *)memory - sizeof block, sizeof block);
    mp_free(block);
}

/* ---- The vtable ------------------------------------------------------------------------- */

static mp_host_device *of(mp_device *device)
{
    return (mp_host_device *)device;
}

static void host_close(mp_device *device)
{
    assert(of(device)->arena_file < 0);
    mp_executor_destroy(of(device)->executor);
    mp_free(device);
}

static moepage_status host_alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes, void **out)
{
    assert(bytes > 0);
    if (kind == MP_MEMORY_ARENA)
        return arena_alloc(of(device), bytes, out);
    return aligned_alloc_bytes(bytes, out);
}

static void host_free(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes)
{
    (void)bytes;
    if (kind == MP_MEMORY_ARENA)
        arena_free(of(device));
    else
        aligned_free(memory);
}

static moepage_status host_reserve(mp_device *device, uint64_t bytes, void **out)
{
    return arena_reserve(of(device), bytes, out);
}

static moepage_status host_back(mp_device *device, uint64_t offset, uint64_t bytes)
{
    return arena_back(of(device), offset, bytes, true);
}

static void host_unback(mp_device *device, uint64_t offset, uint64_t bytes)
{
    arena_unback(of(device), offset, bytes);
}

static moepage_status host_available(mp_device *device, uint64_t *out)
{
    *out = mp_available_bytes("");
    if (*out != UINT64_MAX)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "%s: neither /proc/meminfo nor a control group says how much memory is free",
                   device->name);
}

static moepage_status host_map(mp_device *device, uint64_t bytes, mp_host_memory *out)
{
    assert(bytes > 0);
    return mp_host_memory_map(of(device)->executor, device->threads, of(device)->node, bytes, out);
}

static void host_unmap(mp_device *device, const mp_host_memory *memory)
{
    (void)device;
    mp_host_memory_unmap(memory);
}

static moepage_status host_stream_create(mp_device *device, mp_stream_class cls, mp_stream **out)
{
    return mp_stream_create(of(device)->executor, cls, out);
}

static void host_post(mp_device *device, mp_stream *stream, mp_tick tick, mp_task *task)
{
    mp_executor_post(of(device)->executor, stream, tick, task);
}

/* The caller's work is done when its calls have returned. */
static moepage_status host_enter(mp_stream *stream, void *native)
{
    (void)stream;
    (void)native;
    return MOEPAGE_OK;
}

/* The caller has no streams: no work of its own outlasts a call. */
static moepage_status host_follow(void *native, mp_stream *stream, mp_tick tick)
{
    (void)native;
    return mp_stream_sync(stream, tick);
}

static uint64_t host_now_ns(mp_device *device)
{
    (void)device;
    return mp_clock_ns();
}

static moepage_status host_view_reserve(mp_device *device, uint64_t bytes, void **out)
{
    (void)device;
    return mp_host_view_reserve(bytes, out);
}

static void host_view_release(mp_device *device, void *base, uint64_t bytes)
{
    (void)device;
    mp_host_view_release(base, bytes);
}

static moepage_status host_view_map(mp_device *device, void *at, uint64_t offset, uint64_t bytes)
{
    return mp_host_view_map(of(device)->arena_file, at, offset, bytes);
}

static void host_view_unmap(mp_device *device, void *at, uint64_t bytes)
{
    (void)device;
    mp_host_view_unmap(at, bytes);
}

static void host_run_part(mp_device *device, mp_kernel kernel, const mp_kernel_args *args,
                          uint32_t phase, uint32_t part, uint32_t n_parts)
{
    mp_executor_run_part(of(device)->executor, kernel, args, phase, part, n_parts);
}

const mp_device_ops mp_host_ops = {
    .version = MP_DEVICE_OPS_VERSION,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .reserve = host_reserve,
    .back = host_back,
    .unback = host_unback,
    .available = host_available,
    .host_map = host_map,
    .host_unmap = host_unmap,
    .stream_create = host_stream_create,
    .stream_destroy = mp_stream_destroy,
    .copy = mp_stream_copy,
    .launch = mp_stream_launch,
    .run_part = host_run_part,
    .wait = mp_stream_wait,
    .mark = mp_stream_mark,
    .enter = host_enter,
    .follow = host_follow,
    .completed = mp_stream_completed,
    .settle = mp_stream_sync,
    .sync = mp_stream_sync,
    .post = host_post,
    .now_ns = host_now_ns,
    .view_reserve = host_view_reserve,
    .view_release = host_view_release,
    .view_map = host_view_map,
    .view_unmap = host_view_unmap,
};

static moepage_status check_threads(const moepage_device_config *config)
{
    if (config->threads > MAX_THREADS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "host: threads is %u, at most %u are supported",
                       config->threads, MAX_THREADS);
    if (config->io_threads > MAX_IO_THREADS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "host: io_threads is %u, at most %u are supported",
                       config->io_threads, MAX_IO_THREADS);
    return MOEPAGE_OK;
}

moepage_status mp_host_init(mp_host_device *host, const moepage_device_config *config,
                            const mp_far_memory *far)
{
    moepage_status status = check_threads(config);
    if (status)
        return status;
    const mp_host_kernel_set *kernels = mp_host_kernels_best();
    host->arena_file = -1;
    host->node = mp_numa_node();
    host->device = (mp_device){
        .ops = &mp_host_ops,
        .caps = MP_CAP_SYNC_CALLER | MP_CAP_ON_HOST | MP_CAP_INT8,
        .arena_align = 4096,
        .name = "host",
        .kernels = mp_host_kernels_name(kernels),
        .threads = config->threads ? config->threads : mp_thread_cpus(),
        .io_threads = config->io_threads ? config->io_threads : DEFAULT_IO_THREADS,
        .bus_bytes_per_s = config->bus_bytes_per_s,
        .view_bytes = mp_host_view_bytes(),
        .log = {.fn = config->log, .user = config->log_user},
    };
    mp_executor_config executor = {
        .threads = host->device.threads,
        .io_threads = host->device.io_threads,
        .bus_bytes_per_s = config->bus_bytes_per_s,
        .kernels = kernels,
        .decoder = mp_exph_decoder_best(),
        .far = far,
        .log = host->device.log,
    };
    return mp_executor_create(&executor, &host->executor);
}

moepage_status mp_host_open(const moepage_device_config *config, mp_device **out)
{
    mp_host_device *host = mp_alloc(sizeof *host);
    if (!host)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the host device");
    moepage_status status = mp_host_init(host, config, NULL);
    if (status) {
        mp_free(host);
        return status;
    }
    *out = &host->device;
    return MOEPAGE_OK;
}
