/* The mean number of jobs in the system, from measured steps and their reuse distances. */
#include "planning/turn.h"

#include <math.h>
#include <string.h>

#define LEAST_STEPS 3.0 /* that a level is known by */
#define LEAST_TURNS 8.0 /* that turns' variation is known by */
#define TURN_SHARE 0.02 /* of a turn in the means over turns */
#define SLOW 0.95       /* a burst's weight in the demand one burst later: jobs last bursts */
#define STALE 0.99      /* of a level that has not run */
#define PEAK 0.98       /* of the most at once, a burst later */
#define MOST_DEMAND 0.8 /* of what the split now serves */
#define MOST_LOAD 10.0  /* a weight's growth; more is no different */
#define NEARLY_ONE 1e-4
#define MARGIN 0.03        /* of jobs; less is not worth that fewer run */
#define LEAST_TOKEN_NS 1.0 /* of computing */

/* ---- counting ---- */

uint64_t mp_turn_bins(uint64_t units)
{
    return (uint64_t)MP_LEVELS * mp_curve_bins(units, MP_TURN_BINS);
}

void mp_turn_init(mp_turn *turn, double *bins, uint64_t units, double decay)
{
    const uint32_t each = mp_curve_bins(units, MP_TURN_BINS);
    memset(turn, 0, sizeof *turn);
    turn->decay = decay;
    for (uint32_t l = 0; l < MP_LEVELS; l++)
        mp_curve_init(&turn->levels[l].curve, bins + (size_t)l * each, units, MP_TURN_BINS);
}

void mp_turn_use(mp_turn *turn, uint32_t sequences, uint64_t distance, double weight)
{
    mp_curve_add(&turn->levels[mp_level_of(sequences)].curve, distance, weight);
}

void mp_turn_step(mp_turn *turn, const mp_turn_sample *step)
{
    mp_turn_level *level = &turn->levels[step->alone ? mp_level_of(step->decodes) : 0];
    const double ns = step->busy_ns + step->stall_ns;
    level->steps += 1;
    level->decodes += step->decodes;
    level->busy_ns += step->busy_ns;
    level->stall_ns += step->stall_ns;
    level->units += (double)step->experts;
    level->recent++;
    turn->recent_tokens += step->decodes;
    if (step->decodes > turn->recent_peak)
        turn->recent_peak = step->decodes;
    if (step->ended_ns > turn->ended_ns) /* sessions' steps overlap */
        turn->ended_ns = step->ended_ns;
    if (!turn->began_ns) /* the first step of all: it began when it began */
        turn->began_ns = step->ended_ns > ns ? step->ended_ns - (uint64_t)ns : 1;
}

void mp_turn_end(mp_turn *turn, uint64_t prefilled, uint64_t decoded)
{
    mp_turn_work *work = &turn->work;
    const double x = (double)prefilled, y = (double)decoded, left = 1 - TURN_SHARE;
    work->turns = work->turns * left + 1;
    work->prefilled = work->prefilled * left + x;
    work->decoded = work->decoded * left + y;
    work->prefilled_squares = work->prefilled_squares * left + x * x;
    work->decoded_squares = work->decoded_squares * left + y * y;
    work->products = work->products * left + x * y;
}

/* Returns what is left of a level's counts: it forgets by what came in anew, so that what runs seldom is remembered
 * for longer. */
static double left(const mp_turn_level *level, double decay, uint32_t steps)
{
    const double bursts = (double)level->recent / steps;
    return fmin(STALE, pow(decay, bursts < 1 ? bursts : 1));
}

static void decay_level(mp_turn_level *level, double factor)
{
    mp_curve_decay(&level->curve, factor);
    level->steps *= factor;
    level->decodes *= factor;
    level->busy_ns *= factor;
    level->stall_ns *= factor;
    level->units *= factor;
    level->recent = 0;
}

void mp_turn_burst(mp_turn *turn, uint32_t steps)
{
    turn->other_tokens =
        (turn->other_tokens + turn->recent_tokens) * left(&turn->levels[0], turn->decay, steps);
    turn->tokens = turn->tokens * SLOW + turn->recent_tokens;
    turn->burst_tokens = turn->burst_tokens * turn->decay + turn->recent_tokens;
    turn->elapsed_ns *= SLOW;
    if (turn->ended_ns > turn->began_ns)
        turn->elapsed_ns += (double)(turn->ended_ns - turn->began_ns);
    turn->began_ns = turn->ended_ns;
    turn->recent_tokens = 0;
    turn->peak = fmax(turn->peak * PEAK, turn->recent_peak);
    turn->recent_peak = 0;
    for (uint32_t l = 0; l < MP_LEVELS; l++)
        decay_level(&turn->levels[l], left(&turn->levels[l], turn->decay, steps));
}

/* ---- predicting ---- */

static bool is_known(const mp_turn_level *level)
{
    return level->steps >= LEAST_STEPS;
}

static bool are_known(const mp_turn_costs *costs)
{
    const mp_turn *turn = costs->turn;
    bool any = false;
    for (uint32_t l = 1; l < MP_LEVELS; l++)
        any |= is_known(&turn->levels[l]);
    return any && turn->elapsed_ns > 0 && costs->sequence_units > 0;
}

/* Returns the time of a step of a level if experts had so many units. */
static double step_ns(const mp_turn_costs *costs, const mp_turn_level *level, double experts)
{
    const double had = level->units / level->steps;
    const double then = mp_curve_misses(&level->curve, had);
    const double now = mp_curve_misses(&level->curve, experts);
    double stall = level->stall_ns;
    if (experts <= had)
        stall += costs->misses->expert_miss_ns * (now - then);
    else if (then > 0)
        stall *= now / then;
    return (level->busy_ns + stall) / level->steps;
}

/* Returns the KV units that so many sequences seldom exceed. */
static double usual_of(const mp_turn_costs *costs, double sequences)
{
    return sequences * costs->sequence_units + costs->spread_units * sqrt(sequences);
}

/* Returns the KV units that so many sequences have room in. */
static double room_of(const mp_turn_costs *costs, uint32_t sequences)
{
    return fmax(usual_of(costs, sequences), costs->longest_units);
}

/* Returns the expert units while so many sequences run: with those of KV that are lent then. */
static double experts_with(const mp_turn_costs *costs, const mp_split *split, double sequences)
{
    const mp_split_bounds *bounds = costs->lends;
    if (!bounds)
        return (double)split->experts;
    const double used = usual_of(costs, sequences) + costs->idle_units;
    const double kv = fmin(fmax(used, 1), (double)split->kv);
    const double left = (double)bounds->budget_bytes - kv * (double)bounds->kv_bytes;
    const double experts = fmin(left / (double)bounds->expert_bytes, (double)bounds->max_experts);
    return fmax(experts, (double)split->experts);
}

/* The known levels of decode steps, in their order. */
typedef struct known_levels {
    const mp_turn_level *levels[MP_LEVELS];
    double at[MP_LEVELS]; /* sequences */
    uint32_t n;
} known_levels;

static void find_known(const mp_turn *turn, known_levels *out)
{
    out->n = 0;
    for (uint32_t l = 1; l < MP_LEVELS; l++) {
        const mp_turn_level *level = &turn->levels[l];
        if (!is_known(level))
            continue;
        out->at[out->n] = level->decodes / level->steps;
        out->levels[out->n++] = level;
    }
}

/* Returns a step's time with `sequences` if experts had so many units: between known numbers, and beyond them on their
 * line. */
static double time_at(const mp_turn_costs *costs, const known_levels *known, double sequences,
                      double experts)
{
    uint32_t i = 1;
    if (known->n == 1 || sequences <= known->at[0])
        return step_ns(costs, known->levels[0], experts);
    while (i + 1 < known->n && known->at[i] < sequences)
        i++;
    const double below = step_ns(costs, known->levels[i - 1], experts);
    const double above = step_ns(costs, known->levels[i], experts);
    const double slope = (above - below) / (known->at[i] - known->at[i - 1]);
    const double ns = above + slope * (sequences - known->at[i]);
    return sequences > known->at[i] && ns < above ? above : ns;
}

/* Returns what prefill adds to a decoded token: what the steps that it is in take more than decode alone does. */
static double prefill_ns(const mp_turn_costs *costs, const known_levels *known,
                         const mp_split *split)
{
    const mp_turn *turn = costs->turn;
    const mp_turn_level *other = &turn->levels[0];
    if (!is_known(other) || !(turn->other_tokens > 0))
        return 0;
    const double decodes = other->decodes / other->steps;
    const double experts = experts_with(costs, split, fmax(decodes, 1));
    const double decoding = fmin(decodes, 1) * time_at(costs, known, decodes, experts);
    const double more = step_ns(costs, other, experts) - decoding;
    return fmax(more, 0) * other->steps / turn->other_tokens;
}

/* Returns what a decoded token costs besides decoding. */
static double other_ns(const mp_turn_costs *costs, const known_levels *known, const mp_split *split)
{
    const mp_turn *turn = costs->turn;
    const mp_split_costs *misses = costs->misses;
    double ns = prefill_ns(costs, known, split);
    if (misses->kv && turn->burst_tokens > 0)
        ns += (mp_split_kv_ns(misses, split->kv) - mp_split_kv_ns(misses, costs->now.kv)) /
              turn->burst_tokens;
    return fmax(ns, 0);
}

/* Returns how many sequences have room in so many KV units, at least one. */
static uint32_t room_for(const mp_turn_costs *costs, uint64_t kv)
{
    uint32_t sequences = 1;
    while (sequences < MP_TURN_JOBS && room_of(costs, sequences + 1) <= (double)kv)
        sequences++;
    return sequences;
}

/* Returns the most sequences that KV has room for, that admission lets in, and that come, at least one: where there
 * was room for more than have run at once, more are not to be expected. */
static uint32_t most_running(const mp_turn_costs *costs, const known_levels *known, uint64_t kv)
{
    const double peak = ceil(costs->turn->peak), limit = costs->limit ? costs->limit : MP_TURN_JOBS;
    const double target = costs->target ? costs->target : MP_TURN_JOBS;
    const bool full = peak >= fmin(room_for(costs, costs->now.kv), fmin(limit, target));
    const double most = fmin(fmin(room_for(costs, kv), limit),
                             full ? fmax(peak, 2 * known->at[known->n - 1]) : peak);
    return most >= MP_TURN_JOBS ? MP_TURN_JOBS : most >= 1 ? (uint32_t)most : 1;
}

/* What a decoded token takes at a split. */
typedef struct rates {
    double token_ns[MP_TURN_JOBS + 1]; /* by sequences that run */
    double other_ns;                   /* of it, what is not decoding */
    uint32_t most;                     /* sequences that may run, */
    uint32_t best;                     /* and those with which it is least */
} rates;

static void find_rates(const mp_turn_costs *costs, const mp_split *split, rates *out)
{
    known_levels known;
    find_known(costs->turn, &known);
    out->other_ns = other_ns(costs, &known, split);
    out->most = most_running(costs, &known, split->kv);
    out->best = 1;
    for (uint32_t r = 1; r <= out->most; r++) {
        const double ns = time_at(costs, &known, r, experts_with(costs, split, r));
        out->token_ns[r] = fmax(ns / r, LEAST_TOKEN_NS) + out->other_ns;
        if (out->token_ns[r] < out->token_ns[out->best])
            out->best = r;
    }
}

/* Returns the squared coefficient of variation of a turn's work, `prefill` of which is prefill in the mean; that of
 * an exponential variate while few turns have ended. */
static double variation(const mp_turn_work *work, double prefill)
{
    if (work->turns < LEAST_TURNS)
        return 1;
    const double x = work->prefilled > 0 ? prefill / work->prefilled : 0;
    const double y = work->decoded > 0 ? (1 - prefill) / work->decoded : 0;
    const double mean = x * work->prefilled + y * work->decoded;
    const double square = x * x * work->prefilled_squares + 2 * x * y * work->products +
                          y * y * work->decoded_squares;
    return mean > 0 ? fmax(square * work->turns / (mean * mean) - 1, 0) : 1;
}

/* The chain up to some number of jobs: its last weight, and the sums of weights and of jobs by their weights. */
typedef struct chain {
    double weight, sum, jobs;
} chain;

/* Sums g^j, and j g^j, for j from 0 to n. */
static void add_powers(double g, double n, double *powers, double *multiples)
{
    const double more = g - 1, all = pow(g, n + 1);
    if (fabs(more) < NEARLY_ONE) { /* their first two terms about 1 */
        *powers = n + 1 + more * n * (n + 1) / 2;
        *multiples = n * (n + 1) / 2 + more * n * (n + 1) * (2 * n + 1) / 6;
        return;
    }
    *powers = (all - 1) / more;
    *multiples = (g - (n + 1) * all + n * all * g) / (more * more);
}

/* Returns the mean number of jobs if so many run; `below`: the chain up to one job fewer. */
static double mean_jobs(const mp_turn_work *work, const rates *at, uint32_t running, double growth,
                        const chain *below)
{
    double full, waits; /* weights with all that may run, and those times the jobs that wait */
    const double f = (1 + variation(work, at->other_ns / at->token_ns[running])) / 2;
    const double weight = below->weight * growth;
    add_powers(growth, MP_TURN_JOBS - running, &full, &waits);
    return (below->jobs + weight * (running * full + f * waits)) / (below->sum + weight * full);
}

/* Finds how many should run: as many as are best for throughput, or fewer where that leaves clearly fewer jobs. Returns
 * the mean number of jobs then. */
static double least_jobs(const mp_turn_work *work, const rates *at, double demand,
                         uint32_t *running)
{
    double jobs[MP_TURN_JOBS + 1], least = INFINITY;
    chain below = {1, 1, 0};
    for (uint32_t r = 1; r <= at->best; r++) {
        const double growth = fmin(demand * at->token_ns[r], MOST_LOAD);
        jobs[r] = mean_jobs(work, at, r, growth, &below);
        below.weight *= growth;
        below.sum += below.weight;
        below.jobs += r * below.weight;
    }
    for (uint32_t r = at->best; r >= 1; r--)
        if (jobs[r] < least * (1 - MARGIN)) {
            least = jobs[r];
            *running = r;
        }
    return least;
}

/* Returns the demand, but no more than a part of what the split now serves: a machine that is always busy shows how
 * much it serves, and not how much is asked for; and near saturation small errors in times are large ones in queues. */
static double demand_of(const mp_turn_costs *costs)
{
    rates now;
    const mp_turn *turn = costs->turn;
    find_rates(costs, &costs->now, &now);
    return fmin(turn->tokens / turn->elapsed_ns, MOST_DEMAND / now.token_ns[now.best]);
}

static double cost_at(const mp_turn_costs *costs, const mp_split *split, double demand)
{
    rates at;
    uint32_t running;
    find_rates(costs, split, &at);
    return least_jobs(&costs->turn->work, &at, demand, &running);
}

double mp_turn_cost(const mp_turn_costs *costs, const mp_split *split)
{
    return are_known(costs) ? cost_at(costs, split, demand_of(costs)) : 0;
}

uint32_t mp_turn_running(const mp_turn_costs *costs)
{
    rates now;
    uint32_t running = 0;
    const mp_turn *turn = costs->turn;
    if (!are_known(costs))
        return 0;
    find_rates(costs, &costs->now, &now);
    /* All of the demand: if it comes near what fewer serve, more are to run. */
    least_jobs(&turn->work, &now, turn->tokens / turn->elapsed_ns, &running);
    return running < now.most ? running : 0;
}

/* ---- choosing ---- */

typedef struct search {
    const mp_turn_costs *costs;
    const mp_split_bounds *bounds;
    double demand; /* 0: nothing is known */
    mp_split best;
    double cost;
} search;

static void consider(search *s, uint64_t experts)
{
    mp_split split;
    if (!mp_split_with_experts(s->bounds, experts, &split))
        return;
    const double cost = s->demand > 0 ? cost_at(s->costs, &split, s->demand) : 0;
    if (cost < s->cost || (cost == s->cost && split.experts > s->best.experts)) {
        s->best = split;
        s->cost = cost;
    }
}

/* Returns the most experts beside KV for so many sequences; 0 if there is no room for them. */
static uint64_t beside(const search *s, uint32_t sequences)
{
    const mp_split_bounds *b = s->bounds;
    const double kv = ceil(room_of(s->costs, sequences)) * (double)b->kv_bytes;
    return kv < (double)b->budget_bytes ? (b->budget_bytes - (uint64_t)kv) / b->expert_bytes : 0;
}

bool mp_turn_configure(const mp_turn_costs *costs, const mp_split_bounds *bounds, uint32_t grid,
                       mp_split *out)
{
    mp_split low, high;
    search s = {.costs = costs,
                .bounds = bounds,
                .demand = are_known(costs) ? demand_of(costs) : 0,
                .cost = INFINITY};
    if (!mp_split_with_experts(bounds, 0, &low) ||
        !mp_split_with_experts(bounds, UINT64_MAX, &high))
        return false;
    for (uint32_t i = 0; i <= grid; i++)
        consider(&s, low.experts + (high.experts - low.experts) * i / grid);
    for (uint32_t r = 1; r <= MP_TURN_JOBS && beside(&s, r) >= low.experts; r++)
        consider(&s, beside(&s, r));
    *out = s.best;
    return true;
}

static double cost_of(const void *of, const mp_split *split)
{
    return mp_turn_cost(of, split);
}

static bool configure(const void *of, const mp_split_bounds *bounds, uint32_t grid, mp_split *out)
{
    return mp_turn_configure(of, bounds, grid, out);
}

mp_split_objective mp_turn_objective(const mp_turn_costs *costs)
{
    const double samples = are_known(costs) ? costs->misses->experts->warm : 0;
    return (mp_split_objective){cost_of, configure, costs, samples};
}
