/* Two versions of every expert on a simulated machine: in virtual time a step takes what its experts'
 * versions take, whatever else is on its way, and a set that moves is followed within a time that can
 * be worked out. */

#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "stack_rig.h"
#include "testing.h"

#define EXPERTS 16u
#define TOP_K 3u
#define INTERVAL_NS 20000u

enum { SLOT = 3 * 64 * 32 * 2, LOAD = 100 + SLOT };

static mp_phantom_shape small_shape(bool cold)
{
    return (mp_phantom_shape){
        .name = "small",
        .layers = 2,
        .moe_layers = 2,
        .experts = EXPERTS,
        .top_k = TOP_K,
        .hidden = 64,
        .expert_intermediate = 32,
        .dtype = MOEPAGE_DTYPE_BF16,
        .cold = cold,
    };
}

static void open_stack(stack *s, const moepage_precision_config *given, bool cold)
{
    mp_phantom_shape shape = small_shape(cold);
    mp_sim_profile profile = machine_profile();
    moepage_precision_config precision = *given;
    precision.struct_size = sizeof precision;
    precision.lo_form = MOEPAGE_FORM_INT2;
    precision.hi_experts = TOP_K;
    moepage_expert_pool_config config = {.struct_size = sizeof config, .precision = &precision};
    moepage_session_config session = {.struct_size = sizeof session,
                                      .max_tokens = 1,
                                      .math = MOEPAGE_MATH_BF16};
    stack_open_shape(s, &shape);
    stack_open_device(s, &profile, 1 << 20, 1 << 20);
    MUST(moepage_expert_pool_create(&s->home, 1, s->model, &config, &s->pool));
    MUST(moepage_session_create(s->pool, NULL, &session, &s->session));
    s->weights = calloc(TOP_K, sizeof *s->weights);
    s->x = calloc(s->shape.hidden, sizeof *s->x);
    s->y = calloc(s->shape.hidden, sizeof *s->y);
    assert_true(s->weights && s->x && s->y);
}

static moepage_session_stats step(stack *s, const int32_t *ids)
{
    stack_begin(s, 1);
    for (uint32_t l = 0; l < s->shape.moe_layers; l++)
        stack_layer(s, l, ids);
    moepage_session_stats stats = stack_end(s);
    assert_int_equal(stats.stall_ns, 0);
    assert_int_equal(stats.demand_bytes + stats.misses + stats.late, 0);
    return stats;
}

static moepage_expert_pool_info info_of(stack *s)
{
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    MUST(moepage_expert_pool_get_info(s->pool, &info));
    return info;
}

/* What steps did, in virtual time. */
typedef struct story {
    uint32_t steps;
    uint64_t wall_ns[2000];
    uint64_t low[2000];
    uint64_t followed_ns; /* from the shift until everything hot was high */
} story;

/* Heats one set for a while, then another one until all of it is high. */
static void tell(const moepage_precision_config *precision, bool cold, story *out)
{
    static const int32_t first[TOP_K] = {2, 5, 11}, second[TOP_K] = {5, 6, 7};
    stack s;
    open_stack(&s, precision, cold);
    *out = (story){0};
    uint64_t shifted = 0;
    for (uint32_t i = 0; i < 2000 && !out->followed_ns; i++) {
        if (i == 1000)
            shifted = stack_now_ns(&s);
        moepage_session_stats stats = step(&s, i < 1000 ? first : second);
        out->wall_ns[i] = stats.wall_ns;
        out->low[i] = stats.low_experts;
        out->steps = i + 1;
        if (i == 999)
            assert_int_equal(stats.low_experts, 0);
        if (i > 1000 && stats.low_experts == 0)
            out->followed_ns = stack_now_ns(&s) - shifted;
    }
    assert_true(out->followed_ns > 0);
    moepage_expert_pool_info info = info_of(&s);
    assert_int_equal(info.hi_published, 2 * TOP_K);
    assert_int_equal(info.transitions_failed, 0);
    stack_close(&s);
}

static const moepage_precision_config plain = {.interval_us = INTERVAL_NS / 1000};

static void test_sim_versions_transfers_take_nothing_from_a_step(void **state)
{
    (void)state;
    static story told;
    uint64_t took[2 * TOP_K + 1] = {0};
    tell(&plain, false, &told);
    for (uint32_t i = 0; i < told.steps; i++) {
        uint64_t *known = &took[told.low[i]];
        if (*known == 0)
            *known = told.wall_ns[i];
        assert_int_equal(told.wall_ns[i], *known);
    }
    assert_true(took[0] && took[2 * TOP_K]); /* all high, and all low, have been seen */
}

static void test_sim_versions_follow_a_shift_in_the_time_that_it_takes(void **state)
{
    (void)state;
    static story told;
    tell(&plain, false, &told);
    /* Hotness of what was always routed has settled at c. After one interval of the new set the old
     * one's is c / 2, and so is the new one's: not hotter. After two it is. Then, four swaps: four at
     * once, one after the other over the bus, each published by the step that begins next. */
    uint64_t step_ns = 0;
    for (uint32_t i = 1000; i < told.steps; i++)
        step_ns = told.wall_ns[i] > step_ns ? told.wall_ns[i] : step_ns;
    uint64_t decided = 3 * (INTERVAL_NS + step_ns); /* the shift comes somewhere in an interval */
    assert_true(told.followed_ns <= decided + 4 * LOAD + 4 * step_ns);
    assert_true(told.followed_ns >= INTERVAL_NS + 4 * LOAD);
}

static void test_sim_versions_are_the_same_every_time(void **state)
{
    (void)state;
    static story told, again;
    tell(&plain, false, &told);
    tell(&plain, false, &again);
    assert_memory_equal(&told, &again, sizeof told);
}

static void test_sim_versions_come_from_cold_storage_too(void **state)
{
    (void)state;
    static story told;
    moepage_precision_config fetched = plain;
    fetched.lo_fetched = 1;
    fetched.transitions = 8;
    tell(&plain, true, &told);
    tell(&fetched, false, &told);
    tell(&fetched, true, &told);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_versions_transfers_take_nothing_from_a_step),
        cmocka_unit_test(test_sim_versions_follow_a_shift_in_the_time_that_it_takes),
        cmocka_unit_test(test_sim_versions_are_the_same_every_time),
        cmocka_unit_test(test_sim_versions_come_from_cold_storage_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
