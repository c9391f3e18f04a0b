/* The co-activation table and its predictor, by hand. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "policy/coactivation.h"
#include "policy/predictors.h"
#include "predict_rig.h"
#include "testing.h"

static const mp_predict_config small = {.layers = 3, .experts = 4, .top_k = 2, .distance = 2};

/* One pass, one expert or two per layer. */
static void pass(predict_rig *rig, const uint32_t sets[3][2])
{
    predict_rig_begin(rig);
    for (uint32_t l = 0; l < 3; l++)
        predict_rig_see(rig, l, sets[l], 2);
    predict_rig_end(rig);
}

static void test_coactivation_is_a_decayed_mean_of_conditionals(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_coactivation, &small);
    predict_rig_begin(&rig);
    EXPECT_NOTHING(&rig, 0);
    SEE(&rig, 0, 0, 1);
    EXPECT_NOTHING(&rig, 1);
    predict_rig_end(&rig);
    predict_rig_request(&rig);
    pass(&rig, (const uint32_t[3][2]){{0, 1}, {2, 3}, {0, 3}});
    predict_rig_request(&rig);
    pass(&rig, (const uint32_t[3][2]){{0, 2}, {1, 3}, {0, 2}});
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    /* At layer 0 expert 0 fired three times, 1 twice, 2 once, 3 never. */
    SEE(&rig, 0, 3, 0);
    EXPECT(&rig, 1, {3, 2 / 3.0f}, {1, 1 / 3.0f}); /* 3 speaks not; of 1, 2 at 1/3 the lower */
    EXPECT(&rig, 2, {0, 2 / 3.0f}, {2, 1 / 3.0f});
    SEE(&rig, 1, 3, 2);
    /* From layer 1 with weight 1: of 3 (twice) 0 always, 2 and 3 once; of 2 (once) 0 and 3. From
     * layer 0 with 1/2: of 0, 0 twice of three, 2 and 3 once. Weights: 1 + 1 + 1/2.
     *   0: 1 + 1 + 1/3     2: 1/2 + 1/6     3: 1/2 + 1 + 1/6 */
    EXPECT(&rig, 2, {0, 14 / 15.0f}, {3, 10 / 15.0f});
    predict_rig_close(&rig);
}

/* The tail of a pass speaks for the head of the next one of its sequence. */
static void test_coactivation_goes_on_into_the_next_pass(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_coactivation, &small);
    pass(&rig, (const uint32_t[3][2]){{0, 1}, {0, 1}, {0, 1}});
    pass(&rig, (const uint32_t[3][2]){{2, 3}, {1, 2}, {0, 1}});
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    EXPECT_NOTHING(&rig, 0); /* nothing is before */
    SEE(&rig, 1, 0, 1);
    /* At layer 1, 0 fired once and 1 twice; two layers on 2 and 3 fired after the first of them. */
    EXPECT(&rig, 0, {2, 0.75f}, {3, 0.75f});
    SEE(&rig, 2, 0, 1);
    /* At layer 2, 0 and 1 fired twice, and 2 and 3 fired after the first time: 1/2 each. With weight
     * 1/2 from layer 1, as above. (1/2 + 1/2 + (1 + 1/2) / 2) / 3 = 7/12. */
    EXPECT(&rig, 0, {2, 7 / 12.0f}, {3, 7 / 12.0f});
    predict_rig_end(&rig); /* learnt: 0 and 1 fired once more, and nothing has followed yet */
    EXPECT(&rig, 0, {2, 13 / 36.0f}, {3, 13 / 36.0f});
    predict_rig_begin(&rig);
    EXPECT(&rig, 0, {2, 13 / 36.0f}, {3, 13 / 36.0f});
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    EXPECT_NOTHING(&rig, 0);
    predict_rig_close(&rig);
}

static void test_coactivation_forgets_a_pass_without_an_end(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_coactivation, &small);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 0, 1);
    SEE(&rig, 1, 2, 3);
    pass(&rig, (const uint32_t[3][2]){{0, 1}, {0, 1}, {0, 1}});
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 0, 1);
    EXPECT(&rig, 1, {0, 1}, {1, 1});
    assert_int_equal(mp_predictor_coactivation_uses(rig.state)[4 + 2], 0);
    predict_rig_close(&rig);
}

/* More than 4 * top_k experts: use, but no lesson; asked from, the first 4 * top_k. */
static void test_coactivation_learns_no_pairs_from_chunks(void **state)
{
    (void)state;
    enum { EXPERTS = 12, MOST = 8 };
    const mp_predict_config config = {.layers = 2, .experts = EXPERTS, .top_k = 2, .distance = 1};
    uint32_t all[EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++)
        all[e] = EXPERTS - 1 - e;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_coactivation, &config);
    predict_rig_begin(&rig);
    predict_rig_see(&rig, 0, all, MOST + 1);
    SEE(&rig, 1, 5);
    predict_rig_end(&rig);
    assert_int_equal(mp_predictor_coactivation_uses(rig.state)[3], 1);
    assert_int_equal(mp_predictor_coactivation_uses(rig.state)[2], 0);
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 11);
    EXPECT_NOTHING(&rig, 1);
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    predict_rig_see(&rig, 0, all, MOST); /* 11 .. 4 */
    SEE(&rig, 1, 6);
    predict_rig_end(&rig);
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 3, 4);
    EXPECT(&rig, 1, {6, 1});                 /* of 4 alone */
    SEE(&rig, 0, 0, 1, 2, 3, 0, 1, 2, 3, 4); /* the ninth is not asked */
    EXPECT_NOTHING(&rig, 1);
    predict_rig_close(&rig);
}

static void test_coactivation_names_as_many_as_the_layer_before_used(void **state)
{
    (void)state;
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_coactivation, &small);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 0, 1, 2, 3);
    SEE(&rig, 1, 0, 1, 2, 3);
    predict_rig_end(&rig);
    predict_rig_request(&rig);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 0, 1, 2);
    EXPECT(&rig, 1, {0, 1}, {1, 1}, {2, 1});
    predict_rig_close(&rig);
}

/* ---- The table --------------------------------------------------------------------------- */

static const uint16_t zero[] = {0}, one[] = {1};

static float conditional(const mp_coactivation *table, uint16_t a, uint32_t b)
{
    float sums[2] = {0};
    assert_int_equal(mp_coactivation_add(table, 0, 1, &a, 1, 1, sums), 1);
    return sums[b];
}

/* 65535 times 0 then 0; then as often 0 then 1: had nothing been halved, it would be one half. */
static void test_coactivation_halves_what_no_longer_fits(void **state)
{
    (void)state;
    mp_coactivation *table = predict_rig_alloc(mp_coactivation_bytes(1, 2));
    mp_coactivation_init(table, 1, 2);
    for (uint32_t i = 0; i < 65535; i++) {
        mp_coactivation_use(table, 0, zero, 1, true);
        mp_coactivation_pair(table, 0, 1, zero, 1, zero, 1);
    }
    assert_true(conditional(table, 0, 0) == 1);
    mp_coactivation_use(table, 0, zero, 1, true); /* 32767 + 1 of which 32767 were with 0 */
    assert_float_equal(conditional(table, 0, 0), 32767 / 32768.0, 1e-7);
    mp_coactivation_pair(table, 0, 1, zero, 1, one, 1);
    assert_float_equal(conditional(table, 0, 1), 1 / 32768.0, 1e-9);
    for (uint32_t i = 1; i < 32768; i++) {
        mp_coactivation_use(table, 0, zero, 1, true);
        mp_coactivation_pair(table, 0, 1, zero, 1, one, 1);
    }
    assert_float_equal(conditional(table, 0, 1), 32768 / 65535.0, 1e-6);
    assert_float_equal(conditional(table, 0, 0), 32767 / 65535.0, 1e-6);
    assert_int_equal(mp_coactivation_uses(table)[0], 65536 + 32767); /* these are never halved */
    free(table);
}

/* Pairs that were open while the counts were halved do not lift a conditional above 1. */
static void test_coactivation_pairs_are_never_above_their_expert(void **state)
{
    (void)state;
    mp_coactivation *table = predict_rig_alloc(mp_coactivation_bytes(1, 2));
    mp_coactivation_init(table, 1, 2);
    mp_coactivation_use(table, 0, zero, 1, true);
    for (uint32_t i = 0; i < 3; i++)
        mp_coactivation_pair(table, 0, 1, zero, 1, one, 1);
    assert_true(conditional(table, 0, 1) == 1);
    free(table);
}

static void test_coactivation_takes_the_memory_it_says(void **state)
{
    (void)state;
    assert_int_equal(mp_coactivation_span(48, 128), 8);
    assert_int_equal(mp_coactivation_span(3, 128), 3);
    assert_int_equal(mp_coactivation_span(48, 1024), 2);   /* 8 would be 805 MB */
    assert_int_equal(mp_coactivation_span(100, 65536), 1); /* whatever it takes */
    uint64_t expected = 48 * 128 * (6 + 2 * 8 * 128);
    assert_in_range(mp_coactivation_bytes(48, 128), expected, expected + 64);
    assert_true(expected > 12.5e6 && expected < 12.7e6);
}

/* ---- Keeping ----------------------------------------------------------------------------- */

/* fired and uses of 2 * 2 experts, then the pairs of those that fired: 2 * 2 each. */
enum { KEYS = 4, BLOCK = 2 * 2 * 2, FULL = KEYS * (6 + BLOCK) };

static const mp_predict_config tiny = {.layers = 2, .experts = 2, .top_k = 2, .distance = 1};

static void expect_saved(predict_rig *rig, const unsigned char *bytes, uint64_t n)
{
    unsigned char now[FULL];
    assert_int_equal(rig->kind->save_bytes(rig->state), n);
    rig->kind->save(rig->state, now);
    assert_memory_equal(now, bytes, n);
}

static void test_coactivation_keeps_rows_of_what_fired(void **state)
{
    (void)state;
    unsigned char kept[FULL];
    predict_rig rig, other;
    predict_rig_open(&rig, &mp_predictor_coactivation, &tiny);
    predict_rig_open(&other, &mp_predictor_coactivation, &tiny);
    assert_int_equal(rig.kind->save_bytes(rig.state), KEYS * 6);
    for (uint32_t i = 0; i < 3; i++) {
        predict_rig_begin(&rig);
        SEE(&rig, 0, 0);
        SEE(&rig, 1, 1);
        predict_rig_end(&rig);
    }
    /* Of (0,0): (1,1) three times one layer on, itself twice two layers on. Of (1,1): (0,0) twice,
     * itself twice. */
    static const unsigned char expected[] = {
        3, 0, 0, 0, 0, 0, 3, 0,                         /* fired */
        3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, /* uses */
        0, 0, 3, 0, 2, 0, 0, 0,                         /* of (0,0) */
        2, 0, 0, 0, 0, 0, 2, 0,                         /* of (1,1) */
    };
    assert_int_equal(rig.kind->save_bytes(rig.state), sizeof expected);
    expect_saved(&rig, expected, sizeof expected);
    rig.kind->save(rig.state, kept);
    for (int i = 0; i < 2; i++) { /* on an empty table, then on a full one */
        assert_int_equal(other.kind->load(other.state, kept, sizeof expected), MOEPAGE_OK);
        expect_saved(&other, expected, sizeof expected);
        predict_rig_begin(&other);
        SEE(&other, 0, 0);
        EXPECT(&other, 1, {1, 1});
        SEE(&other, 1, 0);
        predict_rig_end(&other);
    }
    predict_rig_close(&rig);
    predict_rig_close(&other);
}

static void test_coactivation_refuses_what_it_never_wrote(void **state)
{
    (void)state;
    unsigned char kept[FULL] = {0}, before[FULL];
    predict_rig rig;
    predict_rig_open(&rig, &mp_predictor_coactivation, &tiny);
    predict_rig_begin(&rig);
    SEE(&rig, 0, 0, 1);
    SEE(&rig, 1, 0, 1);
    predict_rig_end(&rig);
    assert_int_equal(rig.kind->save_bytes(rig.state), FULL);
    rig.kind->save(rig.state, before);
    memcpy(kept, before, sizeof kept);
    for (uint64_t n = 0; n < FULL; n++)
        assert_int_equal(rig.kind->load(rig.state, kept, n), MOEPAGE_E_FORMAT);
    /* One that did not fire has no pairs: the bytes are too many now. */
    mp_put16(kept, 0);
    assert_int_equal(rig.kind->load(rig.state, kept, FULL), MOEPAGE_E_FORMAT);
    /* More firing than use; more pairs than firing, in the very last number. */
    mp_put16(kept, 2);
    assert_int_equal(rig.kind->load(rig.state, kept, FULL), MOEPAGE_E_FORMAT);
    mp_put16(kept, 1);
    mp_put16(kept + FULL - 2, 2);
    assert_int_equal(rig.kind->load(rig.state, kept, FULL), MOEPAGE_E_FORMAT);
    expect_saved(&rig, before, FULL);
    mp_put16(kept + FULL - 2, 1);
    assert_int_equal(rig.kind->load(rig.state, kept, FULL), MOEPAGE_OK);
    expect_saved(&rig, kept, FULL);
    predict_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coactivation_is_a_decayed_mean_of_conditionals),
        cmocka_unit_test(test_coactivation_goes_on_into_the_next_pass),
        cmocka_unit_test(test_coactivation_forgets_a_pass_without_an_end),
        cmocka_unit_test(test_coactivation_learns_no_pairs_from_chunks),
        cmocka_unit_test(test_coactivation_names_as_many_as_the_layer_before_used),
        cmocka_unit_test(test_coactivation_halves_what_no_longer_fits),
        cmocka_unit_test(test_coactivation_pairs_are_never_above_their_expert),
        cmocka_unit_test(test_coactivation_takes_the_memory_it_says),
        cmocka_unit_test(test_coactivation_keeps_rows_of_what_fired),
        cmocka_unit_test(test_coactivation_refuses_what_it_never_wrote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
