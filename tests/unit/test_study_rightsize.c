/* The study of right-sizing on the excerpt: what it counts of later sessions against a count of the
 * file's own bytes, and what a user's own sessions are worth. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/study.h"
#include "testing.h"

enum { ROWS = 6026, LAYERS = 24, EXPERTS = 32, TOP_K = 4, REQUESTS = 20 };

static sim_findings found;

static void run(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (!getenv("MP_TEST_LONG")) {
        print_message(
            "the study of right-sizing: skipped in a sanitized build without MP_TEST_LONG\n");
        skip();
    }
#endif
    if (!found.n)
        assert_int_equal(sim_study_find("rightsize")->run(true, 0, &found), 0);
}

static double figure(const char *where, const char *what)
{
    for (uint32_t i = 0; i < found.n; i++)
        if (!strcmp(found.findings[i].where, where) && !strcmp(found.findings[i].what, what))
            return found.findings[i].ours;
    fail_msg("no figure '%s' of '%s'", what, where);
    return NAN;
}

/* Distinct experts of the last requests of each data set that has three at least, from the third on;
 * the mean over data sets. */
static double count_support(void)
{
    static uint8_t ids[ROWS][LAYERS][TOP_K];
    static char line[256], names[REQUESTS][64];
    static bool used[REQUESTS][LAYERS][EXPERTS];
    uint32_t count[REQUESTS] = {0}, users = 0, n = 0, support = 0;
    FILE *bytes = fopen("tests/data/gpt-oss-20b-20requests.u8", "rb");
    FILE *rows = fopen("tests/data/gpt-oss-20b-20requests.csv", "r");
    assert_true(bytes && rows);
    assert_int_equal(fread(ids, sizeof *ids, ROWS, bytes), ROWS);
    assert_non_null(fgets(line, sizeof line, rows)); /* the names of columns */
    while (fgets(line, sizeof line, rows)) {
        char name[64];
        unsigned tokens, first, u = 0;
        assert_int_equal(sscanf(line, "%*u,%63[^,],%*[^,],%*u,%u,%u", name, &tokens, &first), 3);
        while (u < users && strcmp(names[u], name) != 0)
            u++;
        if (u == users)
            strcpy(names[users++], name);
        for (uint32_t row = first; count[u] >= 2 && row < first + tokens; row++)
            for (uint32_t i = 0; i < LAYERS * TOP_K; i++)
                used[u][i / TOP_K][ids[row][i / TOP_K][i % TOP_K]] = true;
        count[u]++;
    }
    fclose(bytes);
    fclose(rows);
    for (uint32_t u = 0; u < users; u++) {
        n += count[u] >= 3;
        for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
            support += used[u][i / EXPERTS][i % EXPERTS];
    }
    return (double)support / n;
}

static void test_study_rightsize_counts_what_later_sessions_use(void **state)
{
    (void)state;
    run();
    double support = count_support();
    assert_float_equal(figure("by dataset, 1 session", "experts used later"), support, 1e-6);
    assert_float_equal(figure("by dataset, 2 sessions", "experts used later"), support, 1e-6);
}

static void test_study_rightsize_own_sessions_are_worth_more(void **state)
{
    (void)state;
    run();
    assert_int_equal(found.n_claims, 3);
    for (uint32_t i = 0; i < found.n_claims; i++)
        if (!found.claims[i].holds)
            fail_msg("does not hold: %s", found.claims[i].text);
    /* By chance one of eight is right. */
    assert_true(figure("by dataset, 1 session", "% right, own table") > 3 * 12.5);
}

static void test_study_rightsize_what_is_freed_is_what_is_not_in_the_set(void **state)
{
    (void)state;
    run();
    /* Experts of three matrices, 2880 by 2880, in BF16. */
    double set = figure("by dataset, 1 session", "experts, working set");
    double freed = (LAYERS * EXPERTS - set) * 3 * 2880 * 2880 * 2 / 1e9;
    assert_float_equal(figure("by dataset, 1 session", "GB freed for KV"), freed, freed * 1e-3);
    assert_true(figure("by dataset, 1 session", "experts, cap of a layer") <= EXPERTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_study_rightsize_counts_what_later_sessions_use),
        cmocka_unit_test(test_study_rightsize_own_sessions_are_worth_more),
        cmocka_unit_test(test_study_rightsize_what_is_freed_is_what_is_not_in_the_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
