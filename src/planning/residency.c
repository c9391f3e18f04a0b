/* The residency planner: a band of counts per backend, and one expert at a time towards it. */
#include "planning/residency.h"

#include <assert.h>
#include <math.h>

/* Smallest relative gain in load time that justifies reverting a change of alpha. */
#define REVERSAL_GAIN 0.025

/* The gain for which measured use and the bands take turns, and that for which a plan by use is left. */
#define TURN_GAIN 0.05
#define USE_GAIN 0.01

/* All numbers of one layer. */
typedef struct field {
    uint32_t experts;
    uint32_t least; /* fewest experts in device memory */
    uint64_t dense_bytes;
    uint64_t compressed_bytes;
    uint64_t room;   /* bytes for resident experts */
    bool starved;    /* not even the window fits */
    bool compresses; /* there is a compressed form, and it is useful */
    bool coded;      /* images cross the bus coded and are decoded */
    bool no_dense;
    double host_ns;                  /* bus time per expert on the host */
    double decode_ns;                /* decoder time per expert decoded */
    const double *cached, *streamed; /* misses by dense experts; or NULL */
    double miss_host_ns;             /* bus time of one missed expert */
    double miss_decode_ns;
    double unforeseen;
} field;

/* The accepted plans: a range of counts on the host and through the decoder. */
typedef struct goal {
    uint32_t host_low, host_high;
    uint32_t decoded_low, decoded_high;
} goal;

typedef struct span {
    uint32_t low, high;
} span;

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static double greater(double a, double b)
{
    return a > b ? a : b;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- Bytes and times (eq. 9-12) ---- */

static bool has_compressed(const mp_residency_machine *machine)
{
    return machine->decode_bytes_per_s > 0 && machine->compressed_bytes > 0 &&
           machine->compressed_bytes < machine->dense_bytes;
}

static double backend_ns(double bytes, uint64_t bytes_per_s)
{
    if (bytes == 0)
        return 0;
    return bytes_per_s ? bytes * 1e9 / (double)bytes_per_s : INFINITY;
}

static void set_times(field *f, const mp_residency_machine *machine)
{
    f->compresses = has_compressed(machine);
    f->coded = machine->coded_bus && f->compresses;
    uint64_t crossing = f->coded ? machine->compressed_bytes : machine->dense_bytes;
    f->host_ns = backend_ns(machine->union_fraction * (double)crossing, machine->bus_bytes_per_s);
    f->decode_ns = backend_ns(machine->union_fraction * (double)machine->dense_bytes,
                              machine->decode_bytes_per_s);
    f->cached = machine->cached;
    f->streamed = machine->streamed;
    f->miss_host_ns = backend_ns((double)crossing, machine->bus_bytes_per_s);
    f->miss_decode_ns = backend_ns((double)machine->dense_bytes, machine->decode_bytes_per_s);
    f->unforeseen = machine->unforeseen;
}

static uint32_t host_count(const field *f, const mp_residency_plan *plan)
{
    return f->experts - plan->dense - plan->compressed;
}

static uint32_t decoded_count(const field *f, const mp_residency_plan *plan)
{
    return plan->compressed + (f->coded ? host_count(f, plan) : 0);
}

/* Returns the time for `count` experts; zero experts take none, even on a
 * backend without bandwidth. */
static double count_ns(uint32_t count, double each_ns)
{
    return count ? count * each_ns : 0;
}

static double layer_ns(const field *f, const mp_residency_plan *plan)
{
    return greater(count_ns(host_count(f, plan), f->host_ns),
                   count_ns(decoded_count(f, plan), f->decode_ns));
}

/* A layer's time on either backend, by measured use. */
typedef struct use_ns {
    double bus, decoder;
} use_ns;

static use_ns use_of(const field *f, const mp_residency_plan *plan, double misses)
{
    double kept = misses * plan->compressed / f->experts, decoded = f->coded ? misses : kept;
    double crossing = misses - kept;
    return (use_ns){.bus = crossing > 0 ? crossing * f->miss_host_ns : 0,
                    .decoder = decoded > 0 ? decoded * f->miss_decode_ns : 0};
}

/* Returns a layer's time with `misses`, of which a part is unforeseen; 1: all are. */
static double regime_ns(const field *f, const mp_residency_plan *plan, double misses,
                        double unforeseen, double comp_ns)
{
    use_ns use = use_of(f, plan, misses);
    double load = greater(use.bus, use.decoder), behind = fmin(use.bus, use.decoder);
    double waits = fmin(comp_ns, load) + behind / greater(misses, 1);
    return greater(comp_ns, load) + unforeseen * waits;
}

/* In the better regime. */
static double used_ns(const field *f, const mp_residency_plan *plan, double comp_ns)
{
    double cached = regime_ns(f, plan, f->cached[plan->dense], 1, comp_ns);
    return fmin(cached, regime_ns(f, plan, f->streamed[plan->dense], f->unforeseen, comp_ns));
}

static uint64_t plan_bytes(const field *f, const mp_residency_plan *plan)
{
    return plan->dense * f->dense_bytes + plan->compressed * f->compressed_bytes;
}

static bool fits(const field *f, const mp_residency_plan *plan)
{
    return plan_bytes(f, plan) <= f->room;
}

double mp_residency_load_ns(const mp_residency_machine *machine, const mp_residency_plan *plan)
{
    field f = {.experts = machine->experts};
    assert((uint64_t)plan->dense + plan->compressed <= machine->experts);
    set_times(&f, machine);
    return machine->layers * layer_ns(&f, plan);
}

double mp_residency_step_ns(const mp_residency_machine *machine, const mp_residency_plan *plan,
                            double comp_ns)
{
    field f = {.experts = machine->experts};
    assert((uint64_t)plan->dense + plan->compressed <= machine->experts);
    set_times(&f, machine);
    return machine->layers * used_ns(&f, plan, comp_ns / machine->layers);
}

uint64_t mp_residency_bytes(const mp_residency_machine *machine, const mp_residency_plan *plan)
{
    return machine->window_bytes + machine->layers * (plan->dense * machine->dense_bytes +
                                                      plan->compressed * machine->compressed_bytes);
}

/* Returns the largest count on the host that `least` allows, or as many more as
 * the room requires. */
static uint32_t host_bound(const field *f)
{
    uint64_t each = f->compresses ? f->compressed_bytes : f->dense_bytes;
    uint64_t roomy = each ? f->room / each : f->experts;
    return f->experts - (roomy < f->least ? (uint32_t)roomy : f->least);
}

static void set_field(field *f, const mp_residency_config *config,
                      const mp_residency_machine *machine, const mp_residency_input *input)
{
    uint64_t kept = machine->window_bytes + input->kv_bytes;
    uint64_t room = input->gpu_bytes > kept ? input->gpu_bytes - kept : 0;
    *f = (field){
        .experts = machine->experts,
        .least = least(config->min_alpha, machine->experts),
        .dense_bytes = machine->dense_bytes,
        .compressed_bytes = machine->compressed_bytes,
        .room = room / machine->layers,
        .starved = input->gpu_bytes < kept,
    };
    set_times(f, machine);
    f->no_dense = config->no_dense && f->compresses;
}

/* ---- KV first ---- */

static void give_up(uint32_t *experts, uint64_t each_bytes, uint64_t *over)
{
    uint64_t needed = *over && each_bytes ? ceil_div(*over, each_bytes) : 0;
    uint32_t leave = needed < *experts ? (uint32_t)needed : *experts;
    uint64_t freed = leave * each_bytes;
    *experts -= leave;
    *over = *over > freed ? *over - freed : 0;
}

/* Drops the largest experts first, so that the fewest leave. */
static void shed(const field *f, mp_residency_plan *plan)
{
    uint64_t over = plan_bytes(f, plan) - f->room;
    bool dense_first = f->dense_bytes >= f->compressed_bytes;
    if (dense_first)
        give_up(&plan->dense, f->dense_bytes, &over);
    give_up(&plan->compressed, f->compressed_bytes, &over);
    if (!dense_first)
        give_up(&plan->dense, f->dense_bytes, &over);
}

/* ---- The accepted plans ---- */

/* Returns the most experts, up to `cap`, that a backend loads within limit_ns. */
static uint32_t most_within(double limit_ns, double each_ns, uint32_t cap)
{
    if (cap * each_ns <= limit_ns)
        return cap;
    uint32_t most = (uint32_t)(limit_ns / each_ns);
    while (most > 0 && most * each_ns > limit_ns)
        most--;
    while ((most + 1) * each_ns <= limit_ns)
        most++;
    return most;
}

/* Returns the fewest experts that occupy a backend for all of comp_ns; `high` if not even
 * that many do. */
static uint32_t fewest_filling(double comp_ns, double each_ns, uint32_t high)
{
    uint32_t most = most_within(comp_ns, each_ns, high);
    return most == high || most * each_ns >= comp_ns ? most : most + 1;
}

/* Computes the band of one backend; a refused count stays refused until it is predicted past the
 * band's middle. */
static span band(double comp_ns, double theta, double each_ns, uint32_t experts, uint32_t *refused)
{
    span counts;
    counts.high = most_within(comp_ns / theta, each_ns, experts);
    if (*refused && count_ns(*refused, each_ns) * (1 + theta) / 2 <= comp_ns)
        *refused = 0;
    if (*refused && counts.high >= *refused)
        counts.high = *refused - 1;
    counts.low = fewest_filling(comp_ns, each_ns, counts.high);
    return counts;
}

/* Computes how many experts may be compressed in plans with `host` on the host. Returns false if
 * none fits. */
static bool compressed_span(const field *f, const goal *g, uint32_t host, span *out)
{
    uint32_t resident = f->experts - host, decoded = f->coded ? host : 0;
    uint64_t dense = resident * f->dense_bytes;
    if (g->decoded_high < decoded)
        return false;
    out->high = least(resident, g->decoded_high - decoded);
    out->low = least(out->high, g->decoded_low > decoded ? g->decoded_low - decoded : 0);
    if (f->no_dense)
        out->low = resident;
    if (!f->compresses)
        out->high = out->low = 0;
    if (dense > f->room) {
        if (!f->compresses)
            return false;
        uint64_t needed = ceil_div(dense - f->room, f->dense_bytes - f->compressed_bytes);
        if (needed > out->high)
            return false;
        if (needed > out->low)
            out->low = (uint32_t)needed;
    }
    return out->low <= out->high;
}

/* Finds the plans with theta <= rho <= 1, as far as whole experts allow. Returns false
 * if none fits. */
static bool find_band(const field *f, mp_residency_planner *planner, double comp_ns, goal *g)
{
    double theta = planner->config.theta;
    span host = band(comp_ns, theta, f->host_ns, f->experts, &planner->refused_host);
    span decoded = band(comp_ns, theta, f->decode_ns, f->experts, &planner->refused_decoded);
    uint32_t high = least(host.high, host_bound(f));
    span compressed;
    *g = (goal){.decoded_low = decoded.low, .decoded_high = decoded.high};
    for (;; high--) {
        if (compressed_span(f, g, high, &compressed))
            break;
        if (high == 0)
            return false;
    }
    g->host_high = high;
    g->host_low = least(host.low, high);
    return true;
}

/* Finds the plans that load soonest of all that fit, and among those the ones with the most experts
 * on the host. */
static double find_soonest(const field *f, goal *g)
{
    const goal any = {.decoded_high = f->experts};
    double best = INFINITY;
    bool found = false;
    for (uint32_t host = 0; host <= host_bound(f); host++) {
        span compressed;
        if (!compressed_span(f, &any, host, &compressed))
            continue;
        mp_residency_plan plan = {f->experts - host - compressed.low, compressed.low};
        double ns = layer_ns(f, &plan);
        if (found && ns > best)
            continue;
        found = true;
        best = ns;
        g->host_low = g->host_high = host;
    }
    assert(found);
    g->decoded_low = 0;
    g->decoded_high = most_within(best, f->decode_ns, f->experts);
    return best;
}

/* ---- Stepping towards the goal ---- */

static uint32_t apart(uint32_t a, uint32_t b)
{
    return a > b ? a - b : b - a;
}

/* Returns the number of experts whose state differs between two plans. */
static uint32_t distance(const field *f, const mp_residency_plan *a, const mp_residency_plan *b)
{
    return (apart(a->dense, b->dense) + apart(a->compressed, b->compressed) +
            apart(host_count(f, a), host_count(f, b))) /
           2;
}

/* Finds the goal's nearest plan with `host` experts on the host; among several, the
 * leanest. Every compressed count between keeping the compressed ones and keeping the dense
 * ones is equally near. */
static bool nearest_with_host(const field *f, const goal *g, const mp_residency_plan *from,
                              uint32_t host, mp_residency_plan *out)
{
    span allowed;
    if (!compressed_span(f, g, host, &allowed))
        return false;
    uint32_t resident = f->experts - host, compressed = from->compressed;
    if (resident > from->dense && resident - from->dense > compressed)
        compressed = resident - from->dense;
    if (compressed < allowed.low)
        compressed = allowed.low;
    compressed = least(compressed, allowed.high);
    *out = (mp_residency_plan){resident - compressed, compressed};
    return true;
}

static mp_residency_plan nearest(const field *f, const goal *g, const mp_residency_plan *from)
{
    mp_residency_plan best = *from, plan;
    uint32_t fewest = UINT32_MAX;
    for (uint32_t host = g->host_low; host <= g->host_high; host++) {
        if (!nearest_with_host(f, g, from, host, &plan) || distance(f, from, &plan) > fewest)
            continue;
        fewest = distance(f, from, &plan);
        best = plan;
    }
    return best;
}

/* Returns the plan after one expert moved towards `target`. There are at most two such moves, each
 * one step nearer; of those that fit it takes the one that loads soonest if loading is slow,
 * otherwise the leanest. One always exists: moves that free memory all fit, and after them the rest
 * only grow towards `target`, which fits. */
static mp_residency_plan one_towards(const field *f, const mp_residency_plan *from,
                                     const mp_residency_plan *target, bool slow)
{
    static const int8_t ways[][2] = {{-1, 0}, {1, 0}, {0, -1}, {0, 1}, {-1, 1}, {1, -1}};
    mp_residency_plan best = *from;
    bool found = false;
    for (uint32_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        mp_residency_plan plan = {from->dense + (uint32_t)ways[i][0],
                                  from->compressed + (uint32_t)ways[i][1]};
        if (plan.dense > f->experts || plan.compressed > f->experts - plan.dense ||
            distance(f, &plan, target) >= distance(f, from, target) || !fits(f, &plan))
            continue;
        bool sooner = layer_ns(f, &plan) < layer_ns(f, &best);
        bool leaner = plan_bytes(f, &plan) < plan_bytes(f, &best);
        if (!found || (slow ? sooner : leaner))
            best = plan;
        found = true;
    }
    return best;
}

/* ---- One interval ---- */

static mp_residency_why moved(mp_residency_planner *planner, const field *f,
                              const mp_residency_plan *to)
{
    const mp_residency_plan *from = &planner->plan;
    uint32_t before = host_count(f, from), after = host_count(f, to);
    if (before != after)
        planner->last_step = before > after ? 1 : -1;
    return plan_bytes(f, to) < plan_bytes(f, from) ? MP_RESIDENCY_LOWER : MP_RESIDENCY_RAISE;
}

/* Remembers counts that were left because they were too slow, so that they are not retried soon. */
static void remember_refused(mp_residency_planner *planner, const field *f, double comp_ns,
                             const mp_residency_plan *from, const mp_residency_plan *to)
{
    double limit_ns = comp_ns / planner->config.theta;
    uint32_t host = host_count(f, from), decoded = decoded_count(f, from);
    if (host_count(f, to) < host && count_ns(host, f->host_ns) > limit_ns)
        planner->refused_host = host;
    if (decoded_count(f, to) < decoded && count_ns(decoded, f->decode_ns) > limit_ns)
        planner->refused_decoded = decoded;
}

/* Steps within the band: there are plans with rho >= theta. */
static mp_residency_why step_in_band(mp_residency_planner *planner, const field *f, const goal *g,
                                     double comp_ns, mp_residency_plan *next)
{
    const mp_residency_plan now = planner->plan;
    double ns = layer_ns(f, &now);
    mp_residency_plan target = nearest(f, g, &now);
    *next = one_towards(f, &now, &target, ns * planner->config.theta > comp_ns);
    remember_refused(planner, f, comp_ns, &now, next);
    if (distance(f, &now, next))
        return moved(planner, f, next);
    bool at_bound = host_count(f, &now) == host_bound(f);
    return ns < comp_ns && at_bound ? MP_RESIDENCY_BOUND : MP_RESIDENCY_HOLD;
}

/* Returns true if the change of alpha is worth it, rather than merely reverting the last one. */
static bool worth(const mp_residency_planner *planner, const field *f, double best_ns,
                  const mp_residency_plan *target)
{
    const mp_residency_plan *now = &planner->plan;
    uint32_t host = host_count(f, now), wanted = host_count(f, target);
    bool allowed = host <= host_bound(f) && !(f->no_dense && now->dense) &&
                   (f->compresses || !now->compressed);
    bool back =
        (wanted < host && planner->last_step < 0) || (wanted > host && planner->last_step > 0);
    return !allowed || !back || best_ns < layer_ns(f, now) * (1 - REVERSAL_GAIN);
}

/* Steps towards the plan that loads soonest: no plan that fits has rho >= theta. */
static mp_residency_why step_to_soonest(mp_residency_planner *planner, const field *f,
                                        mp_residency_plan *next)
{
    const mp_residency_plan now = planner->plan;
    goal g = {0};
    double best_ns = find_soonest(f, &g);
    mp_residency_plan target = nearest(f, &g, &now);
    *next = worth(planner, f, best_ns, &target) ? one_towards(f, &now, &target, true) : now;
    if (distance(f, &now, next))
        return moved(planner, f, next);
    field roomy = *f;
    roomy.room = UINT64_MAX;
    return find_soonest(&roomy, &g) < best_ns ? MP_RESIDENCY_BUDGET : MP_RESIDENCY_BOUND;
}

/* ---- By measured use ---- */

/* Returns the compressed experts with which the bus and the decoder finish together (eq. 8), rounded down. */
static uint32_t balanced(const field *f)
{
    double bus = f->miss_host_ns, decoder = f->miss_decode_ns;
    double part = f->coded ? 1 - decoder / bus : bus / (bus + decoder);
    return part > 0 && f->compresses ? (uint32_t)(part * f->experts) : 0;
}

/* Finds the plan with the shortest steps of those that fit; returns a layer's time. Given the dense experts, the time
 * rises or falls with the compressed ones, but for a turn where both backends finish together. */
static double find_shortest(const field *f, double comp_ns, mp_residency_plan *plan)
{
    const uint32_t bound = f->experts - host_bound(f), turn = balanced(f);
    const uint32_t most_dense = f->no_dense ? 0 : f->experts;
    double best = INFINITY;
    *plan = (mp_residency_plan){0};
    for (uint32_t dense = 0; dense <= most_dense && dense * f->dense_bytes <= f->room; dense++) {
        uint64_t room = f->room - dense * f->dense_bytes;
        uint64_t fit = f->compresses ? room / f->compressed_bytes : 0;
        const uint32_t most = fit < f->experts - dense ? (uint32_t)fit : f->experts - dense;
        const uint32_t fewest = bound > dense ? bound - dense : 0;
        const uint32_t counts[] = {fewest, turn, turn + 1, most};
        for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            const mp_residency_plan one = {dense, counts[i]};
            const bool may = counts[i] >= fewest && counts[i] <= most;
            const double ns = may ? used_ns(f, &one, comp_ns) : INFINITY;
            if (ns >= best)
                continue;
            best = ns;
            *plan = one;
        }
    }
    return best;
}

/* Returns a layer's time under a plan that the bands lead to. */
static double banded_ns(const field *f, const mp_residency_planner *planner, double comp_ns)
{
    const mp_residency_plan none = {0};
    mp_residency_planner fresh = {.config = planner->config};
    goal g;
    if (!find_band(f, &fresh, comp_ns, &g))
        find_soonest(f, &g);
    mp_residency_plan plan = nearest(f, &g, &none);
    return used_ns(f, &plan, comp_ns);
}

/* Steps towards `target`, with the shortest steps of all plans that fit. */
static mp_residency_why step_by_use(mp_residency_planner *planner, const field *f, double comp_ns,
                                    const mp_residency_plan *target, mp_residency_plan *next)
{
    const mp_residency_plan now = planner->plan;
    double best_ns = used_ns(f, target, comp_ns);
    bool allowed = host_count(f, &now) <= host_bound(f) && !(f->no_dense && now.dense) &&
                   (f->compresses || !now.compressed);
    bool moves = !allowed || best_ns < used_ns(f, &now, comp_ns) * (1 - USE_GAIN);
    for (uint32_t n = 0; moves && n <= f->experts / 4; n++) {
        mp_residency_plan one = one_towards(f, next, target, false);
        if (n > 0 && one.compressed > now.compressed)
            break;
        *next = one;
    }
    planner->last_step = 0;
    if (distance(f, &now, next))
        return plan_bytes(f, next) < plan_bytes(f, &now) ? MP_RESIDENCY_LOWER : MP_RESIDENCY_RAISE;
    field roomy = *f;
    roomy.room = UINT64_MAX;
    mp_residency_plan any;
    return find_shortest(&roomy, comp_ns, &any) < best_ns * (1 - USE_GAIN) ? MP_RESIDENCY_BUDGET
                                                                           : MP_RESIDENCY_HOLD;
}

static mp_residency_why choose(mp_residency_planner *planner, const field *f, double comp_ns,
                               mp_residency_plan *next)
{
    goal g;
    mp_residency_plan target;
    const bool by_use_before = planner->by_use;
    planner->by_use = false;
    if (f->starved || !fits(f, &planner->plan)) {
        if (f->starved)
            *next = (mp_residency_plan){0};
        else
            shed(f, next);
        planner->last_step = 0;
        return MP_RESIDENCY_KV;
    }
    if (!(comp_ns > 0))
        return MP_RESIDENCY_HOLD;
    if (f->cached) {
        double by_use = find_shortest(f, comp_ns, &target), banded = banded_ns(f, planner, comp_ns);
        planner->by_use = by_use < banded * (by_use_before ? 1 : 1 - TURN_GAIN);
        if (planner->by_use)
            return step_by_use(planner, f, comp_ns, &target, next);
    }
    if (find_band(f, planner, comp_ns, &g))
        return step_in_band(planner, f, &g, comp_ns, next);
    return step_to_soonest(planner, f, next);
}

void mp_residency_init(mp_residency_planner *planner, const mp_residency_config *config,
                       const mp_residency_plan *start)
{
    *planner = (mp_residency_planner){.config = *config, .plan = *start};
}

void mp_residency_step(mp_residency_planner *planner, const mp_residency_machine *machine,
                       const mp_residency_input *input, mp_residency_answer *out)
{
    field f;
    assert(machine->experts > 0 && machine->layers > 0 && planner->config.theta > 0);
    set_field(&f, &planner->config, machine, input);
    planner->plan.dense = least(planner->plan.dense, f.experts);
    planner->plan.compressed = least(planner->plan.compressed, f.experts - planner->plan.dense);
    out->load_ns = mp_residency_load_ns(machine, &planner->plan);
    out->rho = out->load_ns > 0 ? input->comp_ns / out->load_ns : INFINITY;
    out->next = planner->plan;
    out->why = choose(planner, &f, input->comp_ns / machine->layers, &out->next);
    out->alpha = (double)(out->next.dense + out->next.compressed) / f.experts;
    planner->plan = out->next;
}

void mp_residency_reject(mp_residency_planner *planner, const mp_residency_plan *actual)
{
    planner->plan = *actual;
    planner->last_step = 0;
}

/* ---- Study: crowded into layers ---- */

/* Returns how many of the numbers first .. first + count - 1 are below `end`. */
static uint32_t below(uint64_t first, uint32_t count, uint64_t end)
{
    if (end <= first)
        return 0;
    return end - first < count ? (uint32_t)(end - first) : count;
}

void mp_residency_layer(const mp_residency_machine *machine, const mp_residency_plan *plan,
                        bool by_layer, uint32_t layer, mp_residency_plan *out)
{
    uint64_t first = (uint64_t)layer * machine->experts;
    uint64_t dense = (uint64_t)plan->dense * machine->layers;
    uint64_t resident = dense + (uint64_t)plan->compressed * machine->layers;
    *out = *plan;
    if (!by_layer)
        return;
    out->dense = below(first, machine->experts, dense);
    out->compressed = below(first, machine->experts, resident) - out->dense;
}
