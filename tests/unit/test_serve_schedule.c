/* Who is served next, driven through random lives against a pool of blocks that is one number: what
 * must hold is looked for from scratch at every turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/schedule.h"
#include "testing.h"

enum { MOST = 40, BLOCK = 4 };

/* ---- A driver ---------------------------------------------------------------------------- */

typedef struct world {
    schedule s;
    schedule_request asked[MOST];
    uint32_t n, blocks;
    uint64_t now;
    uint32_t tokens[MOST]; /* given out */
    uint32_t held[MOST];   /* tokens in the pool, of those that run */
    uint32_t times_out[MOST];
    uint32_t steps_at_top[MOST]; /* as the highest-ranked unfinished one */
    uint64_t steps;
} world;

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

static uint32_t blocks_of(uint32_t tokens)
{
    return (tokens + BLOCK - 1) / BLOCK;
}

static bool has(const uint32_t *list, uint32_t n, uint32_t request)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == request)
            return true;
    return false;
}

static uint32_t used_blocks(const world *w)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->s.requests[i].state == SCHEDULE_RUNNING)
            used += blocks_of(w->held[i]);
    return used;
}

static bool is_over(const world *w, uint32_t i)
{
    return w->s.requests[i].state == SCHEDULE_DONE || w->s.requests[i].state == SCHEDULE_REFUSED;
}

/* The highest-ranked request that has come and is not over; MOST if there is none. */
static uint32_t top(const world *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->asked[i].arrival_ns <= w->now && !is_over(w, i))
            return i;
    return MOST;
}

/* ---- What must hold at any time ---------------------------------------------------------- */

/* Every request is in one place, and running ones rank above preempted ones above waiting ones. */
static void check_places(const world *w)
{
    const schedule *s = &w->s;
    uint32_t done = 0, refused = 0, waiting = 0, place = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        schedule_state state = s->requests[i].state;
        assert_int_equal(has(s->running, s->n_running, i), state == SCHEDULE_RUNNING);
        assert_int_equal(has(s->preempted, s->n_preempted, i), state == SCHEDULE_PREEMPTED);
        assert_int_equal(state == SCHEDULE_COMING, w->asked[i].arrival_ns > w->now);
        done += state == SCHEDULE_DONE;
        refused += state == SCHEDULE_REFUSED;
        waiting += state == SCHEDULE_WAITING;
        if (state == SCHEDULE_DONE || state == SCHEDULE_REFUSED)
            continue;
        uint32_t here = state == SCHEDULE_RUNNING     ? 0
                        : state == SCHEDULE_PREEMPTED ? 1
                        : state == SCHEDULE_WAITING   ? 2
                                                      : 3;
        assert_true(here >= place);
        place = here;
    }
    assert_int_equal(done, s->n_done);
    assert_int_equal(refused, s->n_refused);
    assert_int_equal(waiting, schedule_waiting(s));
    assert_true(s->n_running + s->n_preempted <= s->concurrency);
    assert_int_equal(schedule_finished(s), done + refused == w->n);
}

/* The candidate is the highest-ranked request that has arrived and does not run, or none. */
static void check_candidate(const world *w)
{
    uint32_t expected = SCHEDULE_NONE, in = w->s.n_running + w->s.n_preempted;
    for (uint32_t i = w->n; i-- > 0;)
        if (w->asked[i].arrival_ns <= w->now && !is_over(w, i) &&
            w->s.requests[i].state != SCHEDULE_RUNNING)
            expected = i;
    if (expected != SCHEDULE_NONE && w->s.requests[expected].state == SCHEDULE_WAITING &&
        in == w->s.concurrency)
        expected = SCHEDULE_NONE;
    assert_int_equal(schedule_candidate(&w->s), expected);
}

static void check_victim(const world *w)
{
    uint32_t expected = SCHEDULE_NONE, running = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->s.requests[i].state == SCHEDULE_RUNNING) {
            expected = i;
            running++;
        }
    assert_int_equal(schedule_victim(&w->s), running > 1 ? expected : SCHEDULE_NONE);
}

/* One token of each that decodes; prompts by rank, nothing left over that could be used. */
static void check_plan(const world *w, const schedule_share *shares, uint32_t n)
{
    uint32_t room = w->s.step_tokens, at = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->s.requests[i].state == SCHEDULE_RUNNING && w->held[i] >= w->asked[i].prompt_tokens)
            room--;
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->s.requests[i].state != SCHEDULE_RUNNING)
            continue;
        bool decodes = w->held[i] >= w->asked[i].prompt_tokens;
        uint32_t left = decodes ? 1 : w->asked[i].prompt_tokens - w->held[i];
        uint32_t wanted = decodes || left < room ? left : room;
        if (!wanted)
            continue;
        assert_true(at < n);
        assert_int_equal(shares[at].request, i);
        assert_int_equal(shares[at].n_tokens, wanted);
        assert_int_equal(shares[at].prefill, !decodes);
        room -= decodes ? 0 : wanted;
        at++;
    }
    assert_int_equal(at, n);
}

static void check_all(const world *w)
{
    check_places(w);
    check_candidate(w);
    check_victim(w);
}

/* ---- A life ------------------------------------------------------------------------------ */

static void begin(world *w, uint64_t seed)
{
    uint64_t at = 0;
    *w = (world){.blocks = 12};
    random_state = seed;
    w->n = 1 + draw(MOST);
    w->blocks += draw(40);
    for (uint32_t i = 0; i < w->n; i++) {
        at += draw(3) ? draw(6) : 0;
        w->asked[i] = (schedule_request){.arrival_ns = at,
                                         .prompt_tokens = 1 + draw(30),
                                         .output_tokens = 1 + draw(draw(8) ? 20 : 60)};
    }
    uint32_t concurrency = 1 + draw(8);
    assert_true(schedule_open(w->asked, w->n, concurrency, concurrency + 1 + draw(12), &w->s));
}

/* What comes back has what it had; what is new, nothing. */
static void let_in(world *w)
{
    for (;;) {
        uint32_t next = schedule_candidate(&w->s);
        if (next == SCHEDULE_NONE)
            return;
        bool is_new = w->s.requests[next].state == SCHEDULE_WAITING;
        uint32_t most = w->asked[next].prompt_tokens + w->asked[next].output_tokens - 1;
        uint32_t wanted = is_new ? w->asked[next].prompt_tokens : w->held[next] + 1;
        if (blocks_of(most) > w->blocks) {
            assert_true(is_new);
            schedule_refuse(&w->s, next);
        } else if (used_blocks(w) + blocks_of(wanted) <= w->blocks) {
            schedule_let_in(&w->s, next);
        } else {
            assert_true(w->s.n_running > 0); /* alone everybody fits */
            return;
        }
        check_all(w);
    }
}

/* Preempts as long as the step does not fit; returns the shares that are left. */
static uint32_t make_room(world *w, schedule_share *shares, uint32_t n)
{
    for (;;) {
        uint32_t wanted = used_blocks(w);
        for (uint32_t i = 0; i < n; i++)
            wanted += blocks_of(w->held[shares[i].request] + shares[i].n_tokens) -
                      blocks_of(w->held[shares[i].request]);
        if (wanted <= w->blocks)
            return n;
        uint32_t victim = schedule_victim(&w->s);
        assert_int_not_equal(victim, SCHEDULE_NONE);
        assert_int_not_equal(victim, top(w));
        schedule_preempt(&w->s, victim);
        w->times_out[victim]++;
        if (shares[n - 1].request == victim)
            n--;
        check_all(w);
    }
}

static void run_step(world *w, const schedule_share *shares, uint32_t n)
{
    uint32_t first = top(w);
    assert_int_equal(shares[0].request, first); /* the first request always goes on */
    w->steps_at_top[first]++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = shares[i].request;
        w->held[r] += shares[i].n_tokens;
        bool follows = w->held[r] == w->asked[r].prompt_tokens + w->tokens[r];
        assert_int_equal(schedule_fed(&w->s, &shares[i]), follows);
        if (!follows)
            continue;
        w->tokens[r]++;
        assert_int_equal(schedule_generated(&w->s, r), w->tokens[r] == w->asked[r].output_tokens);
    }
    w->steps++;
    w->now += 1 + draw(3);
}

static void check_end(const world *w)
{
    uint64_t out = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const schedule_request *r = &w->s.requests[i];
        bool too_long =
            blocks_of(w->asked[i].prompt_tokens + w->asked[i].output_tokens - 1) > w->blocks;
        assert_int_equal(r->state, too_long ? SCHEDULE_REFUSED : SCHEDULE_DONE);
        assert_int_equal(w->tokens[i], too_long ? 0 : w->asked[i].output_tokens);
        assert_int_equal(r->preemptions, w->times_out[i]);
        out += w->times_out[i];
        /* At the top a prompt gets what decoding leaves, and every step after it is a token. */
        uint32_t chunk = w->s.step_tokens - w->s.concurrency;
        assert_true(w->steps_at_top[i] <=
                    (w->asked[i].prompt_tokens + chunk - 1) / chunk + w->asked[i].output_tokens);
    }
    assert_int_equal(w->s.preemptions, out);
}

/* Lives through it; the number of preemptions. */
static uint64_t live(uint64_t seed)
{
    world w;
    schedule_share shares[MOST];
    begin(&w, seed);
    while (!schedule_finished(&w.s)) {
        uint64_t at;
        schedule_arrive(&w.s, w.now);
        check_all(&w);
        let_in(&w);
        if (!w.s.n_running) {
            if (schedule_next_arrival(&w.s, &at))
                w.now = at;
            else
                assert_true(schedule_finished(&w.s));
            continue;
        }
        uint32_t n = schedule_plan(&w.s, shares);
        check_plan(&w, shares, n);
        n = make_room(&w, shares, n);
        run_step(&w, shares, n);
        schedule_arrive(&w.s, w.now);
        check_all(&w);
    }
    check_end(&w);
    uint64_t preemptions = w.s.preemptions;
    schedule_close(&w.s);
    return preemptions;
}

static uint64_t living; /* the seed of the life that is lived; 0 = none */

static int tell_seed(void **state)
{
    (void)state;
    if (living)
        print_error("seed %llu\n", (unsigned long long)living);
    return 0;
}

static void test_schedule_keeps_ranks_and_loses_nobody(void **state)
{
    (void)state;
    const uint64_t rounds = getenv("MP_TEST_LONG") ? 20000 : 1000;
    uint64_t preemptions = 0;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        living = seed;
        preemptions += live(seed);
    }
    living = 0;
    assert_true(preemptions > rounds); /* there was pressure */
}

/* ---- By hand ----------------------------------------------------------------------------- */

static void test_schedule_mixes_prompts_with_decoding(void **state)
{
    (void)state;
    const schedule_request asked[] = {{.prompt_tokens = 3, .output_tokens = 5},
                                      {.prompt_tokens = 9, .output_tokens = 1}};
    schedule s;
    schedule_share shares[2];
    assert_true(schedule_open(asked, 2, 2, 5, &s));
    schedule_arrive(&s, 0);
    schedule_let_in(&s, 0);
    schedule_let_in(&s, 1);
    assert_int_equal(schedule_plan(&s, shares), 2);
    assert_int_equal(shares[0].n_tokens, 3);
    assert_int_equal(shares[1].n_tokens, 2);
    assert_true(schedule_fed(&s, &shares[0]));
    assert_false(schedule_generated(&s, 0));
    assert_false(schedule_fed(&s, &shares[1]));
    assert_int_equal(schedule_plan(&s, shares), 2);
    assert_false(shares[0].prefill);
    assert_int_equal(shares[0].n_tokens, 1);
    assert_true(shares[1].prefill);
    assert_int_equal(shares[1].n_tokens, 4);
    schedule_close(&s);
}

static void test_schedule_brings_back_before_it_lets_in(void **state)
{
    (void)state;
    const schedule_request asked[] = {{.prompt_tokens = 1, .output_tokens = 9},
                                      {.prompt_tokens = 1, .output_tokens = 9},
                                      {.prompt_tokens = 1, .output_tokens = 9}};
    schedule s;
    assert_true(schedule_open(asked, 3, 2, 4, &s));
    schedule_arrive(&s, 0);
    schedule_let_in(&s, 0);
    schedule_let_in(&s, 1);
    assert_int_equal(schedule_candidate(&s), SCHEDULE_NONE);
    assert_int_equal(schedule_victim(&s), 1);
    schedule_preempt(&s, 1);
    assert_int_equal(schedule_victim(&s), SCHEDULE_NONE);
    assert_int_equal(schedule_candidate(&s), 1);
    schedule_let_in(&s, 1);
    assert_int_equal(s.requests[1].preemptions, 1);
    schedule_close(&s);
}

static void test_schedule_refuses_what_contradicts_itself(void **state)
{
    (void)state;
    const schedule_request late[] = {{.arrival_ns = 2, .prompt_tokens = 1, .output_tokens = 1},
                                     {.arrival_ns = 1, .prompt_tokens = 1, .output_tokens = 1}};
    const schedule_request mute = {.prompt_tokens = 1};
    schedule s;
    assert_false(schedule_open(late, 2, 1, 2, &s));
    schedule_close(&s);
    assert_false(schedule_open(&mute, 1, 1, 2, &s));
    schedule_close(&s);
    assert_false(schedule_open(late, 1, 2, 2, &s)); /* decoding could take the whole step */
    schedule_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_schedule_keeps_ranks_and_loses_nobody, tell_seed),
        cmocka_unit_test(test_schedule_mixes_prompts_with_decoding),
        cmocka_unit_test(test_schedule_brings_back_before_it_lets_in),
        cmocka_unit_test(test_schedule_refuses_what_contradicts_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
