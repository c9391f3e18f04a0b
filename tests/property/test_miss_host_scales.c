/* FP8 experts with block scales, computed where they lie: the bits of waiting for them, with gate and
 * up fused or apart; where a scale lies at no address that a float may have, they are waited for. */

#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 8
#define TOP_K 3
#define TOKENS 4
#define STEPS 6
#define HIDDEN 256
#define INTERMEDIATE 128
#define BLOCK 128
#define OUTPUTS (STEPS * LAYERS * TOKENS * HIDDEN)

typedef struct fp8_model {
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    uint64_t at[MOEPAGE_MAX_EXPERT_TENSORS], expert_bytes;
    uint32_t n;
    unsigned char *bytes;
    const void *data[LAYERS * EXPERTS * MOEPAGE_MAX_EXPERT_TENSORS];
    moepage_model *model;
} fp8_model;

static void add(fp8_model *m, uint32_t role, uint32_t rows, uint32_t columns, bool scales)
{
    uint64_t r = scales ? rows / BLOCK : rows, c = scales ? columns / BLOCK : columns;
    m->tensors[m->n] = (moepage_expert_tensor){
        .role = role,
        .dtype = scales ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_F8_E4M3,
        .rank = 2,
        .shape = {r, c},
    };
    m->at[m->n++] = m->expert_bytes;
    m->expert_bytes += r * c * (scales ? 4 : 1);
}

/* Weights up to 15.5, scales of their own for every block. */
static void fill(fp8_model *m, unsigned char *expert, uint64_t *random)
{
    for (uint32_t t = 0; t < m->n; t++) {
        uint64_t n = m->tensors[t].shape[0] * m->tensors[t].shape[1];
        for (uint64_t i = 0; i < n; i++) {
            float scale = (float)(1 + bank_below(random, 100)) / 4096;
            if (m->tensors[t].dtype == MOEPAGE_DTYPE_F32)
                memcpy(expert + m->at[t] + i * sizeof scale, &scale, sizeof scale);
            else
                expert[m->at[t] + i] =
                    (unsigned char)(bank_below(random, 2) << 7 | bank_below(random, 0x58));
        }
    }
}

static void open_model(fp8_model *m, bool fused, uint32_t skew)
{
    uint64_t random = 41;
    *m = (fp8_model){0};
    for (int scales = 0; scales < 2; scales++) {
        if (fused) {
            add(m, scales ? MOEPAGE_ROLE_GATE_UP_SCALE : MOEPAGE_ROLE_GATE_UP, 2 * INTERMEDIATE,
                HIDDEN, scales);
        } else {
            add(m, scales ? MOEPAGE_ROLE_UP_SCALE : MOEPAGE_ROLE_UP, INTERMEDIATE, HIDDEN, scales);
            add(m, scales ? MOEPAGE_ROLE_GATE_SCALE : MOEPAGE_ROLE_GATE, INTERMEDIATE, HIDDEN,
                scales);
        }
        add(m, scales ? MOEPAGE_ROLE_DOWN_SCALE : MOEPAGE_ROLE_DOWN, HIDDEN, INTERMEDIATE, scales);
    }
    m->bytes = malloc(LAYERS * EXPERTS * m->expert_bytes + skew);
    assert_non_null(m->bytes);
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        unsigned char *expert = m->bytes + skew + i * m->expert_bytes;
        fill(m, expert, &random);
        for (uint32_t t = 0; t < m->n; t++)
            m->data[i * m->n + t] = expert + m->at[t];
    }
    moepage_banks banks = {.struct_size = sizeof banks,
                           .moe_layers = LAYERS,
                           .experts = EXPERTS,
                           .top_k = TOP_K,
                           .hidden = HIDDEN,
                           .expert_intermediate = INTERMEDIATE,
                           .n_tensors = m->n,
                           .tensors = m->tensors,
                           .data = m->data};
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &m->model), MOEPAGE_OK);
}

/* Routes every layer to some experts, the same ones in every run. */
static void run_layer(moepage_session *session, uint32_t layer, uint64_t *random, float *y)
{
    float x[TOKENS * HIDDEN], weights[TOKENS * TOP_K];
    int32_t ids[TOKENS * TOP_K];
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)((int)bank_below(random, 2001) - 1000) / 777.0f;
    for (uint32_t r = 0; r < TOKENS * TOP_K; r++) {
        ids[r] = (int32_t)bank_below(random, EXPERTS);
        weights[r] = (float)(1 + bank_below(random, 9)) / 10.0f;
    }
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = TOP_K,
                                     .ids = ids,
                                     .weights = weights};
    const moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    assert_int_equal(moepage_session_route(session, layer, &routing, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_ffn(session, layer, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
}

static moepage_session_stats run(fp8_model *m, uint32_t math, uint32_t miss, float *y)
{
    uint64_t random = 7;
    moepage_device *device = NULL;
    moepage_expert_pool *pool = NULL;
    moepage_session *session = NULL;
    const moepage_device_config home = {.struct_size = sizeof home,
                                        .threads = 1,
                                        .workspace_bytes = 1u << 20,
                                        .budget_bytes = 4u << 20};
    const moepage_expert_pool_config slots = {.struct_size = sizeof slots, .slots = 4};
    const moepage_session_config config = {.struct_size = sizeof config,
                                           .max_tokens = TOKENS,
                                           .math = math,
                                           .regime = MOEPAGE_REGIME_CACHE,
                                           .miss = miss};
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_device_open("host", &home, &device), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(&device, 1, m->model, &slots, &pool), MOEPAGE_OK);
    assert_int_equal(moepage_session_create(pool, NULL, &config, &session), MOEPAGE_OK);
    for (uint32_t s = 0; s < STEPS; s++) {
        const moepage_step step = {.struct_size = sizeof step, .n_tokens = TOKENS};
        assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
        for (uint32_t l = 0; l < LAYERS; l++, y += TOKENS * HIDDEN)
            run_layer(session, l, &random, y);
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    return stats;
}

static void test_miss_host_scales_give_the_bits_of_waiting(void **state)
{
    (void)state;
    static float waited[OUTPUTS], computed[OUTPUTS];
    for (uint32_t i = 0; i < 8; i++) {
        fp8_model m;
        const uint32_t math = i & 1 ? MOEPAGE_MATH_BF16 : MOEPAGE_MATH_FP32, skew = i & 2 ? 2 : 0;
        open_model(&m, i & 4, skew);
        run(&m, math, MOEPAGE_MISS_WAIT, waited);
        moepage_session_stats stats = run(&m, math, MOEPAGE_MISS_HOST, computed);
        assert_memory_equal(waited, computed, sizeof waited);
        assert_true(waited[0] != waited[1]);
        assert_int_equal(stats.host_experts > 0, skew == 0);
        assert_int_equal(stats.demand_bytes > 0, skew > 0);
        assert_int_equal(moepage_model_close(m.model), MOEPAGE_OK);
        free(m.bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_miss_host_scales_give_the_bits_of_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
