/* A budget that moves on a CUDA device over the simulated driver, which counts memory: whole handles are released and
 * created again, and a driver that refuses leaves the old budget. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "bank_model.h"
#include "gpu.h"
#include "sim_cuda.h"
#include "testing.h"

enum { MIB = 1 << 20, HANDLE = 2 * MIB, WORKSPACE = 2 * MIB, MOST = 64 * MIB };

#define OK(call) assert_int_equal(call, MOEPAGE_OK)

static struct moepage_device *home;

static bool said(const char *words)
{
    bool is_said = strstr(moepage_last_error(), words) != NULL;
    if (!is_said)
        print_message("it said: %s\n", moepage_last_error());
    return is_said;
}

static moepage_device_info info_of_home(void)
{
    moepage_device_info info = MOEPAGE_DEVICE_INFO();
    OK(moepage_device_get_info(home, &info));
    return info;
}

static moepage_status try_open(const sim_cuda_config *config, uint64_t arena, uint64_t most)
{
    const mp_cuda_driver *driver = sim_cuda_open(config);
    moepage_device_config device =
        MOEPAGE_DEVICE_CONFIG(.budget_bytes = arena + WORKSPACE,
                              .max_budget_bytes = most + WORKSPACE, .workspace_bytes = WORKSPACE,
                              .reserve_bytes = 4 * MIB);
    mp_device *opened = NULL;
    OK(mp_cuda_device_open(driver, NULL, "the simulation has no cuBLAS", sim_images, sim_n_images,
                           0, &device, &opened));
    home = NULL;
    moepage_status status = mp_home_open(opened, &device, &home);
    if (status)
        opened->ops->close(opened);
    return status;
}

static void close_home(void)
{
    OK(moepage_device_close(home));
    assert_int_equal(sim_cuda_get_stats().allocated, 0);
    sim_cuda_close();
}

static uint64_t allocated(void)
{
    return sim_cuda_get_stats().allocated;
}

static moepage_status set(uint64_t arena)
{
    return moepage_device_set_budget(home, arena + WORKSPACE, NULL);
}

static void test_cuda_budget_releases_and_creates_whole_handles(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {MOST,     10 * MIB, 10 * MIB + 4096, 2 * MIB,
                                     33 * MIB, MOST,     20 * MIB};
    OK(try_open(NULL, 20 * MIB, MOST));
    assert_int_equal(allocated(), 20 * MIB);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        OK(set(sizes[i]));
        assert_int_equal(allocated(), sizes[i] / HANDLE * HANDLE);
        assert_int_equal(info_of_home().arena_bytes, allocated());
        assert_int_equal(info_of_home().budget_bytes, sizes[i] + WORKSPACE);
    }
    assert_int_equal(set(HANDLE - 1), MOEPAGE_E_BUDGET);
    close_home();
    /* The hole of a device that was whole at first; its last handle may be smaller than the others. */
    OK(try_open(NULL, 301 * MIB, 301 * MIB));
    const uint64_t whole = allocated();
    assert_int_equal(home->arena.part, 4 * MIB);
    OK(set(100 * MIB));
    assert_true(allocated() <= 100 * MIB && allocated() > 96 * MIB);
    OK(set(301 * MIB));
    assert_int_equal(allocated(), whole);
    close_home();
}

static void check_ends(uint64_t experts, uint64_t kv)
{
    unsigned char *base = home->arena.base;
    assert_true(!experts || sim_cuda_accessible(base, experts));
    assert_true(!kv || sim_cuda_accessible(base + home->arena.bytes - kv, kv));
}

/* Between two sides that move, memory is always where they are. */
static void test_cuda_budget_memory_moves_between_sides(void **state)
{
    (void)state;
    mp_arena *arena;
    OK(try_open(NULL, 20 * MIB, MOST));
    arena = &home->arena;
    OK(mp_arena_attach(arena, MP_SIDE_EXPERTS, MIB));
    OK(mp_arena_attach(arena, MP_SIDE_KV, MIB));
    for (uint32_t i = 0; i <= 40; i++) {
        uint64_t experts = i % 21 / 2 * 2, kv = 20 - experts;
        OK(mp_arena_resize(arena, MP_SIDE_EXPERTS, 0));
        OK(mp_arena_resize(arena, MP_SIDE_KV, i % 2 ? kv : 0));
        OK(mp_arena_resize(arena, MP_SIDE_EXPERTS, experts));
        OK(mp_arena_resize(arena, MP_SIDE_KV, kv));
        check_ends(experts * MIB, kv * MIB);
        assert_int_equal(allocated(), 20 * MIB);
        assert_int_equal(mp_arena_resize(arena, MP_SIDE_KV, kv + 1), MOEPAGE_E_BUDGET);
    }
    mp_arena_detach(arena, MP_SIDE_EXPERTS);
    mp_arena_detach(arena, MP_SIDE_KV);
    close_home();
}

/* Each call that growing makes, refused in turn. */
static void test_cuda_budget_that_the_driver_refuses_stays(void **state)
{
    (void)state;
    static const sim_cuda_call calls[] = {SIM_mem_create, SIM_mem_map, SIM_mem_set_access};
    OK(try_open(NULL, 20 * MIB, MOST));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (uint64_t nth = 1; nth <= (calls[i] == SIM_mem_set_access ? 1 : 5); nth++) {
            sim_cuda_fail(calls[i], nth, MP_CU_OUT_OF_MEMORY, false);
            assert_int_equal(set(30 * MIB), MOEPAGE_E_NO_MEMORY);
            assert_true(said("are free: ask for a smaller budget"));
            sim_cuda_fail_none();
            assert_int_equal(allocated(), 20 * MIB);
            assert_int_equal(info_of_home().budget_bytes, 20 * MIB + WORKSPACE);
            assert_int_equal(info_of_home().budget_aim_bytes, 20 * MIB + WORKSPACE);
        }
    OK(set(30 * MIB));
    assert_int_equal(allocated(), 30 * MIB);
    close_home();
    const sim_cuda_config small = {.gpus = {{.bytes = 50 * MIB}}};
    OK(try_open(&small, 20 * MIB, MOST));
    assert_int_equal(set(60 * MIB), MOEPAGE_E_NO_MEMORY);
    assert_true(said("the arena takes"));
    assert_int_equal(allocated(), 20 * MIB);
    close_home();
}

static void test_cuda_budget_of_an_arena_in_one_piece_stays(void **state)
{
    (void)state;
    const sim_cuda_config config = {.gpus = {{.no_vmm = true}}};
    assert_int_equal(try_open(&config, 20 * MIB, MOST), MOEPAGE_E_UNSUPPORTED);
    assert_true(said("one allocation and max_budget_bytes must be the budget"));
    sim_cuda_close();
    OK(try_open(&config, 20 * MIB, 20 * MIB));
    assert_int_equal(set(10 * MIB), MOEPAGE_E_UNSUPPORTED);
    assert_true(said("the budget cannot move"));
    close_home();
}

static void test_cuda_budget_follows_what_the_driver_has_free(void **state)
{
    (void)state;
    const sim_cuda_config config = {.gpus = {{.bytes = 60 * MIB}}};
    void *others = NULL;
    OK(try_open(&config, 20 * MIB, MOST));
    OK(moepage_device_follow_memory(home, NULL));
    size_t free_bytes = 0, total_bytes = 0;
    mp_cuda *cuda = mp_cuda_of(home->device);
    OK(mp_cuda_enter(cuda));
    cuda->driver->mem_info(&free_bytes, &total_bytes);
    mp_cuda_leave(cuda);
    /* The reserve, the workspace that nobody uses yet, and less than a handle. */
    const uint64_t left = 4 * MIB + WORKSPACE;
    assert_true(free_bytes >= left && free_bytes < left + HANDLE);
    const uint64_t before = allocated();
    OK(home->device->ops->alloc(home->device, MP_MEMORY_WORKSPACE, free_bytes - MIB, &others));
    OK(moepage_device_follow_memory(home, NULL));
    assert_true(allocated() - (free_bytes - MIB) < before);
    home->device->ops->free(home->device, MP_MEMORY_WORKSPACE, others, free_bytes - MIB);
    OK(moepage_device_follow_memory(home, NULL));
    assert_int_equal(allocated(), before);
    close_home();
}

static atomic_bool stop;

static void *read_info(void *of)
{
    while (!atomic_load(&stop)) {
        moepage_cuda_info info = MOEPAGE_CUDA_INFO();
        assert_int_equal(moepage_cuda_get_info(of, &info), MOEPAGE_OK);
        assert_true(info.handle_ns > 0);
    }
    return NULL;
}

static void test_cuda_budget_moves_while_others_read_info(void **state)
{
    (void)state;
    pthread_t reader;
    OK(try_open(NULL, 20 * MIB, MOST));
    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&reader, NULL, read_info, home), 0);
    for (uint32_t i = 0; i < 20; i++)
        OK(set(i % 2 ? MOST : 10 * MIB));
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(reader, NULL), 0);
    close_home();
}

/* An arena that loses its GPU is given back all the same. */
static void test_cuda_budget_of_a_dead_device_fails(void **state)
{
    (void)state;
    OK(try_open(NULL, 20 * MIB, MOST));
    sim_cuda_break(0, MP_CU_ILLEGAL_ADDRESS);
    assert_int_equal(set(30 * MIB), MOEPAGE_E_DEVICE);
    assert_int_equal(info_of_home().budget_bytes, 20 * MIB + WORKSPACE);
    OK(moepage_device_close(home));
    sim_cuda_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_budget_releases_and_creates_whole_handles),
        cmocka_unit_test(test_cuda_budget_memory_moves_between_sides),
        cmocka_unit_test(test_cuda_budget_that_the_driver_refuses_stays),
        cmocka_unit_test(test_cuda_budget_of_an_arena_in_one_piece_stays),
        cmocka_unit_test(test_cuda_budget_follows_what_the_driver_has_free),
        cmocka_unit_test(test_cuda_budget_moves_while_others_read_info),
        cmocka_unit_test(test_cuda_budget_of_a_dead_device_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
