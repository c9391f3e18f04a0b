/* What a miss costs on a device that waits by itself: what the bus takes for an expert, and not what its submission
 * takes. Over the simulated driver, whose copies take their time. */
#include <stdlib.h>

#include "control_rig.h"
#include "sim_cuda.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 12
#define TOP_K 2
#define STEPS 10
#define LOAD_S 0.008

static control_rig rig;

/* Each step needs experts that the one before has not used. */
static void run_steps(uint32_t n)
{
    for (uint32_t s = 0; s < n; s++) {
        const int32_t ids[TOP_K] = {(int32_t)(s * TOP_K % EXPERTS),
                                    (int32_t)((s * TOP_K + 1) % EXPERTS)};
        control_rig_step(&rig, 0, LAYERS, ids, TOP_K, NULL, 0);
    }
}

/* With everything pinned in a host tier. */
static void open_rig(void)
{
    control_rig_open(&rig,
                     &(control_rig_config){.bank = {.layers = LAYERS,
                                                    .experts = EXPERTS,
                                                    .top_k = TOP_K,
                                                    .hidden = 128,
                                                    .intermediate = 64,
                                                    .dtype = MOEPAGE_DTYPE_BF16,
                                                    .pack_forms = 1u << MOEPAGE_FORM_DENSE,
                                                    .seed = 3},
                                           .pool = {.slots = 8, .host_experts = LAYERS * EXPERTS},
                                           .regime = MOEPAGE_REGIME_CACHE});
}

static void test_cuda_costs_of_a_miss_are_the_bus_s(void **state)
{
    (void)state;
    moepage_model_info model = {.struct_size = sizeof model};
    open_rig();
    assert_int_equal(moepage_model_get_info(rig.bank.model, &model), MOEPAGE_OK);
    sim_cuda_bus((uint64_t)((double)model.slot_bytes / LOAD_S));
    run_steps(STEPS);
    control_rig_attach(&rig, (moepage_controller_config){0});
    run_steps(STEPS);
    const moepage_controller_info info = control_rig_info(&rig);
    const moepage_expert_pool_info pool = pool_rig_info(&rig.pools);
    sim_cuda_bus(0);
    assert_true(pool.misses >= 2 * STEPS * TOP_K * LAYERS - 8);
    const double bus_ns = (double)model.slot_bytes / (double)pool.live_bus_bytes_per_s * 1e9;
    print_message("a miss: %.3f ms; the bus: %.3f ms\n", info.expert_miss_ns / 1e6, bus_ns / 1e6);
    assert_true(bus_ns >= 0.9 * LOAD_S * 1e9); /* no copy is faster than that */
    assert_true(info.expert_miss_ns >= 0.75 * bus_ns && info.expert_miss_ns <= 1.25 * bus_ns);
    control_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_costs_of_a_miss_are_the_bus_s),
    };
    setenv("MP_TEST_DEVICE", "sim", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
