/* Experts of a GGUF file whose layers mix types, run by a session out of few slots: the outputs are
 * those of the formula, over weights that are decoded here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "gguf_moe.h"
#include "moepage.h"
#include "testing.h"

enum { LAYERS = 4, TOKENS = 5, STEPS = 3, SPARE = 4 << 20 };

static char dir[64];
static gguf_writer writer;
static uint64_t seed;

static uint32_t next_random(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static double uniform(void)
{
    return next_random() / 2147483648.0 - 0.5;
}

/* ---- Weights ---- */

static void put16(unsigned char *at, uint32_t bits)
{
    at[0] = (unsigned char)bits;
    at[1] = (unsigned char)(bits >> 8);
}

static uint32_t get16(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

/* A half or a bfloat16 of a sign, an exponent of 2^-1 to 2^-3 and a fraction. */
static uint32_t draw16(uint32_t bias, uint32_t fraction)
{
    return next_random() % 2 << 15 | (bias - 1 - next_random() % 3) << fraction |
           next_random() % (1u << fraction);
}

static double widen16(uint32_t bits, uint32_t bias, uint32_t fraction)
{
    double value = ldexp(1.0 + (bits & ((1u << fraction) - 1)) / (double)(1u << fraction),
                         (int)(bits >> fraction & (0x7fff >> fraction)) - (int)bias);
    return bits >> 15 ? -value : value;
}

/* Fills a tensor with weights of about one half. */
static void draw(gguf_made *made)
{
    const uint32_t block = made->type == GGML_Q8_0 ? 34 : 18;
    for (uint64_t i = 0; i < made->bytes; i++)
        made->data[i] = (unsigned char)next_random();
    if (made->type == GGML_F32)
        for (uint64_t i = 0; i < made->bytes; i += 4)
            memcpy(made->data + i, &(float){(float)uniform()}, 4);
    else if (made->type == GGML_F16 || made->type == GGML_BF16)
        for (uint64_t i = 0; i < made->bytes; i += 2)
            put16(made->data + i, made->type == GGML_F16 ? draw16(15, 10) : draw16(127, 7));
    else /* scales of 2^-7 for 8 bits, of 2^-4 for 4 */
        for (uint64_t i = 0; i < made->bytes; i += block)
            put16(made->data + i, made->type == GGML_Q8_0 ? 8u << 10 : 11u << 10);
}

/* Weight `i` of a tensor. */
static double weight(const gguf_made *made, uint64_t i)
{
    const unsigned char *block;
    float value;
    switch (made->type) {
    case GGML_F32: memcpy(&value, made->data + 4 * i, 4); return value;
    case GGML_F16: return widen16(get16(made->data + 2 * i), 15, 10);
    case GGML_BF16: return widen16(get16(made->data + 2 * i), 127, 7);
    case GGML_Q8_0:
        block = made->data + i / 32 * 34;
        return widen16(get16(block), 15, 10) * (signed char)block[2 + i % 32];
    case GGML_Q4_0:
        block = made->data + i / 32 * 18;
        return widen16(get16(block), 15, 10) *
               ((block[2 + i % 16] >> (i % 32 < 16 ? 0 : 4) & 15) - 8);
    }
    fail_msg("type %u", made->type);
    return 0;
}

static gguf_made *part(uint32_t layer, const char *name)
{
    char text[64];
    snprintf(text, sizeof text, "blk.%u.ffn_%s_exps.weight", layer, name);
    return gguf_made_of(&writer, text);
}

/* ---- The formula ---- */

static void add_expert(uint32_t layer, uint32_t expert, double share, const float *x, double *y)
{
    const gguf_made *gate = part(layer, "gate"), *up = part(layer, "up");
    const gguf_made *down = part(layer, "down");
    const uint64_t first = (uint64_t)expert * GM_WIDTH * GM_HIDDEN;
    double inner[GM_WIDTH];
    for (uint32_t i = 0; i < GM_WIDTH; i++) {
        double g = 0, u = 0;
        for (uint32_t h = 0; h < GM_HIDDEN; h++) {
            g += weight(gate, first + i * GM_HIDDEN + h) * x[h];
            u += weight(up, first + i * GM_HIDDEN + h) * x[h];
        }
        inner[i] = g / (1 + exp(-g)) * u;
    }
    for (uint32_t h = 0; h < GM_HIDDEN; h++)
        for (uint32_t i = 0; i < GM_WIDTH; i++)
            y[h] += share * weight(down, first + h * GM_WIDTH + i) * inner[i];
}

static void expect_outputs(uint32_t layer, const int32_t *ids, const float *shares, const float *x,
                           const float *y)
{
    for (uint32_t t = 0; t < TOKENS; t++) {
        double expected[GM_HIDDEN] = {0}, most = 0;
        for (uint32_t k = 0; k < GM_TOP_K; k++)
            add_expert(layer, (uint32_t)ids[t * GM_TOP_K + k], shares[t * GM_TOP_K + k],
                       x + t * GM_HIDDEN, expected);
        for (uint32_t h = 0; h < GM_HIDDEN; h++)
            most = fmax(most, fabs(expected[h]));
        assert_true(most > 0.01);
        for (uint32_t h = 0; h < GM_HIDDEN; h++)
            if (!(fabs(y[t * GM_HIDDEN + h] - expected[h]) < 1e-5 * most))
                fail_msg("layer %u, token %u, element %u: %g, not %g", layer, t, h,
                         (double)y[t * GM_HIDDEN + h], expected[h]);
    }
}

/* ---- Steps ---- */

static void run_layer(moepage_session *session, uint32_t layer)
{
    int32_t ids[TOKENS * GM_TOP_K];
    float shares[TOKENS * GM_TOP_K], x[TOKENS * GM_HIDDEN], y[TOKENS * GM_HIDDEN];
    for (uint32_t i = 0; i < TOKENS * GM_HIDDEN; i++)
        x[i] = (float)uniform();
    for (uint32_t i = 0; i < TOKENS * GM_TOP_K; i++) {
        ids[i] = (int32_t)((next_random() % 2 * 2 + i) % GM_EXPERTS);
        shares[i] = (float)fabs(uniform()) + 0.25f;
    }
    moepage_routing routing = MOEPAGE_ROUTING(GM_TOP_K, ids, shares);
    moepage_ffn ffn = MOEPAGE_FFN(MOEPAGE_DTYPE_F32, x, y);
    if (moepage_session_route(session, layer, &routing, NULL) ||
        moepage_session_ffn(session, layer, &ffn) || moepage_session_retire(session, layer))
        fail_msg("layer %u: %s", layer, moepage_last_error());
    expect_outputs(layer, ids, shares, x, y);
}

static moepage_model *open_mixed(void)
{
    static const struct {
        uint32_t gate, up, down;
    } types[LAYERS] = {
        {GGML_F32, GGML_F32, GGML_F32},
        {GGML_Q4_0, GGML_Q4_0, GGML_Q8_0},
        {GGML_Q8_0, GGML_Q4_0, GGML_F16},
        {GGML_Q4_0, GGML_Q4_0, GGML_BF16},
    };
    char path[128];
    gguf_moe usual = gguf_moe_usual();
    usual.layers = LAYERS;
    gguf_moe_make(&writer, &usual);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        gguf_moe_retype(&writer, layer, "gate", types[layer].gate);
        gguf_moe_retype(&writer, layer, "up", types[layer].up);
        gguf_moe_retype(&writer, layer, "down", types[layer].down);
        draw(part(layer, "gate"));
        draw(part(layer, "up"));
        draw(part(layer, "down"));
    }
    gguf_write(&writer, dir, "m.gguf");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    moepage_model *model = NULL;
    if (moepage_model_open(path, NULL, &model))
        fail_msg("%s", moepage_last_error());
    return model;
}

static void test_gguf_experts_of_mixed_types_compute_the_formula(void **state)
{
    (void)state;
    maker_dir_create(dir);
    gguf_init(&writer);
    seed = 0x67677566;
    moepage_model *model = open_mixed();
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.layouts, LAYERS);
    assert_int_equal(info.ffn_supported, 1);

    moepage_device_config on =
        MOEPAGE_DEVICE_CONFIG(.threads = 2, .workspace_bytes = SPARE,
                              .budget_bytes = SPARE + (GM_EXPERTS + 1) * info.slot_bytes * 2);
    moepage_device *device = NULL;
    moepage_expert_pool *pool = NULL;
    moepage_session *session = NULL;
    if (moepage_device_open("host", &on, &device) ||
        moepage_expert_pool_create(&device, 1, model, NULL, &pool) ||
        moepage_session_create(pool, NULL, NULL, &session))
        fail_msg("%s", moepage_last_error());
    for (int step = 0; step < STEPS; step++) {
        moepage_step begun = MOEPAGE_STEP(TOKENS);
        begun.phase = MOEPAGE_PHASE_DECODE;
        assert_int_equal(moepage_session_begin(session, &begun), MOEPAGE_OK);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            run_layer(session, layer);
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    gguf_free(&writer);
    maker_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_experts_of_mixed_types_compute_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
