/* The fork-join team: every part of every job once, all writes visible on return. */
#include <string.h>

#include <stdatomic.h>

#include "device/team.h"
#include "testing.h"

enum { MAX_PARTS = 300 };

typedef struct tally {
    uint32_t expected_parts;
    uint32_t done[MAX_PARTS]; /* not atomic: parts must not overlap, the join must publish */
    _Atomic uint32_t wrong;
} tally;

static void count_part(void *context, uint32_t part, uint32_t n_parts)
{
    tally *t = context;
    if (n_parts != t->expected_parts || part >= n_parts)
        atomic_fetch_add(&t->wrong, 1);
    else
        t->done[part]++;
}

static void run_jobs(uint32_t members)
{
    mp_team *team = NULL;
    assert_int_equal(mp_team_create(members, &team), MOEPAGE_OK);
    for (uint32_t job = 0; job < 2000; job++) {
        tally t = {.expected_parts = 1 + job * 37 % MAX_PARTS};
        mp_team_run(team, count_part, &t, t.expected_parts);
        assert_int_equal(t.wrong, 0);
        for (uint32_t i = 0; i < MAX_PARTS; i++)
            assert_int_equal(t.done[i], i < t.expected_parts);
    }
    mp_team_destroy(team);
}

static void test_team_runs_every_part_once(void **state)
{
    (void)state;
    for (uint32_t members = 1; members <= 5; members++)
        run_jobs(members);
}

static void test_team_is_given_back_idle_or_never_used(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 50; i++) {
        mp_team *team = NULL;
        assert_int_equal(mp_team_create(1 + i % 4, &team), MOEPAGE_OK);
        mp_team_destroy(team);
    }
    mp_team_destroy(NULL);
}

static void nothing(void *context, uint32_t part, uint32_t n_parts)
{
    (void)part;
    (void)n_parts;
    atomic_fetch_add((_Atomic uint32_t *)context, 1);
}

static void test_team_takes_the_most_parts(void **state)
{
    (void)state;
    mp_team *team = NULL;
    _Atomic uint32_t n = 0;
    assert_int_equal(mp_team_create(3, &team), MOEPAGE_OK);
    mp_team_run(team, nothing, &n, MP_TEAM_MAX_PARTS);
    assert_int_equal(n, MP_TEAM_MAX_PARTS);
    mp_team_destroy(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_team_runs_every_part_once),
        cmocka_unit_test(test_team_is_given_back_idle_or_never_used),
        cmocka_unit_test(test_team_takes_the_most_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
