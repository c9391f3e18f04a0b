/* A controller's ticks: at a burst's end the mode's law chooses; then it moves, for as many ticks as the move takes. */
#include "base/status.h"
#include "controllers/controller.h"
#include "split/split.h"

/* Attempts after which a move that waits for something in use is given up. */
#define MOST_ATTEMPTS 256u

/* ---- bursts ---- */

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

/* Returns true if the move lends blocks: it need not be made, and no host is to make room for it. */
static bool lends(const struct moepage_controller *controller, const mp_scene *scene)
{
    const uint64_t to = controller->target.blocks;
    return mp_controller_lends(controller) && to < controller->share && to < scene->here.blocks;
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
    if (lends(controller, scene)) { /* the next burst decides anew */
        controller->attempts = 0;
        *outcome = MOEPAGE_CONTROL_STAYS;
        return MOEPAGE_OK;
    }
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
    if (feasible || planner) {
        controller->target = mp_controller_choose(controller, scene);
    } else {
        controller->target = scene->here;
        if (mp_controller_lends(controller)) /* what is lent goes back */
            controller->target = mp_controller_in_slots(controller, scene, &scene->now);
        controller->outlook = (mp_turn_outlook){0};
    }
    pthread_mutex_unlock(&controller->lock);
    if (feasible && mp_controller_lends(controller))
        mp_controller_lend(controller, scene, &controller->target);
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
    mp_controller_look(controller, scene);
    bool goes_on = controller->attempts > 0, planner = mode == MOEPAGE_CONTROL_PLANNER;
    if (over)
        end_burst(controller);
    if (over && (!goes_on || planner)) {
        *outcome = goes_on ? decide_anew(controller, scene) : decide(controller, scene);
        goes_on = *outcome == MOEPAGE_CONTROL_DRAINING;
    }
    if (over)
        begin_burst(controller);
    if (goes_on)
        status = attempt(controller, scene, stream, outcome);
    if (goes_on || over)
        mp_controller_look(controller, scene);
    if (mp_controller_lends(controller))
        mp_controller_offer(controller, scene);
    return status;
}

/* Tells the KV pool how many sequences should run, and that none may come into what a move is to take. */
static uint32_t tell_target(struct moepage_controller *controller)
{
    const uint64_t to = controller->target.blocks, share = controller->share;
    const uint64_t most = controller->attempts ? (to > share ? to : share) : UINT64_MAX;
    pthread_mutex_lock(&controller->lock);
    const uint32_t target = mp_controller_target(controller);
    pthread_mutex_unlock(&controller->lock);
    if (controller->config.admission)
        mp_kv_pool_set_target(controller->kv, target, most);
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
