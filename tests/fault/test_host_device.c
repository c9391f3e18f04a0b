/* The host device when memory or threads run out while it opens: a status, and nothing left over
 * (leaks are AddressSanitizer's to find). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <stdbool.h>

#include "device/device.h"

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

/* Everything that allocates, undone again as far as it came. */
static moepage_status use_device(void)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = 3,
                                    .budget_bytes = 1 << 20};
    enum { BYTES = 10000 };
    mp_device *device = NULL;
    mp_stream *stream = NULL;
    void *memory[3] = {0};
    moepage_status status = mp_device_open("host", &config, &device);
    if (status)
        return status;
    for (uint32_t kind = 0; kind < 3 && !status; kind++)
        status = device->ops->alloc(device, (mp_memory_kind)kind, BYTES, &memory[kind]);
    if (!status)
        status = device->ops->stream_create(device, MP_STREAM_DEMAND, &stream);
    if (stream)
        device->ops->stream_destroy(stream);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_device_survives_one_failed_allocation),
        cmocka_unit_test(test_host_device_survives_all_allocations_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
