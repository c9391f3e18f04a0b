/* What profilers are told of a CUDA device's work, over the simulated driver: ranges are counted at
 * the seam, so that neither a profiler nor NVIDIA's header is needed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "device_rig.h"
#include "gpu.h"
#include "pool_rig.h"
#include "sim_cuda.h"
#include "testing.h"

#define HIDDEN 16
#define EXPERTS 6

/* ---- a profiler that counts ---- */

enum { DEMAND, PREFETCH, DECODE, RUN, NAMES };

static _Atomic uint64_t pushed[NAMES], amounts[NAMES], popped, strangers;
static _Thread_local int depth;

static void count_push(const char *name, uint64_t amount)
{
    static const char *const names[NAMES] = {MP_CUDA_RANGE_DEMAND, MP_CUDA_RANGE_PREFETCH,
                                             MP_CUDA_RANGE_DECODE, MP_CUDA_RANGE_EXPERTS};
    int which = 0;
    while (which < NAMES && strcmp(names[which], name) != 0)
        which++;
    atomic_fetch_add(&strangers, which == NAMES || depth++ != 0);
    if (which == NAMES)
        return;
    atomic_fetch_add(&pushed[which], 1);
    atomic_fetch_add(&amounts[which], amount);
}

static void count_pop(void)
{
    atomic_fetch_add(&strangers, --depth != 0);
    atomic_fetch_add(&popped, 1);
}

static const mp_cuda_ranges counting = {.push = count_push, .pop = count_pop};

static void begin_counting(moepage_device *device)
{
    for (int i = 0; i < NAMES; i++) {
        atomic_store(&pushed[i], 0);
        atomic_store(&amounts[i], 0);
    }
    atomic_store(&popped, 0);
    mp_cuda_of(device->device)->ranges = &counting;
}

static uint64_t all_pushed(void)
{
    uint64_t n = 0;
    for (int i = 0; i < NAMES; i++)
        n += atomic_load(&pushed[i]);
    return n;
}

/* ---- the claims ---- */

/* What the step's x and y take besides: the rig moves them by a DEMAND stream too. */
enum { OWN = 2 * HIDDEN * sizeof(float) };

/* One step of `n` experts of layer 0; waits for it on the device. */
static void run_step(pool_rig *rig, moepage_session *session, const int32_t *ids, uint32_t n)
{
    float zeros[HIDDEN] = {0};
    moepage_device *device = rig->devices[0];
    float *x = device_rig_alloc(device, sizeof zeros), *y = device_rig_alloc(device, sizeof zeros);
    device_rig_write(device, x, zeros, sizeof zeros);
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, ids, n, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    device_rig_read(device, y, zeros, sizeof zeros);
    device_rig_free(device, x, sizeof zeros);
    device_rig_free(device, y, sizeof zeros);
}

static void decode_one(moepage_device *home)
{
    mp_device *device = home->device;
    void *src = device_rig_alloc(home, 256), *dst = device_rig_alloc(home, 256);
    const mp_decode_job job = {
        .src = src, .src_bytes = 256, .dst = dst, .elements = 128, .form = MOEPAGE_FORM_DENSE};
    const mp_kernel_decode_args args = {.jobs = &job, .n_jobs = 1};
    mp_stream *stream = NULL;
    mp_tick tick;
    device_rig_write(home, src, (unsigned char[256]){1, 2, 3}, 256);
    assert_int_equal(device->ops->stream_create(device, MP_STREAM_COMPUTE, &stream), MOEPAGE_OK);
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_DECODE, &args, &tick), MOEPAGE_OK);
    assert_int_equal(device->ops->sync(stream, tick), MOEPAGE_OK);
    device->ops->stream_destroy(stream);
    device_rig_free(home, src, 256);
    device_rig_free(home, dst, 256);
}

/* From a host tier, pinned; and out of the caller's memory, by way of the feeders. */
static void test_cuda_ranges_name_loads_decodes_and_experts(void **state)
{
    (void)state;
    for (uint32_t tier = 0; tier < 2; tier++) {
        bank_model bank;
        pool_rig rig;
        const bank_shape shape = {.layers = 1,
                                  .experts = EXPERTS,
                                  .top_k = 2,
                                  .hidden = HIDDEN,
                                  .intermediate = 16,
                                  .dtype = MOEPAGE_DTYPE_BF16,
                                  .seed = 9};
        bank_model_open(&bank, &shape);
        pool_rig_open(&rig, &bank,
                      &(pool_rig_config){.slots = EXPERTS, .host_experts = tier ? EXPERTS : 0});
        moepage_session *session =
            pool_rig_session(&rig, &(moepage_session_config){.max_tokens = 1,
                                                             .prefetch = MOEPAGE_PREFETCH_HINT});
        begin_counting(rig.devices[0]);
        run_step(&rig, session, (int32_t[]){1, 4}, 2);
        assert_int_equal(atomic_load(&amounts[DEMAND]), pool_rig_info(&rig).demand_bytes + OWN);
        assert_int_equal(atomic_load(&amounts[RUN]), 2);
        assert_int_equal(moepage_session_hint(session, 0, (int32_t[]){2, 3}, 2), MOEPAGE_OK);
        pool_rig_wait(&rig);
        assert_int_equal(atomic_load(&amounts[PREFETCH]), pool_rig_info(&rig).prefetch_bytes);
        assert_true(atomic_load(&amounts[PREFETCH]) > 0);
        run_step(&rig, session, (int32_t[]){2, 3}, 2); /* nothing is loaded */
        assert_int_equal(atomic_load(&amounts[DEMAND]), pool_rig_info(&rig).demand_bytes + 2 * OWN);
        assert_int_equal(atomic_load(&amounts[RUN]), 4);
        assert_int_equal(atomic_load(&pushed[DECODE]), 0);
        decode_one(rig.devices[0]);
        assert_int_equal(atomic_load(&pushed[DECODE]), 1);
        assert_int_equal(atomic_load(&amounts[DECODE]), 1);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        pool_rig_close(&rig);
        bank_model_close(&bank);
        assert_int_equal(atomic_load(&popped), all_pushed());
        assert_int_equal(atomic_load(&strangers), 0);
    }
}

/* Without the request nothing is reported; with it the device uses NVTX, or reports that NVTX is
 * missing. */
static void test_cuda_ranges_are_nvtx_or_refused(void **state)
{
    (void)state;
    const mp_cuda_driver *driver = sim_cuda_open(NULL);
    for (uint32_t asked = 0; asked < 2; asked++) {
        const moepage_device_config config = {.struct_size = sizeof config,
                                              .budget_bytes = 1 << 20,
                                              .ranges = asked};
        mp_device *device = NULL;
        moepage_status status =
            mp_cuda_device_open(driver, NULL, "", sim_images, sim_n_images, 0, &config, &device);
        const mp_cuda_ranges *found = mp_cuda_ranges_find();
        if (asked && !found) {
            assert_int_equal(status, MOEPAGE_E_UNSUPPORTED);
            assert_non_null(strstr(moepage_last_error(), "nvtx3/nvToolsExt.h"));
            assert_null(device);
            continue;
        }
        assert_int_equal(status, MOEPAGE_OK);
        assert_ptr_equal(mp_cuda_of(device)->ranges, asked ? found : NULL);
        mp_cuda_range_push(mp_cuda_of(device)->ranges, "nobody listens", 1);
        mp_cuda_range_pop(mp_cuda_of(device)->ranges, "nobody listens");
        device->ops->close(device);
    }
    sim_cuda_close();
}

static void test_cuda_ranges_are_refused_by_other_devices(void **state)
{
    (void)state;
    moepage_device_config config = {.struct_size = sizeof config,
                                    .budget_bytes = 1 << 20,
                                    .ranges = 1};
    moepage_device *device = NULL;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "ranges"));
    config.ranges = 2;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_ARGUMENT);
    assert_null(device);
}

int main(void)
{
    setenv("MP_TEST_DEVICE", "sim", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_ranges_name_loads_decodes_and_experts),
        cmocka_unit_test(test_cuda_ranges_are_nvtx_or_refused),
        cmocka_unit_test(test_cuda_ranges_are_refused_by_other_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
