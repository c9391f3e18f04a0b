/* What a controller observes: every routed set and every step's KV sequences, as reuse distances in
 * miss curves; and the costs of steps. */
#include <stddef.h>

#include "base/alloc.h"
#include "base/status.h"
#include "controllers/controller.h"

#define CURVE_BINS 1024u
#define LEAST_SAMPLES 16u

/* ---- reuse ---- */

static moepage_status open_stack(mp_sampled **out, uint32_t keys, uint32_t max_samples,
                                 uint64_t seed)
{
    uint32_t tracked = keys < max_samples ? keys : max_samples;
    tracked = tracked < LEAST_SAMPLES ? LEAST_SAMPLES : tracked;
    void *state = mp_alloc(mp_sampled_bytes(tracked));
    if (!state)
        return MOEPAGE_E_NO_MEMORY;
    double rate = keys <= tracked ? 1.0 : (double)tracked / keys;
    *out = mp_sampled_init(state, tracked, rate, seed);
    return MOEPAGE_OK;
}

moepage_status mp_reuse_watch_open(mp_reuse_watch *watch, uint32_t n_stacks, uint32_t keys,
                                   uint32_t max_samples, uint32_t set, uint64_t units)
{
    moepage_status status = MOEPAGE_OK;
    watch->n_stacks = n_stacks;
    watch->stacks = mp_alloc_array(n_stacks, sizeof *watch->stacks);
    watch->uses = mp_alloc_array(set, sizeof *watch->uses);
    watch->samples = mp_alloc_array(set, sizeof *watch->samples);
    double *bins = mp_alloc_array(mp_curve_bins(units, CURVE_BINS), sizeof *bins);
    if (!watch->stacks || !watch->uses || !watch->samples || !bins)
        status = MOEPAGE_E_NO_MEMORY;
    if (bins)
        mp_curve_init(&watch->curve, bins, units, CURVE_BINS);
    for (uint32_t i = 0; i < n_stacks && !status; i++)
        status = open_stack(&watch->stacks[i], keys, max_samples, i + 1);
    if (!status)
        return MOEPAGE_OK;
    mp_reuse_watch_close(watch);
    return mp_fail(status, "no memory to watch the reuse of %u keys", keys);
}

void mp_reuse_watch_close(mp_reuse_watch *watch)
{
    for (uint32_t i = 0; watch->stacks && i < watch->n_stacks; i++)
        mp_free(watch->stacks[i]);
    mp_free(watch->stacks);
    mp_free(watch->uses);
    mp_free(watch->samples);
    mp_free(watch->curve.bins);
    *watch = (mp_reuse_watch){.n_stacks = 0};
}

static struct moepage_controller *of(mp_watch *watch)
{
    return (struct moepage_controller *)((char *)watch -
                                         offsetof(struct moepage_controller, watch));
}

static struct moepage_controller *of_kv(mp_kv_watch *watch)
{
    return (struct moepage_controller *)((char *)watch -
                                         offsetof(struct moepage_controller, kv_watch));
}

/* Of a step in the mean over steps. */
#define MEAN_SHARE (1.0 / 256)

/* ---- experts ---- */

static void see_experts(mp_watch *watch, const uint32_t *keys, uint32_t n, uint32_t decodes)
{
    struct moepage_controller *controller = of(watch);
    mp_reuse_watch *reuse = &controller->reuse;
    const uint32_t per_unit = mp_controller_unit_experts(controller);
    if (n == 0) /* a layer may route to no expert */
        return;
    pthread_mutex_lock(&controller->lock);
    uint32_t stack = reuse->n_stacks == 1 ? 0 : keys[0] / controller->shape.experts;
    for (uint32_t i = 0; i < n; i++)
        reuse->uses[i] = (mp_sampled_use){.key = keys[i], .size = 1};
    uint32_t sampled = mp_sampled_use_set(reuse->stacks[stack], reuse->uses, n, reuse->samples);
    for (uint32_t i = 0; i < sampled; i++) {
        const mp_sample *sample = &reuse->samples[i];
        if (sample->distance == UINT64_MAX) {
            mp_curve_add_first(&reuse->curve, sample->weight);
            continue;
        }
        const uint64_t distance = (sample->distance + per_unit - 1) / per_unit;
        mp_curve_add(&reuse->curve, distance, sample->weight);
        if (controller->config.admission)
            mp_turn_use(&controller->turn, decodes, distance, sample->weight);
    }
    pthread_mutex_unlock(&controller->lock);
}

/* ---- KV ---- */

/* Counts a use of a sequence, which is in the pool as a whole or not at all: it hits if the pool
 * has room for itself and all that was used since, or for no more than `together` blocks. The lock is held. */
static void use_kv(struct moepage_controller *controller, uint64_t key, uint64_t blocks,
                   uint64_t together)
{
    mp_reuse_watch *reuse = &controller->kv_reuse;
    uint32_t size = blocks > UINT32_MAX ? UINT32_MAX : (uint32_t)blocks;
    if (size == 0)
        return;
    reuse->uses[0] = (mp_sampled_use){.key = key, .size = size};
    if (!mp_sampled_use_set(reuse->stacks[0], reuse->uses, 1, reuse->samples))
        return;
    const mp_sample *sample = &reuse->samples[0];
    double units = sample->weight / controller->unit_blocks;
    if (sample->distance == UINT64_MAX)
        mp_curve_add_first(&reuse->curve, units);
    else if (sample->distance + size <= together)
        mp_curve_add(&reuse->curve, 0, units);
    else
        mp_curve_add(&reuse->curve, (sample->distance + size - 1) / controller->unit_blocks, units);
}

/* Counts the mean size of a step's sequences, of their squares, and of all others. The lock is held. */
static void see_sizes(struct moepage_controller *controller, double mean, double square,
                      double idle)
{
    const double share = controller->mean_blocks > 0 ? MEAN_SHARE : 1;
    controller->mean_blocks += (mean - controller->mean_blocks) * share;
    controller->square_blocks += (square - controller->square_blocks) * share;
    controller->idle_blocks += (idle - controller->idle_blocks) * share;
}

/* Observes a step's sequences. They may share blocks, so their sum is limited to the blocks that
 * are in use. */
static void see_kv(mp_kv_watch *watch, const mp_kv_use *uses, uint32_t n, uint64_t used, bool again)
{
    struct moepage_controller *controller = of_kv(watch);
    uint64_t running = 0;
    double squares = 0;
    pthread_mutex_lock(&controller->lock);
    for (uint32_t i = 0; i < n; i++) {
        running += uses[i].blocks;
        squares += (double)uses[i].blocks * (double)uses[i].blocks;
        if (uses[i].blocks > controller->longest_blocks)
            controller->longest_blocks = uses[i].blocks;
    }
    /* Where admission decides how many run, those that run, or wait to run on, are not to be kept by a larger pool: fewer
     * would run. */
    const uint64_t together = controller->config.admission ? 2 * running : 0;
    for (uint32_t i = 0; i < n && !controller->kv_named && !again; i++)
        use_kv(controller, uses[i].seq, uses[i].blocks, together);
    const double own = running > used ? (double)used / (double)running : 1;
    running = running < used ? running : used;
    if (n)
        see_sizes(controller, (double)running / n, squares / n * own * own,
                  (double)(used - running));
    if (running > controller->running_blocks)
        controller->running_blocks = running;
    pthread_mutex_unlock(&controller->lock);
}

static void see_freed(mp_kv_watch *watch, moepage_seq seq)
{
    struct moepage_controller *controller = of_kv(watch);
    pthread_mutex_lock(&controller->lock);
    if (!controller->kv_named)
        mp_sampled_forget(controller->kv_reuse.stacks[0], seq);
    pthread_mutex_unlock(&controller->lock);
}

static void see_turn(mp_kv_watch *watch, uint64_t prefilled, uint64_t decoded)
{
    struct moepage_controller *controller = of_kv(watch);
    pthread_mutex_lock(&controller->lock);
    mp_turn_end(&controller->turn, prefilled, decoded);
    pthread_mutex_unlock(&controller->lock);
}

void mp_controller_kv_use(struct moepage_controller *controller, uint64_t key, uint64_t tokens)
{
    uint32_t block_tokens = controller->kv_shape->block_tokens;
    pthread_mutex_lock(&controller->lock);
    controller->kv_named = true;
    use_kv(controller, key, tokens / block_tokens + (tokens % block_tokens > 0), 0);
    pthread_mutex_unlock(&controller->lock);
}

/* ---- steps ---- */

/* Returns true for prefill steps about as long as the host makes them. KV is recomputed in
 * such steps, not in the short ends of prompts, whose tokens cost many times as much. The
 * lock is held. */
static bool is_long_prefill(struct moepage_controller *controller, uint32_t tokens)
{
    controller->prefill_tokens -= controller->prefill_tokens / 16;
    if (tokens > controller->prefill_tokens)
        controller->prefill_tokens = tokens;
    return tokens >= controller->prefill_tokens / 2;
}

/* Observes what admission and the split beside it go by. The lock is held. */
static void see_running(struct moepage_controller *controller, const mp_watch_step *step,
                        double busy_ns, uint64_t stall_ns)
{
    if (step->decode && step->decodes)
        mp_admission_step(&controller->admission, step->decodes, step->wall_ns, step->stall_ns);
    const uint32_t prompts = step->tokens > step->decodes ? step->tokens - step->decodes : 0;
    mp_turn_step(&controller->turn, &(mp_turn_sample){.decodes = step->decodes,
                                                      .prompts = prompts,
                                                      .alone = step->decode,
                                                      .ended_ns = step->ended_ns,
                                                      .busy_ns = busy_ns,
                                                      .stall_ns = (double)stall_ns,
                                                      .experts = controller->now_units});
}

static void see_step(mp_watch *watch, const mp_watch_step *step)
{
    struct moepage_controller *controller = of(watch);
    uint64_t stall_ns = step->stall_ns < step->wall_ns ? step->stall_ns : step->wall_ns;
    double busy_ns = (double)(step->wall_ns - stall_ns);
    pthread_mutex_lock(&controller->lock);
    controller->steps++;
    if (controller->config.admission && step->layers)
        see_running(controller, step, busy_ns, stall_ns);
    if (step->misses && step->stall_ns)
        mp_rate_add(&controller->miss_ns, (double)step->misses, (double)step->stall_ns);
    if (step->prefill && step->layers && is_long_prefill(controller, step->tokens)) {
        mp_rate_add(&controller->recompute_ns, step->tokens, (double)step->wall_ns);
    } else if (!step->prefill && step->layers) {
        mp_pace_add(&controller->pace, step->decode ? step->tokens : 0, step->layers, step->routed,
                    busy_ns);
    }
    pthread_mutex_unlock(&controller->lock);
}

void mp_controller_watch(struct moepage_controller *controller)
{
    controller->watch.experts = see_experts;
    controller->watch.step = see_step;
    mp_pool_set_watch(controller->experts, &controller->watch);
    if (!controller->kv)
        return;
    controller->kv_watch.used = see_kv;
    controller->kv_watch.freed = see_freed;
    controller->kv_watch.turned = see_turn;
    mp_kv_pool_begin_burst(controller->kv);
    mp_kv_pool_set_watch(controller->kv, &controller->kv_watch);
}
