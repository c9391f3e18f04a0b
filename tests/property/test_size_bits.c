/* Two users decode while their working sets bound the experts' slots: outputs have the bits of a run whose slots stay. */
#include <string.h>

#include "bank_model.h"
#include "device_rig.h"
#include "features/shared_predictor.h"
#include "testing.h"

enum {
    LAYERS = 2,
    EXPERTS = 16,
    TOP_K = 2,
    HIDDEN = 32,
    STEPS = 400,
    USERS = 2,
    SUPPORT = 5, /* experts of a user, from 0 and from 4 */
    BLOCKS = 8,
    BLOCK_TOKENS = 4,
};

typedef struct outputs {
    float y[STEPS][USERS][LAYERS][HIDDEN];
} outputs;

static bank_model bank;
static moepage_device *device;
static moepage_expert_pool *experts;
static moepage_kv_pool *kv;
static moepage_predictor *predictors[USERS];
static mp_predict_context contexts[USERS];
static moepage_session *sessions[USERS];
static moepage_controller *controller;
static float *x, *y;

#define OK(call) assert_int_equal(call, MOEPAGE_OK)

static void open_all(uint32_t permille)
{
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    OK(moepage_model_get_info(bank.model, &info));
    const uint32_t token_bytes = (uint32_t)(info.slot_bytes / BLOCK_TOKENS);
    const uint64_t arena = (LAYERS * EXPERTS + BLOCKS) * info.slot_bytes;
    device = device_rig_open(&MOEPAGE_DEVICE_CONFIG(.threads = 2, .budget_bytes = arena + (4 << 20),
                                                    .workspace_bytes = 4 << 20));
    OK(moepage_kv_pool_create(device,
                              &MOEPAGE_KV_POOL_CONFIG(.block_tokens = BLOCK_TOKENS, .layers = 1,
                                                      .bytes_per_token = &token_bytes,
                                                      .blocks_per_granule = 1, .blocks = BLOCKS),
                              &kv));
    OK(moepage_expert_pool_create(&device, 1, bank.model, &MOEPAGE_EXPERT_POOL_CONFIG(.slots = 0),
                                  &experts));
    for (int i = 0; i < USERS; i++) {
        OK(moepage_predictor_create(bank.model, &MOEPAGE_PREDICTOR_CONFIG(.name = "coactivation"),
                                    &predictors[i]));
        OK(mp_predictor_context_open(predictors[i], &contexts[i]));
        mp_predictor_request(predictors[i], &contexts[i]);
        OK(moepage_session_create(experts, kv, &MOEPAGE_SESSION_CONFIG(.max_tokens = 1),
                                  &sessions[i]));
    }
    OK(moepage_controller_create(
        experts, kv,
        &MOEPAGE_CONTROLLER_CONFIG(.mode = permille ? MOEPAGE_CONTROL_DUAL_RESIZE
                                                    : MOEPAGE_CONTROL_OBSERVE,
                                   .burst_steps = 20),
        &controller));
    if (permille)
        OK(moepage_controller_rightsize(controller, predictors, USERS, permille));
    x = device_rig_alloc(device, HIDDEN * sizeof *x);
    y = device_rig_alloc(device, HIDDEN * sizeof *y);
}

static void close_all(void)
{
    device_rig_free(device, x, HIDDEN * sizeof *x);
    device_rig_free(device, y, HIDDEN * sizeof *y);
    OK(moepage_controller_destroy(controller));
    for (int i = 0; i < USERS; i++) {
        OK(moepage_session_destroy(sessions[i]));
        mp_predictor_context_close(&contexts[i]);
        OK(moepage_predictor_destroy(predictors[i]));
    }
    OK(moepage_expert_pool_destroy(experts));
    OK(moepage_kv_pool_destroy(kv));
    device_rig_close(device);
}

/* A token of a user's; now and then one that chooses from more. Its predictor learns from all: a session's own would
 * leave out what comes faster than it learns. */
static void step(int user, uint64_t *random, float out[LAYERS][HIDDEN])
{
    const uint32_t first = user ? 4 : 0, support = bank_below(random, 50) ? SUPPORT : EXPERTS - 4;
    OK(moepage_session_begin(sessions[user],
                             &(moepage_step){.struct_size = sizeof(moepage_step), .n_tokens = 1}));
    mp_predictor_begin(predictors[user], &contexts[user], NULL);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const uint32_t at = bank_below(random, support),
                       other = (at + 1 + bank_below(random, support - 1)) % support;
        const int32_t ids[TOP_K] = {(int32_t)(first + at), (int32_t)(first + other)};
        const uint32_t chosen[TOP_K] = {first + at, first + other};
        const float weights[TOP_K] = {0.75f, 0.25f};
        float in[HIDDEN];
        for (uint32_t i = 0; i < HIDDEN; i++)
            in[i] = (float)((int)bank_below(random, 2001) - 1000) / 791.0f;
        device_rig_write(device, x, in, sizeof in);
        OK(moepage_session_route(sessions[user], layer, &MOEPAGE_ROUTING(TOP_K, ids, weights),
                                 NULL));
        OK(moepage_session_ffn(sessions[user], layer, &MOEPAGE_FFN(MOEPAGE_DTYPE_F32, x, y)));
        OK(moepage_session_retire(sessions[user], layer));
        device_rig_read(device, y, out[layer], sizeof out[layer]);
        mp_predictor_observe(predictors[user], &contexts[user],
                             &(mp_seen){.layer = layer, .n_experts = TOP_K, .experts = chosen});
    }
    mp_predictor_end(predictors[user], &contexts[user]);
    OK(moepage_session_end(sessions[user], NULL));
}

/* Returns the fewest slots that there were. */
static uint64_t run(uint32_t permille, outputs *out)
{
    uint64_t random = 17, least = UINT64_MAX;
    moepage_controller_report report = MOEPAGE_CONTROLLER_REPORT();
    open_all(permille);
    for (uint32_t s = 0; s < STEPS; s++) {
        for (int user = 0; user < USERS; user++)
            step(user, &random, out->y[s][user]);
        OK(moepage_controller_tick(controller, NULL, &report));
        least = report.expert_slots < least ? report.expert_slots : least;
    }
    close_all();
    return least;
}

static void test_size_that_binds_changes_no_bit(void **state)
{
    (void)state;
    static outputs expected, found;
    bank_model_open(&bank, &(bank_shape){.layers = LAYERS,
                                         .experts = EXPERTS,
                                         .top_k = TOP_K,
                                         .hidden = HIDDEN,
                                         .intermediate = 24,
                                         .dtype = MOEPAGE_DTYPE_BF16,
                                         .seed = 21});
    assert_int_equal(run(0, &expected), LAYERS * EXPERTS);
    for (uint32_t permille = 500; permille <= 800; permille += 100) {
        assert_true(run(permille, &found) < 20); /* of 2 * 9 in the users' sets, and all 32 */
        assert_memory_equal(&found, &expected, sizeof found);
    }
    bank_model_close(&bank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size_that_binds_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
