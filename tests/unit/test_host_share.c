/* Which absent experts the host computes, against the best of all divisions. */
#include <math.h>
#include <stdbool.h>

#include "numbers.h"
#include "planning/host_share.h"
#include "testing.h"

#define MOST 10

typedef struct division {
    double row_ns, load_ns;
    uint32_t n;
    uint32_t rows[MOST];
} division;

/* When the last expert is there if the host computes those of `set`. */
static double end_of(const division *d, uint32_t set)
{
    double own_ns = 0, loads_ns = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (set >> i & 1)
            own_ns += d->row_ns * (d->rows[i] < 8 ? 8 : d->rows[i]);
        else
            loads_ns += d->load_ns;
    }
    return fmax(own_ns, loads_ns);
}

static uint32_t choose(const division *d)
{
    uint32_t which[MOST], seen = 0, set = 0;
    for (uint32_t i = 0; i < d->n; i++)
        which[i] = i;
    const uint32_t k = mp_host_share(d->row_ns, d->load_ns, d->rows, which, d->n);
    assert_true(k <= d->n);
    for (uint32_t i = 0; i < d->n; i++) {
        seen |= 1u << which[i];
        set |= i < k ? 1u << which[i] : 0;
    }
    assert_int_equal(seen, (1u << d->n) - 1);
    return set;
}

static void test_host_share_is_the_best_of_all_divisions(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 3000; round++) {
        division d = {.load_ns = 1 + num_random_bits() % 1000,
                      .row_ns = 0.25 * (1 + num_random_bits() % 400),
                      .n = round % (MOST + 1)};
        double best = INFINITY;
        for (uint32_t i = 0; i < d.n; i++)
            d.rows[i] = 1 + num_random_bits() % 64;
        for (uint32_t set = 0; set < 1u << d.n; set++)
            best = fmin(best, end_of(&d, set));
        assert_true(end_of(&d, choose(&d)) == best);
    }
}

static void test_host_share_begins_with_one(void **state)
{
    (void)state;
    const division unknown = {.load_ns = 100, .n = 4, .rows = {3, 1, 50, 2}};
    const division free_loads = {.row_ns = 2, .n = 4, .rows = {3, 1, 50, 2}};
    assert_int_equal(choose(&unknown), 1 << 1);
    assert_int_equal(choose(&free_loads), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_share_is_the_best_of_all_divisions),
        cmocka_unit_test(test_host_share_begins_with_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
