/* Gathers the state of the pools, in which a controller decides. */
#include "controllers/controller.h"

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
    scene->pinned_end = pool.pinned_end;
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

/* KV's share as it was chosen, or as the host has set it since; as far as there is room for it beside the experts that
 * must stay. */
static void look_at_share(struct moepage_controller *controller, mp_scene *scene)
{
    mp_split_bounds bounds = scene->bounds;
    mp_split fewest;
    const uint64_t unit = controller->unit_slots, pinned = (scene->pinned_end + unit - 1) / unit;
    if (scene->kv.share != controller->offered)
        controller->share = controller->offered = scene->kv.share;
    bounds.kv_floor = 0;
    bounds.min_experts = pinned > bounds.min_experts ? pinned : bounds.min_experts;
    bounds.max_experts = pinned > bounds.max_experts ? pinned : bounds.max_experts;
    if (controller->share <= scene->here.blocks || !mp_split_with_experts(&bounds, 0, &fewest))
        return;
    const uint64_t chosen = controller->share / controller->unit_blocks;
    const uint64_t kv = chosen < fewest.kv ? chosen : fewest.kv;
    const uint64_t beside = (bounds.budget_bytes - kv * bounds.kv_bytes) / bounds.expert_bytes;
    if (kv > scene->now.kv)
        scene->now = (mp_split){beside < scene->now.experts ? beside : scene->now.experts, kv};
}

void mp_controller_look(struct moepage_controller *controller, mp_scene *scene)
{
    uint64_t low_bytes = mp_pool_slots_bytes(&controller->shape, controller->shape.low_slots);
    uint64_t divisible = mp_arena_divisible(&controller->home->arena);
    uint64_t arena_bytes = divisible > low_bytes ? divisible - low_bytes : 0;
    *scene = (mp_scene){.arena_bytes = arena_bytes};
    look_at_experts(controller, scene);
    look_at_kv(controller, scene);
    /* A small budget may have no room for images that are there. */
    scene->bounds.budget_bytes =
        arena_bytes > scene->image_bytes ? arena_bytes - scene->image_bytes : 0;
    pthread_mutex_lock(&controller->lock);
    scene->bounds.kv_floor = mp_controller_floor(controller);
    controller->now_units = scene->here.slots / controller->unit_slots;
    pthread_mutex_unlock(&controller->lock);
    if (mp_controller_lends(controller))
        look_at_share(controller, scene);
}
