/* The CUDA device when the driver, memory or threads fail at any one point of opening it and taking
 * memory: a status with a sentence, and nothing left behind (the simulated driver looks, and
 * AddressSanitizer does for the host's memory). */
#include <string.h>

#include <pthread.h>
#include <stdlib.h>

#include "base/status.h"
#include "device/host_memory.h"
#include "device/thread.h"
#include "gpu.h"
#include "sim_cuda.h"
#include "testing.h"

/* ---- The host's memory and threads ---- */

void *__real_mp_alloc(size_t bytes);
void *__real_mp_realloc(void *block, size_t bytes);
void *__wrap_mp_alloc(size_t bytes);
void *__wrap_mp_realloc(void *block, size_t bytes);
moepage_status __real_mp_thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                                      void *arg);
moepage_status __wrap_mp_thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                                      void *arg);

/* Since the last arm(): what was asked for, and which one fails; 0 = none does. */
static struct {
    uint32_t allocs, starts, fail_alloc, fail_start;
} host;

static void arm(uint32_t fail_alloc, uint32_t fail_start)
{
    host.allocs = host.starts = 0;
    host.fail_alloc = fail_alloc;
    host.fail_start = fail_start;
}

void *__wrap_mp_alloc(size_t bytes)
{
    return ++host.allocs == host.fail_alloc ? NULL : __real_mp_alloc(bytes);
}

void *__wrap_mp_realloc(void *block, size_t bytes)
{
    return ++host.allocs == host.fail_alloc ? NULL : __real_mp_realloc(block, bytes);
}

moepage_status __wrap_mp_thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                                      void *arg)
{
    if (++host.starts != host.fail_start)
        return __real_mp_thread_start(out, name, run, arg);
    mp_error_set("thread %s was told not to start", name);
    return MOEPAGE_E_NO_MEMORY;
}

/* Mappings of host memory, which no sanitizer counts. */
moepage_status __real_mp_host_memory_map(mp_executor *executor, uint32_t n_parts, int32_t node,
                                         uint64_t bytes, mp_host_memory *out);
moepage_status __wrap_mp_host_memory_map(mp_executor *executor, uint32_t n_parts, int32_t node,
                                         uint64_t bytes, mp_host_memory *out);
void __real_mp_host_memory_unmap(const mp_host_memory *memory);
void __wrap_mp_host_memory_unmap(const mp_host_memory *memory);

static int32_t mappings;

moepage_status __wrap_mp_host_memory_map(mp_executor *executor, uint32_t n_parts, int32_t node,
                                         uint64_t bytes, mp_host_memory *out)
{
    moepage_status status = __real_mp_host_memory_map(executor, n_parts, node, bytes, out);
    mappings += !status;
    return status;
}

void __wrap_mp_host_memory_unmap(const mp_host_memory *memory)
{
    mappings--;
    __real_mp_host_memory_unmap(memory);
}

/* ---- The device ---- */

enum { MIB = 1 << 20, ARENA = 7 * MIB, BYTES = 10000 };

static const mp_cuda_driver *driver;

typedef struct taken {
    mp_device *device;
    void *memory[3];
    mp_host_memory tier;
    mp_cuda_shared shared;
    void *views;
    bool mapped;
    mp_cuda_poller *poller;
} taken;

static bool look(void *user)
{
    (void)user;
    return false;
}

/* Everything that takes something, as far as it goes. */
static moepage_status take(taken *t)
{
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .threads = 2,
                                          .io_threads = 1,
                                          .budget_bytes = MIB};
    moepage_status status =
        mp_cuda_device_open(driver, NULL, "", sim_images, sim_n_images, 0, &config, &t->device);
    if (status)
        return status;
    const mp_device_ops *ops = t->device->ops;
    for (uint32_t kind = 0; kind < 3 && !status; kind++)
        status =
            ops->alloc(t->device, (mp_memory_kind)kind, kind ? BYTES : ARENA, &t->memory[kind]);
    if (!status)
        status = ops->host_map(t->device, BYTES, &t->tier);
    if (!status)
        status = ops->cuda->shared_alloc(t->device, BYTES, &t->shared);
    const uint64_t unit = t->device->view_bytes; /* 0 when the arena had to be in one piece */
    if (!status && unit)
        status = ops->view_reserve(t->device, 2 * unit, &t->views);
    if (!status && unit)
        status = ops->view_map(t->device, t->views, unit, 2 * unit);
    t->mapped = !status && unit;
    if (!status)
        status = ops->cuda->poller_start(t->device, look, NULL, &t->poller);
    return status;
}

static void give_back(taken *t)
{
    assert_int_equal(mappings, t->tier.base != NULL);
    if (!t->device)
        return;
    const mp_device_ops *ops = t->device->ops;
    ops->cuda->poller_stop(t->poller);
    const uint64_t unit = t->device->view_bytes;
    if (t->mapped)
        ops->view_unmap(t->device, t->views, 2 * unit);
    if (t->views)
        ops->view_release(t->device, t->views, 2 * unit);
    if (t->shared.host)
        ops->cuda->shared_free(t->device, &t->shared);
    if (t->tier.base)
        ops->host_unmap(t->device, &t->tier);
    for (uint32_t kind = 0; kind < 3; kind++) {
        if (t->memory[kind])
            ops->free(t->device, (mp_memory_kind)kind, t->memory[kind], kind ? BYTES : ARENA);
    }
    ops->close(t->device);
}

/* Takes all, with whatever fault is armed, and gives back. sim_cuda_close looks for what is
 * left. */
static moepage_status round_trip(void)
{
    taken t = {0};
    mp_error_set("no sentence");
    moepage_status status = take(&t);
    if (status && !strcmp(moepage_last_error(), "no sentence"))
        fail_msg("status %d without a sentence", status);
    sim_cuda_fail_none();
    arm(0, 0);
    give_back(&t);
    return status;
}

/* ---- The tests ---- */

/* Calls that give something back: all that can be done about their failure is to log it. */
static bool gives_back(sim_cuda_call call)
{
    return call == SIM_context_pop || call == SIM_context_release || call == SIM_capture_mode;
}

/* Calls whose failure the device may live with: it has another way, or does not need the answer. */
static bool has_another_way(sim_cuda_call call)
{
    switch (call) {
    case SIM_device_attribute: /* the NUMA node alone */
    case SIM_granularity:
    case SIM_address_reserve:
    case SIM_mem_create:
    case SIM_mem_map:
    case SIM_mem_set_access:
    case SIM_host_register: /* out of memory alone */
    case SIM_error_name:
    case SIM_error_string: return true;
    default: return false;
    }
}

/* The nth of each kind of call, one after the other; out of memory first, or second. */
static void fail_each_call(uint32_t turn)
{
    static const mp_cu_result results[] = {MP_CU_OUT_OF_MEMORY, MP_CU_INVALID_VALUE};
    uint32_t failures = 0;
    for (uint32_t call = 0; call < SIM_CALLS; call++) {
        uint64_t calls = 1; /* that taking all makes */
        for (uint64_t nth = 1; nth <= calls && !gives_back((sim_cuda_call)call); nth++) {
            driver = sim_cuda_open(NULL);
            sim_cuda_fail((sim_cuda_call)call, nth, results[(nth + turn) % 2], false);
            taken t = {0};
            mp_error_set("no sentence");
            moepage_status status = take(&t);
            uint64_t made = sim_cuda_get_stats().calls[call];
            sim_cuda_fail_none();
            calls = made > calls ? made : calls;
            if (status) {
                failures++;
                assert_string_not_equal(moepage_last_error(), "no sentence");
            } else if (made >= nth && !has_another_way((sim_cuda_call)call)) {
                fail_msg("%s %u was to fail, and nothing came of it",
                         sim_cuda_call_name((sim_cuda_call)call), (unsigned)nth);
            }
            give_back(&t);
            sim_cuda_close();
        }
    }
    assert_true(failures > 10);
}

static void test_cuda_device_leaves_nothing_when_a_driver_call_fails(void **state)
{
    (void)state;
    fail_each_call(1);
    if (getenv("MP_TEST_LONG"))
        fail_each_call(0);
}

/* As when a kernel of the program's own faults meanwhile: the context is lost, with all in it. */
static void test_cuda_device_is_given_back_when_the_gpu_fails(void **state)
{
    (void)state;
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        driver = sim_cuda_open(NULL);
        sim_cuda_fail_any(nth, MP_CU_ILLEGAL_ADDRESS, false);
        moepage_status status = round_trip();
        failed = status != MOEPAGE_OK;
        assert_true(!failed || status == MOEPAGE_E_DEVICE);
        assert_true(nth > 1 || failed);
        sim_cuda_close();
    }
}

static void test_cuda_device_leaves_nothing_when_host_memory_or_threads_run_out(void **state)
{
    (void)state;
    driver = sim_cuda_open(NULL);
    taken t = {0};
    arm(0, 0);
    assert_int_equal(take(&t), MOEPAGE_OK);
    const uint32_t allocs = host.allocs, starts = host.starts;
    give_back(&t);
    assert_true(allocs >= 4 && starts >= 3);
    for (uint32_t i = 1; i <= allocs + starts; i++) {
        arm(i <= allocs ? i : 0, i <= allocs ? 0 : i - allocs);
        assert_int_equal(round_trip(), MOEPAGE_E_NO_MEMORY);
    }
    sim_cuda_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_device_leaves_nothing_when_a_driver_call_fails),
        cmocka_unit_test(test_cuda_device_is_given_back_when_the_gpu_fails),
        cmocka_unit_test(test_cuda_device_leaves_nothing_when_host_memory_or_threads_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
