/* The host device when memory, threads or pages run out: a status, and nothing left over (leaks of
 * allocations are AddressSanitizer's to find, those of mappings are counted here). */
#include <string.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "device/seam.h"
#include "device/thread.h"
#include "testing.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

void *__real_mp_alloc(size_t bytes);
void *__real_mp_realloc(void *block, size_t bytes);
void *__wrap_mp_alloc(size_t bytes);
void *__wrap_mp_realloc(void *block, size_t bytes);

/* Allocations from now on: the one that fails, and whether all later ones do too. */
static uint32_t fail_at, n_allocs;
static bool and_after;

static bool fails_now(void)
{
    n_allocs++;
    return fail_at && (n_allocs == fail_at || (and_after && n_allocs > fail_at));
}

void *__wrap_mp_alloc(size_t bytes)
{
    return fails_now() ? NULL : __real_mp_alloc(bytes);
}

void *__wrap_mp_realloc(void *block, size_t bytes)
{
    return fails_now() ? NULL : __real_mp_realloc(block, bytes);
}

/* ---- Threads ---- */

moepage_status __real_mp_thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                                      void *arg);
moepage_status __wrap_mp_thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                                      void *arg);

/* Starts from now on, and the one that fails; 0 = none does. */
static uint32_t n_starts, fail_start;

moepage_status __wrap_mp_thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                                      void *arg)
{
    if (++n_starts == fail_start) {
        mp_error_set("thread %s was told not to start", name);
        return MOEPAGE_E_NO_MEMORY;
    }
    return __real_mp_thread_start(out, name, run, arg);
}

/* ---- Mappings ---- */

void *__real_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset);
int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);
int __real_mprotect(void *at, size_t bytes, int access);
int __wrap_mprotect(void *at, size_t bytes, int access);
int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);

static int64_t mapped_bytes; /* by the library, less what it has unmapped */
static bool refuse_mmap, refuse_mprotect;
static int populate_error; /* errno of every MADV_POPULATE_WRITE; 0 = the system's own answer */

static bool refused(bool refuse)
{
    if (refuse)
        errno = ENOMEM;
    return refuse;
}

void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset)
{
    void *base =
        refused(refuse_mmap) ? MAP_FAILED : __real_mmap(at, bytes, access, flags, file, offset);
    if (base != MAP_FAILED && !(flags & MAP_FIXED)) /* those replace what is counted already */
        mapped_bytes += (int64_t)bytes;
    return base;
}

int __wrap_munmap(void *at, size_t bytes)
{
    mapped_bytes -= (int64_t)bytes;
    return __real_munmap(at, bytes);
}

int __wrap_mprotect(void *at, size_t bytes, int access)
{
    return refused(refuse_mprotect) ? -1 : __real_mprotect(at, bytes, access);
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    if (advice != MADV_POPULATE_WRITE || !populate_error)
        return __real_madvise(at, bytes, advice);
    errno = populate_error;
    return -1;
}

/* ---- Running out ---- */

/* Everything that allocates or starts threads, undone again as far as it came. */
static moepage_status use_device(void)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = 3,
                                    .budget_bytes = 1 << 20};
    enum { BYTES = 10000 };
    static const mp_stream_class classes[] = {MP_STREAM_DEMAND, MP_STREAM_BACKGROUND,
                                              MP_STREAM_COLD};
    mp_device *device = NULL;
    mp_stream *streams[3] = {0};
    void *memory[3] = {0};
    mp_host_memory mapped = {0};
    moepage_status status = mp_device_open("host", &config, &device);
    if (status)
        return status;
    for (uint32_t kind = 0; kind < 3 && !status; kind++)
        status = device->ops->alloc(device, (mp_memory_kind)kind, BYTES, &memory[kind]);
    if (!status)
        status = device->ops->host_map(device, BYTES, &mapped);
    for (uint32_t i = 0; i < 3 && !status; i++)
        status = device->ops->stream_create(device, classes[i], &streams[i]);
    for (uint32_t i = 0; i < 3; i++) {
        if (streams[i])
            device->ops->stream_destroy(streams[i]);
    }
    if (mapped.base)
        device->ops->host_unmap(device, &mapped);
    for (uint32_t kind = 0; kind < 3; kind++) {
        if (memory[kind])
            device->ops->free(device, (mp_memory_kind)kind, memory[kind], BYTES);
    }
    device->ops->close(device);
    return status;
}

static void fail_each(bool persistently)
{
    fail_at = n_allocs = 0;
    assert_int_equal(use_device(), MOEPAGE_OK);
    uint32_t total = n_allocs;
    assert_true(total > 3);
    and_after = persistently;
    for (uint32_t i = 1; i <= total; i++) {
        fail_at = i;
        n_allocs = 0;
        assert_int_equal(use_device(), MOEPAGE_E_NO_MEMORY);
        assert_true(strlen(moepage_last_error()) > 10);
        assert_int_equal(mapped_bytes, 0);
    }
    fail_at = 0;
    assert_int_equal(use_device(), MOEPAGE_OK);
}

static void test_host_device_survives_one_failed_allocation(void **state)
{
    (void)state;
    fail_each(false);
}

static void test_host_device_survives_all_allocations_failing(void **state)
{
    (void)state;
    fail_each(true);
}

static void test_host_device_survives_threads_that_do_not_start(void **state)
{
    (void)state;
    n_starts = 0;
    assert_int_equal(use_device(), MOEPAGE_OK);
    uint32_t total = n_starts;
    assert_int_equal(total, 2 + 3 + 4); /* the team beside its caller; bus, kernels, tasks; I/O */
    for (uint32_t i = 1; i <= total; i++) {
        fail_start = i;
        n_starts = 0;
        assert_int_equal(use_device(), MOEPAGE_E_NO_MEMORY);
        assert_non_null(strstr(moepage_last_error(), "was told not to start"));
        assert_int_equal(mapped_bytes, 0);
    }
    fail_start = 0;
    assert_int_equal(use_device(), MOEPAGE_OK);
}

static mp_device *open_device(void)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = 1,
                                    .io_threads = 3,
                                    .budget_bytes = 1 << 20};
    mp_device *device = NULL;
    assert_int_equal(mp_device_open("host", &config, &device), MOEPAGE_OK);
    return device;
}

static moepage_status fill_byte(const mp_copy *copy, void *out)
{
    memset(out, 7, copy->bytes);
    return MOEPAGE_OK;
}

/* None before the first COLD stream; after a failure the next one starts those that are missing. */
static void test_host_io_threads_start_once_with_the_first_cold_stream(void **state)
{
    (void)state;
    mp_device *device = open_device();
    mp_stream *streams[2] = {0};
    char byte = 0;
    mp_copy copy = {.dst = &byte, .bytes = 1, .fill = fill_byte};
    mp_tick tick = 0;
    n_starts = 0;
    assert_int_equal(device->ops->stream_create(device, MP_STREAM_PREFETCH, &streams[0]),
                     MOEPAGE_OK);
    device->ops->stream_destroy(streams[0]);
    assert_int_equal(n_starts, 0);
    fail_start = 2;
    assert_int_equal(device->ops->stream_create(device, MP_STREAM_COLD, &streams[0]),
                     MOEPAGE_E_NO_MEMORY);
    assert_int_equal(n_starts, 2);
    n_starts = fail_start = 0;
    assert_int_equal(device->ops->stream_create(device, MP_STREAM_COLD, &streams[0]), MOEPAGE_OK);
    assert_int_equal(n_starts, 2);
    assert_int_equal(device->ops->stream_create(device, MP_STREAM_COLD, &streams[1]), MOEPAGE_OK);
    assert_int_equal(n_starts, 2);
    assert_int_equal(device->ops->copy(streams[1], &copy, 1, &tick), MOEPAGE_OK);
    assert_int_equal(device->ops->sync(streams[1], tick), MOEPAGE_OK);
    assert_int_equal(byte, 7);
    for (uint32_t i = 0; i < 2; i++)
        device->ops->stream_destroy(streams[i]);
    device->ops->close(device);
}

enum { TIER_BYTES = 5000001 };

static void assert_refused_by_size(mp_device *device)
{
    mp_host_memory memory = {0};
    assert_int_equal(device->ops->host_map(device, TIER_BYTES, &memory), MOEPAGE_E_NO_MEMORY);
    assert_non_null(strstr(moepage_last_error(), "host tier of 50"));
    assert_null(memory.base);
    assert_int_equal(mapped_bytes, 0);
}

static void test_host_map_says_when_there_is_no_memory(void **state)
{
    (void)state;
    mp_device *device = open_device();
    refuse_mmap = true;
    assert_refused_by_size(device);
    refuse_mmap = false;
    populate_error = ENOMEM;
    assert_refused_by_size(device);
    refuse_mprotect = true;
    assert_refused_by_size(device);
    refuse_mprotect = false;
    populate_error = 0;
    device->ops->close(device);
}

/* Before Linux 5.14. */
static void test_host_map_does_without_the_call_that_makes_pages_present(void **state)
{
    (void)state;
    mp_device *device = open_device();
    mp_host_memory memory = {0};
    unsigned char present[TIER_BYTES / 4096 + 2];
    populate_error = EINVAL;
    assert_int_equal(device->ops->host_map(device, TIER_BYTES, &memory), MOEPAGE_OK);
    populate_error = 0;
    assert_int_equal(mapped_bytes, memory.bytes);
    assert_int_equal(mincore(memory.base, TIER_BYTES, present), 0);
    for (uint64_t page = 0; page < TIER_BYTES / 4096; page++)
        assert_true(present[page] & 1);
    for (uint64_t i = 0; i < TIER_BYTES; i += 512)
        assert_int_equal(memory.base[i], 0);
    device->ops->host_unmap(device, &memory);
    assert_int_equal(mapped_bytes, 0);
    device->ops->close(device);
}

/* ---- Views ---- */

static bool is_readable(const void *at)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    ssize_t n = write(ends[1], at, 1);
    assert_true(n == 1 || errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
    return n == 1;
}

static void test_host_views_keep_their_addresses_when_mappings_are_refused(void **state)
{
    (void)state;
    mp_device *device = open_device();
    const uint64_t page = device->view_bytes;
    void *arena = NULL, *base = NULL;
    assert_int_equal(device->ops->alloc(device, MP_MEMORY_ARENA, 2 * page, &arena), MOEPAGE_OK);
    memset(arena, 7, 2 * page);
    int64_t before = mapped_bytes;
    refuse_mmap = true;
    assert_int_equal(device->ops->view_reserve(device, 4 * page, &base), MOEPAGE_E_NO_MEMORY);
    assert_null(base);
    refuse_mmap = false;
    assert_int_equal(device->ops->view_reserve(device, 4 * page, &base), MOEPAGE_OK);
    unsigned char *at = (unsigned char *)base + page;
    refuse_mmap = true;
    assert_int_equal(device->ops->view_map(device, at, 0, 2 * page), MOEPAGE_E_NO_MEMORY);
    assert_non_null(strstr(moepage_last_error(), "could not be mapped"));
    assert_false(is_readable(at));
    refuse_mmap = false;
    assert_int_equal(device->ops->view_map(device, at, 0, 2 * page), MOEPAGE_OK);
    assert_int_equal(at[2 * page - 1], 7);
    assert_false(is_readable(base));
    refuse_mmap = true; /* then it is locked where it is */
    device->ops->view_unmap(device, at, 2 * page);
    refuse_mmap = false;
    assert_false(is_readable(at));
    assert_false(is_readable(at + page));
    assert_int_equal(device->ops->view_map(device, at, page, page), MOEPAGE_OK);
    assert_int_equal(at[0], 7);
    device->ops->view_unmap(device, at, page);
    assert_false(is_readable(at));
    device->ops->view_release(device, base, 4 * page);
    assert_int_equal(mapped_bytes, before);
    device->ops->free(device, MP_MEMORY_ARENA, arena, 2 * page);
    device->ops->close(device);
}

/* ---- An arena in parts ---- */

static uint64_t pages_there(const unsigned char *at, uint64_t page, uint64_t n)
{
    unsigned char there[16];
    uint64_t sum = 0;
    assert_true(n <= sizeof there);
    assert_int_equal(mincore((void *)(uintptr_t)at, n * page, there), 0);
    for (uint64_t i = 0; i < n; i++)
        sum += there[i] & 1;
    return sum;
}

/* What is refused leaves no page behind, and nothing that can be touched; what was there stays. */
static void test_host_arena_stays_as_it_is_when_memory_is_refused(void **state)
{
    (void)state;
    mp_device *device = open_device();
    const mp_device_ops *ops = device->ops;
    void *base = NULL;
    int64_t before = mapped_bytes;
    refuse_mmap = true;
    assert_int_equal(ops->reserve(device, 1 << 20, &base), MOEPAGE_E_NO_MEMORY);
    refuse_mmap = false;
    assert_null(base);
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(ops->reserve(device, 16 * page, &base), MOEPAGE_OK);
    unsigned char *arena = base;
    assert_int_equal(device->part_bytes, page);
    assert_int_equal(pages_there(arena, page, 16), 0);
    assert_false(is_readable(arena));
    assert_int_equal(ops->back(device, 0, 4 * page), MOEPAGE_OK);
    memset(arena, 9, 4 * page);
    refuse_mprotect = true;
    assert_int_equal(ops->back(device, 8 * page, 4 * page), MOEPAGE_E_NO_MEMORY);
    refuse_mprotect = false;
    const int errors[] = {ENOMEM, EFAULT, EHWPOISON};
    for (uint32_t i = 0; i < 3; i++) {
        populate_error = errors[i];
        assert_int_equal(ops->back(device, 8 * page, 4 * page), MOEPAGE_E_NO_MEMORY);
        assert_non_null(strstr(moepage_last_error(), "filled with pages"));
        populate_error = 0;
        assert_int_equal(pages_there(arena, page, 16), 4);
        assert_false(is_readable(arena + 8 * page));
    }
    populate_error = EINVAL; /* a kernel without that call */
    assert_int_equal(ops->back(device, 8 * page, 4 * page), MOEPAGE_OK);
    populate_error = 0;
    memset(arena + 8 * page, 7, 4 * page); /* which the system has by then, but does not count */
    assert_int_equal(pages_there(arena, page, 16), 8);
    ops->unback(device, 8 * page, 2 * page);
    assert_int_equal(pages_there(arena, page, 16), 6);
    assert_false(is_readable(arena + 9 * page));
    assert_int_equal(arena[10 * page], 7);
    assert_int_equal(arena[4 * page - 1], 9);
    ops->free(device, MP_MEMORY_ARENA, base, 16 * page);
    assert_int_equal(mapped_bytes, before);
    device->ops->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_arena_stays_as_it_is_when_memory_is_refused),
        cmocka_unit_test(test_host_device_survives_one_failed_allocation),
        cmocka_unit_test(test_host_device_survives_all_allocations_failing),
        cmocka_unit_test(test_host_device_survives_threads_that_do_not_start),
        cmocka_unit_test(test_host_io_threads_start_once_with_the_first_cold_stream),
        cmocka_unit_test(test_host_map_says_when_there_is_no_memory),
        cmocka_unit_test(test_host_map_does_without_the_call_that_makes_pages_present),
        cmocka_unit_test(test_host_views_keep_their_addresses_when_mappings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
