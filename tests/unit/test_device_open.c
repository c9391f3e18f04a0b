/* Opening and closing devices through the public functions: the budget's arithmetic, refusals. */
#include <string.h>

#include "arena/home.h"
#include "testing.h"

#define MIB (1ull << 20)

static moepage_device_config config_of(uint64_t budget, uint64_t workspace)
{
    return (moepage_device_config){
        .struct_size = sizeof(moepage_device_config),
        .threads = 1,
        .budget_bytes = budget,
        .workspace_bytes = workspace,
    };
}

static moepage_device_info open_and_ask(uint64_t budget, uint64_t workspace)
{
    moepage_device_config config = config_of(budget, workspace);
    moepage_device_info info = {.struct_size = sizeof info};
    moepage_device *device;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_string_equal(info.name, "host");
    assert_non_null(info.kernels);
    assert_int_equal(info.threads, 1);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    return info;
}

static void test_device_open_splits_the_budget_into_workspace_and_pages_of_arena(void **state)
{
    (void)state;
    moepage_device_info info = open_and_ask(100000, 20000);
    assert_int_equal(info.budget_bytes, 100000);
    assert_int_equal(info.workspace_bytes, 20000);
    assert_int_equal(info.arena_bytes, 19 * 4096);
    assert_int_equal(info.used_bytes, 0);
    assert_int_equal(info.peak_bytes, 0);
    info = open_and_ask(32 * MIB, 0);
    assert_int_equal(info.workspace_bytes, 2 * MIB);
    assert_int_equal(info.arena_bytes, 30 * MIB);
}

static void test_device_open_refuses_budgets_without_room_for_an_arena(void **state)
{
    (void)state;
    const struct {
        uint64_t budget, workspace;
    } bad[] = {{0, 0}, {0, 4096}, {8192, 8192}, {8192, 16384}, {8192, 4097}, {4096, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        moepage_device_config config = config_of(bad[i].budget, bad[i].workspace);
        moepage_device *device = NULL;
        assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_BUDGET);
        assert_non_null(strstr(moepage_last_error(), "budget_bytes"));
        assert_null(device);
    }
}

static void test_device_open_refuses_bad_arguments(void **state)
{
    (void)state;
    moepage_device_config config = config_of(MIB, 0);
    moepage_device *device = NULL;
    assert_int_equal(moepage_device_open(NULL, &config, &device), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_device_open("host", &config, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_device_open("host", NULL, &device), MOEPAGE_E_BUDGET);
    assert_int_equal(moepage_device_open("toaster", &config, &device), MOEPAGE_E_NOT_FOUND);
    config.ranges = 2;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_ARGUMENT);
    config.ranges = 1;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "\"host\""));
    config.ranges = 0;
    config.io_threads = 65;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_ARGUMENT);
    config.struct_size = 8;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_VERSION);
    assert_null(device);
    assert_int_equal(moepage_device_close(NULL), MOEPAGE_OK);
    assert_int_equal(moepage_device_get_info(NULL, NULL), MOEPAGE_E_ARGUMENT);
}

/* Programs built before there were threads for I/O. */
static void test_device_open_takes_the_config_as_it_was_first_published(void **state)
{
    (void)state;
    moepage_device_config config = config_of(MIB, 0);
    moepage_device *device = NULL;
    config.struct_size = 48;
    config.io_threads = 65; /* not theirs to set */
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
    assert_int_equal(device->device->io_threads, 4);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    config.struct_size = 47;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_VERSION);
}

static void test_device_close_waits_for_its_pools(void **state)
{
    (void)state;
    moepage_device_config config = config_of(MIB, 0);
    moepage_device *device;
    moepage_kv_pool *pool;
    const uint32_t bytes[] = {64};
    moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                 .layers = 1,
                                 .bytes_per_token = bytes,
                                 .blocks = 100};
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_create(device, &kv, &pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_E_BUSY);
    assert_string_equal(moepage_last_error(),
                        "1 pool or PagedTensor still lives on the device: destroy it first");

    moepage_device_info info = {.struct_size = sizeof info};
    moepage_kv_pool_info pool_info = {.struct_size = sizeof pool_info};
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_get_info(pool, &pool_info), MOEPAGE_OK);
    assert_int_equal(info.arena_kv_bytes, pool_info.blocks * pool_info.block_bytes);
    assert_int_equal(info.used_bytes, info.arena_kv_bytes);
    assert_int_equal(info.arena_expert_bytes, 0);

    assert_int_equal(moepage_kv_pool_get_info((moepage_kv_pool *)device, &pool_info),
                     MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_device_get_info((moepage_device *)pool, &info), MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_kv_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_get_info(pool, &pool_info), MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

static void test_device_keeps_the_peak_and_returns_the_bytes(void **state)
{
    (void)state;
    moepage_device_config config = config_of(MIB, 65536);
    moepage_device_info info = {.struct_size = sizeof info};
    moepage_device *device;
    void *scratch;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
    assert_int_equal(mp_home_workspace_alloc(device, 65536, &scratch), MOEPAGE_OK);
    memset(scratch, 1, 65536);
    assert_int_equal(mp_arena_attach(&device->arena, MP_SIDE_KV, 4096), MOEPAGE_OK);
    assert_int_equal(mp_arena_resize(&device->arena, MP_SIDE_KV, 240), MOEPAGE_OK);
    memset(device->arena.base, 1, device->arena.bytes);
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_int_equal(info.used_bytes, MIB);
    mp_arena_detach(&device->arena, MP_SIDE_KV);
    mp_home_workspace_free(device, scratch, 65536);
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_int_equal(info.used_bytes, 0);
    assert_int_equal(info.peak_bytes, MIB);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_open_splits_the_budget_into_workspace_and_pages_of_arena),
        cmocka_unit_test(test_device_open_refuses_budgets_without_room_for_an_arena),
        cmocka_unit_test(test_device_open_refuses_bad_arguments),
        cmocka_unit_test(test_device_open_takes_the_config_as_it_was_first_published),
        cmocka_unit_test(test_device_close_waits_for_its_pools),
        cmocka_unit_test(test_device_keeps_the_peak_and_returns_the_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
