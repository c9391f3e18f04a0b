/* A budget that follows free memory: numbers alone. */
#include "planning/follow.h"
#include "testing.h"

static uint64_t follow(uint64_t budget, uint64_t available)
{
    const mp_follow_input input = {.budget = budget,
                                   .held = budget - 10, /* workspace that nobody uses */
                                   .available = available,
                                   .reserve = 100,
                                   .least = 300,
                                   .most = 2000};
    return mp_follow_budget(&input);
}

static void test_follow_stays_near_the_reserve(void **state)
{
    (void)state;
    for (uint64_t available = 50; available <= 150; available++)
        assert_int_equal(follow(1000, available), 1000);
    assert_int_equal(follow(1000, 49), 990 + 49 - 100);
    assert_int_equal(follow(1000, 151), 990 + 151 - 100);
}

/* A move leaves exactly the reserve, so that the next call finds nothing to do. */
static void test_follow_leaves_the_reserve_and_then_stays(void **state)
{
    (void)state;
    for (uint64_t available = 0; available < 400; available += 7) {
        const uint64_t to = follow(1000, available);
        const uint64_t left = 990 + available - to; /* when all of the new budget is held */
        assert_true(to == 1000 || left == 100);
        assert_int_equal(follow(to, to == 1000 ? 100 : left), to);
    }
}

static void test_follow_keeps_its_bounds(void **state)
{
    (void)state;
    assert_int_equal(follow(310, 0), 300);
    assert_int_equal(follow(1000, 5000), 2000);
    assert_int_equal(follow(1000, UINT64_MAX), 2000);
    assert_int_equal(follow(2500, 100), 2000);
    const mp_follow_input none = {.budget = 400, .available = 0, .least = 1, .most = 500};
    assert_int_equal(mp_follow_budget(&none), 400);
    const mp_follow_input poor = {
        .budget = 50, .held = 50, .available = 10, .reserve = 100, .least = 5, .most = 500};
    assert_int_equal(mp_follow_budget(&poor), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follow_stays_near_the_reserve),
        cmocka_unit_test(test_follow_leaves_the_reserve_and_then_stays),
        cmocka_unit_test(test_follow_keeps_its_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
