/* Lending: blocks of KV's share that no sequence uses serve experts, until a call needs them back.
 *
 * The mode's law chooses the split. KV's side of it is what sequences may come to use, which a queue seldom needs in
 * full: what they have used in a burst, and some headroom, is what KV keeps. */
#include <math.h>

#include "controllers/controller.h"
#include "kv/kv_loan.h"
#include "planning/counts.h"
#include "split/split.h"

void mp_controller_offer(struct moepage_controller *controller, const mp_scene *scene)
{
    controller->offered = scene->now.kv * controller->unit_blocks;
    mp_kv_pool_set_share(controller->kv, controller->offered);
}

/* Finds the split with the most experts beside so many blocks and some headroom, or beside the share if that is less. */
static bool keep(const struct moepage_controller *controller, const mp_scene *scene,
                 uint64_t blocks, uint64_t share_units, mp_split *out)
{
    const double headroom = 1 + controller->config.headroom_permille / 1000.0;
    const double units = ceil((double)blocks * headroom / controller->unit_blocks);
    mp_split_bounds bounds = scene->bounds;
    bounds.kv_floor = units < 1 ? 1 : (uint64_t)fmin(units, (double)share_units);
    return mp_split_with_experts(&bounds, UINT64_MAX, out);
}

void mp_controller_lend(struct moepage_controller *controller, const mp_scene *scene,
                        mp_move *split)
{
    mp_split kept;
    const uint64_t now = scene->now.kv * controller->unit_blocks;
    const uint64_t here = scene->here.slots / controller->unit_slots;
    /* What a smaller budget has no room for now is remembered while the law stays where it is. */
    if (split->blocks != now || !controller->share)
        controller->share = split->blocks;
    if (!keep(controller, scene, scene->kv.burst_peak, split->blocks / controller->unit_blocks,
              &kept))
        return;
    const bool fits = scene->here.blocks <= split->blocks;
    *split = scene->here;
    if (!fits || mp_apart(kept.experts, here) >= controller->mvwsa.config.dead_zone)
        *split = mp_controller_in_slots(controller, scene, &kept);
}

/* ---- calling back ---- */

/* Moves to a split that gives KV what it wants. If something in use is in the way, ticks go on with it. */
static moepage_status move_back(struct moepage_controller *controller, mp_scene *scene,
                                const mp_split *split, void *native)
{
    const mp_move to = mp_controller_in_slots(controller, scene, split);
    moepage_status status =
        mp_split_once(controller->experts, controller->kv, to.slots, to.blocks, native);
    controller->attempts = 0; /* of a move under way, if any: the next burst decides anew */
    if (status == MOEPAGE_E_BUSY) {
        status = mp_split_move(controller->experts, controller->kv, to.slots, to.blocks, native);
        controller->target = to;
        controller->attempts = status == MOEPAGE_E_BUSY;
    }
    controller->recalls += !status;
    mp_controller_look(controller, scene);
    return status;
}

static moepage_status take_back(struct moepage_controller *controller, uint64_t wanted,
                                void *native)
{
    mp_scene scene;
    mp_split split;
    mp_controller_look(controller, &scene);
    mp_controller_offer(controller, &scene); /* the budget and pins may have changed */
    if (wanted <= scene.here.blocks)         /* another call's have come back meanwhile */
        return MOEPAGE_OK;
    if (wanted > scene.now.kv * controller->unit_blocks ||
        !keep(controller, &scene, wanted, scene.now.kv, &split))
        return MOEPAGE_E_BUDGET;
    return move_back(controller, &scene, &split, native);
}

/* No budget moves meanwhile. */
static moepage_status recall(mp_kv_loan *loan, uint64_t wanted, void *native)
{
    struct moepage_controller *controller =
        (struct moepage_controller *)((char *)loan - offsetof(struct moepage_controller, loan));
    pthread_mutex_lock(&controller->home->budget_lock);
    pthread_mutex_lock(&controller->ticking);
    const moepage_status status = take_back(controller, wanted, native);
    pthread_mutex_unlock(&controller->ticking);
    pthread_mutex_unlock(&controller->home->budget_lock);
    return status;
}

/* KV's share is what could come back: no more than there is room for. */
static void see_budget(mp_budget_watch *watch)
{
    struct moepage_controller *controller =
        (struct moepage_controller *)((char *)watch -
                                      offsetof(struct moepage_controller, budget_watch));
    mp_scene scene;
    pthread_mutex_lock(&controller->ticking);
    mp_controller_look(controller, &scene);
    mp_controller_offer(controller, &scene);
    pthread_mutex_unlock(&controller->ticking);
}

void mp_controller_open_loan(struct moepage_controller *controller)
{
    controller->loan.recall = recall;
    controller->budget_watch.moved = see_budget;
    if (!mp_controller_lends(controller))
        return;
    mp_kv_pool_set_loan(controller->kv, &controller->loan);
    mp_home_set_budget_watch(controller->home, &controller->budget_watch);
}

void mp_controller_close_loan(struct moepage_controller *controller)
{
    mp_scene scene;
    if (!mp_controller_lends(controller))
        return;
    mp_home_set_budget_watch(controller->home, NULL);
    pthread_mutex_lock(&controller->ticking);
    mp_controller_look(controller, &scene);
    const mp_split all = scene.now;
    if (all.kv * controller->unit_blocks > scene.here.blocks)
        (void)move_back(controller, &scene, &all, NULL);
    mp_split_abandon(controller->experts);
    pthread_mutex_unlock(&controller->ticking);
    mp_kv_pool_set_loan(controller->kv, NULL);
}
