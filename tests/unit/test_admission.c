/* How many run at once, in a closed loop: jobs that end by chance, and a machine on which paging sets in beyond a
 * number of sequences. */
#include <math.h>

#include "bank_model.h"
#include "planning/admission.h"
#include "testing.h"

#define BURST 64u
#define JOB_STEPS 64u
#define MOST 128u

/* A step's time: weights that all share, a part of each sequence, and beyond the knee misses that grow faster than
 * what runs. */
typedef struct machine {
    uint32_t knee;
    uint64_t random;
    double noise; /* of a step, as a fraction */
} machine;

static double stall(const machine *m, uint32_t running)
{
    double over = running > m->knee ? running - m->knee : 0;
    return 30e6 * over + 4e6 * over * over;
}

static double step_ns(const machine *m, uint32_t running)
{
    return 10e6 + 0.5e6 * running + stall(m, running);
}

static double pace(const machine *m, uint32_t running)
{
    return running / step_ns(m, running) * 1e9;
}

static uint32_t best_of(const machine *m, uint32_t cap)
{
    uint32_t best = 1;
    for (uint32_t r = 2; r <= cap; r++)
        best = pace(m, r) > pace(m, best) ? r : best;
    return best;
}

typedef struct host {
    machine machine;
    mp_admission admission;
    uint32_t cap, running, limit;
    double tokens, ns; /* of the last burst */
} host;

static double luck(machine *m)
{
    return 1 + m->noise * ((double)bank_below(&m->random, 2001) / 1000 - 1);
}

/* `waiting`: jobs that arrive in each step; the queue of a saturated host is never empty. */
static void run_burst(host *h, bool saturated)
{
    h->tokens = h->ns = 0;
    for (uint32_t s = 0; s < BURST; s++) {
        h->limit = h->admission.limit; /* as it is between steps */
        uint32_t ended = 0, most = h->limit && h->limit < h->cap ? h->limit : h->cap;
        for (uint32_t i = 0; i < h->running; i++)
            ended += bank_below(&h->machine.random, JOB_STEPS) == 0;
        h->running -= ended;
        if (saturated && h->running < most)
            h->running = most;
        else if (!saturated && (!h->running || bank_below(&h->machine.random, JOB_STEPS) == 0))
            h->running += h->running < most;
        double by_luck = luck(&h->machine);
        double ns = step_ns(&h->machine, h->running) * by_luck;
        mp_admission_step(&h->admission, h->running, (uint64_t)ns,
                          (uint64_t)(stall(&h->machine, h->running) * by_luck));
        h->tokens += h->running;
        h->ns += ns;
    }
    mp_admission_burst(&h->admission);
    h->limit = h->admission.limit;
}

static host open_host(uint32_t knee, uint32_t cap, uint64_t seed)
{
    host h = {.machine = {.knee = knee, .random = seed, .noise = 0.2}, .cap = cap, .running = cap};
    mp_admission_init(&h.admission, 0.7);
    return h;
}

/* Tokens per second over so many bursts, of the best that any fixed number has. */
static double share_of_best(host *h, uint32_t bursts)
{
    double tokens = 0, ns = 0;
    for (uint32_t b = 0; b < bursts; b++) {
        run_burst(h, true);
        tokens += h->tokens;
        ns += h->ns;
    }
    return tokens / ns * 1e9 / pace(&h->machine, best_of(&h->machine, h->cap));
}

static uint32_t log2_of(uint32_t n)
{
    uint32_t log = 0;
    while (n >>= 1)
        log++;
    return log;
}

static void test_admission_leaves_a_thrash_and_stays_near_the_best(void **state)
{
    (void)state;
    static const uint32_t knees[] = {1, 2, 5, 12, 40}, caps[] = {4, 8, 32, MOST};
    double worst = 1;
    for (uint32_t k = 0; k < 5; k++)
        for (uint32_t c = 0; c < 4; c++)
            for (uint64_t seed = 1; seed <= 5; seed++) {
                host h = open_host(knees[k], caps[c], seed);
                uint32_t bursts = 0, bound = log2_of(caps[c]) + 6;
                do
                    run_burst(&h, true);
                while (h.tokens / h.ns * 1e9 <
                           0.85 * pace(&h.machine, best_of(&h.machine, h.cap)) &&
                       ++bursts < 100);
                assert_true(bursts <= bound);
                (void)share_of_best(&h, 20);
                double share = share_of_best(&h, 100);
                worst = fmin(worst, share);
                assert_true(share >= 0.9);
            }
    print_message("worst: %.3f of the best\n", worst);
}

static void test_admission_sets_no_limit_where_more_is_faster(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        host h = open_host(MOST, 8, seed);
        for (uint32_t b = 0; b < 50; b++) {
            run_burst(&h, true);
            assert_true(h.limit == 0);
        }
    }
}

/* The load decides what runs, far below where paging sets in: a limit would make jobs wait for nothing. */
static void test_admission_leaves_a_light_load_alone(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        host h = open_host(12, 16, seed);
        h.running = 1;
        for (uint32_t b = 0; b < 50; b++) {
            run_burst(&h, false);
            assert_true(h.limit == 0 || h.limit >= h.running);
        }
    }
}

static void test_admission_follows_a_machine_that_changes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        host h = open_host(12, 32, seed);
        (void)share_of_best(&h, 40);
        static const uint32_t knees[] = {3, 12, 1, 20};
        for (uint32_t i = 0; i < 4; i++) {
            h.machine.knee = knees[i];
            (void)share_of_best(&h, 100);
            assert_true(share_of_best(&h, 60) >= 0.8);
        }
    }
}

/* Levels of several numbers are no ceiling: a load that was limited to one of theirs comes out of it. */
static void test_admission_climbs_where_numbers_share_a_level(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        host h = open_host(40, MOST, seed);
        (void)share_of_best(&h, 40);
        assert_true(h.limit > 32 && h.limit < 64);
        h.machine.knee = 120;
        (void)share_of_best(&h, 100);
        assert_true(share_of_best(&h, 60) >= 0.9);
    }
}

static void test_admission_knows_rates_by_number(void **state)
{
    (void)state;
    mp_admission a;
    mp_admission_init(&a, 0.5);
    assert_true(mp_admission_rate(&a, 3) == 0);
    for (uint32_t i = 0; i < 4; i++)
        mp_admission_step(&a, 3, 50000000, 0);
    assert_true(fabs(mp_admission_rate(&a, 3) - 60) < 1e-9);
    assert_true(mp_admission_rate(&a, 4) == 0);
    mp_admission_burst(&a);
    assert_int_equal(a.limit, 0);
    assert_true(mp_admission_rate(&a, 3) == 0); /* two steps are left of four: forgotten */
    mp_admission_step(&a, UINT32_MAX, 1, 1);    /* more than any level has */
    mp_admission_burst(&a);
    assert_int_equal(a.limit, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admission_leaves_a_thrash_and_stays_near_the_best),
        cmocka_unit_test(test_admission_sets_no_limit_where_more_is_faster),
        cmocka_unit_test(test_admission_leaves_a_light_load_alone),
        cmocka_unit_test(test_admission_follows_a_machine_that_changes),
        cmocka_unit_test(test_admission_climbs_where_numbers_share_a_level),
        cmocka_unit_test(test_admission_knows_rates_by_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
