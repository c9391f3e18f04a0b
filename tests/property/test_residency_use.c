/* The residency planner where the use of experts was measured: random machines and curves, from random starts, against
 * all plans that there are. */

#include <math.h>
#include <stdlib.h>

#include "bank_model.h"
#include "planning/residency.h"
#include "testing.h"

enum { MOST_EXPERTS = 48 };

#define SLACK 1e-9
#define KEPT 0.01 /* a plan so near the best one is kept */

typedef mp_residency_plan plan_t;

typedef struct scene {
    uint64_t seed, random;
    double cached[MOST_EXPERTS + 1], streamed[MOST_EXPERTS + 1];
    mp_residency_machine machine;
    mp_residency_config config;
    mp_residency_input input;
    mp_residency_planner planner;
} scene;

static uint32_t draw(scene *s, uint32_t low, uint32_t high)
{
    return low + bank_below(&s->random, high - low + 1);
}

static double unit(scene *s)
{
    return bank_below(&s->random, 1000001) / 1e6;
}

static bool one_in(scene *s, uint32_t n)
{
    return bank_below(&s->random, n) == 0;
}

/* ---- The definition ---- */

static bool has_compressed(const scene *s)
{
    return s->machine.compressed_bytes > 0 && s->machine.decode_bytes_per_s > 0 &&
           s->machine.compressed_bytes < s->machine.dense_bytes;
}

/* One layer's misses by either regime: a queue for the bus and one for the decoder. */
static double naive_ns(const scene *s, plan_t plan)
{
    const mp_residency_machine *m = &s->machine;
    const bool coded = m->coded_bus && has_compressed(s);
    double comp = s->input.comp_ns / m->layers;
    double image = coded ? (double)m->compressed_bytes : (double)m->dense_bytes;
    double times[2] = {0};
    for (int streams = 0; streams < 2; streams++) {
        double misses = streams ? m->streamed[plan.dense] : m->cached[plan.dense];
        double found = misses / m->experts * plan.compressed;
        double bus = 0, decoder = 0;
        if (misses - found > 0)
            bus = (misses - found) * image / (double)m->bus_bytes_per_s * 1e9;
        if (has_compressed(s) && (coded ? misses : found) > 0)
            decoder = (coded ? misses : found) * (double)m->dense_bytes /
                      (double)m->decode_bytes_per_s * 1e9;
        double more = fmax(bus, decoder), one = fmin(bus, decoder) / fmax(misses, 1);
        double part = streams ? m->unforeseen : 1;
        if (more > comp)
            times[streams] = more + part * (comp + one);
        else
            times[streams] = comp + part * (more + one);
    }
    return m->layers * fmin(times[0], times[1]);
}

static bool fits(const scene *s, plan_t plan)
{
    const mp_residency_machine *m = &s->machine;
    uint64_t each = plan.dense * m->dense_bytes + plan.compressed * m->compressed_bytes;
    return m->window_bytes + m->layers * each + s->input.kv_bytes <= s->input.gpu_bytes;
}

static bool is_kind(const scene *s, plan_t plan)
{
    return !(plan.compressed && !has_compressed(s)) &&
           !(plan.dense && s->config.no_dense && has_compressed(s));
}

/* The shortest step of all plans that fit, with min_alpha experts in device memory or as many as fit. */
static double naive_best(const scene *s)
{
    const uint32_t experts = s->machine.experts;
    double best = INFINITY;
    uint32_t bound = 0;
    for (int round = 0; round < 2; round++)
        for (uint32_t x = 0; x <= experts; x++)
            for (uint32_t y = 0; x + y <= experts; y++) {
                plan_t plan = {x, y};
                if (!is_kind(s, plan) || !fits(s, plan))
                    continue;
                if (round == 0 && x + y > bound)
                    bound = x + y < s->config.min_alpha ? x + y : s->config.min_alpha;
                if (round == 1 && x + y >= bound)
                    best = fmin(best, naive_ns(s, plan));
            }
    return best;
}

static void require(const scene *s, bool holds, const char *what)
{
    if (!holds)
        fail_msg("seed %llu: %u dense, %u compressed of %u: %s", (unsigned long long)s->seed,
                 s->planner.plan.dense, s->planner.plan.compressed, s->machine.experts, what);
}

/* ---- Random scenes ---- */

static void random_curve(scene *s, double used, double *curve)
{
    double power = 0.2 + 4 * unit(s), cliff = one_in(s, 3) ? unit(s) : 0;
    for (uint32_t x = 0; x <= s->machine.experts; x++) {
        double part = (double)x / s->machine.experts;
        curve[x] = part < cliff ? used : used * pow(1 - part, power);
    }
}

static void random_scene(uint64_t seed, scene *s)
{
    *s = (scene){.seed = seed, .random = seed};
    mp_residency_machine *m = &s->machine;
    m->experts = draw(s, 1, MOST_EXPERTS);
    m->layers = draw(s, 1, 8);
    m->dense_bytes = draw(s, 1000, 1000000);
    m->compressed_bytes = (uint64_t)((double)m->dense_bytes * (0.5 + 0.6 * unit(s)));
    m->window_bytes = draw(s, 0, 4000000);
    m->bus_bytes_per_s = draw(s, 1000000, 100000000);
    m->decode_bytes_per_s = (uint64_t)((double)m->bus_bytes_per_s * exp(4 * unit(s) - 1));
    m->coded_bus = one_in(s, 2);
    if (one_in(s, 8))
        m->decode_bytes_per_s = 0;
    double used = 0.1 + unit(s) * (m->experts - 0.1);
    m->union_fraction = used / m->experts;
    m->unforeseen = one_in(s, 4) ? 0 : unit(s);
    random_curve(s, used, s->cached);
    random_curve(s, used, s->streamed);
    m->cached = s->cached;
    m->streamed = s->streamed;
    s->config = (mp_residency_config){.theta = 0.9,
                                      .min_alpha = one_in(s, 3) ? draw(s, 0, m->experts) : 0,
                                      .no_dense = one_in(s, 6)};
    double load = used * (double)m->dense_bytes / (double)m->bus_bytes_per_s * 1e9;
    s->input.comp_ns = 1 + m->layers * load * unit(s) * (one_in(s, 3) ? 2 : 0.2);
    s->input.kv_bytes = draw(s, 0, 10000000);
    double all = (double)m->layers * m->experts * (double)m->dense_bytes;
    s->input.gpu_bytes = m->window_bytes + s->input.kv_bytes + (uint64_t)(all * 1.2 * unit(s));
    plan_t start = {draw(s, 0, m->experts), 0};
    start.compressed = draw(s, 0, m->experts - start.dense);
    mp_residency_init(&s->planner, &s->config, &start);
}

/* ---- What must hold ---- */

static uint32_t changed(const scene *s, plan_t a, plan_t b)
{
    int64_t x = (int64_t)a.dense - b.dense, y = (int64_t)a.compressed - b.compressed;
    (void)s;
    return (uint32_t)((llabs(x) + llabs(y) + llabs(x + y)) / 2);
}

static void interval(scene *s)
{
    plan_t now = s->planner.plan;
    bool fitted = fits(s, now);
    mp_residency_answer answer;
    mp_residency_step(&s->planner, &s->machine, &s->input, &answer);
    plan_t next = answer.next;
    require(s, fits(s, next), "displaces KV");
    require(s, fitted == (answer.why != MP_RESIDENCY_KV), "was or was not KV's turn");
    uint32_t n = changed(s, now, next);
    if (!fitted)
        return;
    require(s, n <= (s->planner.by_use ? s->machine.experts / 4 + 1 : 1), "changed too much");
    require(s, n <= 1 || next.compressed <= now.compressed, "brings several images at once");
    bool moves = answer.why == MP_RESIDENCY_LOWER || answer.why == MP_RESIDENCY_RAISE;
    require(s, moves == (n > 0), "moved, or not, against the answer");
}

static uint64_t rounds(uint64_t few)
{
    return getenv("MP_TEST_LONG") ? 40 * few : few;
}

/* Settled within E + 2 intervals, for good, and by use within a percent of the shortest steps that there are. */
static void test_residency_use_settles_on_the_shortest_steps(void **state)
{
    (void)state;
    uint32_t by_use = 0, by_bands = 0, with_images = 0;
    static scene s;
    for (uint64_t seed = 1; seed <= rounds(6000); seed++) {
        random_scene(seed, &s);
        for (uint32_t i = 0; i < s.machine.experts + 2; i++)
            interval(&s);
        plan_t settled = s.planner.plan;
        for (uint32_t i = 0; i < 20; i++) {
            interval(&s);
            require(&s, changed(&s, settled, s.planner.plan) == 0, "moved again");
        }
        double ns = naive_ns(&s, settled);
        double told = mp_residency_step_ns(&s.machine, &settled, s.input.comp_ns);
        require(&s, fabs(told - ns) <= 1e-12 * ns, "has another time");
        by_use += s.planner.by_use;
        by_bands += !s.planner.by_use;
        with_images += s.planner.by_use && settled.compressed > 0;
        if (s.planner.by_use)
            require(&s, ns * (1 - KEPT) <= naive_best(&s) * (1 + SLACK), "has longer steps");
    }
    print_message("%u by use, %u of them with images, %u by bands\n", by_use, with_images,
                  by_bands);
    assert_true(by_use > 1000 && by_bands > 500 && with_images > 200);
}

/* Where all experts are used, none more than others, and all is foreseen, nothing is gained by use if the bands keep
 * up: it is the plan without measurements. */
static void test_residency_use_is_no_reason_where_loads_hide(void **state)
{
    (void)state;
    static scene s;
    uint32_t hidden = 0;
    for (uint64_t seed = 1; seed <= rounds(2000); seed++) {
        random_scene(seed, &s);
        s.config.no_dense = s.planner.config.no_dense = has_compressed(&s);
        s.machine.union_fraction = 1;
        s.machine.unforeseen = 0;
        s.input.comp_ns *= 4;
        for (uint32_t x = 0; x <= s.machine.experts; x++) {
            s.cached[x] = x < s.machine.experts ? s.machine.experts : 0;
            s.streamed[x] = s.machine.experts - x;
        }
        scene plain = s;
        plain.machine.cached = plain.machine.streamed = NULL;
        for (uint32_t i = 0; i < s.machine.experts + 2; i++) {
            interval(&s);
            interval(&plain);
        }
        double load = mp_residency_load_ns(&s.machine, &plain.planner.plan);
        if (load > s.input.comp_ns || !has_compressed(&s))
            continue;
        hidden++;
        require(&s, !s.planner.by_use, "goes by use");
        require(&s, changed(&s, s.planner.plan, plain.planner.plan) == 0, "is another plan");
    }
    print_message("%u hide their loads\n", hidden);
    assert_true(hidden > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residency_use_settles_on_the_shortest_steps),
        cmocka_unit_test(test_residency_use_is_no_reason_where_loads_hide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
