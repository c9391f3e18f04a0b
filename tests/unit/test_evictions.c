/* Eviction policies on recorded routing: what the study counts, and that the policy that knows the
 * layers does not miss more often than those that do not. */
#include <stdio.h>
#include <stdlib.h>

#include "naive_cache.h"
#include "route_rows.h"
#include "sim/study_evictions.h"
#include "sim/trace.h"
#include "slow.h"
#include "testing.h"

enum { TRAIN_PERCENT = 60 };

static const uint32_t capacities[] = {ROUTE_KEYS / 8, ROUTE_KEYS / 4, ROUTE_KEYS / 2,
                                      ROUTE_KEYS * 3 / 4};

static sim_trace *open_excerpt(void)
{
    sim_trace *trace =
        sim_trace_open_as("tests/data/gpt-oss-20b-20requests.u8", &(sim_trace_shape){24, 32, 4});
    assert_non_null(trace);
    return trace;
}

static uint64_t misses(const sim_trace *trace, const char *policy, uint32_t capacity, bool cold)
{
    uint64_t first = sim_first_tested(trace, TRAIN_PERCENT), found;
    assert_int_equal(sim_eviction_misses(trace, policy, capacity, first, cold, &found), 0);
    return found;
}

static uint64_t naive_misses(const char *policy, uint32_t capacity, const route_rows *rows,
                             uint32_t from, uint32_t counted)
{
    static naive_cache cache;
    uint32_t victims[ROUTE_TOP_K], n_victims;
    uint64_t found = 0;
    naive_open(&cache, policy, ROUTE_KEYS, ROUTE_EXPERTS);
    for (uint64_t i = (uint64_t)from * ROUTE_ROW_USES; i < rows->uses; i += ROUTE_TOP_K) {
        uint32_t missed =
            naive_serve(&cache, capacity, rows->keys + i, ROUTE_TOP_K, victims, &n_victims);
        found += i >= (uint64_t)counted * ROUTE_ROW_USES ? missed : 0;
    }
    return found;
}

static void test_evictions_are_counted_in_the_tested_part(void **state)
{
    (void)state;
    static const char *const names[] = {"lru", "lirs", "cycle"};
    route_rows rows;
    route_rows_excerpt(&rows, 300);
    sim_trace *trace = open_excerpt();
    trace->rows = 300;
    assert_int_equal(sim_first_tested(trace, TRAIN_PERCENT), 180);
    for (size_t p = 0; p < sizeof names / sizeof *names; p++) {
        assert_int_equal(misses(trace, names[p], 192, false),
                         naive_misses(names[p], 192, &rows, 0, 180));
        assert_int_equal(misses(trace, names[p], 192, true),
                         naive_misses(names[p], 192, &rows, 180, 180));
    }
    trace->source.close(&trace->source);
    route_rows_free(&rows);
}

static void test_evictions_training_ends_with_a_request(void **state)
{
    (void)state;
    sim_request requests[5] = {
        {.first_row = 0}, {.first_row = 7}, {.first_row = 9}, {.first_row = 20}, {.first_row = 21}};
    sim_trace trace = {.source = {.n_requests = 5}, .rows = 30, .requests = requests};
    assert_int_equal(sim_first_tested(&trace, 60), 20);
    assert_int_equal(sim_first_tested(&trace, 59), 9);
    assert_int_equal(sim_first_tested(&trace, 1), 0);
}

static void compare(const sim_trace *trace, uint32_t from, uint32_t to, bool cold)
{
    for (uint32_t c = from; c < to; c++) {
        uint64_t ours = misses(trace, "cycle", capacities[c], cold);
        uint64_t lru = misses(trace, "lru", capacities[c], cold);
        uint64_t lirs = misses(trace, "lirs", capacities[c], cold);
        uint64_t s3fifo = misses(trace, "s3fifo", capacities[c], cold);
        uint64_t least = misses(trace, "belady", capacities[c], cold);
        print_message("%s, %u of %u: %llu misses; LRU %llu, LIRS %llu, S3-FIFO %llu, Belady %llu\n",
                      cold ? "cold" : "warm", capacities[c], ROUTE_KEYS, (unsigned long long)ours,
                      (unsigned long long)lru, (unsigned long long)lirs, (unsigned long long)s3fifo,
                      (unsigned long long)least);
        assert_true(ours <= lirs && ours <= s3fifo && ours <= lru);
        assert_true(ours >= least);
    }
}

static void test_evictions_of_cycle_are_fewest_on_the_excerpt(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    sim_trace *trace = open_excerpt();
    compare(trace, 0, 4, false);
    trace->source.close(&trace->source);
}

/* A quarter of the experts; all capacities, warm and cold, with MP_TEST_LONG. */
static void test_evictions_of_cycle_are_fewest_on_the_whole_trace(void **state)
{
    (void)state;
    const char *shared = getenv("MOEPAGE_SHARED");
    bool all = getenv("MP_TEST_LONG") != NULL;
    char path[4096];
    route_rows row;
    if (!route_rows_whole(&row, 1, "test_evictions_of_cycle_are_fewest_on_the_whole_trace"))
        skip();
    route_rows_free(&row);
    slow_skip_sanitized(__func__);
    snprintf(path, sizeof path, "%s/traces/gpt-oss-20b", shared ? shared : "../shared");
    sim_trace *trace = sim_trace_open(path);
    assert_non_null(trace);
    compare(trace, all ? 0 : 1, all ? 4 : 2, false);
    if (all)
        compare(trace, 0, 4, true);
    trace->source.close(&trace->source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evictions_training_ends_with_a_request),
        cmocka_unit_test(test_evictions_are_counted_in_the_tested_part),
        cmocka_unit_test(test_evictions_of_cycle_are_fewest_on_the_excerpt),
        cmocka_unit_test(test_evictions_of_cycle_are_fewest_on_the_whole_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
