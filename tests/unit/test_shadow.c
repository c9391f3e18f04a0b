/* What a cache would miss, by keys alone: against caches written from the policies' definitions. */
#include <stdlib.h>

#include "bank_model.h"
#include "naive_cache.h"
#include "policy/shadow.h"
#include "testing.h"

#define LAYERS 4u
#define EXPERTS 24u
#define KEYS (LAYERS * EXPERTS)

static mp_shadow *open_shadow(const char *policy)
{
    const mp_policy *of = mp_policy_find(policy);
    void *state = malloc(mp_shadow_bytes(of, KEYS, EXPERTS));
    assert_non_null(state);
    return mp_shadow_init(state, of, KEYS, EXPERTS);
}

/* Draws 1 to `most` experts of a layer, low ones more often. */
static uint32_t draw_set(uint64_t *random, uint32_t layer, uint32_t most, uint32_t *set)
{
    bool drawn[EXPERTS] = {false};
    uint32_t n = 0;
    for (uint32_t i = 0; i < most; i++) {
        uint32_t expert = bank_below(random, 1 + bank_below(random, EXPERTS));
        if (!drawn[expert])
            set[n++] = layer * EXPERTS + expert;
        drawn[expert] = true;
    }
    return n;
}

static void test_shadow_misses_what_the_policy_would(void **state)
{
    (void)state;
    static naive_cache naive;
    for (uint32_t p = 0; mp_policy_name(p); p++) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            uint64_t random = seed;
            uint32_t set[EXPERTS], victims[KEYS], n_victims, all = 0;
            uint32_t most = 1 + bank_below(&random, 12), slots = most + bank_below(&random, 60);
            mp_shadow *shadow = open_shadow(mp_policy_name(p));
            naive_open(&naive, mp_policy_name(p), KEYS, EXPERTS);
            for (uint32_t step = 0; step < 400; step++) {
                uint32_t n = draw_set(&random, step % LAYERS, most, set);
                uint32_t expected = naive_serve(&naive, slots, set, n, victims, &n_victims);
                uint32_t missed = mp_shadow_serve(shadow, set, n, slots);
                if (missed != expected)
                    fail_msg("%s, seed %llu, set %u: %u misses, not %u", mp_policy_name(p),
                             (unsigned long long)seed, step, missed, expected);
                all += missed;
            }
            assert_true(all > 0);
            free(shadow);
        }
    }
}

/* A set larger than all slots, fewer slots than before, and more again. */
static void test_shadow_follows_the_number_of_slots(void **state)
{
    (void)state;
    uint32_t set[EXPERTS];
    for (uint32_t i = 0; i < EXPERTS; i++)
        set[i] = i;
    mp_shadow *shadow = open_shadow("lru");
    assert_int_equal(mp_shadow_serve(shadow, set, 0, 10), 0);
    assert_int_equal(mp_shadow_serve(shadow, set, 24, 10), 24); /* keeps the first ten */
    assert_int_equal(mp_shadow_serve(shadow, set, 10, 10), 0);
    assert_int_equal(mp_shadow_serve(shadow, &set[9], 1, 4), 0); /* gives up six, the oldest */
    assert_int_equal(mp_shadow_serve(shadow, set, 10, 20), 6);
    assert_int_equal(mp_shadow_serve(shadow, set, 10, 20), 0);
    assert_int_equal(mp_shadow_serve(shadow, &set[10], 10, 20), 10);
    assert_int_equal(mp_shadow_serve(shadow, set, 20, 20), 0);
    free(shadow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shadow_misses_what_the_policy_would),
        cmocka_unit_test(test_shadow_follows_the_number_of_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
