/* Requests to serve: what files say, what is refused, prefixes against a search through all pairs, and
 * clients worked out by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fail.h"
#include "sim/jobs.h"
#include "testing.h"

#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\n"

/* ---- Files ------------------------------------------------------------------------------- */

static int read_text(const char *text, const sim_jobs_config *config, sim_jobs *out)
{
    char path[] = "/tmp/jobs-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    int code = sim_jobs_read(path, config, out);
    unlink(path);
    return code;
}

static void expect_refused(const char *text)
{
    sim_jobs jobs = {0};
    assert_int_equal(read_text(text, &(sim_jobs_config){.time_scale = 1}, &jobs), RUN_REFUSED);
    assert_null(jobs.jobs);
}

static void test_jobs_read_azure_times_and_lengths(void **state)
{
    (void)state;
    static const char text[] = AZURE "2023-11-16 18:17:03.9799600,4808,10\n"
                                     "2023-11-16 18:17:04.0319600,3180,8\r\n"
                                     "2023-11-17 00:00:00.5,0,0";
    sim_jobs jobs;
    assert_int_equal(read_text(text, &(sim_jobs_config){.time_scale = 0.5}, &jobs), RUN_OK);
    assert_int_equal(jobs.n, 3);
    assert_int_equal(jobs.jobs[0].arrival_ns, 0);
    assert_int_equal(jobs.jobs[0].prompt_tokens, 4808);
    assert_int_equal(jobs.jobs[0].output_tokens, 10);
    assert_int_equal(jobs.jobs[1].arrival_ns, 26000000);
    /* 5 h 42 min 56.52004 s later, halved */
    assert_int_equal(jobs.jobs[2].arrival_ns, 10288260020000u);
    assert_int_equal(jobs.jobs[2].prompt_tokens, 1);
    assert_int_equal(jobs.jobs[2].output_tokens, 1);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(jobs.jobs[i].parent, SIM_NO_JOB);
        assert_int_equal(jobs.jobs[i].after, SIM_NO_JOB);
        assert_int_equal(jobs.jobs[i].session, i);
        assert_false(jobs.jobs[i].kept);
    }
    assert_int_equal(sim_jobs_longest(&jobs), 4818);
    assert_int_equal(sim_jobs_output_tokens(&jobs), 19);
    sim_jobs_free(&jobs);
}

static void test_jobs_cut_a_slice_out_of_what_fits(void **state)
{
    (void)state;
    static const char text[] = AZURE "2023-11-16 18:00:00,10,1\n2023-11-16 18:00:01,90,11\n"
                                     "2023-11-16 18:00:02,20,2\n2023-11-16 18:00:03,30,3\n"
                                     "2023-11-16 18:00:04,40,4\n";
    sim_jobs_config config = {.skip = 1, .most = 2, .max_context = 100, .time_scale = 1};
    sim_jobs jobs;
    assert_int_equal(read_text(text, &config, &jobs), RUN_OK);
    assert_int_equal(jobs.n, 2);
    assert_int_equal(jobs.jobs[0].prompt_tokens, 20);
    assert_int_equal(jobs.jobs[0].arrival_ns, 0);
    assert_int_equal(jobs.jobs[1].prompt_tokens, 30);
    assert_int_equal(jobs.jobs[1].arrival_ns, 1000000000);
    sim_jobs_free(&jobs);
}

static void test_jobs_refuse_damaged_files(void **state)
{
    (void)state;
    expect_refused("");
    expect_refused("time,in,out\n");
    expect_refused(AZURE);
    expect_refused(AZURE "2023-11-16 18:17,1,1\n");
    expect_refused(AZURE "2023-11-16 18:17:03.,1,1\n");
    expect_refused(AZURE "2023-11-16 18:17:03,1\n");
    expect_refused(AZURE "2023-11-16 18:17:03,1,-1\n");
    expect_refused(AZURE "2023-11-16 18:17:03,1,1,1\n");
    expect_refused(AZURE "2023-11-16 18:17:03,1,99999999999\n");
    expect_refused(AZURE "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1\n");
    /* not before the first, and yet before the one that it follows */
    expect_refused(AZURE "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:09,1,1\n"
                         "2023-11-16 18:17:05,1,1\n");
    expect_refused("{\"timestamp\": 3, \"input_length\": 1, \"output_length\": 1, "
                   "\"hash_ids\": [0]}\n"
                   "{\"timestamp\": 9, \"input_length\": 1, \"output_length\": 1, "
                   "\"hash_ids\": [1]}\n"
                   "{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1, "
                   "\"hash_ids\": [2]}\n");
    expect_refused(AZURE "9999-11-16 18:17:03,1,1\n");
    expect_refused("{\n");
    expect_refused("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n");
    expect_refused("{\"timestamp\": 0, \"input_length\": -1, \"output_length\": 1, "
                   "\"hash_ids\": [0]}\n");
    expect_refused("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, "
                   "\"hash_ids\": [\"a\"]}\n");
    /* one id behind two different ones */
    expect_refused("{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 1, "
                   "\"hash_ids\": [0, 2]}\n"
                   "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 1, "
                   "\"hash_ids\": [1, 2]}\n");
    sim_jobs jobs = {0};
    assert_int_equal(read_text(AZURE "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:04,1,1\n",
                               &(sim_jobs_config){.time_scale = 1e30}, &jobs),
                     RUN_REFUSED);
    assert_int_equal(sim_jobs_read("/nowhere/at/all", &(sim_jobs_config){0}, &jobs), RUN_REFUSED);
}

static void test_jobs_follow_the_prefixes_of_a_conversation(void **state)
{
    (void)state;
    /* 0: two whole blocks and a bit. 1: its next turn. 2: another branch, that shares one block.
     * 3: the next turn of 1. */
    static const char text[] =
        "{\"timestamp\": 5, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [0, 1, "
        "2]}\n"
        "{\"timestamp\": 6, \"input_length\": 1600, \"output_length\": 8, "
        "\"hash_ids\": [0, 1, 3, 4]}\n"
        "{\"timestamp\": 7, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [0, 5]}\n"
        "{\"timestamp\": 8, \"input_length\": 1537, \"output_length\": 9, "
        "\"hash_ids\": [0, 1, 3, 6]}\n";
    sim_jobs jobs;
    assert_int_equal(read_text(text, &(sim_jobs_config){.time_scale = 2}, &jobs), RUN_OK);
    const sim_job *j = jobs.jobs;
    assert_int_equal(jobs.n, 4);
    assert_int_equal(j[0].parent, SIM_NO_JOB);
    assert_int_equal(j[1].parent, 0);
    assert_int_equal(j[1].prefix_tokens, 1024);
    assert_true(j[1].turn);
    assert_int_equal(j[1].after, 0);
    assert_int_equal(j[1].session, j[0].session);
    assert_int_equal(j[1].arrival_ns, 2000000);
    assert_int_equal(j[2].parent, 1); /* the latest that has it */
    assert_int_equal(j[2].prefix_tokens, 512);
    assert_false(j[2].turn);
    assert_int_equal(j[2].after, SIM_NO_JOB);
    assert_true(j[2].session != j[0].session);
    assert_int_equal(j[3].parent, 1);
    assert_int_equal(j[3].prefix_tokens, 1536);
    assert_true(j[3].turn);
    assert_int_equal(jobs.sessions, 2);
    sim_jobs_free(&jobs);
}

/* ---- Prefixes against a search through all pairs ----------------------------------------- */

enum { BRANCHES = 40, DEEPEST = 6 };

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

static void test_jobs_find_the_longest_common_prefix(void **state)
{
    (void)state;
    uint32_t ids[BRANCHES][DEEPEST], n[BRANCHES], next_id = 0;
    char text[BRANCHES * 200] = "";
    random_state = 11;
    for (uint32_t i = 0; i < BRANCHES; i++) {
        uint32_t from = i ? draw(i) : 0, keep = i ? draw(n[from] + 1) : 0;
        n[i] = keep + 1 + draw(DEEPEST - keep > 1 ? DEEPEST - keep - 1 : 1);
        n[i] = n[i] > DEEPEST ? DEEPEST : n[i];
        for (uint32_t k = 0; k < n[i]; k++)
            ids[i][k] = k < keep ? ids[from][k] : next_id++;
        char *at = text + strlen(text);
        at += sprintf(at,
                      "{\"timestamp\": %u, \"input_length\": %u, \"output_length\": 3, "
                      "\"hash_ids\": [%u",
                      i, n[i] * 512, ids[i][0]);
        for (uint32_t k = 1; k < n[i]; k++)
            at += sprintf(at, ", %u", ids[i][k]);
        sprintf(at, "]}\n");
    }
    sim_jobs jobs;
    assert_int_equal(read_text(text, &(sim_jobs_config){0}, &jobs), RUN_OK);
    assert_int_equal(jobs.n, BRANCHES);
    for (uint32_t i = 0; i < BRANCHES; i++) {
        uint32_t longest = 0, with = SIM_NO_JOB;
        for (uint32_t p = 0; p < i; p++) {
            uint32_t same = 0;
            while (same < n[i] && same < n[p] && ids[i][same] == ids[p][same])
                same++;
            if (same && same >= longest) {
                longest = same;
                with = p;
            }
        }
        uint32_t tokens = longest * 512 < n[i] * 512 - 1 ? longest * 512 : n[i] * 512 - 1;
        assert_int_equal(jobs.jobs[i].parent, with);
        assert_int_equal(jobs.jobs[i].prefix_tokens, with == SIM_NO_JOB ? 0 : tokens);
    }
    sim_jobs_free(&jobs);
}

/* ---- By rule ----------------------------------------------------------------------------- */

static void test_jobs_of_clients_take_turns(void **state)
{
    (void)state;
    sim_closed_loop loop = {.clients = 2,
                            .sessions = 2,
                            .turns = 2,
                            .prompt_tokens = 100,
                            .turn_tokens = 10,
                            .output_tokens = 5,
                            .order = SIM_ORDER_TURNS,
                            .think_ns = 7};
    sim_jobs jobs;
    assert_int_equal(sim_jobs_closed(&loop, &jobs), RUN_OK);
    assert_int_equal(jobs.n, 8);
    assert_int_equal(jobs.sessions, 4);
    /* clients a and b, sessions 1 and 2: a1 b1 a2 b2 a1' b1' a2' b2' */
    const sim_job *again = &jobs.jobs[4];
    assert_int_equal(jobs.jobs[2].after, 0);
    assert_int_equal(jobs.jobs[2].parent, SIM_NO_JOB);
    assert_int_equal(again->after, 2);
    assert_int_equal(again->parent, 0);
    assert_int_equal(again->prefix_tokens, 104); /* the last answer token was not taken in */
    assert_int_equal(again->prompt_tokens, 115);
    assert_int_equal(again->think_ns, 7);
    assert_true(again->turn && again->kept);
    assert_int_equal(again->session, jobs.jobs[0].session);
    assert_int_equal(jobs.jobs[7].parent, 3);
    sim_jobs_free(&jobs);

    loop.order = SIM_ORDER_DONE; /* a1 b1 a1' b1' a2 .. */
    assert_int_equal(sim_jobs_closed(&loop, &jobs), RUN_OK);
    assert_int_equal(jobs.jobs[2].parent, 0);
    assert_int_equal(jobs.jobs[4].parent, SIM_NO_JOB);
    assert_int_equal(jobs.jobs[4].after, 2);
    sim_jobs_free(&jobs);
    loop.clients = 0;
    assert_int_equal(sim_jobs_closed(&loop, &jobs), RUN_REFUSED);
}

static void test_jobs_of_clients_in_any_order_are_all_there(void **state)
{
    (void)state;
    sim_closed_loop loop = {.clients = 3,
                            .sessions = 5,
                            .turns = 4,
                            .prompt_tokens = 100,
                            .turn_tokens = 10,
                            .output_tokens = 5,
                            .order = SIM_ORDER_RANDOM};
    uint32_t turns[15] = {0}, last[15], changes = 0;
    sim_jobs jobs;
    assert_int_equal(sim_jobs_closed(&loop, &jobs), RUN_OK);
    assert_int_equal(jobs.n, 60);
    for (uint32_t i = 0; i < jobs.n; i++) {
        const sim_job *job = &jobs.jobs[i];
        assert_in_range(job->session, 0, 14);
        assert_int_equal(job->parent, turns[job->session] ? last[job->session] : SIM_NO_JOB);
        assert_int_equal(job->prompt_tokens, 100 + 15 * turns[job->session]);
        changes += i >= 3 && job->session != jobs.jobs[i - 3].session;
        turns[job->session]++;
        last[job->session] = i;
    }
    for (uint32_t s = 0; s < 15; s++)
        assert_int_equal(turns[s], 4);
    assert_true(changes > 57 / 2);
    sim_jobs_free(&jobs);
}

static void test_jobs_appended_wait_for_those_before(void **state)
{
    (void)state;
    sim_jobs first, second;
    assert_int_equal(sim_jobs_plain(3, 10, 2, 2.0, &first), RUN_OK);
    assert_int_equal(first.jobs[2].arrival_ns, 1000000000);
    sim_closed_loop loop = {.clients = 1,
                            .sessions = 1,
                            .turns = 2,
                            .prompt_tokens = 4,
                            .turn_tokens = 1,
                            .output_tokens = 1};
    assert_int_equal(sim_jobs_closed(&loop, &second), RUN_OK);
    assert_int_equal(sim_jobs_append(&first, &second), RUN_OK);
    assert_int_equal(first.n, 5);
    assert_int_equal(first.jobs[2].phase, 0);
    assert_int_equal(first.jobs[3].phase, 1);
    assert_int_equal(first.jobs[3].after, 2);
    assert_int_equal(first.jobs[4].after, 3);
    assert_int_equal(first.jobs[4].parent, 3);
    assert_int_equal(first.jobs[4].session, 3);
    assert_int_equal(first.sessions, 4);
    sim_jobs_free(&first);
    sim_jobs_free(&second);
}

static void test_jobs_of_a_session_take_one_group_of_routing(void **state)
{
    (void)state;
    static const uint32_t group[] = {1, 0, 1, 0, 0};
    sim_closed_loop loop = {.clients = 2,
                            .sessions = 1,
                            .turns = 4,
                            .prompt_tokens = 4,
                            .turn_tokens = 1,
                            .output_tokens = 1};
    sim_jobs jobs;
    assert_int_equal(sim_jobs_closed(&loop, &jobs), RUN_OK);
    assert_int_equal(sim_jobs_bind(&jobs, 5, group, 2), RUN_OK);
    static const uint32_t expected[] = {1, 0, 3, 2, 4, 0, 1, 2};
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(jobs.jobs[i].route, expected[i]);
    assert_int_equal(sim_jobs_bind(&jobs, UINT32_MAX, NULL, 0), RUN_OK);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(jobs.jobs[i].route, jobs.jobs[i].session);
    sim_jobs_free(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs_read_azure_times_and_lengths),
        cmocka_unit_test(test_jobs_cut_a_slice_out_of_what_fits),
        cmocka_unit_test(test_jobs_refuse_damaged_files),
        cmocka_unit_test(test_jobs_follow_the_prefixes_of_a_conversation),
        cmocka_unit_test(test_jobs_find_the_longest_common_prefix),
        cmocka_unit_test(test_jobs_of_clients_take_turns),
        cmocka_unit_test(test_jobs_of_clients_in_any_order_are_all_there),
        cmocka_unit_test(test_jobs_appended_wait_for_those_before),
        cmocka_unit_test(test_jobs_of_a_session_take_one_group_of_routing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
