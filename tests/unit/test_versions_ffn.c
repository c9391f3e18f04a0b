/* What layers compute over a pool with two versions of every expert, bit for bit: the same as over two
 * ordinary pools, one of the model's own weights and one of what the integers stand for, taken expert
 * by expert as the versions that the step saw say. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/quant.h"
#include "device_rig.h"
#include "pack_maker.h"
#include "pool_rig.h"
#include "testing.h"
#include "versions_rig.h"

#define LAYERS 2
#define EXPERTS 6
#define HIDDEN 64

/* y of each expert alone, for the input that all of them get. */
typedef float answers[LAYERS][EXPERTS][HIDDEN];

static const bank_shape shape = {.layers = LAYERS,
                                 .experts = EXPERTS,
                                 .top_k = 1,
                                 .hidden = HIDDEN,
                                 .intermediate = 48,
                                 .dtype = MOEPAGE_DTYPE_F32,
                                 .bias = true,
                                 .seed = 3};

static void make_input(float *x)
{
    uint64_t random = 9;
    for (uint32_t i = 0; i < HIDDEN; i++)
        x[i] = ((float)bank_below(&random, 2001) - 1000) / 700;
}

#define ROWS_BYTES (EXPERTS * HIDDEN * sizeof(float))

/* Layer `layer`, with one token for each expert. `low`, if asked for: does the plan show it low? */
static void run_layer(moepage_device *device, moepage_session *session, uint32_t layer, bool *low,
                      float y[EXPERTS][HIDDEN])
{
    static float x[EXPERTS][HIDDEN];
    void *own_x = device_rig_alloc(device, ROWS_BYTES);
    void *own_y = device_rig_alloc(device, ROWS_BYTES);
    int32_t ids[EXPERTS];
    float weights[EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        ids[e] = (int32_t)e;
        weights[e] = 1;
        make_input(x[e]);
    }
    device_rig_write(device, own_x, x, ROWS_BYTES);
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = 1,
                               .ids = ids,
                               .weights = weights};
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_F32,
                       .x = own_x,
                       .y = own_y};
    moepage_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moepage_session_route(session, layer, &routing, low ? &plan : NULL),
                     MOEPAGE_OK);
    for (uint32_t e = 0; e < EXPERTS && low; e++)
        low[e] = plan.experts[e].slot < 0;
    if (moepage_session_ffn(session, layer, &ffn))
        fail_msg("layer %u: %s", layer, moepage_last_error());
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    device_rig_read(device, own_y, y, ROWS_BYTES);
    device_rig_free(device, own_x, ROWS_BYTES);
    device_rig_free(device, own_y, ROWS_BYTES);
}

/* Over an ordinary pool. */
static void answer(bank_model *bank, answers out)
{
    pool_rig rig;
    pool_rig_open(&rig, bank, &(pool_rig_config){0});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.math = MOEPAGE_MATH_FP32});
    pool_rig_begin(session, EXPERTS, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < LAYERS; l++)
        run_layer(rig.devices[0], session, l, NULL, out[l]);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
}

/* Puts what the integers of a packed model stand for into another bank's weights. */
static void dequantise(const struct moepage_model *packed, uint32_t form, bank_model *bank)
{
    uint64_t room = mp_model_image_room(packed, form), read_bytes;
    unsigned char *image = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    assert_non_null(image);
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
        mp_image where;
        uint32_t layer = i / EXPERTS, expert = i % EXPERTS;
        assert_int_equal(mp_model_read_image(packed, layer, expert, form, image, room, &read_bytes),
                         MOEPAGE_OK);
        mp_model_find_image(packed, layer, expert, form, &where);
        mp_model_find_parts(packed, layer, expert, form, parts);
        for (uint32_t t = 0; t < packed->info.expert_tensors; t++) {
            const moepage_expert_tensor *tensor = &packed->layouts[0].tensors[t];
            const mp_quant_shape matrix = {tensor->shape[0], tensor->shape[1],
                                           form == MOEPAGE_FORM_INT4 ? 4 : 2, 64};
            float *to =
                (float *)(void *)(bank->bytes + i * bank->expert_bytes + bank->tensor_at[t]);
            for (uint64_t row = 0; parts[t].form == form && row < matrix.rows; row++)
                mp_quant_decode_row(&matrix, image + where.skew + parts[t].offset, row, 0,
                                    matrix.columns, to + row * matrix.columns);
        }
    }
    free(image);
}

static void check_forms(uint32_t lo_form, uint32_t lo_fetched)
{
    static answers high, low;
    static float y[EXPERTS][HIDDEN];
    versions_rig rig;
    bank_model own, meant;
    bank_shape packed = shape;
    uint32_t seen_high = 0, seen_low = 0;
    packed.pack_forms = PACK_FORM(DENSE) | 1u << lo_form;
    versions_rig_open(&rig, &packed,
                      &(moepage_precision_config){.hi_experts = 2,
                                                  .lo_form = lo_form,
                                                  .lo_fetched = lo_fetched});
    bank_model_open(&own, &shape);
    bank_model_open(&meant, &shape);
    dequantise(rig.bank.model, lo_form, &meant);
    answer(&own, high);
    answer(&meant, low);
    assert_memory_not_equal(high, low, sizeof high);
    moepage_session *session = versions_rig_session(&rig, EXPERTS);
    uint64_t random = 21;
    const uint32_t steps = device_rig_is_cuda() ? 500 : 1500; /* which take ten times as long */
    for (uint32_t s = 0; s < steps; s++) {
        const int32_t hot[2] = {(int32_t)(s * 6 / steps % EXPERTS),
                                (int32_t)((s * 6 / steps + 2) % EXPERTS)};
        versions_rig_step(&rig, session, hot, 2);
        if (bank_below(&random, 20))
            continue;
        pool_rig_begin(session, EXPERTS, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < LAYERS; l++) {
            bool is_low[EXPERTS];
            run_layer(rig.device, session, l, is_low, y);
            for (uint32_t e = 0; e < EXPERTS; e++) {
                assert_memory_equal(y[e], is_low[e] ? low[l][e] : high[l][e], sizeof y[e]);
                seen_low += is_low[e];
                seen_high += !is_low[e];
            }
        }
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    }
    assert_true(seen_low > 0 && seen_high > 0);
    assert_true(versions_rig_info(&rig).promotions > 2 * LAYERS);
    moepage_session_destroy(session);
    bank_model_close(&own);
    bank_model_close(&meant);
    versions_rig_close(&rig);
}

static void test_versions_ffn_is_that_of_what_is_published(void **state)
{
    (void)state;
    check_forms(MOEPAGE_FORM_INT4, 0);
}

static void test_versions_ffn_is_that_of_fetched_versions(void **state)
{
    (void)state;
    check_forms(MOEPAGE_FORM_INT2, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_ffn_is_that_of_what_is_published),
        cmocka_unit_test(test_versions_ffn_is_that_of_fetched_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
