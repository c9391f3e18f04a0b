/* The mean number of jobs in the system: against queueing's closed forms, against caches that are run, and the least
 * against all splits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "planning/turn.h"
#include "testing.h"

#define UNITS 64u
#define BURST 64u
#define MS 1e6

static void expect_near(double value, double expected, double most)
{
    if (!(fabs(value - expected) <= most))
        fail_msg("%.9g, not %.9g, within %g", value, expected, most);
}

typedef struct bench {
    mp_turn turn;
    mp_curve experts, kv;
    mp_split_costs misses;
    mp_turn_costs costs;
    double *bins, experts_bins[UNITS + 2], kv_bins[UNITS + 2];
    uint64_t now_ns;
} bench;

static void open_bench(bench *b)
{
    memset(b, 0, sizeof *b);
    b->bins = calloc(mp_turn_bins(UNITS), sizeof *b->bins);
    assert_non_null(b->bins);
    mp_turn_init(&b->turn, b->bins, UNITS, 0.7);
    mp_curve_init(&b->experts, b->experts_bins, UNITS, UNITS + 1);
    mp_curve_init(&b->kv, b->kv_bins, UNITS, UNITS + 1);
    mp_curve_add(&b->experts, 1, 5);
    b->misses = (mp_split_costs){.experts = &b->experts, .expert_miss_ns = MS};
    b->costs = (mp_turn_costs){.turn = &b->turn,
                               .misses = &b->misses,
                               .sequence_units = 1,
                               .longest_units = 1,
                               .now = {32, 64}};
}

/* Steps with so many sequences, after each of which the machine idles. */
static void run(bench *b, uint32_t sequences, uint32_t steps, double busy_ns, double stall_ns,
                uint64_t experts, double idle_ns)
{
    for (uint32_t i = 0; i < steps; i++) {
        b->now_ns += (uint64_t)(busy_ns + stall_ns);
        mp_turn_step(&b->turn, &(mp_turn_sample){.decodes = sequences,
                                                 .prompts = sequences ? 0 : 100,
                                                 .alone = sequences > 0,
                                                 .ended_ns = b->now_ns,
                                                 .busy_ns = busy_ns,
                                                 .stall_ns = stall_ns,
                                                 .experts = experts});
        b->now_ns += (uint64_t)idle_ns;
    }
}

/* What a step takes with each number of sequences. */
static const double flat_ms[] = {0, 10, 10, 10, 10, 10, 10, 10, 10};

/* Ends a burst of steps with 1 to n sequences, which take ms[1] to ms[n]. */
static void measure(bench *b, const double *ms, uint32_t n)
{
    for (uint32_t r = 1; r <= n; r++)
        run(b, r, 100, ms[r] * MS, 0, 32, 0);
    mp_turn_burst(&b->turn, BURST);
}

/* So many tokens in such a time, and the prompts that go with them. */
static void set_demand(bench *b, double tokens, double ns)
{
    if (b->turn.tokens > 0)
        b->turn.prompt_tokens *= tokens / b->turn.tokens;
    b->turn.tokens = tokens;
    b->turn.elapsed_ns = ns;
}

static double cost(const bench *b, uint64_t experts, uint64_t kv)
{
    return mp_turn_cost(&b->costs, &(mp_split){experts, kv});
}

/* ---- queues ---- */

/* One server: rho / (1 - rho). */
static void test_turn_is_that_of_one_server(void **state)
{
    static const double loads[] = {0.1, 0.3, 0.5, 0.8};
    (void)state;
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        bench b;
        open_bench(&b);
        /* The first step ends when 10 ms have passed; the burst ends with a step. */
        run(&b, 1, 6400, 10 * MS, 0, 32, 10 * MS / loads[i] - 10 * MS);
        mp_turn_burst(&b.turn, BURST);
        expect_near(cost(&b, 32, 1), loads[i] / (1 - loads[i]), 0.002 / (1 - loads[i]));
        free(b.bins);
    }
}

/* c servers, by Erlang's formula: a step takes as long with any number of sequences. */
static double jobs_of_servers(uint32_t c, double offered)
{
    double term = 1, sum = 1, rho = offered / c;
    for (uint32_t k = 1; k < c; k++) {
        term *= offered / k;
        sum += term;
    }
    term *= offered / c / (1 - rho);
    return offered + term / (sum + term) * rho / (1 - rho);
}

static void test_turn_is_that_of_several_servers(void **state)
{
    (void)state;
    for (uint32_t c = 1; c <= 8; c *= 2) {
        bench b;
        open_bench(&b);
        const double offered = 0.7; /* of one server: tokens a step */
        b.costs.now.kv = c;
        measure(&b, flat_ms, 8);
        set_demand(&b, offered, 10 * MS);
        expect_near(cost(&b, 32, c), jobs_of_servers(c, offered), 1e-9);
        b.costs.limit = 2; /* admission's */
        expect_near(cost(&b, 32, c), jobs_of_servers(c < 2 ? c : 2, offered), 1e-9);
        free(b.bins);
    }
}

/* With more at once steps are so much slower that fewer serve sooner: admission would let no more run. */
static void test_turn_counts_no_more_than_are_good(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    run(&b, 1, 100, 10 * MS, 0, 32, 0);
    run(&b, 2, 100, 40 * MS, 0, 32, 0);
    mp_turn_burst(&b.turn, BURST);
    set_demand(&b, 0.5, 10 * MS);
    expect_near(cost(&b, 32, 8), 1, 1e-9);
    free(b.bins);
}

enum turns { ALIKE, ANSWERS_DIFFER, PROMPTS_DIFFER, FEW_ARE_LONG, KINDS };
#define TURNS 400u

static void draw_turn(enum turns kind, uint32_t i, uint64_t *random, uint32_t *prompt,
                      uint32_t *answer)
{
    *prompt = kind == PROMPTS_DIFFER ? 1 + 2 * bank_below(random, 100) : 100;
    *answer = kind == ALIKE ? 10 : 1 + 2 * bank_below(random, 10);
    if (kind == FEW_ARE_LONG)
        *answer = i % 20 ? 4 : 124;
}

/* One server and any turns, by Pollaczek's and Khinchine's formula. A decoded token takes 10 ms, and prefill 5 more of
 * each in the mean. */
static void test_turn_waits_by_how_unlike_turns_are(void **state)
{
    uint64_t random = 3;
    (void)state;
    for (enum turns kind = ALIKE; kind < KINDS; kind++) {
        bench b;
        uint32_t prompts[TURNS], answers[TURNS];
        double works = 0, squares = 0, weights = 0, weight = 1;
        open_bench(&b);
        b.costs.limit = 1;
        for (uint32_t i = 0; i < 10; i++) {
            run(&b, 0, 1, 50 * MS, 0, 32, 0);
            run(&b, 1, 10, 10 * MS, 0, 32, 0);
        }
        mp_turn_burst(&b.turn, BURST);
        set_demand(&b, 0.6, 15 * MS);
        for (uint32_t i = 0; i < TURNS; i++) {
            draw_turn(kind, i, &random, &prompts[i], &answers[i]);
            mp_turn_end(&b.turn, prompts[i], answers[i]);
        }
        const double prompt_ms = 5 * b.turn.work.decoded / b.turn.work.prefilled;
        for (uint32_t i = TURNS; i-- > 0; weight *= 0.98) { /* the latest count most */
            const double work = prompt_ms * prompts[i] + 10 * answers[i];
            works += weight * work;
            squares += weight * work * work;
            weights += weight;
        }
        const double v2 = squares * weights / (works * works) - 1, rho = 0.6;
        const double waiting = rho * rho / (1 - rho) * (1 + v2) / 2;
        const double answer = b.turn.work.decoded / b.turn.work.turns;
        const mp_turn_outlook look = mp_turn_look(&b.costs);
        expect_near(cost(&b, 32, 1), rho + waiting, 1e-6);
        expect_near(look.ttft_ns, answer * (waiting / 0.6 * 15 * MS + 5 * MS), MS / 1e3);
        expect_near(look.tpot_ns, 10 * MS, 1);
        free(b.bins);
    }
}

/* ---- how many run, against a queue that is served ---- */

#define QUEUE_JOBS 20000u

typedef struct queue_job {
    double arrival, left; /* ms, and ms of one server */
} queue_job;

/* Serves jobs in their order, no more than `most` at once, at `speed`[r] of one server's speed all together; returns
 * the mean time in the system. */
static double serve(const queue_job *given, const double *speed, uint32_t most)
{
    queue_job *jobs = malloc(QUEUE_JOBS * sizeof *jobs);
    uint32_t running[8], n = 0, next = 0;
    double now = 0, sum = 0;
    assert_non_null(jobs);
    memcpy(jobs, given, QUEUE_JOBS * sizeof *jobs);
    while (next < QUEUE_JOBS || n) {
        while (next < QUEUE_JOBS && n < most && jobs[next].arrival <= now)
            running[n++] = next++;
        double least = n < most && next < QUEUE_JOBS ? jobs[next].arrival - now : INFINITY;
        for (uint32_t i = 0; i < n; i++)
            least = fmin(least, jobs[running[i]].left * n / speed[n]);
        now += least;
        for (uint32_t i = n; i-- > 0;)
            jobs[running[i]].left -= least * speed[n] / n;
        for (uint32_t i = 0; i < n;) {
            if (jobs[running[i]].left > 1e-9) {
                i++;
                continue;
            }
            sum += now - jobs[running[i]].arrival;
            memmove(running + i, running + i + 1, (--n - i) * sizeof *running);
        }
    }
    free(jobs);
    return sum / QUEUE_JOBS;
}

static const double speed[] = {0, 1, 1.05, 1.08, 1.1};
static const double speed_ms[] = {0, 10, 20 / 1.05, 30 / 1.08, 40 / 1.1}; /* of a step */

/* Serves turns at a load, in parts of what one serves, with every number that may run: means[1..4] are the mean turns.
 * Returns how many run by the measured times. */
static uint32_t let_run(enum turns kind, double load, double *means)
{
    queue_job *jobs = malloc(QUEUE_JOBS * sizeof *jobs);
    uint64_t random = 17;
    double at = 0, works = 0;
    bench b;
    assert_non_null(jobs);
    open_bench(&b);
    b.costs.now.kv = 4;
    measure(&b, speed_ms, 4);
    for (uint32_t i = 0; i < QUEUE_JOBS; i++) {
        uint32_t prompt, answer;
        draw_turn(kind, i, &random, &prompt, &answer);
        mp_turn_end(&b.turn, 0, answer);
        jobs[i].left = 10.0 * answer;
        works += jobs[i].left;
        at -= log1p(-ldexp((double)(bank_random(&random) >> 11), -53)) * 100 / load;
        jobs[i].arrival = at;
    }
    set_demand(&b, works / 10, at * MS);
    for (uint32_t r = 1; r <= 4; r++)
        means[r] = serve(jobs, speed, r);
    const uint32_t running = mp_turn_look(&b.costs).running;
    free(b.bins);
    free(jobs);
    return running ? running : 4;
}

static void expect_best(enum turns kind, double load, uint32_t running, const double *means,
                        double within)
{
    const double best = fmin(fmin(means[1], means[2]), fmin(means[3], means[4]));
    if (!(means[running] <= within * best))
        fail_msg("kind %d, load %g: %u run, %g ms, not %g (%g %g %g %g)", kind, load, running,
                 means[running], best, means[1], means[2], means[3], means[4]);
}

/* With turns that are alike fewer run than would serve the most, until the load needs them; with those of which few
 * are long, as many as serve the most. The number is as good as the best in a queue that is served. */
static void test_turn_lets_run_what_serves_turns_sooner(void **state)
{
    static const double loads[] = {0.3, 0.5, 0.7, 0.85}; /* below 0.8 of what four serve */
    (void)state;
    for (enum turns kind = ALIKE; kind < KINDS; kind++)
        for (uint32_t l = 0; l < 4; l++) {
            double means[5];
            const uint32_t running = let_run(kind, loads[l], means);
            expect_best(kind, loads[l], running, means, 1.03);
            if (kind == ALIKE && loads[l] == 0.5)
                assert_int_equal(running, 1);
            if (kind == FEW_ARE_LONG)
                assert_int_equal(running, 4);
        }
}

/* Where one does not keep up more run; but as for 0.8 of what all serve, and not for a queue that has grown for ever. */
static void test_turn_lets_more_run_near_saturation(void **state)
{
    double means[5];
    (void)state;
    for (enum turns kind = ALIKE; kind < KINDS; kind++) {
        const uint32_t running = let_run(kind, 0.9, means);
        expect_best(kind, 0.9, running, means, 1.05);
    }
    assert_int_equal(let_run(ALIKE, 0.99, means), 3);
    assert_true(means[3] < 0.1 * means[1] && means[4] < means[3]);
    assert_int_equal(let_run(FEW_ARE_LONG, 0.99, means), 4);
}

/* Of numbers that cost nearly the same the fewest runs that serves about as much as all do. */
static void test_turn_lets_the_fewest_of_equals_run(void **state)
{
    static const double ms[][3] = {{0, 10, 19.4}, {0, 10, 18.6}}; /* 3 % faster together, and 7 % */
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        bench b;
        open_bench(&b);
        b.costs.now.kv = 2;
        measure(&b, ms[i], 2);
        b.turn.work = (mp_turn_work){.turns = 100, .decoded = 1000, .decoded_squares = 1.9e4};
        set_demand(&b, 0.25, 10 * MS); /* either costs 0.3 to 0.33 jobs */
        assert_int_equal(mp_turn_look(&b.costs).running, i == 0);
        free(b.bins);
    }
}

/* Two run in the room that is usual for one: what has been measured counts, up to the most jobs of the chain. */
static void test_turn_judges_what_has_run_without_room(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    b.costs.now.kv = 1;
    run(&b, 1, 100, 10 * MS, 0, 32, 0);
    run(&b, 2, 100, 30 * MS, 0, 32, 0);
    mp_turn_burst(&b.turn, BURST);
    set_demand(&b, 0.5, 10 * MS);
    assert_int_equal(mp_turn_look(&b.costs).running, 1);
    for (uint32_t r = 200; r <= 400; r += 100)
        run(&b, r, 100, 30 * MS, 0, 32, 0);
    mp_turn_burst(&b.turn, BURST);
    b.costs.limit = 300;
    assert_in_range(mp_turn_look(&b.costs).running, 3, MP_TURN_JOBS); /* many serve more */
    free(b.bins);
}

/* ---- targets ---- */

/* Turns with answers of 10 tokens in the mean; `variation`: their squared coefficient of variation. */
static void set_answers(bench *b, double variation)
{
    b->turn.work = (mp_turn_work){.turns = 100,
                                  .decoded = 1000,
                                  .decoded_squares = 1000 * 10 * (1 + variation)};
}

/* Several servers: those that wait by Erlang's formula, and the time that they wait by Little's law. */
static void test_turn_expects_what_servers_do(void **state)
{
    (void)state;
    for (uint32_t c = 1; c <= 8; c *= 2) {
        bench b;
        open_bench(&b);
        const double offered = 0.7;
        b.costs.now.kv = b.costs.limit = c;
        measure(&b, flat_ms, 8);
        set_answers(&b, 1);
        set_demand(&b, offered, 10 * MS);
        const mp_turn_outlook look = mp_turn_look(&b.costs);
        const double wait_ms = (jobs_of_servers(c, offered) - offered) / (offered / 100);
        assert_int_equal(look.running, 0);
        expect_near(look.ttft_ns, wait_ms * MS, 1);
        expect_near(look.tpot_ns, 10 * MS, 1);
        free(b.bins);
    }
}

/* No more run than meet the target; if none do, those that come nearest. */
static void test_turn_meets_a_target_between_tokens(void **state)
{
    static const double ms[] = {0, 10, 16, 20, 24};
    bench b;
    (void)state;
    open_bench(&b);
    b.costs.now.kv = 4;
    measure(&b, ms, 4);
    set_answers(&b, 1);
    set_demand(&b, 0.5, 10 * MS);
    assert_int_equal(mp_turn_look(&b.costs).running, 0); /* all four serve the most */
    const double jobs = cost(&b, 32, 1);
    for (uint32_t r = 1; r < 4; r++) {
        b.costs.tpot_ns = (ms[r] + 1) * MS;
        assert_int_equal(mp_turn_look(&b.costs).running, r);
        expect_near(mp_turn_look(&b.costs).tpot_ns, ms[r] * MS, 1);
    }
    b.costs.tpot_ns = 8 * MS;
    assert_int_equal(mp_turn_look(&b.costs).running, 1);
    expect_near(cost(&b, 32, 1), jobs + MP_TURN_EXCESS * 0.25, 1e-6);
    free(b.bins);
}

/* Of turns that are alike one runs, unless that lets the others wait for longer than the target. */
static void test_turn_meets_a_target_of_first_tokens(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    b.costs.now.kv = 4;
    measure(&b, speed_ms, 4);
    set_answers(&b, 0);
    set_demand(&b, 0.7, 10 * MS);
    assert_int_equal(mp_turn_look(&b.costs).running, 1);
    expect_near(mp_turn_look(&b.costs).ttft_ns, 100 * MS * 0.7 / 0.3 / 2, 1);
    b.costs.ttft_ns = 60 * MS;
    const mp_turn_outlook look = mp_turn_look(&b.costs);
    assert_in_range(look.running, 2, 3);
    assert_true(look.ttft_ns <= 60 * MS);
    b.costs.ttft_ns = MS; /* nothing meets it */
    assert_int_equal(mp_turn_look(&b.costs).running, 0);
    b.costs.ttft_ns = 200 * MS;
    assert_int_equal(mp_turn_look(&b.costs).running, 1);
    free(b.bins);
}

/* KV is worth a longer queue, until experts are missing: with half of them a token takes 15 ms. */
static void test_turn_splits_by_targets(void **state)
{
    const mp_split_bounds bounds = {.budget_bytes = 48,
                                    .expert_bytes = 1,
                                    .kv_bytes = 1,
                                    .min_experts = 1,
                                    .max_experts = UNITS,
                                    .kv_floor = 1};
    mp_split free_of_targets, split;
    bench b;
    (void)state;
    open_bench(&b);
    b.costs.sequence_units = b.costs.longest_units = 16;
    b.costs.now = (mp_split){32, 16};
    b.turn.peak = 2;
    for (uint32_t r = 1; r <= 2; r++) {
        run(&b, r, 100, 10 * MS, 0, 32, 0);
        for (uint32_t i = 0; i < 500; i++)
            mp_turn_use(&b.turn, r, 20, 1); /* 5 a step */
    }
    mp_turn_burst(&b.turn, BURST);
    set_answers(&b, 1);
    set_demand(&b, 0.75, 10 * MS);
    assert_true(mp_turn_configure(&b.costs, &bounds, 64, &free_of_targets));
    assert_int_equal(free_of_targets.kv, 32);
    b.costs.tpot_ns = 12 * MS;
    assert_true(mp_turn_configure(&b.costs, &bounds, 64, &split));
    assert_true(split.experts > 20);
    const double with_target = cost(&b, 16, 32);
    b.costs.tpot_ns = 0;
    expect_near(with_target - cost(&b, 16, 32), MP_TURN_EXCESS * 0.25, 1e-6);
    free(b.bins);
}

/* ---- prefill, room, and other splits ---- */

/* Prefill is a part of what a token takes. */
static void test_turn_counts_other_steps(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    for (uint32_t i = 0; i < 10; i++) {
        run(&b, 0, 1, 50 * MS, 0, 32, 0);
        run(&b, 1, 10, 5 * MS, 0, 32, 0); /* 100 tokens in one second, all of it busy */
    }
    mp_turn_burst(&b.turn, BURST);
    set_demand(&b, 50, 1000 * MS);
    expect_near(cost(&b, 32, 1), 1, 1e-6); /* half loaded */
    free(b.bins);
}

/* A step that prefills beside decoding costs what it takes beyond decoding, and its tokens are served. */
static void test_turn_counts_what_prefill_adds(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    for (uint32_t i = 0; i < 10; i++) {
        run(&b, 1, 6, 10 * MS, 0, 32, 0);
        run(&b, 2, 3, 10 * MS, 0, 32, 0);
        b.now_ns += (uint64_t)(90 * MS);
        mp_turn_step(&b.turn, &(mp_turn_sample){.decodes = 2,
                                                .prompts = 100,
                                                .ended_ns = b.now_ns,
                                                .busy_ns = 90 * MS,
                                                .experts = 32});
    }
    mp_turn_burst(&b.turn, BURST); /* 140 tokens in 1.8 s; ten times 80 ms are prefill */
    expect_near(b.turn.tokens, 140, 0);
    expect_near(b.turn.peak, 2, 0);
    const double token_ms = 10 + 800.0 / 140;
    set_demand(&b, 0.5, token_ms * MS);
    b.costs.limit = 1;
    expect_near(cost(&b, 32, 1), 1, 1e-6); /* half loaded */
    free(b.bins);
}

/* A prompt of 100 tokens takes 40 ms alone, and 60 ms beside decoding, which goes on meanwhile; there is one for every ten
 * tokens. */
static void test_turn_prices_prompts_beside_decoding(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    b.costs.now.kv = 2;
    for (uint32_t i = 0; i < 20; i++) {
        run(&b, 1, 10, 10 * MS, 0, 32, 0);
        run(&b, 2, 5 - i % 2, 12 * MS, 0, 32, 0);
        const bool beside = i % 2;
        const double ns = beside ? 72 * MS : 40 * MS; /* with a step of two sequences in it */
        b.now_ns += (uint64_t)ns;
        mp_turn_step(&b.turn, &(mp_turn_sample){.decodes = beside ? 2 : 0,
                                                .prompts = 100,
                                                .ended_ns = b.now_ns,
                                                .busy_ns = ns,
                                                .experts = 32});
    }
    set_answers(&b, 0);
    b.turn.work.prefilled = 5000; /* half a prompt a turn, all alike */
    b.turn.work.prefilled_squares = 5000 * 50;
    b.turn.work.products = 5000 * 10;
    mp_turn_burst(&b.turn, BURST); /* 400 tokens, and 20 prompts */
    set_demand(&b, 1, 1000 * MS);
    b.costs.limit = 1;
    const double rho = 0.012; /* 10 ms, and 40 * 20 / 400 */
    expect_near(cost(&b, 32, 1), rho + rho * rho / (1 - rho) / 2, 1e-9);
    expect_near(mp_turn_look(&b.costs).tpot_ns, 10 * MS, 1);
    b.costs.limit = 2;
    b.costs.tpot_ns = 14 * MS; /* 12 ms, and 60 * 20 / 400 for the other's prompt */
    assert_int_equal(mp_turn_look(&b.costs).running, 1);
    b.costs.tpot_ns = 16 * MS;
    assert_int_equal(mp_turn_look(&b.costs).running, 0);
    expect_near(mp_turn_look(&b.costs).tpot_ns, 15 * MS, 1);
    expect_near(mp_turn_look(&b.costs).ttft_ns, 30 * MS + 6 * MS, 0.1 * MS); /* half a step */
    free(b.bins);
}

/* Beyond what has run a step's time goes on as before, up to twice as many sequences. */
static void test_turn_looks_a_little_further(void **state)
{
    bench b, wide;
    (void)state;
    open_bench(&b);
    open_bench(&wide);
    for (uint32_t r = 1; r <= 2; r++)
        run(&b, r, 100, (9 + r) * MS, 0, 32, 0);
    for (uint32_t r = 1; r <= 4; r++)
        run(&wide, r, 100, (9 + r) * MS, 0, 32, 0);
    mp_turn_burst(&b.turn, BURST);
    mp_turn_burst(&wide.turn, BURST);
    b.turn.tokens = wide.turn.tokens = 1;
    b.costs.now.kv = wide.costs.now.kv = 2;
    wide.turn.peak = b.turn.peak;
    b.turn.elapsed_ns = wide.turn.elapsed_ns = 10 * MS;
    assert_true(cost(&b, 32, 3) < cost(&b, 32, 2));
    expect_near(cost(&b, 32, 4), cost(&wide, 32, 4), 1e-6);
    expect_near(cost(&b, 32, 64), cost(&b, 32, 4), 1e-6);
    free(b.bins);
    free(wide.bins);
}

/* A machine that is always busy shows what it serves, and not what is asked for. */
static void test_turn_takes_no_load_for_more_than_a_part_of_what_is_served(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    b.costs.now.kv = 1;
    run(&b, 1, 100, 10 * MS, 0, 32, 0);
    mp_turn_burst(&b.turn, BURST);
    expect_near(cost(&b, 32, 1), 4, 1e-6); /* 0.8 / 0.2 */
    b.turn.tokens *= 1e9;
    expect_near(cost(&b, 32, 1), 4, 1e-6);
    set_demand(&b, 0.5, 10 * MS);
    expect_near(cost(&b, 32, 1), 1, 1e-6);
    free(b.bins);
}

/* Where KV had room for more than have come, more are not expected; where it was full, they are. */
static void test_turn_expects_more_only_where_there_was_no_room(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    measure(&b, flat_ms, 2);
    set_demand(&b, 1, 10 * MS);
    b.costs.now.kv = 3;
    expect_near(cost(&b, 32, 4), jobs_of_servers(2, 1), 1e-9);
    b.costs.now.kv = 2;
    expect_near(cost(&b, 32, 4), jobs_of_servers(4, 1), 1e-9);
    b.costs.now.kv = 3;
    for (uint32_t i = 0; i < 100; i++) { /* two at once are long ago */
        run(&b, 1, BURST, 10 * MS, 0, 32, 0);
        mp_turn_burst(&b.turn, BURST);
    }
    set_demand(&b, 0.5, 10 * MS);
    expect_near(cost(&b, 32, 4), jobs_of_servers(1, 0.5), 1e-9);
    free(b.bins);
}

/* What has not run may begin with twice as many as have, however much room there is. */
static void test_turn_lets_no_more_than_twice_what_is_known_begin(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    measure(&b, flat_ms, 1);
    set_demand(&b, 100, 10 * MS);
    assert_int_equal(mp_turn_look(&b.costs).running, 2);
    for (uint32_t known = 2; known <= 8; known *= 2) {
        b.costs.target = known;
        measure(&b, flat_ms, known);
        set_demand(&b, 100, 10 * MS);
        assert_int_equal(mp_turn_look(&b.costs).running, 2 * known);
    }
    b.costs.now.kv = 17;
    assert_int_equal(mp_turn_look(&b.costs).running, 16);
    b.costs.now.kv = 16; /* room for as many */
    assert_int_equal(mp_turn_look(&b.costs).running, 0);
    free(b.bins);
}

/* For the longest alone, and for what several take but seldom more. */
static void test_turn_makes_room_for_the_longest_and_the_usual(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    measure(&b, flat_ms, 4);
    set_demand(&b, 0.7, 10 * MS);
    b.costs.sequence_units = 3;
    b.costs.spread_units = 2;
    b.costs.longest_units = 10;
    expect_near(cost(&b, 32, 10), jobs_of_servers(2, 0.7), 1e-9); /* 3 * 2 + 2 * sqrt(2) = 8.83 */
    expect_near(cost(&b, 32, 12), jobs_of_servers(2, 0.7), 1e-9);
    expect_near(cost(&b, 32, 13), jobs_of_servers(3, 0.7), 1e-9); /* 12.46 */
    expect_near(cost(&b, 32, 16), jobs_of_servers(4, 0.7), 1e-9); /* 16 */
    b.costs.longest_units = 14;
    expect_near(cost(&b, 32, 13), jobs_of_servers(1, 0.7), 1e-9);
    free(b.bins);
}

/* ---- stalls at other splits ---- */

/* Uses of an LRU cache, as the curve's distances and as one that is run. */
typedef struct lru {
    uint32_t order[UNITS]; /* most recent first */
    uint32_t n;
} lru;

static uint64_t use(lru *l, uint32_t key)
{
    uint32_t at = 0;
    while (at < l->n && l->order[at] != key)
        at++;
    const uint64_t distance = at < l->n ? at : UINT64_MAX;
    if (at == l->n)
        l->n++;
    memmove(l->order + 1, l->order, at * sizeof *l->order);
    l->order[0] = key;
    return distance;
}

/* Steps of `sequences`, each of which uses 4 experts of the first `among`; returns the warm misses at each capacity,
 * one decode step after the other. */
static void run_cache(bench *b, uint32_t sequences, uint32_t among, uint64_t had, uint64_t *random,
                      double misses[UNITS + 1])
{
    lru l = {.n = 0};
    for (uint32_t k = 0; k < among; k++)
        use(&l, k);
    for (uint32_t s = 0; s < 200; s++) {
        uint32_t missed = 0;
        for (uint32_t i = 0; i < 4 * sequences; i++) {
            const uint64_t distance = use(&l, bank_below(random, among));
            mp_turn_use(&b->turn, sequences, distance, 1);
            for (uint32_t c = 0; c <= UNITS; c++)
                misses[c] += distance >= c;
            missed += distance >= had;
        }
        run(b, sequences, 1, MS, MS * missed, had, 0);
    }
}

static void test_turn_predicts_the_stalls_of_other_splits(void **state)
{
    uint64_t random = 5;
    (void)state;
    for (uint64_t had = 8; had <= 40; had += 8) {
        bench b;
        double misses[UNITS + 1] = {0};
        open_bench(&b);
        run_cache(&b, 1, 48, had, &random, misses);
        mp_turn_burst(&b.turn, BURST);
        set_demand(&b, 1, 20 * MS);
        for (uint64_t c = 4; c <= 48; c += 4) {
            const double rho = (MS + MS * misses[c] / 200) / (20 * MS);
            expect_near(cost(&b, c, 1), rho / (1 - rho), 1e-6);
        }
        free(b.bins);
    }
}

/* While one sequence runs, KV's other units are experts': of 64 units' bytes, those beside 2 for it and 3 that idle. */
static void test_turn_counts_lent_units(void **state)
{
    const mp_split_bounds bounds = {.budget_bytes = 64,
                                    .expert_bytes = 1,
                                    .kv_bytes = 2,
                                    .min_experts = 4,
                                    .max_experts = 52,
                                    .kv_floor = 1};
    uint64_t random = 5;
    bench b;
    double misses[UNITS + 1] = {0};
    (void)state;
    open_bench(&b);
    run_cache(&b, 1, 60, 24, &random, misses);
    mp_turn_burst(&b.turn, BURST);
    set_demand(&b, 1, 20 * MS);
    b.costs.limit = 1;
    b.costs.lends = &bounds;
    b.costs.sequence_units = 1.5;
    b.costs.spread_units = 0.5;
    b.costs.idle_units = 3;
    static const struct {
        uint64_t experts, kv, as;
    } splits[] = {{24, 20, 52}, {44, 10, 52}, {58, 3, 58}, {56, 4, 56}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        const double rho = (MS + MS * misses[splits[i].as] / 200) / (20 * MS);
        expect_near(cost(&b, splits[i].experts, splits[i].kv), rho / (1 - rho), 1e-6);
    }
    b.costs.idle_units = 7;
    const double rho = (MS + MS * misses[46] / 200) / (20 * MS);
    expect_near(cost(&b, 24, 20), rho / (1 - rho), 1e-6);
    free(b.bins);
}

/* Prefill and decoding are priced at the same experts: shares that lend as many cost the same. */
static void test_turn_prices_prefill_at_the_experts_that_are_there(void **state)
{
    const mp_split_bounds bounds = {.budget_bytes = 64,
                                    .expert_bytes = 1,
                                    .kv_bytes = 1,
                                    .min_experts = 4,
                                    .max_experts = 56,
                                    .kv_floor = 1};
    uint64_t random = 5;
    bench b;
    double misses[UNITS + 1] = {0};
    (void)state;
    open_bench(&b);
    run_cache(&b, 1, 60, 24, &random, misses);
    for (uint32_t i = 0; i < 20; i++) {
        b.now_ns += (uint64_t)(60 * MS);
        mp_turn_step(&b.turn, &(mp_turn_sample){.decodes = 1,
                                                .prompts = 100,
                                                .ended_ns = b.now_ns,
                                                .busy_ns = 60 * MS,
                                                .experts = 24});
    }
    mp_turn_burst(&b.turn, BURST);
    set_demand(&b, 1, 40 * MS);
    b.costs.limit = 1;
    b.costs.lends = &bounds;
    const double expected = cost(&b, 56, 8);
    for (uint64_t c = 8; c < 56; c += 8)
        expect_near(cost(&b, c, 64 - c), expected, 1e-9);
    free(b.bins);
}

static void test_turn_counts_kv_misses(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    run(&b, 1, 100, 5 * MS, 0, 32, 0);
    mp_turn_burst(&b.turn, BURST);
    set_demand(&b, 1, 20 * MS);
    mp_curve_add(&b.kv, 20, b.turn.burst_tokens); /* one unit a token, which 21 units of KV keep */
    b.misses.kv = &b.kv;
    b.misses.kv_miss_ns = 5 * MS;
    b.costs.now.kv = 32;
    b.costs.limit = 1;
    expect_near(cost(&b, 32, 32), 1.0 / 3, 1e-9); /* a quarter loaded */
    expect_near(cost(&b, 32, 10), 1, 1e-9);       /* half */
    b.costs.now.kv = 10;                          /* these 5 ms were with the misses */
    expect_near(cost(&b, 32, 10), 1.0 / 3, 1e-9);
    free(b.bins);
}

/* ---- memory ---- */

static void test_turn_remembers_what_runs_seldom(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    run(&b, 3, 20, 7 * MS, 0, 32, 0);
    for (uint32_t i = 0; i < 100; i++) {
        run(&b, 1, BURST, (i < 50 ? 5 : 6) * MS, 0, 32, 0);
        mp_turn_burst(&b.turn, BURST);
    }
    assert_true(b.turn.levels[3].steps > 6);
    expect_near(b.turn.levels[3].busy_ns / b.turn.levels[3].steps, 7 * MS, 1);
    expect_near(b.turn.levels[1].busy_ns / b.turn.levels[1].steps, 6 * MS, 1e3);
    free(b.bins);
}

/* Runs steps of 10 ms with so many sequences, and ends the burst. */
static uint32_t try_after(bench *b, uint32_t sequences, uint32_t steps, double idle_ns,
                          uint32_t running)
{
    run(b, sequences, steps, 10 * MS, 0, 32, idle_ns);
    mp_turn_burst(&b->turn, BURST);
    return mp_turn_try(&b->turn, running);
}

/* One more runs for a burst where the machine has been busy for four, until it is known by 64 steps. */
static void test_turn_tries_one_more_where_it_is_busy(void **state)
{
    bench b;
    uint32_t bursts = 0;
    (void)state;
    open_bench(&b);
    run(&b, 2, 26, 30 * MS, 0, 32, 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(try_after(&b, 1, BURST, 0, 1), 1);
    assert_int_equal(try_after(&b, 1, BURST, 0, 1), 2);
    assert_int_equal(try_after(&b, 1, BURST, 0, 0), 0);      /* as many as may */
    assert_int_equal(try_after(&b, 1, BURST, 0, 2), 2);      /* who are not there */
    assert_int_equal(try_after(&b, 1, BURST, 2 * MS, 1), 1); /* nor waits anyone */
    mp_turn_burst(&b.turn, BURST);                           /* without steps it is not busy */
    assert_int_equal(b.turn.busy_bursts, 0);
    assert_true(b.turn.levels[1].curve.summed);
    for (uint32_t i = 0; i < 4; i++)
        try_after(&b, 1, BURST, 0, 1);
    assert_int_equal(try_after(&b, 2, 38, 0, 1), 2);
    assert_int_equal(try_after(&b, 2, 38, 0, 1), 1);
    while (try_after(&b, 1, BURST, 0, 1) == 1) /* and it is forgotten */
        bursts++;
    assert_in_range(bursts, 10, 60);
    free(b.bins);
}

/* An hour without work says little of the demand: at once the cost is no less than a third, and 60 bursts later what it
 * was. */
static void test_turn_forgets_an_idle_hour(void **state)
{
    bench b;
    double before = 0;
    (void)state;
    open_bench(&b);
    for (uint32_t i = 0; i < 200; i++) {
        run(&b, 1, BURST, 10 * MS, 0, 32, 10 * MS);
        mp_turn_burst(&b.turn, BURST);
    }
    before = cost(&b, 32, 1);
    expect_near(before, 1, 0.05); /* a load of a half */
    b.now_ns += 3600000 * (uint64_t)MS;
    for (uint32_t i = 0; i < 60; i++) {
        run(&b, 1, BURST, 10 * MS, 0, 32, 10 * MS);
        mp_turn_burst(&b.turn, BURST);
        if (i == 0)
            assert_true(cost(&b, 32, 1) > before / 3);
    }
    expect_near(cost(&b, 32, 1), before, 0.1);
    free(b.bins);
}

static void test_turn_knows_nothing_at_first(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    assert_true(cost(&b, 32, 32) == 0);
    assert_true(mp_turn_objective(&b.costs).samples == 0);
    run(&b, 0, 10, MS, 0, 32, 0);
    mp_turn_burst(&b.turn, BURST);
    assert_true(mp_turn_objective(&b.costs).samples == 0);
    run(&b, 1, 10, MS, 0, 32, 0);
    mp_turn_burst(&b.turn, BURST);
    assert_true(mp_turn_objective(&b.costs).samples == b.experts.warm);
    b.costs.sequence_units = 0;
    assert_true(mp_turn_objective(&b.costs).samples == 0);
    free(b.bins);
}

/* ---- the least ---- */

static void test_turn_finds_the_least_of_all_splits(void **state)
{
    uint64_t random = 11;
    (void)state;
    for (uint32_t round = 0; round < 200; round++) {
        bench b;
        double misses[UNITS + 1] = {0};
        open_bench(&b);
        for (uint32_t r = 1; r <= 4; r++)
            run_cache(&b, r, 16 + bank_below(&random, 48), 8 + bank_below(&random, 40), &random,
                      misses);
        mp_turn_burst(&b.turn, BURST);
        b.costs.sequence_units = 0.5 + bank_below(&random, 40) / 10.0;
        b.costs.spread_units = bank_below(&random, 20) / 10.0;
        b.costs.longest_units = b.costs.sequence_units + bank_below(&random, 5);
        set_demand(&b, 1, MS * (2 + bank_below(&random, 20)));
        const mp_split_bounds bounds = {.budget_bytes = 640,
                                        .expert_bytes = 10,
                                        .kv_bytes = 1 + bank_below(&random, 20),
                                        .min_experts = 4,
                                        .max_experts = UNITS,
                                        .kv_floor = 1};
        double least = INFINITY;
        mp_split split, found;
        for (uint64_t c = bounds.min_experts; c <= UNITS; c++)
            if (mp_split_with_experts(&bounds, c, &split) && split.experts == c)
                least = fmin(least, mp_turn_cost(&b.costs, &split));
        assert_true(mp_turn_configure(&b.costs, &bounds, 8, &found));
        assert_true(mp_split_within(&bounds, &found));
        assert_true(mp_turn_cost(&b.costs, &found) <= least * (1 + 1e-12));
        free(b.bins);
    }
}

static void test_turn_finds_nothing_where_nothing_fits(void **state)
{
    bench b;
    mp_split found;
    (void)state;
    open_bench(&b);
    assert_false(mp_turn_configure(&b.costs,
                                   &(mp_split_bounds){.budget_bytes = 5,
                                                      .expert_bytes = 10,
                                                      .kv_bytes = 1,
                                                      .min_experts = 1,
                                                      .max_experts = 8},
                                   8, &found));
    free(b.bins);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turn_is_that_of_one_server),
        cmocka_unit_test(test_turn_is_that_of_several_servers),
        cmocka_unit_test(test_turn_counts_no_more_than_are_good),
        cmocka_unit_test(test_turn_waits_by_how_unlike_turns_are),
        cmocka_unit_test(test_turn_lets_run_what_serves_turns_sooner),
        cmocka_unit_test(test_turn_lets_more_run_near_saturation),
        cmocka_unit_test(test_turn_lets_the_fewest_of_equals_run),
        cmocka_unit_test(test_turn_judges_what_has_run_without_room),
        cmocka_unit_test(test_turn_expects_what_servers_do),
        cmocka_unit_test(test_turn_meets_a_target_between_tokens),
        cmocka_unit_test(test_turn_meets_a_target_of_first_tokens),
        cmocka_unit_test(test_turn_splits_by_targets),
        cmocka_unit_test(test_turn_counts_other_steps),
        cmocka_unit_test(test_turn_counts_what_prefill_adds),
        cmocka_unit_test(test_turn_prices_prompts_beside_decoding),
        cmocka_unit_test(test_turn_looks_a_little_further),
        cmocka_unit_test(test_turn_takes_no_load_for_more_than_a_part_of_what_is_served),
        cmocka_unit_test(test_turn_expects_more_only_where_there_was_no_room),
        cmocka_unit_test(test_turn_lets_no_more_than_twice_what_is_known_begin),
        cmocka_unit_test(test_turn_makes_room_for_the_longest_and_the_usual),
        cmocka_unit_test(test_turn_predicts_the_stalls_of_other_splits),
        cmocka_unit_test(test_turn_counts_lent_units),
        cmocka_unit_test(test_turn_prices_prefill_at_the_experts_that_are_there),
        cmocka_unit_test(test_turn_counts_kv_misses),
        cmocka_unit_test(test_turn_remembers_what_runs_seldom),
        cmocka_unit_test(test_turn_tries_one_more_where_it_is_busy),
        cmocka_unit_test(test_turn_forgets_an_idle_hour),
        cmocka_unit_test(test_turn_knows_nothing_at_first),
        cmocka_unit_test(test_turn_finds_the_least_of_all_splits),
        cmocka_unit_test(test_turn_finds_nothing_where_nothing_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
