/* A controller's life, and what it reports. */
#include "controllers/controller.h"

#include <math.h>

#include "base/alloc.h"
#include "base/status.h"
#include "split/split.h"

#define DEFAULT_BURST_STEPS 64u
#define DEFAULT_MAX_SAMPLES 16384u
/* Of the cost: a gain that no second burst is waited for, since in a thrash one takes minutes, and targets are missed. */
#define HURRY 0.5

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

static moepage_status fill_defaults(const moepage_controller_config *given,
                                    moepage_controller_config *config)
{
    *config = *given;
    config->burst_steps = or_default(given->burst_steps, DEFAULT_BURST_STEPS);
    config->concurrency = or_default(given->concurrency, 1);
    config->decay_permille = or_default(given->decay_permille, 700);
    config->gate_permille = or_default(given->gate_permille, 20);
    config->rate_permille = or_default(given->rate_permille, 250);
    config->dead_zone = or_default(given->dead_zone, 1);
    config->headroom_permille = or_default(given->headroom_permille, 100);
    config->theta_permille = or_default(given->theta_permille, 900);
    config->max_samples = or_default(given->max_samples, DEFAULT_MAX_SAMPLES);
    if (config->mode > MOEPAGE_CONTROL_FLUX || config->kv_miss > MOEPAGE_KV_MISS_RECOMPUTE)
        return mp_fail(MOEPAGE_E_ARGUMENT, "mode %u or kv_miss %u is none of the documented values",
                       config->mode, config->kv_miss);
    if (config->mode == MOEPAGE_CONTROL_FIXED &&
        (config->expert_percent < 1 || config->expert_percent > 99))
        return mp_fail(MOEPAGE_E_ARGUMENT, "expert_percent is %u, a fixed split needs 1 to 99",
                       config->expert_percent);
    if (config->decay_permille > 1000 || config->theta_permille > 1000)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "decay_permille %u and theta_permille %u must be at most 1000",
                       config->decay_permille, config->theta_permille);
    if (config->max_samples < 16)
        return mp_fail(MOEPAGE_E_ARGUMENT, "max_samples is %u, at least 16 are needed",
                       config->max_samples);
    if (config->admission > 1)
        return mp_fail(MOEPAGE_E_ARGUMENT, "admission is %u, it must be 0 or 1", config->admission);
    if ((config->target_ttft_ns || config->target_tpot_ns) &&
        (!config->admission || config->mode == MOEPAGE_CONTROL_PLANNER))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "targets of times need admission, and another mode than PLANNER");
    return MOEPAGE_OK;
}

static moepage_status check_pools(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                                  const moepage_controller_config *config)
{
    const mp_pool_shape shape = mp_pool_get_shape(experts);
    if (shape.n_devices > 1)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the expert pool is on %u devices: a controller splits one device's arena",
                       shape.n_devices);
    if (kv && mp_kv_pool_home(kv) != mp_pool_home(experts, 0))
        return mp_fail(MOEPAGE_E_ARGUMENT, "the two pools live on different devices");
    if (mp_pool_is_watched(experts) || (kv && mp_kv_pool_is_watched(kv)))
        return mp_fail(MOEPAGE_E_BUSY, "%s pool has a controller already",
                       mp_pool_is_watched(experts) ? "the expert" : "the KV");
    if (config->admission && !kv)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "admission needs a KV pool: it knows the sequences that run");
    if (config->mode == MOEPAGE_CONTROL_PLANNER && !kv && !shape.decodes)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "without a KV pool and without an EXPH form there is nothing to plan");
    if (config->mode == MOEPAGE_CONTROL_PLANNER && shape.precision &&
        shape.precision->serve == MOEPAGE_SERVE_VERSIONS)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the planner weighs loading against computing, and no step loads an expert "
                       "with MOEPAGE_SERVE_VERSIONS: use another mode");
    return MOEPAGE_OK;
}

static void set_up_laws(struct moepage_controller *controller, uint64_t units)
{
    const moepage_controller_config *config = &controller->config;
    const mp_pool_shape *shape = &controller->shape;
    uint64_t per_expert =
        shape->n_scopes == 1 ? shape->layers / mp_controller_unit_experts(controller) : 1;
    mp_mvwsa_config law;
    mp_mvwsa_defaults(units, &law);
    law.decay = config->decay_permille / 1000.0;
    law.gate = config->gate_permille / 1000.0;
    law.rate_limit = (uint64_t)ceil((double)units * config->rate_permille / 1000.0);
    /* A few units may make room for one more sequence. */
    law.dead_zone = config->dead_zone * (config->admission ? 1 : per_expert);
    law.hurry = config->admission ? HURRY : 0;
    mp_mvwsa_init(&controller->mvwsa, &law);
    mp_admission_init(&controller->admission, config->decay_permille / 1000.0);
    mp_residency_config planner = {.theta = config->theta_permille / 1000.0};
    mp_residency_plan start = {0};
    mp_residency_init(&controller->planner, &planner, &start);
}

static moepage_status open_turn(struct moepage_controller *controller, uint64_t units)
{
    if (!controller->config.admission)
        return MOEPAGE_OK;
    controller->turn_bins = mp_alloc_array(mp_turn_bins(units), sizeof *controller->turn_bins);
    if (!controller->turn_bins)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to watch %u numbers of sequences",
                       MP_LEVELS);
    mp_turn_init(&controller->turn, controller->turn_bins, units,
                 controller->config.decay_permille / 1000.0);
    controller->now_units = mp_pool_look(controller->experts).extent.slots / controller->unit_slots;
    return MOEPAGE_OK;
}

static moepage_status open_watches(struct moepage_controller *controller)
{
    const mp_pool_shape *shape = &controller->shape;
    struct moepage_kv_pool *kv = controller->kv;
    uint32_t max_samples = controller->config.max_samples;
    uint32_t keys = shape->n_scopes == 1 ? shape->keys : shape->experts;
    uint32_t units = keys / mp_controller_unit_experts(controller);
    set_up_laws(controller, units);
    moepage_status status = mp_reuse_watch_open(&controller->reuse, shape->n_scopes, keys,
                                                max_samples, shape->experts, units);
    if (!status)
        status = open_turn(controller, units);
    if (!status)
        controller->watch.keys = mp_alloc_array(shape->experts, sizeof *controller->watch.keys);
    if (!status)
        controller->use = mp_alloc_array(3 * (shape->experts + 1ull), sizeof *controller->use);
    if (!status && (!controller->watch.keys || !controller->use))
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to watch %u experts", shape->experts);
    if (status || !kv)
        return status;
    uint64_t granules = mp_arena_side_max(&controller->home->arena, MP_SIDE_KV);
    uint32_t sequences = mp_kv_pool_max_sequences(kv);
    sequences = sequences < max_samples ? sequences : max_samples;
    return mp_reuse_watch_open(&controller->kv_reuse, 1, sequences, max_samples, 1, granules);
}

static void free_parts(struct moepage_controller *controller)
{
    mp_reuse_watch_close(&controller->reuse);
    mp_reuse_watch_close(&controller->kv_reuse);
    mp_free(controller->watch.keys);
    mp_free(controller->turn_bins);
    mp_free(controller->use);
    mp_size_close(&controller->size);
    pthread_mutex_destroy(&controller->lock);
    pthread_mutex_destroy(&controller->ticking);
}

moepage_status mp_controller_create(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                                    const moepage_controller_config *given,
                                    struct moepage_controller **out)
{
    moepage_controller_config config;
    moepage_status status = fill_defaults(given, &config);
    if (!status)
        status = check_pools(experts, kv, &config);
    if (status)
        return status;
    struct moepage_controller *controller = mp_alloc(sizeof *controller);
    if (!controller)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a controller");
    pthread_mutex_init(&controller->lock, NULL);
    pthread_mutex_init(&controller->ticking, NULL);
    controller->experts = experts;
    controller->shape = mp_pool_get_shape(experts);
    controller->kv = kv;
    controller->kv_shape = kv ? mp_kv_pool_shape(kv) : NULL;
    controller->home = mp_pool_home(experts, 0);
    controller->config = config;
    controller->unit_slots = controller->shape.step_slots;
    controller->unit_blocks = kv ? controller->kv_shape->blocks_per_granule : 1;
    status = open_watches(controller);
    if (status) {
        free_parts(controller);
        mp_free(controller);
        return status;
    }
    mp_controller_watch(controller);
    mp_controller_open_loan(controller);
    mp_handle_open(&controller->handle, MP_KIND_CONTROLLER);
    *out = controller;
    return MOEPAGE_OK;
}

void mp_controller_destroy(struct moepage_controller *controller)
{
    mp_graveyard *graveyard = &controller->home->graveyard;
    if (controller->attempts)
        mp_split_abandon(controller->experts);
    mp_controller_close_loan(controller);
    mp_pool_set_watch(controller->experts, NULL);
    if (controller->kv)
        mp_kv_pool_set_watch(controller->kv, NULL);
    free_parts(controller);
    mp_graveyard_bury(graveyard, controller);
}

/* ---- what it reports ---- */

static uint64_t rounded(double value)
{
    return (uint64_t)llround(value);
}

void mp_controller_info(struct moepage_controller *controller, moepage_controller_info *info)
{
    pthread_mutex_lock(&controller->ticking);
    const mp_pool_survey pool = mp_pool_look(controller->experts);
    const mp_kv_survey kv = controller->kv ? mp_kv_pool_look(controller->kv) : (mp_kv_survey){0};
    pthread_mutex_lock(&controller->lock);
    mp_miss_costs costs = mp_controller_costs(controller, pool.load_ns, pool.bus_ns, &kv);
    *info = (moepage_controller_info){
        .mode = controller->config.mode,
        .steps = controller->steps,
        .bursts = controller->bursts,
        .moves = controller->moves,
        .refused = controller->refused,
        .recalls = controller->recalls,
        .floor_blocks = mp_controller_floor_blocks(controller),
        .peak_blocks = controller->peak_blocks,
        .expert_accesses = rounded(controller->reuse.curve.accesses),
        .expert_first = rounded(controller->reuse.curve.first),
        .kv_accesses = rounded(controller->kv_reuse.curve.accesses * controller->unit_blocks),
        .kv_first = rounded(controller->kv_reuse.curve.first * controller->unit_blocks),
        .expert_miss_ns = costs.expert_ns,
        .kv_miss_ns = costs.kv_ns / controller->unit_blocks,
        .recompute_ns = mp_rate_ns(&controller->recompute_ns, 0),
        .layer_compute_ns = mp_pace_layer_ns(&controller->pace),
        .predicted_now_ns = controller->predicted_now_ns,
        .predicted_best_ns = controller->predicted_best_ns,
        .rho = controller->plan.rho,
        .alpha = controller->plan.alpha,
        .target_running = mp_controller_target(controller),
        .target_tokens_per_s =
            mp_admission_rate(&controller->admission, mp_controller_target(controller)),
        .predicted_ttft_ns = controller->outlook.ttft_ns,
        .predicted_tpot_ns = controller->outlook.tpot_ns,
    };
    mp_controller_size_info(controller, info);
    pthread_mutex_unlock(&controller->lock);
    pthread_mutex_unlock(&controller->ticking);
}

double mp_controller_misses(struct moepage_controller *controller, bool kv, uint64_t size)
{
    mp_pool_replay_hits(controller->experts);
    pthread_mutex_lock(&controller->lock);
    double misses =
        kv ? mp_curve_misses(&controller->kv_reuse.curve, (double)size / controller->unit_blocks) *
                 controller->unit_blocks
           : mp_curve_misses(&controller->reuse.curve, (double)size / controller->unit_slots);
    pthread_mutex_unlock(&controller->lock);
    return misses;
}
