/* The expert-map predictor against cases worked out by hand from FineMoE's equations. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/predictors.h"
#include "testing.h"

#define MAPS (&mp_predictor_maps)

enum { LAYERS = 3, EXPERTS = 4, DIM = 64 };

typedef struct rig {
    mp_predict_config config;
    void *state, *context, *other;
    mp_guess out[EXPERTS];
    float score;
} rig;

static void *zeroed(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    return memset(memory, 0, bytes);
}

static rig make(uint32_t top_k, uint32_t capacity, uint32_t flags)
{
    rig r = {.config = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = top_k,
                        .distance = 1,
                        .capacity = capacity,
                        .semantic_dim = DIM,
                        .flags = flags}};
    r.state = zeroed(MAPS->state_bytes(&r.config));
    r.context = zeroed(MAPS->context_bytes(&r.config));
    r.other = zeroed(MAPS->context_bytes(&r.config));
    MAPS->init(r.state, &r.config);
    return r;
}

static void drop(rig *r)
{
    free(r->state);
    free(r->context);
    free(r->other);
}

static void see_by(rig *r, void *context, uint32_t layer, const float row[EXPERTS])
{
    MAPS->observe(r->state, context, &(mp_seen){.layer = layer, .probabilities = row});
}

static void see(rig *r, uint32_t layer, const float row[EXPERTS])
{
    see_by(r, r->context, layer, row);
}

static void learn(rig *r, const float map[LAYERS][EXPERTS], const float *semantic)
{
    MAPS->begin(r->state, r->context, semantic);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        see(r, layer, map[layer]);
    MAPS->end(r->state, r->context);
}

static uint32_t ask(rig *r, uint32_t layer)
{
    r->score = -9;
    return MAPS->predict(r->state, r->context, layer, r->out, &r->score);
}

static void expect_near(double got, double expected)
{
    if (!(fabs(got - expected) < 2e-3))
        fail_msg("%.6f, expected %.6f", got, expected);
}

/* To half a step of what is kept, where steps are widest. */
static void expect_guess(const rig *r, uint32_t i, uint32_t expert, double p)
{
    assert_int_equal(r->out[i].expert, expert);
    if (!(fabs((double)r->out[i].p - p) <= p / 63))
        fail_msg("%.6f, expected %.6f", (double)r->out[i].p, p);
}

static const float first_map[LAYERS][EXPERTS] = {{0.5f, 0.5f, 0, 0},
                                                 {0, 0, 1, 0},
                                                 {0.25f, 0.25f, 0.25f, 0.25f}};
static const float second_map[LAYERS][EXPERTS] = {{1, 0, 0, 0},
                                                  {0, 1, 0, 0},
                                                  {0.5f, 0.3f, 0.15f, 0.05f}};

/* Eq. 5 over one layer, then over two. */
static void test_maps_find_the_nearest_trajectory(void **state)
{
    (void)state;
    rig r = make(1, 8, 0);
    learn(&r, first_map, NULL);
    learn(&r, second_map, NULL);
    MAPS->begin(r.state, r.context, NULL);
    see(&r, 0, (float[]){0.8f, 0.2f, 0, 0});
    /* first: (0.4 + 0.1) / sqrt(0.68 * 0.5) = 0.8575; second: 0.8 / sqrt(0.68) = 0.9701 */
    assert_int_equal(ask(&r, 1), 1);
    expect_guess(&r, 0, 1, 1);
    expect_near(r.score, 0.8 / sqrt(0.68));
    see(&r, 1, (float[]){0, 0.1f, 0.9f, 0});
    /* first: (0.5 + 0.9) / sqrt((0.68 + 0.82) * (0.5 + 1)); second: (0.8 + 0.1) / sqrt(1.5 * 2) */
    assert_int_equal(ask(&r, 2), 1);
    expect_near(r.score, 1.4 / 1.5);
    expect_guess(&r, 0, 0, 0.25);
    drop(&r);
}

/* Eq. 6 to 8: the threshold of the score, and K. */
static void test_maps_select_until_the_sum_reaches_delta(void **state)
{
    (void)state;
    static const struct {
        float a, b; /* observed; the one stored has a only */
        uint32_t expected;
    } cases[] = {
        {0.9f, 0.1f, 1},         /* cosine 0.994 */
        {3.0f / 7, 4.0f / 7, 1}, /* 0.6: delta 0.4, 0.5 is enough */
        {1.0f / 3, 2.0f / 3, 2}, /* 0.447: delta 0.553 */
        {0.1f, 0.9f, 3},         /* 0.110: delta 0.890 */
        {0.03f, 0.97f, 4},       /* 0.031: delta 0.969 */
    };
    for (uint32_t top_k = 1; top_k <= EXPERTS; top_k++) {
        for (uint32_t flags = 0; flags <= MP_MAPS_NO_DELTA; flags += MP_MAPS_NO_DELTA) {
            rig r = make(top_k, 8, flags);
            learn(&r, second_map, NULL);
            for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                const uint32_t by_delta = flags ? 0 : cases[i].expected;
                MAPS->begin(r.state, r.context, NULL);
                see(&r, 0, (float[]){cases[i].a, cases[i].b, 0, 0});
                assert_int_equal(ask(&r, 2), by_delta > top_k ? by_delta : top_k);
                expect_near(r.score, cases[i].a / hypot(cases[i].a, cases[i].b));
                expect_guess(&r, 0, 0, 0.5);
                if (top_k > 1)
                    expect_guess(&r, 1, 1, 0.3);
                if (top_k > 3)
                    expect_guess(&r, 3, 3, 0.05);
            }
            drop(&r);
        }
    }
}

static void test_maps_say_nothing_without_anything_in_common(void **state)
{
    (void)state;
    rig r = make(1, 8, 0);
    assert_int_equal(ask(&r, 0), 0); /* not even begun */
    see(&r, 1, second_map[1]);
    assert_int_equal(ask(&r, 2), 0);
    MAPS->begin(r.state, r.context, NULL);
    see(&r, 0, second_map[0]);
    assert_int_equal(ask(&r, 1), 0); /* the store is empty */
    learn(&r, second_map, NULL);
    MAPS->begin(r.state, r.context, NULL);
    assert_int_equal(ask(&r, 0), 0); /* no embedding */
    see(&r, 0, (float[]){0, 0, 1, 0});
    assert_int_equal(ask(&r, 1), 0);
    assert_true(r.score == 0);
    drop(&r);
}

/* Embeddings at known angles. */
static void embed(float *out, double cosine)
{
    memset(out, 0, DIM * sizeof *out);
    out[3] = (float)(100 * cosine);
    out[40] = (float)(100 * sqrt(1 - cosine * cosine));
}

/* Eq. 4, and the threshold of its score; below zero all that the map has. */
static void test_maps_ask_the_embedding_before_the_first_layer(void **state)
{
    (void)state;
    float one[DIM], other[DIM], query[DIM];
    rig r = make(1, 8, 0), deaf = make(1, 8, MP_MAPS_NO_SEMANTIC);
    embed(one, 1);
    embed(other, 0.28);
    learn(&r, first_map, one);
    learn(&r, second_map, other);
    learn(&deaf, first_map, one);
    embed(query, 0.96); /* 16.3 degrees to the one, 57.5 to the other */
    MAPS->begin(r.state, r.context, query);
    assert_int_equal(ask(&r, 0), 1);
    expect_guess(&r, 0, 0, 0.5);
    if (fabs(r.score - 0.96) > 0.01)
        fail_msg("%f, not 0.96", (double)r.score);
    embed(query, -0.6);
    MAPS->begin(r.state, r.context, query); /* 0.28 * -0.6 + 0.96 * 0.8 = 0.6 to the other */
    assert_int_equal(ask(&r, 2), 1);
    assert_true(fabs(r.score - 0.6) < 0.01);
    assert_int_equal(ask(&r, 1), 1);
    expect_guess(&r, 0, 1, 1);
    query[3] = -100;
    query[40] = -100;
    MAPS->begin(r.state, r.context, query);
    assert_int_equal(ask(&r, 2), 4); /* the less unlike one: the first, a quarter each */
    assert_true(r.score < 0);
    MAPS->begin(deaf.state, deaf.context, one);
    assert_int_equal(ask(&deaf, 0), 0);
    see(&deaf, 0, first_map[0]);
    assert_int_equal(ask(&deaf, 1), 1);
    drop(&r);
    drop(&deaf);
}

static void test_maps_take_chosen_ids_for_equal_shares(void **state)
{
    (void)state;
    rig r = make(2, 8, 0);
    const uint32_t ids[] = {2, 0};
    learn(&r, first_map, NULL);
    MAPS->begin(r.state, r.context, NULL);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        MAPS->observe(r.state, r.context, &(mp_seen){layer, 2, ids, NULL, NULL});
    MAPS->end(r.state, r.context);
    MAPS->begin(r.state, r.context, NULL);
    MAPS->observe(r.state, r.context, &(mp_seen){0, 2, ids, NULL, NULL});
    assert_int_equal(ask(&r, 1), 2);
    expect_near(r.score, 1);
    expect_guess(&r, 0, 0, 0.5);
    expect_guess(&r, 1, 2, 0.5);
    drop(&r);
}

/* A layer left out has no part in the similarity, and nothing is said about it from that map. */
static void test_maps_do_without_a_layer_left_out(void **state)
{
    (void)state;
    rig r = make(1, 8, 0);
    MAPS->begin(r.state, r.context, NULL);
    see(&r, 0, first_map[0]);
    see(&r, 2, first_map[2]);
    MAPS->end(r.state, r.context);
    MAPS->begin(r.state, r.context, NULL);
    see(&r, 0, first_map[0]);
    assert_int_equal(ask(&r, 1), 0);
    assert_int_equal(ask(&r, 2), 1);
    see(&r, 1, first_map[1]); /* 0.5 / sqrt(0.5 * (0.5 + 1)): delta is 0.42 */
    assert_int_equal(ask(&r, 2), 2);
    expect_near(r.score, sqrt(0.5 / 1.5));
    drop(&r);
}

/* The layers of the next iteration are read from the map that this one is like; another request's
 * are not. */
static void test_maps_look_past_the_last_layer(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags <= MP_MAPS_NO_SEMANTIC; flags += MP_MAPS_NO_SEMANTIC) {
        rig r = make(1, 8, flags);
        learn(&r, first_map, NULL);
        learn(&r, second_map, NULL);
        MAPS->request(r.state, r.context);
        MAPS->begin(r.state, r.context, NULL);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            see(&r, layer, second_map[layer]);
        for (uint32_t ended = 0; ended < 2; ended++) {
            assert_int_equal(ask(&r, 1), flags ? 0 : 1);
            if (!flags)
                expect_guess(&r, 0, 1, 1);
            MAPS->end(r.state, r.context);
        }
        MAPS->request(r.state, r.context);
        assert_int_equal(ask(&r, 1), 0);
        drop(&r);
    }
}

/* A slot that changes hands is another map's: not searched by the iterations that are under way,
 * which have compared themselves with the old one. */
static void test_maps_leave_replaced_slots_to_later_iterations(void **state)
{
    (void)state;
    rig r = make(1, 2, 0);
    learn(&r, first_map, NULL);
    learn(&r, second_map, NULL);
    MAPS->begin(r.state, r.other, NULL);
    see_by(&r, r.other, 0, second_map[0]);
    assert_int_equal(MAPS->predict(r.state, r.other, 1, r.out, &r.score), 1);
    expect_guess(&r, 0, 1, 1);
    /* most like the second map, and takes its place: layer 1 is now expert 3's */
    static const float third_map[LAYERS][EXPERTS] = {{1, 0, 0, 0},
                                                     {0, 0.1f, 0, 0.9f},
                                                     {0.5f, 0.3f, 0.15f, 0.05f}};
    learn(&r, third_map, NULL);
    assert_int_equal(MAPS->predict(r.state, r.other, 1, r.out, &r.score), 1);
    expect_guess(&r, 0, 2, 1); /* the first map's, 1 / sqrt(2) */
    expect_near(r.score, sqrt(0.5));
    MAPS->begin(r.state, r.other, NULL);
    see_by(&r, r.other, 0, second_map[0]);
    assert_int_equal(MAPS->predict(r.state, r.other, 1, r.out, &r.score), 1);
    expect_guess(&r, 0, 3, 0.9);
    drop(&r);
}

/* The same by embedding, for slots that were free. */
static void test_maps_leave_new_slots_to_later_iterations(void **state)
{
    (void)state;
    float query[DIM], far[DIM];
    rig r = make(1, 8, 0);
    embed(query, 1);
    embed(far, 0.5);
    learn(&r, first_map, far);
    MAPS->begin(r.state, r.other, query);
    learn(&r, second_map, query);
    assert_int_equal(MAPS->predict(r.state, r.other, 1, r.out, &r.score), 1);
    expect_guess(&r, 0, 2, 1); /* the first map's */
    assert_true(fabs(r.score - 0.5) < 0.01);
    MAPS->begin(r.state, r.other, query);
    assert_int_equal(MAPS->predict(r.state, r.other, 1, r.out, &r.score), 1);
    expect_guess(&r, 0, 1, 1);
    drop(&r);
}

/* Maps with the same two probabilities in every layer, as directions: at 0 and 90 degrees in the
 * store; one at 50, compared with both, is still open when one at 40 takes the place of the first.
 * The nearest to the open one is then that at 40. */
static void test_maps_replace_rightly_after_a_slot_has_changed(void **state)
{
    (void)state;
    static const float at_0[LAYERS][EXPERTS] = {{1}, {1}, {1}};
    static const float at_90[LAYERS][EXPERTS] = {{0, 1}, {0, 1}, {0, 1}};
    static const float at_40[LAYERS][EXPERTS] = {{0.54f, 0.46f}, {0.54f, 0.46f}, {0.54f, 0.46f}};
    rig r = make(1, 2, 0);
    learn(&r, at_0, NULL);
    learn(&r, at_90, NULL);
    MAPS->begin(r.state, r.other, NULL);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        see_by(&r, r.other, layer, (float[EXPERTS]){0.46f, 0.54f});
    learn(&r, at_40, NULL);
    MAPS->end(r.state, r.other);
    MAPS->begin(r.state, r.context, NULL);
    see(&r, 0, at_90[0]);
    assert_int_equal(ask(&r, 1), 1);
    expect_near(r.score, 1);
    drop(&r);
}

static void test_maps_learn_only_what_was_begun_and_seen(void **state)
{
    (void)state;
    rig r = make(1, 0, 0); /* the default capacity */
    const uint64_t none = MAPS->save_bytes(r.state);
    MAPS->end(r.state, r.context);
    MAPS->begin(r.state, r.context, NULL);
    MAPS->end(r.state, r.context);
    assert_int_equal(MAPS->save_bytes(r.state), none);
    MAPS->begin(r.state, r.context, NULL);
    see(&r, 0, first_map[0]);
    MAPS->begin(r.state, r.context, NULL); /* given up */
    assert_int_equal(MAPS->save_bytes(r.state), none);
    learn(&r, first_map, NULL);
    const uint64_t one = MAPS->save_bytes(r.state) - none;
    MAPS->end(r.state, r.context);
    assert_int_equal(MAPS->save_bytes(r.state), none + one);
    for (uint32_t i = 0; i < 1100; i++)
        learn(&r, i % 2 ? first_map : second_map, NULL);
    assert_int_equal(MAPS->save_bytes(r.state), none + 1024 * one);
    drop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maps_find_the_nearest_trajectory),
        cmocka_unit_test(test_maps_select_until_the_sum_reaches_delta),
        cmocka_unit_test(test_maps_say_nothing_without_anything_in_common),
        cmocka_unit_test(test_maps_ask_the_embedding_before_the_first_layer),
        cmocka_unit_test(test_maps_take_chosen_ids_for_equal_shares),
        cmocka_unit_test(test_maps_do_without_a_layer_left_out),
        cmocka_unit_test(test_maps_look_past_the_last_layer),
        cmocka_unit_test(test_maps_leave_replaced_slots_to_later_iterations),
        cmocka_unit_test(test_maps_leave_new_slots_to_later_iterations),
        cmocka_unit_test(test_maps_replace_rightly_after_a_slot_has_changed),
        cmocka_unit_test(test_maps_learn_only_what_was_begun_and_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
