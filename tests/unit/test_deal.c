/* Dealing experts to devices: taking turns where all weigh the same, Sainte-Laguë's rule where not, by its
 * definition; and amounts by largest remainder. */
#include <stdlib.h>
#include <string.h>

#include "planning/deal.h"
#include "testing.h"

#define MOST_EXPERTS 300

typedef struct table {
    mp_deal deal;
    uint8_t device_of[MOST_EXPERTS];
    uint32_t rank_of[MOST_EXPERTS], expert_at[MOST_EXPERTS];
} table;

static void deal_to(table *t, uint32_t n, const uint64_t *weights, uint32_t experts)
{
    memset(t, 0xee, sizeof *t);
    t->deal = (mp_deal){.n = n,
                        .device_of = t->device_of,
                        .rank_of = t->rank_of,
                        .expert_at = t->expert_at};
    memcpy(t->deal.weights, weights, n * sizeof *weights);
    mp_deal_out(&t->deal, experts);
}

static uint64_t draw(uint64_t *random, uint64_t n)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (*random >> 24) % n;
}

/* Small ones and large ones, equal ones, and none at all. */
static uint32_t draw_weights(uint64_t *random, uint64_t *weights)
{
    const uint32_t n = 1 + (uint32_t)draw(random, MP_DEAL_MOST);
    const uint64_t most = draw(random, 2) ? 20 : 1ull << 40;
    for (uint32_t d = 0; d < n; d++)
        weights[d] = draw(random, 4) ? 1 + draw(random, most) : d ? weights[d - 1] : 0;
    return n;
}

static void test_deal_equal_devices_take_turns(void **state)
{
    (void)state;
    static const uint64_t weights[] = {1, 7, 1000000007};
    static table t;
    for (uint32_t n = 1; n <= MP_DEAL_MOST; n++)
        for (uint32_t experts = n; experts <= 70; experts++) {
            uint64_t all[MP_DEAL_MOST];
            for (uint32_t d = 0; d < n; d++)
                all[d] = weights[experts % 3];
            deal_to(&t, n, all, experts);
            for (uint32_t e = 0; e < experts; e++) {
                assert_int_equal(mp_deal_device(&t.deal, e), e % n);
                assert_int_equal(t.rank_of[e], e / n);
                assert_int_equal(mp_deal_expert(&t.deal, e % n, e / n), e);
            }
            for (uint32_t d = 0; d < n; d++)
                for (uint32_t total = 0; total <= experts; total++) {
                    const uint32_t fair = total / n + (d < total % n);
                    assert_int_equal(mp_deal_part(&t.deal, d, total), fair);
                    assert_int_equal(mp_deal_share(&t.deal, d, total), fair);
                }
        }
}

/* By hand: 3 to 1. Each gets one; then 3/3, 3/5 and 3/7 go before 1/3, which 3/9 equals. */
static void test_deal_three_to_one(void **state)
{
    (void)state;
    static const uint8_t order[] = {0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1};
    static table t;
    deal_to(&t, 2, (const uint64_t[]){3, 1}, sizeof order);
    assert_memory_equal(t.device_of, order, sizeof order);
    assert_int_equal(t.deal.members[0], 8);
    assert_int_equal(mp_deal_part(&t.deal, 1, 7), 2);
}

/* No expert would be better off with another device: that is the rule, whatever the way to it. */
static void check_proportions(const table *t)
{
    typedef unsigned __int128 wide;
    const mp_deal *deal = &t->deal;
    for (uint32_t i = 0; i < deal->n; i++)
        for (uint32_t j = 0; j < deal->n; j++) {
            const wide has = 2 * (wide)deal->members[i] - 1, gets = 2 * (wide)deal->members[j] + 1;
            assert_true(deal->members[i] == 1 || deal->weights[i] * gets >= deal->weights[j] * has);
        }
}

static void check_tables(const table *t, uint32_t experts)
{
    const mp_deal *deal = &t->deal;
    uint32_t seen[MP_DEAL_MOST] = {0}, all = 0;
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t d = deal->device_of[e];
        assert_true(d < deal->n);
        assert_int_equal(deal->rank_of[e], seen[d]++);
        assert_int_equal(mp_deal_expert(deal, d, deal->rank_of[e]), e);
    }
    for (uint32_t d = 0; d < deal->n; d++) {
        assert_int_equal(deal->members[d], seen[d]);
        assert_true(seen[d] > 0);
        all += seen[d];
    }
    assert_int_equal(all, experts);
}

static void test_deal_is_in_proportion(void **state)
{
    (void)state;
    static table t;
    uint64_t random = 1, weights[MP_DEAL_MOST];
    for (uint32_t round = 0; round < 3000; round++) {
        const uint32_t n = draw_weights(&random, weights);
        const uint32_t experts = n + (uint32_t)draw(&random, MOST_EXPERTS - n + 1);
        deal_to(&t, n, weights, experts);
        check_tables(&t, experts);
        check_proportions(&t);
        for (uint32_t d = 0; d < n; d++) {
            uint32_t before = 0;
            for (uint32_t total = 0; total <= experts; total++) {
                const uint32_t part = mp_deal_part(&t.deal, d, total);
                assert_true(part == before || part == before + 1);
                assert_true(total < n || part > 0);
                before = part;
            }
            assert_int_equal(before, t.deal.members[d]);
        }
    }
}

static void test_deal_shares_are_the_nearest_whole_ones(void **state)
{
    (void)state;
    typedef unsigned __int128 wide;
    static table t;
    uint64_t random = 2, weights[MP_DEAL_MOST];
    for (uint32_t round = 0; round < 3000; round++) {
        const uint32_t n = draw_weights(&random, weights);
        wide sum = 0, all = 0;
        for (uint32_t d = 0; d < n; d++)
            sum += weights[d];
        const uint64_t total = draw(&random, draw(&random, 2) ? 1000 : 1ull << 42);
        deal_to(&t, n, weights, n);
        for (uint32_t d = 0; d < n; d++) {
            const uint64_t share = mp_deal_share(&t.deal, d, total);
            all += share;
            if (sum == 0)
                continue;
            const wide quota = (wide)total * weights[d];
            assert_true((wide)share * sum < quota + sum && ((wide)share + 1) * sum > quota);
            assert_true(total > sum || share <= weights[d]);
        }
        assert_true(all == total);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deal_equal_devices_take_turns),
        cmocka_unit_test(test_deal_three_to_one),
        cmocka_unit_test(test_deal_is_in_proportion),
        cmocka_unit_test(test_deal_shares_are_the_nearest_whole_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
