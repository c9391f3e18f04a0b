/* What a controller's law chooses at a burst's end: numbers in, a move out. The lock is held.
 *
 * A law of splits chooses expert and KV units; the residency planner a plan of every layer, which is translated to
 * slots and blocks. */
#include <math.h>

#include "controllers/controller.h"
#include "model/model.h"
#include "planning/regime.h"

/* The fraction of warm accesses that may miss a working set. */
#define WORKING_SET_MISSES 0.02

/* ---- floors and costs ---- */

/* In tokens, with a KV pool. */
static uint64_t longest_context(const struct moepage_controller *controller)
{
    uint64_t given = controller->config.context_tokens;
    return given ? given : controller->longest_blocks * controller->kv_shape->block_tokens;
}

uint64_t mp_controller_floor(const struct moepage_controller *controller)
{
    if (!controller->kv)
        return 0;
    const moepage_controller_config *config = &controller->config;
    uint32_t block_tokens = controller->kv_shape->block_tokens;
    const uint64_t context = longest_context(controller);
    if (config->admission) /* how many run follows from the split, and not the other way round */
        return mp_split_floor(1, context, block_tokens, controller->unit_blocks);
    uint64_t floor =
        mp_split_floor(config->concurrency, context, block_tokens, controller->unit_blocks);
    uint64_t running = controller->running_blocks / controller->unit_blocks +
                       (controller->running_blocks % controller->unit_blocks > 0);
    return running > floor ? running : floor;
}

uint64_t mp_controller_floor_blocks(const struct moepage_controller *controller)
{
    uint64_t blocks, floor = mp_controller_floor(controller);
    return __builtin_mul_overflow(floor, controller->unit_blocks, &blocks) ? UINT64_MAX : blocks;
}

mp_miss_costs mp_controller_costs(const struct moepage_controller *controller, double load_ns,
                                  double bus_ns, const mp_kv_survey *kv)
{
    mp_miss_costs costs = {.expert_ns = mp_rate_ns(&controller->miss_ns, load_ns)};
    if (!controller->kv)
        return costs;
    const mp_kv_shape *shape = controller->kv_shape;
    /* What is swapped in was swapped out before. A direction that has not been measured is the experts' bus. */
    double swap_ns = (kv->out_ns > 0 ? kv->out_ns : bus_ns) + (kv->in_ns > 0 ? kv->in_ns : bus_ns);
    double block_ns = swap_ns * (double)shape->block_bytes;
    /* Before any long prefill was seen, a decode step stands for recomputing a token. */
    const double step_ns = mp_pace_layer_ns(&controller->pace) * controller->shape.layers;
    if (controller->config.kv_miss == MOEPAGE_KV_MISS_RECOMPUTE)
        block_ns = mp_rate_ns(&controller->recompute_ns, step_ns) * shape->block_tokens;
    costs.kv_ns = block_ns * controller->unit_blocks;
    return costs;
}

/* ---- laws of splits ---- */

mp_move mp_controller_in_slots(const struct moepage_controller *controller, const mp_scene *scene,
                               const mp_split *split)
{
    return (mp_move){.slots = split->experts * controller->unit_slots,
                     .blocks = split->kv * controller->unit_blocks,
                     .compressed = scene->here.compressed};
}

/* Returns the size at which the curve has flattened out. */
static uint64_t working_set(const struct moepage_controller *controller, uint64_t most)
{
    const mp_curve *curve = &controller->reuse.curve;
    uint64_t low = 0, high = most;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (mp_curve_misses(curve, (double)middle) <= WORKING_SET_MISSES * curve->warm)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Gives experts their whole working set, except for the one unit that a KV pool always has. */
static void choose_flux(const struct moepage_controller *controller, const mp_scene *scene,
                        mp_split *split)
{
    mp_split_bounds bounds = scene->bounds;
    uint64_t unit = bounds.kv_bytes < bounds.budget_bytes ? bounds.kv_bytes : 0;
    bounds.budget_bytes -= unit;
    mp_split_flux(&bounds, working_set(controller, bounds.max_experts), split);
    split->kv += unit > 0;
}

/* Lets MV-WSA decide: by misses, or by turn times if it also decides how many run. */
static void decide_split(struct moepage_controller *controller, const mp_scene *scene,
                         const mp_split_costs *misses)
{
    const double unit = controller->unit_blocks;
    const double mean = controller->mean_blocks;
    const mp_turn_costs turns = {.turn = &controller->turn,
                                 .misses = misses,
                                 .sequence_units = mean / unit,
                                 .spread_units =
                                     sqrt(fmax(controller->square_blocks - mean * mean, 0)) / unit,
                                 .longest_units = (double)controller->longest_blocks / unit,
                                 .idle_units = controller->idle_blocks / unit,
                                 .lends = mp_controller_lends(controller) ? &scene->bounds : NULL,
                                 .now = scene->now,
                                 .limit = controller->admission.limit,
                                 .target = mp_controller_target(controller),
                                 .ttft_ns = (double)controller->config.target_ttft_ns,
                                 .tpot_ns = (double)controller->config.target_tpot_ns};
    mp_split_objective objective = mp_split_misses(misses);
    if (controller->config.admission) {
        objective = mp_turn_objective(&turns);
        controller->outlook = mp_turn_look(&turns);
        if (!controller->config.target_tpot_ns) /* which an attempt may exceed */
            controller->outlook.running =
                mp_turn_try(&controller->turn, controller->outlook.running);
    }
    mp_mvwsa_burst(&controller->mvwsa, &scene->bounds, &objective, &scene->now,
                   &controller->answer);
    controller->predicted_now_ns = mp_split_cost(misses, &scene->now);
    controller->predicted_best_ns = mp_split_cost(misses, &controller->answer.target);
}

static mp_split choose_split(struct moepage_controller *controller, const mp_scene *scene)
{
    mp_miss_costs miss = mp_controller_costs(controller, scene->load_ns, scene->bus_ns, &scene->kv);
    mp_split_costs costs = {.experts = &controller->reuse.curve,
                            .kv = controller->kv ? &controller->kv_reuse.curve : NULL,
                            .expert_miss_ns = miss.expert_ns,
                            .kv_miss_ns = miss.kv_ns,
                            .kv_headroom = controller->config.headroom_permille / 1000.0};
    mp_dual_resize law = {.headroom = controller->config.headroom_permille / 1000.0,
                          .dead_zone = controller->mvwsa.config.dead_zone};
    uint64_t peak = controller->peak_blocks / controller->unit_blocks +
                    (controller->peak_blocks % controller->unit_blocks > 0);
    mp_split split = scene->now;
    decide_split(controller, scene, &costs);
    switch (controller->config.mode) {
    case MOEPAGE_CONTROL_MV_WSA: split = controller->answer.next; break;
    case MOEPAGE_CONTROL_DUAL_RESIZE:
        mp_split_dual_resize(&law, &scene->bounds, peak, &scene->now, &split);
        break;
    case MOEPAGE_CONTROL_FIXED:
        if (!controller->placed || controller->size.n) /* a cap comes later, and changes */
            mp_split_fixed(&scene->bounds, controller->config.expert_percent / 100.0, &split);
        break;
    case MOEPAGE_CONTROL_FLUX:
        if (controller->answer.why != MP_MVWSA_COLD)
            choose_flux(controller, scene, &split);
        break;
    default: split = controller->answer.target; break;
    }
    return split;
}

/* ---- the residency planner ---- */

static uint64_t least_slots(const struct moepage_controller *controller, const mp_scene *scene)
{
    return scene->bounds.min_experts * controller->unit_slots;
}

/* Returns the bytes that KV is to have: its peak with headroom, or the floor, as far as the fewest
 * slots leave room. */
static uint64_t wanted_by_kv(const struct moepage_controller *controller, const mp_scene *scene)
{
    if (!controller->kv)
        return 0;
    const mp_kv_shape *shape = controller->kv_shape;
    double headroom = 1 + controller->config.headroom_permille / 1000.0;
    uint64_t peak = (uint64_t)ceil((double)controller->peak_blocks * headroom);
    uint64_t floor = mp_controller_floor_blocks(controller), bytes;
    uint64_t granules = mp_kv_shape_granules(shape, peak > floor ? peak : floor);
    uint64_t slots = mp_pool_slots_bytes(&controller->shape, least_slots(controller, scene));
    uint64_t most = slots < scene->arena_bytes ? scene->arena_bytes - slots : 0;
    bool fits = !__builtin_mul_overflow(granules, shape->granule_bytes, &bytes);
    return fits && bytes < most ? bytes : most;
}

/* Slots that so many bytes are enough for. */
static uint64_t slots_in(const mp_pool_shape *shape, uint64_t bytes)
{
    return bytes / shape->bundle->bytes * shape->bundle->n_slots;
}

/* Slots beside the plan: those of the two-layer window, but no more than half of the arena nor than
 * KV leaves, and no fewer than sessions and pins need. */
static uint64_t window_slots(const struct moepage_controller *controller, const mp_scene *scene,
                             uint64_t kv_bytes)
{
    const mp_pool_shape *shape = &controller->shape;
    uint64_t least = least_slots(controller, scene);
    uint64_t half = slots_in(shape, scene->arena_bytes) / 2;
    uint64_t left = slots_in(shape, scene->arena_bytes - kv_bytes);
    uint64_t window = 2ull * shape->experts < half ? 2ull * shape->experts : half;
    window = window < left ? window : left;
    window -= window % shape->step_slots;
    return window > least ? window : least;
}

/* Returns the fraction of accesses that so many slots miss, as a cache. There are warm ones. */
static double miss_fraction(const struct moepage_controller *controller, double slots)
{
    const mp_curve *curve = &controller->reuse.curve;
    return mp_curve_misses(curve, slots / controller->unit_slots) / curve->warm;
}

/* Describes how steps use experts, as far as it is known. */
static void describe_use(const struct moepage_controller *controller, uint64_t window,
                         mp_residency_machine *machine)
{
    const mp_pool_shape *shape = &controller->shape;
    double *cached = controller->use, *streamed = cached + shape->experts + 1;
    double used = fmin(mp_pace_routed(&controller->pace), shape->experts);
    machine->union_fraction = used > 0 ? used / shape->experts : 1;
    if (!(used > 0) || !(controller->reuse.curve.warm > 0))
        return;
    const bool streams = shape->n_scopes == 1; /* else layers never do */
    for (uint32_t x = 0; x <= shape->experts; x++) {
        uint64_t slots = (uint64_t)x * shape->layers + window;
        slots = slots < shape->keys ? slots : shape->keys;
        double part = mp_controller_parts(
            controller)[mp_regime_keep(slots, shape->layers, shape->experts, 1)];
        cached[x] = used * miss_fraction(controller, (double)slots);
        streamed[x] = streams ? used * (1 - part) : cached[x];
    }
    machine->cached = cached;
    machine->streamed = streamed;
    /* Those of the layer's last step are foreseen, or all. */
    if (!streams)
        machine->unforeseen = 1;
    else if (!mp_regime_is_dense((uint32_t)used, shape->experts))
        machine->unforeseen = miss_fraction(controller, used * shape->layers);
}

static mp_residency_machine describe_machine(const struct moepage_controller *controller,
                                             const mp_scene *scene, uint64_t window)
{
    const mp_pool_shape *shape = &controller->shape;
    double image = scene->load_ns / (scene->bus_ns > 0 ? scene->bus_ns : 1);
    mp_residency_machine machine = {
        .experts = shape->experts,
        .layers = shape->layers,
        .dense_bytes = shape->slot_bytes,
        .compressed_bytes = shape->image_bytes,
        .window_bytes = mp_pool_slots_bytes(shape, window),
        .coded_bus = scene->coded_bus,
        .bus_bytes_per_s =
            (uint64_t)((double)scene->bus_bytes_per_s * image / (double)shape->slot_bytes),
        .decode_bytes_per_s = scene->decode_bytes_per_s,
    };
    describe_use(controller, window, &machine);
    return machine;
}

/* Returns how many slots more fit into what a plan leaves beside KV, if that is less than an expert of each layer. */
static uint64_t rest_slots(const struct moepage_controller *controller, const mp_scene *scene,
                           uint64_t kv_bytes, uint64_t all, uint64_t slots)
{
    const mp_pool_shape *shape = &controller->shape;
    uint64_t fit = slots_in(shape, scene->arena_bytes - kv_bytes);
    uint64_t rest = fit > all ? fit - all : 0;
    rest = rest < shape->keys - slots ? rest : shape->keys - slots;
    return rest < shape->layers ? rest - rest % shape->step_slots : 0;
}

/* Translates a plan to slots and blocks: KV gets all that experts leave; but where the plan goes by use, what is not
 * enough for an expert of each layer is slots. The last slot that images take may not be full; then the window has one
 * slot fewer, so that KV still gets the bytes it is to have. */
static mp_move to_slots(const struct moepage_controller *controller, const mp_scene *scene,
                        const mp_residency_plan *plan, uint64_t window, uint64_t kv_bytes)
{
    const mp_pool_shape *shape = &controller->shape;
    uint64_t least = least_slots(controller, scene);
    mp_move move = {.slots = (uint64_t)plan->dense * shape->layers + window,
                    .compressed = plan->compressed};
    move.slots = move.slots < shape->keys ? move.slots : shape->keys;
    uint64_t first =
        mp_pool_extent(controller->experts, plan->compressed, (uint32_t)move.slots).first -
        shape->low_slots;
    while (mp_pool_slots_bytes(shape, first + move.slots) > scene->arena_bytes - kv_bytes &&
           move.slots >= least + shape->step_slots)
        move.slots -= shape->step_slots;
    if (controller->planner.by_use)
        move.slots += rest_slots(controller, scene, kv_bytes, first + move.slots, move.slots);
    uint64_t bytes = mp_pool_slots_bytes(shape, first + move.slots);
    uint64_t rest = bytes < scene->arena_bytes ? scene->arena_bytes - bytes : 0;
    if (controller->kv)
        move.blocks = rest / controller->kv_shape->granule_bytes * controller->unit_blocks;
    return move;
}

static mp_move choose_residency(struct moepage_controller *controller, const mp_scene *scene)
{
    uint64_t kv_bytes = wanted_by_kv(controller, scene);
    uint64_t window = window_slots(controller, scene, kv_bytes);
    mp_residency_machine machine = describe_machine(controller, scene, window);
    mp_residency_input input = {
        .comp_ns = machine.bus_bytes_per_s
                       ? mp_pace_layer_ns(&controller->pace) * controller->shape.layers
                       : 0,
        .gpu_bytes = scene->arena_bytes,
        .kv_bytes = kv_bytes,
    };
    mp_residency_step(&controller->planner, &machine, &input, &controller->plan);
    return to_slots(controller, scene, &controller->plan.next, window, kv_bytes);
}

/* Sets the planner's plan to the pools' present state, at the start and after a refused move. */
static void correct_planner(struct moepage_controller *controller, const mp_scene *scene)
{
    uint64_t window = window_slots(controller, scene, wanted_by_kv(controller, scene));
    uint64_t kept = scene->here.slots > window ? scene->here.slots - window : 0;
    mp_residency_plan actual = {.dense = (uint32_t)(kept / controller->shape.layers),
                                .compressed = scene->here.compressed};
    mp_residency_reject(&controller->planner, &actual);
}

/* ---- any of them ---- */

bool mp_controller_feasible(const struct moepage_controller *controller, const mp_scene *scene)
{
    mp_split_bounds bounds = scene->bounds;
    if (controller->config.mode == MOEPAGE_CONTROL_PLANNER)
        bounds.budget_bytes = scene->arena_bytes;
    return mp_split_feasible(&bounds);
}

mp_move mp_controller_choose(struct moepage_controller *controller, const mp_scene *scene)
{
    if (controller->config.mode != MOEPAGE_CONTROL_PLANNER) {
        mp_split split = choose_split(controller, scene);
        return mp_controller_in_slots(controller, scene, &split);
    }
    if (!controller->planned)
        correct_planner(controller, scene);
    controller->planned = true;
    return choose_residency(controller, scene);
}
