/* FineMoE's priority with predictions: against its definition, and by hand. */
#include <stdio.h>
#include <stdlib.h>

#include "naive_cache.h"
#include "policy/policies.h"
#include "testing.h"

#define LAYERS 4u
#define EXPERTS 8u
#define KEYS (LAYERS * EXPERTS)

static bool may_evict(void *ctx, uint32_t key)
{
    return !((const naive_cache *)ctx)->refused[key];
}

/* Freq 3 at 0.1 goes before freq 1 at 0.4, and that before freq 2 at 0.3. */
static void test_finemoe_weighs_frequency_by_expectation(void **state)
{
    (void)state;
    const mp_policy *policy = &mp_policy_finemoe;
    naive_cache none = {0};
    void *memory = malloc(policy->state_bytes(EXPERTS, EXPERTS));
    assert_non_null(memory);
    policy->init(memory, EXPERTS, EXPERTS);
    const float p[3] = {0.1f, 0.4f, 0.3f};
    for (uint32_t key = 0; key < 3; key++)
        policy->insert(memory, key);
    policy->touch(memory, 0);
    policy->touch(memory, 0);
    policy->touch(memory, 2);
    assert_int_equal(policy->victim(memory, may_evict, &none), 1); /* all alike: the count */
    policy->expect(memory, 0, p, 3);
    assert_int_equal(policy->victim(memory, may_evict, &none), 0);
    policy->remove(memory, 0);
    assert_int_equal(policy->victim(memory, may_evict, &none), 1);
    policy->insert(memory, 0); /* its visits are forgotten, its p is not */
    assert_int_equal(policy->victim(memory, may_evict, &none), 0);
    free(memory);
}

static void test_finemoe_evicts_by_its_definition(void **state)
{
    (void)state;
    static naive_cache naive;
    const mp_policy *policy = &mp_policy_finemoe;
    void *memory = malloc(policy->state_bytes(KEYS, EXPERTS));
    assert_non_null(memory);
    for (uint32_t seed = 1; seed <= 20; seed++) {
        srand(seed);
        policy->init(memory, KEYS, EXPERTS);
        naive_open(&naive, "finemoe", KEYS, EXPERTS);
        for (uint32_t i = 0; i < 2000; i++) {
            uint32_t key = (uint32_t)rand() % KEYS;
            naive.refused[(uint32_t)rand() % KEYS] = rand() % 4 == 0;
            if (rand() % 8 == 0) {
                uint32_t first = (uint32_t)rand() % LAYERS * EXPERTS;
                for (uint32_t e = 0; e < EXPERTS; e++)
                    naive.p[first + e] = (float)(1 + rand() % 64) / 64;
                policy->expect(memory, first, &naive.p[first], EXPERTS);
            } else if (naive.here[key] && rand() % 4) {
                naive_touch(&naive, key);
                policy->touch(memory, key);
            } else if (naive.here[key]) {
                naive_remove(&naive, key);
                policy->remove(memory, key);
            } else {
                naive_insert(&naive, key);
                policy->insert(memory, key);
            }
            uint32_t victim = naive_victim(&naive);
            if (policy->victim(memory, may_evict, &naive) !=
                (victim == NAIVE_NONE ? MP_NO_KEY : victim))
                fail_msg("seed %u, call %u", seed, i);
        }
    }
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finemoe_weighs_frequency_by_expectation),
        cmocka_unit_test(test_finemoe_evicts_by_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
