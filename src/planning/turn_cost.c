/* The cost of a split, from measured steps and their reuse distances; and the split of least cost. */
#include "planning/turn.h"

#include <math.h>

#define LEAST_STEPS 3.0 /* that a level is known by */
#define LEAST_TURNS 8.0 /* that turns' variation is known by */
#define LEAST_SHARE 0.1 /* of all tokens of prompts, likewise */
#define MOST_DEMAND 0.8 /* of what the split now serves */
#define MOST_LOAD 10.0  /* a weight's growth; more is no different */
#define NEARLY_ONE 1e-4
#define MARGIN 0.03        /* of the cost, and */
#define SLOWER 0.05        /* of a token's time: less is not worth that more run */
#define LEAST_TOKEN_NS 1.0 /* of computing */

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

/* What a decoded token costs besides decoding: while one sequence runs, and beside others. */
typedef struct other_costs {
    double single_ns, beside_ns;
} other_costs;

/* Steps that prefill beside decoding: how many, how many decode in one, and tokens of their prompts. */
typedef struct mixed_steps {
    double steps, decodes, prompts;
} mixed_steps;

static mixed_steps find_mixed(const mp_turn *turn)
{
    const mp_turn_level *other = &turn->levels[0];
    const double steps = other->steps - turn->prefill_alone.steps;
    const double prompts = turn->prompts - turn->prefill_alone.prompts;
    if (steps < LEAST_STEPS || prompts < LEAST_SHARE * turn->prompts)
        return (mixed_steps){0};
    return (mixed_steps){steps, other->decodes / steps, prompts};
}

/* Finds what prefill adds to a decoded token: what the steps that it is in take more than decode alone does, by the tokens
 * of prompts in them. */
static other_costs prefill_ns(const mp_turn_costs *costs, const known_levels *known,
                              const mixed_steps *mixed, const mp_split *split)
{
    const mp_turn *turn = costs->turn;
    const mp_turn_level *other = &turn->levels[0];
    const mp_turn_prefill *alone = &turn->prefill_alone;
    const double had_ns = other->busy_ns + other->stall_ns;
    if (!is_known(other) || !(had_ns > 0) || !(turn->prompts > 0) || !(turn->tokens > 0))
        return (other_costs){0};
    const double experts = experts_with(costs, split, fmax(mixed->decodes, 1));
    const double decoding_ns = mixed->steps * time_at(costs, known, mixed->decodes, experts);
    const double all_ns = step_ns(costs, other, experts) * other->steps; /* at those experts */
    const double alone_ns = all_ns * alone->ns / had_ns;
    const double each = turn->prompt_tokens / turn->tokens;
    const double mean_ns = fmax(all_ns - decoding_ns, 0) / turn->prompts * each;
    other_costs ns = {mean_ns, mean_ns};
    if (alone->steps >= LEAST_STEPS && alone->prompts >= LEAST_SHARE * turn->prompts)
        ns.single_ns = alone_ns / alone->prompts * each;
    if (mixed->steps > 0)
        ns.beside_ns = fmax(all_ns - alone_ns - decoding_ns, 0) / mixed->prompts * each;
    return ns;
}

static other_costs other_ns(const mp_turn_costs *costs, const known_levels *known,
                            const mixed_steps *mixed, const mp_split *split)
{
    const mp_turn *turn = costs->turn;
    const mp_split_costs *misses = costs->misses;
    other_costs ns = prefill_ns(costs, known, mixed, split);
    double kv_ns = 0;
    if (misses->kv && turn->burst_tokens > 0)
        kv_ns = (mp_split_kv_ns(misses, split->kv) - mp_split_kv_ns(misses, costs->now.kv)) /
                turn->burst_tokens;
    return (other_costs){fmax(ns.single_ns + kv_ns, 0), fmax(ns.beside_ns + kv_ns, 0)};
}

/* Returns how many sequences have room in so many KV units, at least one. */
static uint32_t room_for(const mp_turn_costs *costs, uint64_t kv)
{
    uint32_t sequences = 1;
    while (sequences < MP_TURN_JOBS && room_of(costs, sequences + 1) <= (double)kv)
        sequences++;
    return sequences;
}

/* Returns the most that admission lets run, and the chain has. */
static double most_let(const mp_turn_costs *costs)
{
    return costs->limit && costs->limit < MP_TURN_JOBS ? costs->limit : MP_TURN_JOBS;
}

/* Returns the most sequences that a guess is made for: what is not measured yet may be twice what is. */
static double most_guessed(const mp_turn_costs *costs, const known_levels *known)
{
    return fmax(ceil(costs->turn->peak), round(2 * known->at[known->n - 1]));
}

/* Returns the most sequences that KV has room for, that admission lets in, and that come, at least one: where there
 * was room for more than have run at once, more are not to be expected. */
static uint32_t most_running(const mp_turn_costs *costs, const known_levels *known, uint64_t kv)
{
    const double peak = ceil(costs->turn->peak), limit = most_let(costs);
    const double target = costs->target ? costs->target : MP_TURN_JOBS;
    const bool full = peak >= fmin(room_for(costs, costs->now.kv), fmin(limit, target));
    const double most =
        fmin(fmin(room_for(costs, kv), limit), full ? most_guessed(costs, known) : peak);
    return most >= 1 ? (uint32_t)most : 1;
}

/* Returns the most sequences that steps have been seen with and admission lets in, or `most` if that is more: the usual
 * room is an estimate, and more than it says may run. */
static uint32_t most_measured(const mp_turn_costs *costs, const known_levels *known, uint32_t most)
{
    const double seen = fmin(round(known->at[known->n - 1]), most_let(costs));
    return seen > most ? (uint32_t)seen : most;
}

/* What a decoded token takes at a split. */
typedef struct rates {
    double token_ns[MP_TURN_JOBS + 1]; /* by sequences that run */
    other_costs other;                 /* of it, what is not decoding */
    mixed_steps mixed;
    uint32_t most; /* sequences that may run, */
    uint32_t best; /* and those with which it is least */
} rates;

static double other_with(const rates *at, uint32_t sequences)
{
    return sequences == 1 ? at->other.single_ns : at->other.beside_ns;
}

/* `measured`: those that have run count among those that may, room or not. */
static void find_rates(const mp_turn_costs *costs, const mp_split *split, bool measured, rates *out)
{
    known_levels known;
    find_known(costs->turn, &known);
    out->mixed = find_mixed(costs->turn);
    out->other = other_ns(costs, &known, &out->mixed, split);
    out->most = most_running(costs, &known, split->kv);
    if (measured)
        out->most = most_measured(costs, &known, out->most);
    out->best = 1;
    uint32_t r = 1;
    do {
        const double ns = time_at(costs, &known, r, experts_with(costs, split, r));
        out->token_ns[r] = fmax(ns / r, LEAST_TOKEN_NS) + other_with(out, r);
        if (out->token_ns[r] < out->token_ns[out->best])
            out->best = r;
    } while (++r <= out->most);
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

/* What is expected if some number run. */
typedef struct prospect {
    uint32_t running;
    double jobs, ttft_ns, tpot_ns;
    double cost; /* of these */
} prospect;

static double excess(double ns, double target_ns)
{
    return target_ns > 0 ? fmax(ns / target_ns - 1, 0) : 0;
}

/* Looks at one number; `below`: the chain up to one job fewer, whose weights then grow by `growth`; `demand` in tokens per
 * ns. */
static prospect look_at(const mp_turn_costs *costs, const rates *at, uint32_t running,
                        double demand, double growth, const chain *below)
{
    double full, waits; /* weights with all that may run, and those times the jobs that wait */
    const mp_turn_work *work = &costs->turn->work;
    const double token_ns = at->token_ns[running], other_ns = other_with(at, running);
    const double f = (1 + variation(work, other_ns / token_ns)) / 2;
    const double weight = below->weight * growth;
    add_powers(growth, MP_TURN_JOBS - running, &full, &waits);
    const double sum = below->sum + weight * full, waiting = weight * f * waits / sum;
    prospect p = {.running = running,
                  .jobs = (below->jobs + weight * running * full) / sum + waiting,
                  .tpot_ns = running * token_ns - other_ns};
    if (work->turns >= LEAST_TURNS) {
        const double answer = work->decoded / work->turns, prompt = work->prefilled / work->turns;
        const double wait_ns = demand > 0 ? waiting / demand : 0; /* per token */
        p.ttft_ns = answer * (wait_ns + other_ns);
        if (running > 1 && at->mixed.steps > 0) /* the others decode meanwhile */
            p.ttft_ns +=
                prompt * at->mixed.steps / at->mixed.prompts * running * (token_ns - other_ns);
    }
    p.cost = p.jobs + MP_TURN_EXCESS * fmax(excess(p.ttft_ns, costs->ttft_ns),
                                            excess(p.tpot_ns, costs->tpot_ns));
    return p;
}

/* Chooses how many should run: the number of least cost, or the fewest that cost little more and serve about as much as can
 * be. Returns the least cost. */
static double choose_running(const mp_turn_costs *costs, const rates *at, double demand,
                             prospect *out)
{
    prospect all[MP_TURN_JOBS + 1];
    uint32_t r = 1, least = 1, chosen = 1;
    chain below = {1, 1, 0};
    do {
        const double growth = fmin(demand * at->token_ns[r], MOST_LOAD);
        all[r] = look_at(costs, at, r, demand, growth, &below);
        below.weight *= growth;
        below.sum += below.weight;
        below.jobs += r * below.weight;
        least = all[r].cost < all[least].cost ? r : least;
    } while (++r <= at->best);
    while (chosen < least && (all[chosen].cost > all[least].cost * (1 + MARGIN) ||
                              at->token_ns[chosen] > at->token_ns[at->best] * (1 + SLOWER)))
        chosen++;
    *out = all[chosen];
    return all[least].cost;
}

/* Returns the demand, but no more than a part of what the split now serves: a machine that is always busy shows how
 * much it serves, and not how much is asked for; and near saturation small errors in times are large ones in queues. */
static double demand_of(const mp_turn_costs *costs)
{
    rates now;
    const mp_turn *turn = costs->turn;
    find_rates(costs, &costs->now, false, &now);
    return fmin(turn->tokens / turn->elapsed_ns, MOST_DEMAND / now.token_ns[now.best]);
}

static double cost_at(const mp_turn_costs *costs, const mp_split *split, double demand)
{
    rates at;
    prospect chosen;
    find_rates(costs, split, false, &at);
    return choose_running(costs, &at, demand, &chosen);
}

double mp_turn_cost(const mp_turn_costs *costs, const mp_split *split)
{
    return are_known(costs) ? cost_at(costs, split, demand_of(costs)) : 0;
}

/* Returns how many may run where as many as may should: no more than there is a guess for; 0: as have room. */
static uint32_t most_begun(const mp_turn_costs *costs)
{
    known_levels known;
    find_known(costs->turn, &known);
    const double most = most_guessed(costs, &known);
    return most < room_for(costs, costs->now.kv) ? (uint32_t)most : 0;
}

mp_turn_outlook mp_turn_look(const mp_turn_costs *costs)
{
    rates now;
    prospect chosen;
    if (!are_known(costs))
        return (mp_turn_outlook){0};
    find_rates(costs, &costs->now, true, &now);
    choose_running(costs, &now, demand_of(costs), &chosen);
    if (chosen.running == now.most)
        chosen.running = most_begun(costs);
    return (mp_turn_outlook){.running = chosen.running,
                             .ttft_ns = chosen.ttft_ns,
                             .tpot_ns = chosen.tpot_ns};
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

static double objective_cost(const void *of, const mp_split *split)
{
    return mp_turn_cost(of, split);
}

static bool objective_configure(const void *of, const mp_split_bounds *bounds, uint32_t grid,
                                mp_split *out)
{
    return mp_turn_configure(of, bounds, grid, out);
}

mp_split_objective mp_turn_objective(const mp_turn_costs *costs)
{
    const double samples = are_known(costs) ? costs->misses->experts->warm : 0;
    return (mp_split_objective){objective_cost, objective_configure, costs, samples};
}
