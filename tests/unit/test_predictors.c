/* The predictors that need no table of pairs, by hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "policy/predictors.h"
#include "predict_rig.h"
#include "testing.h"

static const mp_predict_config small = {.layers = 2, .experts = 5, .top_k = 2, .distance = 1};

static void test_predictors_are_found_by_name(void **state)
{
    (void)state;
    static const char *const names[] = {"none", "previous",     "hit-count",
                                        "gate", "coactivation", "maps"};
    for (uint32_t i = 0; i < 6; i++) {
        const mp_predictor *found = mp_predictor_find(names[i]);
        assert_non_null(found);
        assert_string_equal(found->name, names[i]);
        assert_string_equal(mp_predictor_name(i), names[i]);
        assert_int_equal(!found->save, !found->load);
        assert_int_equal(!found->save, !found->save_bytes);
        assert_int_equal(found->save == NULL, i == 0 || i == 1 || i == 3);
        assert_int_equal((found->needs & MP_NEEDS_HIDDEN) != 0, i == 3);
    }
    assert_null(mp_predictor_name(6));
    assert_null(mp_predictor_find("map"));
    assert_null(mp_predictor_find(""));
    assert_null(mp_predictor_find(NULL));
}

static void test_predictors_none_names_nothing(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_none, &small);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 1, 2);
    EXPECT_NOTHING(&rig, 1);
    predict_rig_end(&rig);
    EXPECT_NOTHING(&rig, 0);
    predict_rig_close(&rig);
}

static void test_predictors_previous_repeats_each_layer(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_previous, &small);
    predict_rig_begin(&rig);
    EXPECT_NOTHING(&rig, 0);
    SEE(&rig, 0, 4, 1, 0, 2, 3);
    EXPECT_NOTHING(&rig, 1);
    SEE(&rig, 1, 3, 2);
    EXPECT(&rig, 0, {4, 1}, {1, 1}, {0, 1}, {2, 1}, {3, 1}); /* of the next iteration */
    predict_rig_end(&rig);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 2, 0);
    EXPECT(&rig, 1, {3, 1}, {2, 1});
    EXPECT(&rig, 0, {2, 1}, {0, 1});
    predict_rig_end(&rig); /* without layer 1 */
    EXPECT(&rig, 1, {3, 1}, {2, 1});
    predict_rig_request(&rig);
    EXPECT_NOTHING(&rig, 0);
    EXPECT_NOTHING(&rig, 1);
    predict_rig_close(&rig);
}

static void test_predictors_hit_count_is_uses_per_iteration(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_hit_count, &small);
    predict_rig_begin(&rig);
    EXPECT_NOTHING(&rig, 0);
    SEE(&rig, 0, 3, 1);
    EXPECT_NOTHING(&rig, 1);
    EXPECT(&rig, 0, {1, 1}, {3, 1}); /* the next iteration's */
    SEE(&rig, 1, 4, 0);
    predict_rig_end(&rig);
    for (int i = 0; i < 2; i++) {
        predict_rig_begin(&rig);
        SEE(&rig, 0, 3, 2);
        predict_rig_end(&rig);
    }
    predict_rig_begin(&rig);
    EXPECT(&rig, 0, {3, 1}, {2, 2 / 3.0f}); /* top_k of the three */
    EXPECT(&rig, 1, {0, 1}, {4, 1});        /* seen once, in one iteration */
    SEE(&rig, 0, 1, 2, 3);
    EXPECT(&rig, 1, {0, 1}, {4, 1}); /* room for three, but only two were ever used */
    EXPECT(&rig, 0, {3, 1}, {2, 0.75f});
    predict_rig_begin(&rig); /* that one never ended */
    EXPECT(&rig, 0, {3, 1}, {2, 2 / 3.0f});
    predict_rig_close(&rig);
}

static void test_predictors_hit_count_falls_back_on_all_requests(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_hit_count, &small);
    for (int i = 0; i < 4; i++) {
        predict_rig_begin(&rig);
        SEE(&rig, 0, 0, 1);
        SEE(&rig, 1, 4, 3);
        predict_rig_end(&rig);
    }
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    EXPECT(&rig, 0, {0, 1}, {1, 1});
    SEE(&rig, 0, 2, 3, 4);
    EXPECT(&rig, 1, {3, 1}, {4, 1});
    predict_rig_end(&rig);
    predict_rig_begin(&rig);
    EXPECT(&rig, 0, {2, 1}, {3, 1}); /* its own, ties to the lower id */
    EXPECT(&rig, 1, {3, 1}, {4, 1}); /* it has none of layer 1 */
    predict_rig_end(&rig);
    predict_rig_request(&rig);
    EXPECT(&rig, 0, {0, 0.8f}, {1, 0.8f});
    predict_rig_close(&rig);
}

/* A wide step is followed by as wide a layer, in the same iteration only. */
static void test_predictors_name_as_many_as_the_layer_before_used(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_hit_count, &small);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 0, 1, 2, 3, 4);
    SEE(&rig, 1, 0, 1, 2, 3, 4);
    predict_rig_end(&rig);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 0, 1, 2, 3);
    EXPECT(&rig, 1, {0, 1}, {1, 1}, {2, 1}, {3, 1});
    EXPECT(&rig, 0, {0, 1}, {1, 1});
    predict_rig_close(&rig);
}

/* At 2^32 - 1 iterations a line counts half. */
static void test_predictors_hit_count_halves_what_no_longer_fits(void **state)
{
    (void)state;
    const mp_predict_config one = {.layers = 1, .experts = 3, .top_k = 3, .distance = 1};
    predict_rig rig;
    unsigned char kept[16];
    predict_rig_open(&rig, &mp_predictor_hit_count, &one);
    assert_int_equal(rig.kind->save_bytes(rig.state), sizeof kept);
    mp_put32(kept, UINT32_MAX);
    mp_put32(kept + 4, UINT32_MAX);
    mp_put32(kept + 8, 0x80000000u);
    mp_put32(kept + 12, 1);
    assert_int_equal(rig.kind->load(rig.state, kept, sizeof kept), MOEPAGE_OK);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 1, 2);
    predict_rig_end(&rig);
    rig.kind->save(rig.state, kept);
    assert_int_equal(mp_get32(kept), 0x80000000u);
    assert_int_equal(mp_get32(kept + 4), 0x7fffffffu);
    assert_int_equal(mp_get32(kept + 8), 0x40000001u);
    assert_int_equal(mp_get32(kept + 12), 1);
    predict_rig_close(&rig);
}

static void test_predictors_hit_count_refuses_what_it_never_wrote(void **state)
{
    (void)state;
    predict_rig rig;
    unsigned char kept[64] = {0};
    predict_rig_open(&rig, &mp_predictor_hit_count, &small);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 3);
    predict_rig_end(&rig);
    uint64_t n = rig.kind->save_bytes(rig.state);
    assert_int_equal(n, 48);
    for (uint64_t bytes = 0; bytes < 64; bytes++)
        if (bytes != n)
            assert_int_equal(rig.kind->load(rig.state, kept, bytes), MOEPAGE_E_FORMAT);
    mp_put32(kept + 24, 2); /* layer 1: two iterations, three uses of expert 4 */
    mp_put32(kept + 44, 3);
    assert_int_equal(rig.kind->load(rig.state, kept, n), MOEPAGE_E_FORMAT);
    predict_rig_request(&rig);
    EXPECT(&rig, 0, {3, 1}); /* as it was */
    mp_put32(kept + 44, 1);
    assert_int_equal(rig.kind->load(rig.state, kept, n), MOEPAGE_OK);
    EXPECT(&rig, 1, {4, 0.5f});
    EXPECT_NOTHING(&rig, 0);
    predict_rig_close(&rig);
}

/* ---- The gate ---------------------------------------------------------------------------- */

static void see_hidden(predict_rig *rig, uint32_t layer, const float *hidden)
{
    const uint32_t any[] = {0};
    mp_seen seen = {.layer = layer, .n_experts = 1, .experts = any, .hidden = hidden};
    rig->kind->observe(rig->state, rig->context, &seen);
}

/* Logits ln 1, ln 2, ln 3 and ln 4 are the probabilities 0.1 to 0.4. */
static void test_predictors_gate_is_a_softmax_of_products(void **state)
{
    (void)state;
    const float ln2 = 0.69314718f, ln3 = 1.09861229f;
    const float first[8] = {0}, second[] = {0, ln2 / 2, 0, ln2, 0, ln2 * 1.5f, 0, 2 * ln2};
    const float third[] = {0, 0, ln2, 0, ln3, 0, ln2, ln2 / 2};
    const float *gates[] = {first, second, third};
    const mp_predict_config config = {
        .layers = 3, .experts = 4, .top_k = 3, .distance = 2, .hidden = 2, .gates = gates};
    const float hidden[] = {1, 2}, other[] = {NAN, 2}, large[] = {INFINITY, 2};
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_gate, &config);
    EXPECT_NOTHING(&rig, 0);
    predict_rig_begin(&rig);
    EXPECT_NOTHING(&rig, 0);
    see_hidden(&rig, 0, hidden);
    EXPECT(&rig, 2, {3, 0.4f}, {2, 0.3f}, {1, 0.2f});
    EXPECT(&rig, 1, {3, 16 / 30.0f}, {2, 8 / 30.0f}, {1, 4 / 30.0f});
    EXPECT_NOTHING(&rig, 0); /* the next token's */
    see_hidden(&rig, 1, other);
    EXPECT_NOTHING(&rig, 2);
    see_hidden(&rig, 1, large);
    EXPECT_NOTHING(&rig, 2);
    see_hidden(&rig, 1, NULL);
    EXPECT_NOTHING(&rig, 2);
    see_hidden(&rig, 1, hidden);
    EXPECT(&rig, 2, {3, 0.4f}, {2, 0.3f}, {1, 0.2f});
    predict_rig_end(&rig);
    EXPECT_NOTHING(&rig, 2);
    predict_rig_close(&rig);
}

static void test_predictors_gate_adds_the_bias(void **state)
{
    (void)state;
    const float ln3 = 1.09861229f, zeros[] = {0, 0}, bias[] = {0, ln3}, hidden[] = {5};
    const float *gates[] = {zeros, zeros}, *biases[] = {zeros, bias};
    const mp_predict_config config = {.layers = 2,
                                      .experts = 2,
                                      .top_k = 2,
                                      .distance = 1,
                                      .hidden = 1,
                                      .gates = gates,
                                      .gate_biases = biases};
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_gate, &config);
    predict_rig_begin(&rig);
    see_hidden(&rig, 0, hidden);
    EXPECT(&rig, 1, {1, 0.75f}, {0, 0.25f});
    predict_rig_close(&rig);
}

/* Lengths around the width of the loop, against sums in double precision. */
static void test_predictors_gate_multiplies_every_element(void **state)
{
    (void)state;
    enum { EXPERTS = 3, MOST = 40 };
    float gate[EXPERTS * MOST], hidden[MOST];
    const float *gates[] = {gate, gate};
    for (uint32_t n = 1; n <= MOST; n++) {
        double odds[EXPERTS], all = 0;
        for (uint32_t i = 0; i < n; i++)
            hidden[i] = (float)((int)(i * 7 % 11) - 5) / 8;
        for (uint32_t i = 0; i < EXPERTS * n; i++)
            gate[i] = (float)((int)(i * 13 % 17) - 8) / 16;
        for (uint32_t e = 0; e < EXPERTS; e++) {
            double logit = 0;
            for (uint32_t i = 0; i < n; i++)
                logit += (double)gate[e * n + i] * (double)hidden[i];
            all += odds[e] = exp(logit);
        }
        const mp_predict_config config = {.layers = 2,
                                          .experts = EXPERTS,
                                          .top_k = EXPERTS,
                                          .distance = 1,
                                          .hidden = n,
                                          .gates = gates};
        predict_rig rig;
        mp_guess guesses[EXPERTS];
        predict_rig_open(&rig, &mp_predictor_gate, &config);
        predict_rig_begin(&rig);
        see_hidden(&rig, 0, hidden);
        assert_int_equal(predict_rig_ask(&rig, 1, guesses), EXPERTS);
        for (uint32_t i = 0; i < EXPERTS; i++)
            assert_float_equal(guesses[i].p, odds[guesses[i].expert] / all, 1e-5);
        predict_rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predictors_are_found_by_name),
        cmocka_unit_test(test_predictors_none_names_nothing),
        cmocka_unit_test(test_predictors_previous_repeats_each_layer),
        cmocka_unit_test(test_predictors_hit_count_is_uses_per_iteration),
        cmocka_unit_test(test_predictors_hit_count_falls_back_on_all_requests),
        cmocka_unit_test(test_predictors_name_as_many_as_the_layer_before_used),
        cmocka_unit_test(test_predictors_hit_count_halves_what_no_longer_fits),
        cmocka_unit_test(test_predictors_hit_count_refuses_what_it_never_wrote),
        cmocka_unit_test(test_predictors_gate_is_a_softmax_of_products),
        cmocka_unit_test(test_predictors_gate_adds_the_bias),
        cmocka_unit_test(test_predictors_gate_multiplies_every_element),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
