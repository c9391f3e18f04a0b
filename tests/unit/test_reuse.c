/* Exact reuse distances against a list searched from its top, and against closed forms. */
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "naive_stack.h"
#include "planning/reuse.h"
#include "testing.h"

#define MAX_SET 64

static mp_reuse *reuse_open(uint32_t keys)
{
    const uint64_t bytes = mp_reuse_bytes(keys);
    assert_int_equal(bytes % 8, 0);
    void *state = malloc(bytes);
    assert_non_null(state);
    memset(state, 0xA5, bytes); /* init may assume nothing */
    return mp_reuse_init(state, keys);
}

/* n distinct keys. */
static void draw_set(uint64_t *random, uint32_t keys, uint32_t n, uint32_t *set)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j;
        do {
            set[i] = bank_below(random, keys);
            for (j = 0; j < i && set[j] != set[i]; j++)
                ;
        } while (j < i);
    }
}

/* Low keys are drawn more often. */
static void draw_skewed(uint64_t *random, uint32_t keys, uint32_t n, uint32_t *set)
{
    const uint32_t bound = 1 + bank_below(random, keys);
    draw_set(random, bound > n ? bound : n, n, set);
}

static void check_stream(uint64_t seed)
{
    uint64_t random = seed;
    const uint32_t keys = 1 + bank_below(&random, seed % 3 ? 40 : 300);
    const uint32_t most = keys < MAX_SET ? keys : MAX_SET;
    const uint32_t sets = 20 * keys; /* many times the line of time */
    mp_reuse *reuse = reuse_open(keys);
    naive_stack naive = {0};
    for (uint32_t s = 0; s < sets; s++) {
        uint32_t set[MAX_SET], distances[MAX_SET];
        const uint32_t n = 1 + bank_below(&random, seed % 2 ? most : most < 4 ? most : 4);
        draw_skewed(&random, keys, n, set);
        mp_reuse_use(reuse, set, n, distances);
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t expected = naive_stack_distance(&naive, set[i]);
            const uint32_t wanted =
                expected == NAIVE_STACK_FIRST ? MP_REUSE_FIRST : (uint32_t)expected;
            if (distances[i] != wanted)
                fail_msg("seed %llu, set %u, key %u: distance %u, not %u", (unsigned long long)seed,
                         s, set[i], distances[i], wanted);
        }
        for (uint32_t i = 0; i < n; i++)
            naive_stack_use(&naive, set[i], 1);
        if (bank_below(&random, 8) == 0) {
            const uint32_t key = bank_below(&random, keys); /* used before, or not */
            mp_reuse_forget(reuse, key);
            naive_stack_forget(&naive, key);
        }
    }
    free(reuse);
}

static void test_reuse_distances_are_those_of_the_definition(void **state)
{
    (void)state;
    const uint64_t rounds = getenv("MP_TEST_LONG") ? 1000 : 100;
    for (uint64_t seed = 1; seed <= rounds; seed++)
        check_stream(seed);
}

static void test_reuse_measures_a_set_before_any_of_it_moves(void **state)
{
    (void)state;
    mp_reuse *reuse = reuse_open(4);
    uint32_t d[4];
    mp_reuse_use(reuse, (const uint32_t[]){0, 1, 2}, 3, d);
    for (int i = 0; i < 3; i++)
        assert_true(d[i] == MP_REUSE_FIRST);
    mp_reuse_use(reuse, (const uint32_t[]){2, 0, 3}, 3, d);
    assert_int_equal(d[0], 0);
    assert_int_equal(d[1], 2);
    assert_true(d[2] == MP_REUSE_FIRST);
    /* Now 1, 2, 0, 3 from the oldest. */
    mp_reuse_use(reuse, (const uint32_t[]){3, 0, 2, 1}, 4, d);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(d[i], i);
    free(reuse);
}

static void test_reuse_forgets_as_if_never_used(void **state)
{
    (void)state;
    mp_reuse *reuse = reuse_open(3);
    uint32_t d[3];
    mp_reuse_use(reuse, (const uint32_t[]){0, 1, 2}, 3, d);
    mp_reuse_forget(reuse, 1);
    mp_reuse_forget(reuse, 1);
    mp_reuse_use(reuse, (const uint32_t[]){0, 1}, 2, d);
    assert_int_equal(d[0], 1);
    assert_true(d[1] == MP_REUSE_FIRST);
    free(reuse);
}

static void test_reuse_of_a_circle_is_all_the_others(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 31, 32, 33, 63, 64, 65, 4096};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        mp_reuse *reuse = reuse_open(sizes[k]);
        for (uint32_t use = 0; use < 7 * sizes[k]; use++) {
            const uint32_t key = use % sizes[k];
            uint32_t d;
            mp_reuse_use(reuse, &key, 1, &d);
            assert_int_equal(d, use < sizes[k] ? MP_REUSE_FIRST : sizes[k] - 1);
        }
        free(reuse);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reuse_distances_are_those_of_the_definition),
        cmocka_unit_test(test_reuse_measures_a_set_before_any_of_it_moves),
        cmocka_unit_test(test_reuse_forgets_as_if_never_used),
        cmocka_unit_test(test_reuse_of_a_circle_is_all_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
