/* Controllers, rehearsals and baselines. */
#include "serve/arm_run.h"

#include "common/fail.h"
#include "serve/interrupt.h"

typedef struct run {
    const arm_setting *setting;
    options base; /* options of this run */
    moepage_controller_config control;
    server_config config;
} run;

/* Sets the controller's config. KV's floor is expressed as one context of that size: of the requests that
 * usually run, or of the longest one where the controller decides how many do. */
static void set_control(run *r, uint32_t mode)
{
    const arm_setting *s = r->setting;
    const bool admission = s->options->admission;
    const uint64_t blocks = admission ? s->estate.floor_blocks : s->estate.usual_blocks;
    r->control = (moepage_controller_config){.struct_size = sizeof r->control,
                                             .mode = mode,
                                             .burst_steps = s->options->burst,
                                             .kv_miss = MOEPAGE_KV_MISS_SWAP,
                                             .context_tokens = blocks * KV_BLOCK_TOKENS,
                                             .concurrency = 1,
                                             .admission = admission,
                                             .target_ttft_ns = s->options->target_ttft_ns,
                                             .target_tpot_ns = s->options->target_tpot_ns};
    r->config.engine.control = &r->control;
}

static void begin(const arm_setting *setting, const serve_arm *arm, run *out)
{
    *out = (run){.setting = setting, .base = setting->options->base};
    out->config = (server_config){.name = arm->name,
                                  .options = setting->options,
                                  .arrivals = setting->arrivals,
                                  .n_requests = setting->arrivals->n,
                                  .engine = {.model = setting->model,
                                             .arena_bytes = setting->estate.bytes,
                                             .reserved = true}};
}

static void divide(run *r, uint64_t slots)
{
    estate_divide(&r->setting->estate, r->setting->options, r->setting->arrivals, slots,
                  &r->config.engine.plan);
}

static int serve(run *r, server_result *result)
{
    r->config.engine.options = &r->base;
    return server_run(&r->config, result);
}

/* Serves the first requests from an even split: returns the optimum of a controller that only
 * watches, or the final split of one that moves. */
static int rehearse(const arm_setting *setting, const serve_arm *arm, uint32_t mode,
                    uint64_t *slots)
{
    run r;
    server_result result;
    begin(setting, arm, &r);
    divide(&r, *slots);
    set_control(&r, mode);
    r.config.quiet = true;
    r.config.floor_blocks = setting->estate.floor_blocks;
    if (setting->options->observe < r.config.n_requests)
        r.config.n_requests = setting->options->observe;
    int code = serve(&r, &result);
    if (!code && mode != MOEPAGE_CONTROL_OBSERVE)
        *slots = result.experts.slots;
    else if (!code && !interrupt_seen() && !result.split.target_slots)
        code = fail(RUN_REFUSED,
                    "--split mv-wsa: %u requests are too few to find the best split; a longer "
                    "--observe is needed, or a shorter --burst",
                    r.config.n_requests);
    else if (!code)
        *slots = result.split.target_slots;
    server_result_free(&result);
    return code;
}

/* Makes the pool a window over whole layers: it evicts the least recently used, and only the
 * caller's hints prefetch. */
static void set_offload(run *r)
{
    r->base.prefetch = true;
    r->base.predictor = r->base.predictor_load = r->base.predictor_save = NULL;
    r->base.policy = "lru";
    r->base.scope = MOEPAGE_SCOPE_GLOBAL;
    r->base.regime = MOEPAGE_REGIME_CACHE;
    r->base.miss = MOEPAGE_MISS_WAIT;
    r->base.scan_percent = 0;
    r->config.engine.offload = true;
    divide(r, estate_whole_layers(&r->setting->estate));
}

int arm_check(const arm_setting *setting, const serve_arm *arm)
{
    if (arm->kind == ARM_PLANNER && setting->options->for_admission)
        return fail(RUN_REFUSED, "--split planner: it has no targets, %s does not go with it",
                    setting->options->for_admission);
    if (arm->kind != ARM_LAYER_OFFLOAD || estate_whole_layers(&setting->estate))
        return RUN_OK;
    return fail(RUN_REFUSED, "--split layer-offload: the budget has no room for two whole layers' "
                             "experts beside the longest request's KV");
}

int arm_run(const arm_setting *setting, const serve_arm *arm, server_result *result)
{
    static const uint32_t modes[] = {
        [ARM_FLUX] = MOEPAGE_CONTROL_FLUX,
        [ARM_MV_WSA] = MOEPAGE_CONTROL_OBSERVE,
        [ARM_MV_WSA_ONLINE] = MOEPAGE_CONTROL_MV_WSA,
        [ARM_DUAL_RESIZE] = MOEPAGE_CONTROL_DUAL_RESIZE,
        [ARM_PLANNER] = MOEPAGE_CONTROL_PLANNER,
    };
    const estate *e = &setting->estate;
    uint64_t slots = estate_share(e, arm->kind == ARM_FIXED ? arm->percent : 50);
    run r;
    int code = RUN_OK;
    *result = (server_result){0};
    begin(setting, arm, &r);
    if (arm->kind == ARM_LAYER_OFFLOAD) {
        set_offload(&r);
    } else {
        if (arm->kind == ARM_MV_WSA || arm->kind == ARM_FLUX)
            code = rehearse(setting, arm, modes[arm->kind], &slots);
        else if (arm->kind != ARM_FIXED)
            set_control(&r, modes[arm->kind]);
        /* As few run at first as the longest request's KV is for: a queue that forms while experts are
         * missing costs more than the split. */
        if (r.control.admission)
            slots = e->experts;
        divide(&r, slots);
    }
    if (code || interrupt_seen()) /* perhaps during the rehearsal, which prints nothing */
        return code;
    return serve(&r, result);
}
