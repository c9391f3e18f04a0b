/* The residency planner on random machines, from random starts, under random KV: what it settles on
 * against all plans that there are, and what must hold after every interval. */

#include <math.h>
#include <stdlib.h>

#include "bank_model.h"
#include "planning/placement.h"
#include "planning/residency.h"
#include "testing.h"

#define SLACK 1e-9       /* of floating point, on either side of an edge */
#define SMALL_GAIN 0.025 /* for which a change of alpha need not be taken back */

typedef mp_residency_plan plan_t;

typedef struct scene {
    uint64_t seed, random;
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

/* ---- The definition: states, bytes and times of one layer, expert by expert ---- */

static bool has_compressed(const scene *s)
{
    return s->machine.compressed_bytes > 0 && s->machine.decode_bytes_per_s > 0 &&
           s->machine.compressed_bytes < s->machine.dense_bytes;
}

static double naive_load(const scene *s, plan_t plan)
{
    const mp_residency_machine *m = &s->machine;
    double bus = 0, decoder = 0, dense = (double)m->dense_bytes;
    bool coded = m->coded_bus && has_compressed(s);
    for (uint32_t i = plan.dense; i < m->experts; i++) {
        bool host = i >= plan.dense + plan.compressed;
        if (host)
            bus += m->union_fraction * (coded ? (double)m->compressed_bytes : dense);
        if (!host || coded)
            decoder += m->union_fraction * dense;
    }
    double bus_ns = bus > 0 ? bus / (double)m->bus_bytes_per_s * 1e9 : 0;
    double decode_ns = decoder > 0 ? decoder / (double)m->decode_bytes_per_s * 1e9 : 0;
    return m->layers * fmax(bus_ns, decode_ns);
}

static uint64_t naive_bytes(const scene *s, plan_t plan)
{
    uint64_t bytes = s->machine.window_bytes;
    for (uint32_t l = 0; l < s->machine.layers; l++)
        bytes +=
            plan.dense * s->machine.dense_bytes + plan.compressed * s->machine.compressed_bytes;
    return bytes;
}

static bool fits(const scene *s, plan_t plan)
{
    return naive_bytes(s, plan) + s->input.kv_bytes <= s->input.gpu_bytes;
}

static uint32_t moved(const scene *s, plan_t a, plan_t b)
{
    int64_t e = s->machine.experts, x = (int64_t)a.dense - b.dense;
    int64_t y = (int64_t)a.compressed - b.compressed;
    int64_t z = (e - a.dense - a.compressed) - (e - b.dense - b.compressed);
    return (uint32_t)((llabs(x) + llabs(y) + llabs(z)) / 2);
}

/* Of a kind that may be settled on at all, room aside. */
static bool is_kind(const scene *s, plan_t plan)
{
    return !(plan.compressed && !has_compressed(s)) &&
           !(plan.dense && s->config.no_dense && has_compressed(s));
}

/* ---- The oracle: every plan of a layer looked at ---- */

typedef struct oracle {
    uint32_t bound;   /* fewest experts in device memory that KV lets min_alpha be */
    double soonest;   /* load time of the plan that loads soonest */
    bool reaches;     /* some plan has rho >= theta */
    uint64_t leanest; /* bytes of the leanest that loads within comp_ns; UINT64_MAX for none */
} oracle;

static bool allowed(const scene *s, const oracle *o, plan_t plan)
{
    return is_kind(s, plan) && fits(s, plan) && plan.dense + plan.compressed >= o->bound;
}

static uint32_t naive_bound(const scene *s)
{
    uint32_t bound = 0;
    for (uint32_t x = 0; x <= s->machine.experts; x++)
        for (uint32_t y = 0; x + y <= s->machine.experts; y++) {
            plan_t plan = {x, y};
            if (is_kind(s, plan) && fits(s, plan) && x + y > bound)
                bound = x + y;
        }
    return bound < s->config.min_alpha ? bound : s->config.min_alpha;
}

static oracle look(const scene *s)
{
    oracle o = {.bound = naive_bound(s), .soonest = INFINITY, .leanest = UINT64_MAX};
    for (uint32_t x = 0; x <= s->machine.experts; x++)
        for (uint32_t y = 0; x + y <= s->machine.experts; y++) {
            plan_t plan = {x, y};
            if (!allowed(s, &o, plan))
                continue;
            double load = naive_load(s, plan);
            uint64_t bytes = naive_bytes(s, plan);
            o.soonest = fmin(o.soonest, load);
            o.reaches |= load * s->config.theta <= s->input.comp_ns * (1 - SLACK);
            if (load <= s->input.comp_ns * (1 - SLACK) && bytes < o.leanest)
                o.leanest = bytes;
        }
    return o;
}

/* Is every allowed plan that gives up memory with one expert's change out of the band, below
 * `theta`? */
static bool next_leave_band(const scene *s, const oracle *o, plan_t plan, double theta)
{
    for (int x = -1; x <= 1; x++)
        for (int y = -1; y <= 1; y++) {
            plan_t other = {plan.dense + (uint32_t)x, plan.compressed + (uint32_t)y};
            if (other.dense > s->machine.experts || other.compressed > s->machine.experts ||
                other.dense + other.compressed > s->machine.experts || moved(s, plan, other) != 1 ||
                !allowed(s, o, other) || naive_bytes(s, other) >= naive_bytes(s, plan))
                continue;
            if (naive_load(s, other) * theta <= s->input.comp_ns * (1 - SLACK))
                return false;
        }
    return true;
}

/* May a planner stay at this plan? One with a past may have refused a plan just inside the band,
 * and leaves small gains alone. */
static const char *wrong_with(const scene *s, plan_t plan, bool fresh)
{
    oracle o = look(s);
    double load = naive_load(s, plan), comp = s->input.comp_ns, theta = s->config.theta;
    if (!fits(s, plan))
        return plan.dense + plan.compressed ? "has bytes that KV needs" : NULL;
    if (!allowed(s, &o, plan))
        return "is out of bounds";
    if (!o.reaches) {
        if (load * theta <= comp * (1 + SLACK))
            return NULL; /* on the very edge */
        double limit = o.soonest * (fresh ? 1 + SLACK : 1 / (1 - SMALL_GAIN) + SLACK);
        return load <= limit ? NULL : "could load sooner";
    }
    if (load * theta > comp * (1 + SLACK))
        return "has rho < theta";
    if (naive_bytes(s, plan) > o.leanest)
        return "has more bytes than the leanest that keeps up";
    if (load < comp * (1 - SLACK) && !next_leave_band(s, &o, plan, fresh ? theta : (1 + theta) / 2))
        return "has rho > 1, and could give memory up within the band";
    return NULL;
}

/* ---- Every interval ---- */

static void describe(const scene *s, plan_t plan, const char *what)
{
    const mp_residency_machine *m = &s->machine;
    fail_msg(
        "seed %llu: plan %u dense %u compressed of %u %s; %u layers, %llu/%llu B, window %llu, "
        "coded %d, bus %llu, decode %llu, union %g; theta %g, min %u, no_dense %d; comp %g, room "
        "%lld, load %g",
        (unsigned long long)s->seed, plan.dense, plan.compressed, m->experts, what, m->layers,
        (unsigned long long)m->dense_bytes, (unsigned long long)m->compressed_bytes,
        (unsigned long long)m->window_bytes, m->coded_bus, (unsigned long long)m->bus_bytes_per_s,
        (unsigned long long)m->decode_bytes_per_s, m->union_fraction, s->config.theta,
        s->config.min_alpha, s->config.no_dense, s->input.comp_ns,
        (long long)(s->input.gpu_bytes - s->input.kv_bytes), naive_load(s, plan));
}

static void require(const scene *s, bool holds, plan_t plan, const char *what)
{
    if (!holds)
        describe(s, plan, what);
}

static bool near(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b));
}

/* KV's turn: nothing comes, and one expert less leaving would not do. */
static void require_shed(const scene *s, plan_t now, plan_t next)
{
    uint32_t left = now.dense + now.compressed - next.dense - next.compressed;
    require(s, next.dense <= now.dense && next.compressed <= now.compressed, next,
            "grew while KV needed bytes");
    require(s, left > 0, next, "gave nothing up");
    for (uint32_t x = 0; left && x <= left - 1 && x <= now.dense; x++) {
        uint32_t y = left - 1 - x;
        if (y <= now.compressed)
            require(s, !fits(s, (plan_t){now.dense - x, now.compressed - y}), next,
                    "lost more experts than KV needed");
    }
}

static mp_residency_why interval(scene *s)
{
    plan_t now = s->planner.plan;
    mp_residency_answer answer;
    mp_residency_step(&s->planner, &s->machine, &s->input, &answer);
    plan_t next = answer.next;
    uint32_t changed = moved(s, now, next);
    uint64_t before = naive_bytes(s, now), after = naive_bytes(s, next);
    double load = naive_load(s, now);
    require(s, s->planner.plan.dense == next.dense && s->planner.plan.compressed == next.compressed,
            next, "is not the planner's");
    require(s,
            near(answer.load_ns, load) && (load == 0 || near(answer.rho, s->input.comp_ns / load)),
            now, "has another load or rho");
    require(s, after == mp_residency_bytes(&s->machine, &next), next, "has other bytes");
    require(s, near(answer.alpha, (double)(next.dense + next.compressed) / s->machine.experts),
            next, "has another alpha");
    require(s, fits(s, next) || next.dense + next.compressed == 0, next, "displaces KV");
    require(s, (answer.why == MP_RESIDENCY_KV) == !fits(s, now), now, "was or was not KV's turn");
    if (answer.why == MP_RESIDENCY_KV) {
        if (fits(s, (plan_t){0, 0}))
            require_shed(s, now, next);
        return answer.why;
    }
    bool moves = answer.why == MP_RESIDENCY_LOWER || answer.why == MP_RESIDENCY_RAISE;
    require(s, changed <= 1, next, "changed more than one expert of a layer");
    require(s, moves == (changed == 1), next, "moved, or not, against the answer");
    if (moves && after != before)
        require(s, (answer.why == MP_RESIDENCY_LOWER) == (after < before), next, "moved backwards");
    /* A plan that keeps up is not left for one that does not. */
    if (s->input.comp_ns > 0 && load * s->config.theta <= s->input.comp_ns * (1 - SLACK))
        require(s,
                !is_kind(s, now) || now.dense + now.compressed < s->config.min_alpha ||
                    naive_load(s, next) * s->config.theta <= s->input.comp_ns * (1 + SLACK),
                next, "fell out of the band");
    return answer.why;
}

/* ---- Random scenes ---- */

static plan_t random_plan(scene *s)
{
    plan_t plan = {draw(s, 0, s->machine.experts), 0};
    if (one_in(s, 3))
        plan.dense = one_in(s, 2) ? 0 : s->machine.experts;
    plan.compressed = draw(s, 0, s->machine.experts - plan.dense);
    return plan;
}

/* One draw a statement: so the scenes of a seed are the same under every compiler. */
static void random_machine(scene *s)
{
    mp_residency_machine *m = &s->machine;
    m->dense_bytes = draw(s, 1000, 1000000);
    m->bus_bytes_per_s = draw(s, 1000000, 100000000);
    m->decode_bytes_per_s = (uint64_t)((double)m->bus_bytes_per_s * exp(4 * unit(s) - 1));
    m->compressed_bytes = (uint64_t)((double)m->dense_bytes * (0.5 + 0.6 * unit(s)));
    m->window_bytes = one_in(s, 3) ? 0 : draw(s, 0, 4000000);
    m->experts = one_in(s, 10) ? draw(s, 25, 72) : draw(s, 1, 24);
    m->layers = draw(s, 1, 8);
    m->coded_bus = one_in(s, 3);
    m->union_fraction = one_in(s, 3) ? 1 : 0.05 + 0.95 * unit(s);
    if (one_in(s, 6))
        m->compressed_bytes = 0;
    if (one_in(s, 12))
        m->decode_bytes_per_s = 0;
    if (one_in(s, 40))
        m->bus_bytes_per_s = 0;
    s->config.theta = one_in(s, 2) ? 0.9 : 0.5 + 0.5 * unit(s);
    s->config.min_alpha = one_in(s, 3) ? draw(s, 0, m->experts) : 0;
    s->config.no_dense = one_in(s, 3);
    s->config.by_layer = one_in(s, 2);
}

/* Computing takes about as long as loading some plan. */
static void random_load(scene *s)
{
    double load = naive_load(s, random_plan(s));
    s->input.comp_ns = isfinite(load) ? 1 + load * (0.6 + 0.8 * unit(s)) : 1 + 1e9 * unit(s);
    if (one_in(s, 20))
        s->input.comp_ns = one_in(s, 2) ? 1 : 1e15;
}

static void random_memory(scene *s)
{
    plan_t all = {s->machine.experts, 0};
    double experts = (double)(naive_bytes(s, all) - s->machine.window_bytes);
    uint64_t kv = draw(s, 0, 10000000);
    double part = one_in(s, 3) ? 2 : 1.1 * unit(s);
    s->input.kv_bytes = kv;
    s->input.gpu_bytes = s->machine.window_bytes + kv + (uint64_t)(experts * part);
    if (one_in(s, 30))
        s->input.gpu_bytes = one_in(s, 2) ? kv / 2 : kv + s->machine.window_bytes / 2;
}

static scene random_scene(uint64_t seed)
{
    scene s = {.seed = seed, .random = seed};
    random_machine(&s);
    random_load(&s);
    random_memory(&s);
    plan_t start = random_plan(&s);
    mp_residency_init(&s.planner, &s.config, &start);
    return s;
}

/* On a steady load: settled within E + 10 intervals (E + 1, in fact), on a plan that the oracle
 * accepts, and never moving again. Returns why it stays. */
static mp_residency_why settle(scene *s, bool fresh)
{
    mp_residency_why why = MP_RESIDENCY_HOLD;
    for (uint32_t i = 0; i < s->machine.experts + 1; i++)
        why = interval(s);
    plan_t settled = s->planner.plan;
    for (uint32_t i = 0; i < 40; i++) {
        why = interval(s);
        require(s, moved(s, settled, s->planner.plan) == 0, s->planner.plan, "moved again");
    }
    const char *wrong = s->input.comp_ns > 0 ? wrong_with(s, settled, fresh) : NULL;
    require(s, wrong == NULL, settled, wrong);
    return why;
}

static uint64_t rounds(uint64_t few)
{
    return getenv("MP_TEST_LONG") ? 40 * few : few;
}

static void test_residency_settles_from_any_start_on_a_steady_load(void **state)
{
    (void)state;
    uint32_t ends[MP_RESIDENCY_KV + 1] = {0};
    for (uint64_t seed = 1; seed <= rounds(12000); seed++) {
        scene s = random_scene(seed);
        ends[settle(&s, true)]++;
    }
    assert_int_equal(ends[MP_RESIDENCY_LOWER] + ends[MP_RESIDENCY_RAISE], 0);
    assert_true(ends[MP_RESIDENCY_HOLD] > 2000 && ends[MP_RESIDENCY_BUDGET] > 1000 &&
                ends[MP_RESIDENCY_BOUND] > 500 && ends[MP_RESIDENCY_KV] > 10);
}

/* The answer's reasons, where the planner stays. */
static void test_residency_says_why_it_stays(void **state)
{
    (void)state;
    for (uint64_t seed = 500001; seed <= 500000 + rounds(3000); seed++) {
        scene s = random_scene(seed);
        mp_residency_why why = settle(&s, true);
        plan_t plan = s.planner.plan;
        double rho = s.input.comp_ns / naive_load(&s, plan), theta = s.config.theta;
        oracle o = look(&s);
        bool least = plan.dense + plan.compressed == o.bound;
        switch (why) {
        case MP_RESIDENCY_HOLD: require(&s, rho >= theta - SLACK, plan, "holds"); break;
        case MP_RESIDENCY_BUDGET: require(&s, rho < theta + SLACK, plan, "has no budget"); break;
        case MP_RESIDENCY_BOUND:
            require(&s, rho < theta + SLACK || (rho > 1 - SLACK && least), plan, "is bound");
            break;
        default: require(&s, !fits(&s, (plan_t){0, 0}), plan, "is KV's"); break;
        }
    }
}

/* Shifts of load, memory and bandwidth, KV walking up and down in between: KV first at every
 * interval, and settled on each stretch that is steady. */
static void test_residency_settles_after_any_past(void **state)
{
    (void)state;
    for (uint64_t seed = 1000001; seed <= 1000000 + rounds(1500); seed++) {
        scene s = random_scene(seed);
        for (uint32_t stretch = 0; stretch < 6; stretch++) {
            uint32_t walk = draw(&s, 0, 30);
            for (uint32_t i = 0; i < walk; i++) {
                if (one_in(&s, 4))
                    random_load(&s);
                uint64_t most = s.input.gpu_bytes;
                uint64_t grown = s.input.kv_bytes + (uint64_t)((double)most * 0.2 * unit(&s));
                uint64_t step = (uint64_t)((double)most * 0.2 * unit(&s));
                s.input.kv_bytes = grown > step ? grown - step : 0;
                if (one_in(&s, 10))
                    s.input.kv_bytes =
                        (uint64_t)((double)most * unit(&s)); /* a surge, or its end */
                interval(&s);
                if (one_in(&s, 15)) {
                    plan_t actual = random_plan(&s);
                    mp_residency_reject(&s.planner, &actual);
                }
            }
            if (one_in(&s, 2))
                random_load(&s);
            if (one_in(&s, 2))
                random_memory(&s);
            if (one_in(&s, 3))
                s.machine.bus_bytes_per_s = draw(&s, 1000000, 100000000);
            settle(&s, false);
        }
    }
}

static void test_residency_serves_kv_while_computing_is_unknown(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        scene s = random_scene(seed);
        s.input.comp_ns = seed % 2 ? 0 : NAN;
        if (!fits(&s, (plan_t){0, 0}))
            continue;
        bool fitted = fits(&s, s.planner.plan);
        plan_t before = s.planner.plan;
        mp_residency_answer answer;
        mp_residency_step(&s.planner, &s.machine, &s.input, &answer);
        assert_int_equal(answer.why, fitted ? MP_RESIDENCY_HOLD : MP_RESIDENCY_KV);
        if (fitted)
            assert_int_equal(moved(&s, before, answer.next), 0);
        else
            require_shed(&s, before, answer.next);
    }
}

/* ---- Noise ---- */

static double noisy(scene *s, double value, double part)
{
    return value * (1 + part * (2 * unit(s) - 1));
}

/* Bandwidths and computing scatter by 1 % each, rho by 2 % either way, less than half the band
 * from end to end. Once settled, a count may still be pushed as far as the scatter reaches, and
 * stays. */
static void test_residency_does_not_chase_noise(void **state)
{
    (void)state;
    for (uint64_t seed = 2000001; seed <= 2000000 + rounds(300); seed++) {
        scene s = random_scene(seed);
        s.config.theta = s.planner.config.theta = 0.9;
        s.machine.bus_bytes_per_s = draw(&s, 1000000, 100000000);
        const scene mean = s;
        uint32_t moves = 0, settling = 4 * s.machine.experts;
        for (uint32_t i = 0; i < settling + 1000; i++) {
            plan_t before = s.planner.plan;
            s.machine.bus_bytes_per_s =
                (uint64_t)noisy(&s, (double)mean.machine.bus_bytes_per_s, 0.01);
            s.machine.decode_bytes_per_s =
                (uint64_t)noisy(&s, (double)mean.machine.decode_bytes_per_s, 0.01);
            s.input.comp_ns = noisy(&s, mean.input.comp_ns, 0.01);
            interval(&s);
            moves += i >= settling ? moved(&s, before, s.planner.plan) : 0;
        }
        if (moves > 8 + s.machine.experts / 16)
            fail_msg("%u moves: seed %llu", moves, (unsigned long long)seed);
    }
}

/* ---- Equation 8 ---- */

/* Without dense experts and with memory to spare, a load that nothing keeps up with ends at the
 * bandwidth-proportional division, to the expert. */
static void test_residency_ends_balanced_where_nothing_keeps_up(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        scene s = {.seed = seed, .random = seed};
        random_machine(&s);
        s.machine.coded_bus = seed % 2;
        s.machine.compressed_bytes = s.machine.dense_bytes * 3 / 4;
        s.machine.bus_bytes_per_s = draw(&s, 1000000, 100000000);
        s.machine.decode_bytes_per_s = draw(&s, 1000000, 100000000);
        s.config.no_dense = true;
        s.config.min_alpha = 0;
        s.input = (mp_residency_input){.comp_ns = 1, .gpu_bytes = UINT64_MAX / 4};
        plan_t start = random_plan(&s);
        mp_residency_init(&s.planner, &s.config, &start);
        assert_int_equal(settle(&s, true), MP_RESIDENCY_BOUND);
        mp_backend backends[] = {{s.machine.decode_bytes_per_s, UINT32_MAX, 0},
                                 {s.machine.bus_bytes_per_s, UINT32_MAX, 0}};
        assert_int_equal(mp_place(backends, 2, s.machine.experts), 0);
        double gain = (double)s.machine.dense_bytes / (double)s.machine.compressed_bytes;
        if (s.machine.coded_bus)
            backends[0].experts =
                mp_place_decoded(s.machine.decode_bytes_per_s,
                                 (uint64_t)((double)s.machine.bus_bytes_per_s * gain), UINT32_MAX,
                                 s.machine.experts);
        assert_true(abs((int)backends[0].experts - (int)s.planner.plan.compressed) <= 1);
    }
}

/* ---- Layer by layer ---- */

static void test_residency_by_layer_crowds_the_same_experts(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        scene s = {.seed = seed, .random = seed};
        random_machine(&s);
        plan_t plan = random_plan(&s), of;
        uint64_t dense = 0, compressed = 0;
        uint32_t mixed = 0, e = s.machine.experts;
        for (uint32_t l = 0; l < s.machine.layers; l++) {
            mp_residency_layer(&s.machine, &plan, true, l, &of);
            assert_true(of.dense + of.compressed <= e);
            dense += of.dense;
            compressed += of.compressed;
            mixed += of.dense != e && of.compressed != e && of.dense + of.compressed != 0;
            mp_residency_layer(&s.machine, &plan, false, l, &of);
            assert_memory_equal(&of, &plan, sizeof plan);
        }
        assert_int_equal(dense, plan.dense * s.machine.layers);
        assert_int_equal(compressed, plan.compressed * s.machine.layers);
        assert_true(mixed <= 2); /* where dense ones end, and where compressed ones do */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residency_settles_from_any_start_on_a_steady_load),
        cmocka_unit_test(test_residency_says_why_it_stays),
        cmocka_unit_test(test_residency_settles_after_any_past),
        cmocka_unit_test(test_residency_serves_kv_while_computing_is_unknown),
        cmocka_unit_test(test_residency_does_not_chase_noise),
        cmocka_unit_test(test_residency_ends_balanced_where_nothing_keeps_up),
        cmocka_unit_test(test_residency_by_layer_crowds_the_same_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
