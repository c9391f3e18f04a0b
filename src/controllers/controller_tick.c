/* A controller's ticks: at a burst's end it gathers the pools' state, lets the mode's law choose, and moves, for as many
 * ticks as the move takes. */
#include "base/status.h"
#include "controllers/controller.h"
#include "split/split.h"

/* Attempts after which a move that waits for something in use is given up. */
#define MOST_ATTEMPTS 256u

/* ---- gathering ---- */

static void look_at_experts(struct moepage_controller *controller, mp_scene *scene)
{
    const mp_pool_shape *shape = &controller->shape;
    /* Replays hits first, so that they count. */
    const mp_pool_survey pool = mp_pool_look(controller->experts);
    scene->here.slots = pool.extent.slots;
    scene->here.compressed = pool.extent.compressed;
    scene->image_bytes = mp_pool_slots_bytes(shape, pool.extent.first - shape->low_slots);
    scene->load_ns = pool.load_ns;
    scene->bus_ns = pool.bus_ns;
    scene->bus_bytes_per_s = pool.bus_bytes_per_s;
    scene->decode_bytes_per_s = pool.decode_bytes_per_s;
    scene->coded_bus = shape->bus_form == MOEPAGE_FORM_EXPH;
    scene->bounds.min_experts = pool.least;
    scene->bounds.expert_bytes = mp_pool_slots_bytes(shape, controller->unit_slots);
    scene->bounds.max_experts =
        mp_controller_most_units(controller, pool.least, shape->keys / controller->unit_slots);
    scene->now.experts = scene->here.slots / controller->unit_slots;
}

static void look_at_kv(struct moepage_controller *controller, mp_scene *scene)
{
    if (!controller->kv)
        return; /* units of no bytes: no split is feasible */
    scene->kv = mp_kv_pool_look(controller->kv);
    scene->here.blocks = scene->kv.blocks;
    scene->bounds.kv_bytes = controller->kv_shape->granule_bytes;
    scene->now.kv = scene->here.blocks / controller->unit_blocks;
}

static void look(struct moepage_controller *controller, mp_scene *scene)
{
    uint64_t low_bytes = mp_pool_slots_bytes(&controller->shape, controller->shape.low_slots);
    uint64_t divisible = mp_arena_divisible(&controller->home->arena);
    uint64_t arena_bytes = divisible > low_bytes ? divisible - low_bytes : 0;
    *scene = (mp_scene){.arena_bytes = arena_bytes};
    look_at_experts(controller, scene);
    look_at_kv(controller, scene);
    scene->bounds.budget_bytes = arena_bytes - scene->image_bytes;
    pthread_mutex_lock(&controller->lock);
    scene->bounds.kv_floor = mp_controller_floor(controller);
    controller->now_units = scene->now.experts;
    pthread_mutex_unlock(&controller->lock);
}

/* Ends what admission goes by; the rest ends when the next burst begins, behind the decision. */
static void end_burst(struct moepage_controller *controller)
{
    if (!controller->config.admission)
        return;
    pthread_mutex_lock(&controller->lock);
    mp_turn_burst(&controller->turn, controller->config.burst_steps);
    mp_admission_burst(&controller->admission);
    pthread_mutex_unlock(&controller->lock);
}

static void begin_burst(struct moepage_controller *controller)
{
    pthread_mutex_lock(&controller->lock);
    mp_curve_decay(&controller->reuse.curve, controller->mvwsa.config.decay);
    if (controller->kv)
        mp_curve_decay(&controller->kv_reuse.curve, controller->mvwsa.config.decay);
    controller->running_blocks = 0;
    controller->burst_began = controller->steps;
    mp_pace_end_burst(&controller->pace);
    pthread_mutex_unlock(&controller->lock);
    controller->bursts++;
    if (controller->kv)
        mp_kv_pool_begin_burst(controller->kv);
}

/* ---- moving ---- */

/* Returns the slots between the two moves of a change of images. These take slots at the experts'
 * low end, or give them back, while the high end stays (or has moved already), so that most slots
 * are there both before and after. */
static uint64_t slots_between(const struct moepage_controller *controller, const mp_move *here,
                              const mp_move *to)
{
    const struct moepage_expert_pool *experts = controller->experts;
    const mp_pool_shape *shape = &controller->shape;
    mp_extent from = mp_pool_extent(experts, here->compressed, (uint32_t)here->slots);
    mp_extent next = mp_pool_extent(experts, to->compressed, (uint32_t)to->slots);
    bool more = to->compressed > here->compressed;
    uint64_t between = more ? (uint64_t)next.first + next.slots - from.first
                            : (uint64_t)from.first + from.slots - next.first;
    between = between < shape->keys ? between : shape->keys;
    return between - between % shape->step_slots;
}

static moepage_status carry_out(struct moepage_controller *controller, const mp_move *here,
                                const mp_move *to, void *stream)
{
    struct moepage_expert_pool *experts = controller->experts;
    struct moepage_kv_pool *kv = controller->kv;
    moepage_status status = MOEPAGE_OK;
    uint64_t between = slots_between(controller, here, to);
    if (to->compressed < here->compressed) {
        status = mp_split_compress(experts, to->compressed, between);
    } else if (to->compressed > here->compressed) {
        /* Not repeated once it is done: that would remove the fence of the second move. */
        if (here->slots != between || here->blocks != to->blocks)
            status = mp_split_move(experts, kv, between, to->blocks, stream);
        return status ? status : mp_split_compress(experts, to->compressed, to->slots);
    }
    return status ? status : mp_split_move(experts, kv, to->slots, to->blocks, stream);
}

static uint32_t give_up(struct moepage_controller *controller)
{
    controller->attempts = 0;
    controller->refused++;
    mp_pool_count_resize(controller->experts, false);
    controller->planned = false;
    mp_split_abandon(controller->experts);
    return MOEPAGE_CONTROL_REFUSED;
}

/* One attempt at controller->target. */
static moepage_status attempt(struct moepage_controller *controller, const mp_scene *scene,
                              void *stream, uint32_t *outcome)
{
    const mp_move *to = &controller->target;
    moepage_status status = MOEPAGE_E_BUSY;
    controller->attempts++;
    /* Otherwise the host has to free blocks first. */
    if (!controller->kv || scene->kv.used <= to->blocks)
        status = carry_out(controller, &scene->here, to, stream);
    if (!status) {
        controller->attempts = 0;
        controller->moves++;
        mp_pool_count_resize(controller->experts, true);
        controller->placed = true;
        *outcome = MOEPAGE_CONTROL_MOVED;
        return MOEPAGE_OK;
    }
    if (status == MOEPAGE_E_DEVICE)
        return status;
    *outcome = status == MOEPAGE_E_BUSY && controller->attempts < MOST_ATTEMPTS
                   ? MOEPAGE_CONTROL_DRAINING
                   : give_up(controller);
    return MOEPAGE_OK;
}

/* ---- ticking ---- */

static bool is_here(const mp_move *here, const mp_move *to)
{
    return to->slots == here->slots && to->blocks == here->blocks &&
           to->compressed == here->compressed;
}

static uint32_t decide(struct moepage_controller *controller, const mp_scene *scene)
{
    uint32_t mode = controller->config.mode;
    /* Acts even if KV's floor does not fit, and gives KV what it can. */
    bool planner = mode == MOEPAGE_CONTROL_PLANNER;
    controller->peak_blocks = scene->kv.burst_peak;
    if (planner)
        mp_pool_concentrate(controller->experts, mp_controller_parts(controller));
    pthread_mutex_lock(&controller->lock);
    bool feasible = mp_controller_feasible(controller, scene);
    controller->target =
        feasible || planner ? mp_controller_choose(controller, scene) : scene->here;
    pthread_mutex_unlock(&controller->lock);
    bool here = is_here(&scene->here, &controller->target);
    if (!feasible && here)
        return MOEPAGE_CONTROL_INFEASIBLE;
    bool by_curves = mode == MOEPAGE_CONTROL_MV_WSA || mode == MOEPAGE_CONTROL_FLUX ||
                     mode == MOEPAGE_CONTROL_OBSERVE;
    if (by_curves && controller->answer.why == MP_MVWSA_COLD && here)
        return MOEPAGE_CONTROL_WAITS;
    bool moves = planner || (controller->kv && mode != MOEPAGE_CONTROL_OBSERVE);
    return here || !moves ? MOEPAGE_CONTROL_STAYS : MOEPAGE_CONTROL_DRAINING;
}

/* Decides again when a burst ends during a move: by now KV may need the bytes that the planner
 * meant to take. */
static uint32_t decide_anew(struct moepage_controller *controller, const mp_scene *scene)
{
    mp_move before = controller->target;
    controller->planned = false;
    uint32_t outcome = decide(controller, scene);
    if (outcome == MOEPAGE_CONTROL_DRAINING && is_here(&before, &controller->target))
        return outcome;
    controller->attempts = 0;
    mp_split_abandon(controller->experts);
    return outcome;
}

static bool burst_is_over(struct moepage_controller *controller)
{
    pthread_mutex_lock(&controller->lock);
    bool over = controller->steps - controller->burst_began >= controller->config.burst_steps;
    pthread_mutex_unlock(&controller->lock);
    return over;
}

/* The locked part of a tick; `scene` is the pools' state afterwards. */
static moepage_status tick(struct moepage_controller *controller, void *stream, mp_scene *scene,
                           uint32_t *outcome)
{
    moepage_status status = MOEPAGE_OK;
    uint32_t mode = controller->config.mode;
    bool over = burst_is_over(controller);
    *outcome = MOEPAGE_CONTROL_WAITS;
    if (over)
        mp_size_burst(&controller->size, controller->shape.n_scopes > 1);
    look(controller, scene);
    bool goes_on = controller->attempts > 0, planner = mode == MOEPAGE_CONTROL_PLANNER;
    if (over)
        end_burst(controller);
    if (over && (!goes_on || planner)) {
        *outcome = goes_on ? decide_anew(controller, scene) : decide(controller, scene);
        goes_on = *outcome == MOEPAGE_CONTROL_DRAINING;
    }
    if (over)
        begin_burst(controller);
    if (goes_on) {
        status = attempt(controller, scene, stream, outcome);
        look(controller, scene);
    }
    return status;
}

/* Tells the KV pool how many sequences should run, and that none may come into what a move is to take. */
static uint32_t tell_target(struct moepage_controller *controller)
{
    const bool drains = controller->attempts > 0;
    pthread_mutex_lock(&controller->lock);
    const uint32_t target = mp_controller_target(controller);
    pthread_mutex_unlock(&controller->lock);
    if (controller->config.admission)
        mp_kv_pool_set_target(controller->kv, target,
                              drains ? controller->target.blocks : UINT64_MAX);
    return target;
}

moepage_status mp_controller_tick(struct moepage_controller *controller, void *stream,
                                  moepage_controller_report *report)
{
    mp_scene scene;
    uint32_t outcome;
    pthread_mutex_lock(&controller->ticking);
    moepage_status status = tick(controller, stream, &scene, &outcome);
    const uint32_t running = tell_target(controller);
    moepage_controller_report own = {
        .outcome = outcome,
        .expert_slots = scene.here.slots,
        .kv_blocks = scene.here.blocks,
        .target_slots = controller->target.slots,
        .target_blocks = controller->target.blocks,
        .compressed_experts = scene.here.compressed,
        .target_compressed = controller->target.compressed,
        .target_running = running,
    };
    pthread_mutex_unlock(&controller->ticking);
    return status || !report ? status : MP_REPORT_WRITE(report, own);
}
