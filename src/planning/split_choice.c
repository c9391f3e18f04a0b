/* Splits of a budget: the bounds, the predicted cost, its minimum, the closed form, baselines. */
#include "planning/split_choice.h"

#include <assert.h>
#include <math.h>

#include "planning/counts.h"

/* Candidates that a search may try in addition to its grid. */
#define MOST_TRIED 65536u

/* ---- Arithmetic of units ---- */

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static uint64_t multiply_to_most(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t units_in(uint64_t bytes, uint64_t unit_bytes)
{
    return unit_bytes > 0 ? bytes / unit_bytes : 0;
}

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
    return mp_least(mp_most(value, low), high);
}

/* ---- Bounds ---- */

uint64_t mp_split_floor(uint64_t concurrency, uint64_t context_tokens, uint32_t block_tokens,
                        uint32_t unit_blocks)
{
    assert(block_tokens > 0 && unit_blocks > 0);
    const uint64_t each = divide_up(context_tokens, block_tokens);
    const uint64_t blocks = multiply_to_most(mp_most(concurrency, 1), each);
    return blocks == UINT64_MAX ? blocks : mp_most(divide_up(blocks, unit_blocks), 1);
}

/* The upper bounds reduce to c <= min(E, (B - floor * s_k) / s_e). Returns false if the floor does
 * not fit. */
static bool most_experts(const mp_split_bounds *bounds, uint64_t *out)
{
    if (bounds->kv_floor > units_in(bounds->budget_bytes, bounds->kv_bytes))
        return false;
    const uint64_t left = bounds->budget_bytes - bounds->kv_floor * bounds->kv_bytes;
    *out = mp_least(bounds->max_experts, units_in(left, bounds->expert_bytes));
    return true;
}

bool mp_split_feasible(const mp_split_bounds *bounds)
{
    uint64_t high;
    return most_experts(bounds, &high) && bounds->min_experts <= high;
}

bool mp_split_within(const mp_split_bounds *bounds, const mp_split *split)
{
    uint64_t high;
    if (!most_experts(bounds, &high) || split->experts < bounds->min_experts ||
        split->experts > high || split->kv < bounds->kv_floor)
        return false;
    const uint64_t left = bounds->budget_bytes - split->experts * bounds->expert_bytes;
    return split->kv <= units_in(left, bounds->kv_bytes);
}

/* Gives all bytes beside `experts`, which fit into the budget, to KV. */
static mp_split rest_to_kv(const mp_split_bounds *bounds, uint64_t experts)
{
    const uint64_t left = bounds->budget_bytes - experts * bounds->expert_bytes;
    return (mp_split){experts, units_in(left, bounds->kv_bytes)};
}

bool mp_split_with_experts(const mp_split_bounds *bounds, uint64_t experts, mp_split *out)
{
    uint64_t high;
    if (!most_experts(bounds, &high) || bounds->min_experts > high)
        return false;
    *out = rest_to_kv(bounds, clamp(experts, bounds->min_experts, high));
    return true;
}

/* ---- The predicted cost and its minimum ---- */

static double experts_ns(const mp_split_costs *costs, uint64_t experts)
{
    return costs->expert_miss_ns * mp_curve_misses(costs->experts, (double)experts);
}

double mp_split_kv_ns(const mp_split_costs *costs, uint64_t kv)
{
    double holds = floor((double)kv / (1 + costs->kv_headroom));
    return costs->kv ? costs->kv_miss_ns * mp_curve_misses(costs->kv, holds) : 0;
}

double mp_split_cost(const mp_split_costs *costs, const mp_split *split)
{
    return experts_ns(costs, split->experts) + mp_split_kv_ns(costs, split->kv);
}

typedef struct candidate {
    mp_split split;
    double experts_ns, kv_ns;
} candidate;

typedef struct search {
    const mp_split_bounds *bounds;
    const mp_split_costs *costs;
    mp_split best;
    double best_ns;
    uint32_t tries_left;
} search;

static bool is_better(const search *s, double ns, uint64_t kv)
{
    return ns < s->best_ns || (ns == s->best_ns && kv > s->best.kv);
}

static candidate consider(search *s, uint64_t experts)
{
    candidate c = {.split = rest_to_kv(s->bounds, experts)};
    c.experts_ns = experts_ns(s->costs, c.split.experts);
    c.kv_ns = mp_split_kv_ns(s->costs, c.split.kv);
    const double ns = c.experts_ns + c.kv_ns;
    if (is_better(s, ns, c.split.kv)) {
        s->best = c.split;
        s->best_ns = ns;
    }
    return c;
}

/* Searches between two candidates. Misses never grow with capacity, so no candidate between
 * `few` and `many` experts costs less on the experts' side than `many`, or less on KV's than
 * `few`: if the sum of these two bounds is no better than the best so far, nothing in between
 * is. That holds for curves of any shape, so no gap between two modes of the distances hides the
 * optimum (app. B). */
static void search_between(search *s, const candidate *few, const candidate *many)
{
    const uint64_t stretch = many->split.experts - few->split.experts;
    if (stretch < 2 || s->tries_left == 0 ||
        !is_better(s, many->experts_ns + few->kv_ns, few->split.kv))
        return;
    s->tries_left--;
    const candidate middle = consider(s, few->split.experts + stretch / 2);
    search_between(s, few, &middle);
    search_between(s, &middle, many);
}

/* Returns the i-th point of the grid, i = 0..last, over low..high. */
static uint64_t grid_point(uint64_t low, uint64_t high, uint64_t last, uint64_t i)
{
    return low + (uint64_t)((unsigned __int128)(high - low) * i / last);
}

/* Tries the whole grid, then searches between its points, starting beside the best one: the better
 * the best, the less is left to search. */
static void search_grid(search *s, uint64_t low, uint64_t high, uint32_t grid)
{
    const uint64_t last = mp_least(mp_most(grid, 2) - 1, mp_most(high - low, 1));
    uint64_t around = 0;
    for (uint64_t i = 0; i <= last; i++)
        if (consider(s, grid_point(low, high, last, i)).split.experts == s->best.experts)
            around = i;
    const uint64_t from = around > 0 ? around - 1 : 0;
    candidate few = consider(s, grid_point(low, high, last, from));
    for (uint64_t k = 0; k < last; k++) {
        const uint64_t i = (from + k) % last;
        if (k > 0 && i == 0)
            few = consider(s, low);
        const candidate many = consider(s, grid_point(low, high, last, i + 1));
        search_between(s, &few, &many);
        few = many;
    }
}

bool mp_split_configure(const mp_split_bounds *bounds, const mp_split_costs *costs, uint32_t grid,
                        mp_split *out)
{
    uint64_t high;
    if (!most_experts(bounds, &high) || bounds->min_experts > high)
        return false;
    search s = {bounds, costs, rest_to_kv(bounds, bounds->min_experts), INFINITY, MOST_TRIED};
    search_grid(&s, bounds->min_experts, high, grid);
    /* Among equals with as much KV, the most experts: otherwise the bytes of a fractional KV unit
     * would lie idle. */
    const uint64_t left = bounds->budget_bytes - s.best.kv * bounds->kv_bytes;
    s.best.experts = mp_least(bounds->max_experts, units_in(left, bounds->expert_bytes));
    *out = s.best;
    return true;
}

static double cost_of(const void *of, const mp_split *split)
{
    return mp_split_cost(of, split);
}

static bool configure(const void *of, const mp_split_bounds *bounds, uint32_t grid, mp_split *out)
{
    return mp_split_configure(bounds, of, grid, out);
}

mp_split_objective mp_split_misses(const mp_split_costs *costs)
{
    return (mp_split_objective){cost_of, configure, costs, costs->experts->warm};
}

/* ---- The closed form (app. D) ---- */

/* Returns ceil((1 + h) * peak), exact for h = 0; a product pushed over a whole number by rounding
 * is that number. */
static uint64_t with_headroom(uint64_t peak, double headroom)
{
    const double more = headroom > 0 ? headroom * (double)peak : 0;
    if (!(more < 0x1p63))
        return UINT64_MAX;
    const uint64_t extra = (uint64_t)ceil(more - more * 0x1p-50);
    return peak > UINT64_MAX - extra ? UINT64_MAX : peak + extra;
}

static bool is_near(uint64_t a, uint64_t b, uint64_t dead_zone)
{
    return mp_apart(a, b) < mp_most(dead_zone, 1);
}

bool mp_split_dual_resize(const mp_dual_resize *law, const mp_split_bounds *bounds, uint64_t peak,
                          const mp_split *now, mp_split *out)
{
    const mp_split before = *now;
    *out = before;
    /* Once KV covers its peak, another unit is never read: its curve is a step, and each byte past
     * the step goes to the experts. */
    const uint64_t wanted = mp_most(bounds->kv_floor, with_headroom(peak, law->headroom)); /* (8) */
    uint64_t experts = 0;                                                                  /* (9) */
    if (wanted <= units_in(bounds->budget_bytes, bounds->kv_bytes))
        experts = units_in(bounds->budget_bytes - wanted * bounds->kv_bytes, bounds->expert_bytes);
    mp_split target;
    if (!mp_split_with_experts(bounds, experts, &target)) /* the clamp of (9), and (10) */
        return false;
    if (mp_split_within(bounds, &before) && is_near(target.experts, before.experts, law->dead_zone))
        return false;
    *out = target;
    return true;
}

/* ---- Baselines ---- */

static uint64_t fraction_of(uint64_t bytes, double fraction)
{
    if (!(fraction > 0))
        return 0;
    const double part = fraction * (double)bytes;
    return fraction < 1 && part < 0x1p64 ? (uint64_t)part : bytes;
}

bool mp_split_fixed(const mp_split_bounds *bounds, double expert_fraction, mp_split *out)
{
    const uint64_t bytes = fraction_of(bounds->budget_bytes, expert_fraction);
    return mp_split_with_experts(bounds, units_in(bytes, bounds->expert_bytes), out);
}

void mp_split_flux(const mp_split_bounds *bounds, uint64_t working_set, mp_split *out)
{
    const uint64_t wanted =
        mp_least(mp_most(working_set, bounds->min_experts), bounds->max_experts);
    const uint64_t fit = units_in(bounds->budget_bytes, bounds->expert_bytes);
    *out = rest_to_kv(bounds, mp_least(wanted, fit));
}
