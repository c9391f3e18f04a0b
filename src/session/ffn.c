/* Running a layer's routed experts: convert, experts as they land, combine.
 *
 * Where the device's work outlasts the call (CUDA), all of it is submitted: the compute stream
 * waits for the caller's stream, for each load, and the caller's stream for it; this thread waits
 * for cold reads, and for what the host computes (aside.c). Elsewhere this thread waits, and y is complete on
 * return. Of several such devices the first has x and y; exchange.c has what crosses.
 *
 * Every row's partial result goes to a line of its own, and the lines of a token are summed in the
 * router's order at the end: so neither residency nor waves nor the order in which experts land
 * changes a bit of y. While resident experts compute, the others load; while one wave computes,
 * the next one loads if both may be held. */
#include <assert.h>

#include "base/status.h"
#include "session/inside.h"

/* One call of moepage_session_ffn. */
typedef struct mp_run {
    struct moepage_session *session;
    mp_flight *flight;
    const moepage_ffn *ffn;
    const mp_layout_operands *operands; /* of the layer's experts */
    const void *x;     /* operands, when the caller's x can be used as it is; else NULL */
    bool is_fetched;   /* x is on its way to the host (aside.c) */
    uint64_t clock_ns; /* where the time since here has not been accounted for */
} mp_run;

/* Charges the time since the last call to a counter. */
static void charge(mp_run *run, uint64_t *counter)
{
    uint64_t now = mp_step_now_ns(&run->session->step);
    *counter += now - run->clock_ns;
    run->clock_ns = now;
}

static moepage_status launch(struct moepage_session *session, uint32_t shard, mp_kernel kernel,
                             const void *args)
{
    mp_device_scratch *scratch = &session->scratch[shard];
    const mp_device_ops *ops = session->scratch[shard].device->ops;
    return ops->launch(scratch->compute, kernel, args, &scratch->last);
}

/* Waits until every device has run all launches. */
static moepage_status drain_compute(mp_run *run)
{
    struct moepage_session *session = run->session;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t d = 0; d < session->step.shape.n_devices; d++) {
        const mp_device_ops *ops = session->scratch[d].device->ops;
        moepage_status one = ops->sync(session->scratch[d].compute, session->scratch[d].last);
        status = status ? status : one;
    }
    charge(run, &session->step.stats.compute_ns);
    return status;
}

/* Waits for the launches, unless the device's work outlasts the call. */
static moepage_status finish_compute(mp_run *run)
{
    if (!run->session->step.async)
        return drain_compute(run);
    charge(run, &run->session->step.stats.compute_ns);
    return MOEPAGE_OK;
}

/* Orders later launches behind the work that the caller has submitted: those on the first device, for which
 * the others wait. */
static moepage_status enter(mp_run *run)
{
    const mp_device_scratch *first = &run->session->scratch[0];
    return first->device->ops->enter(first->compute, run->ffn->stream);
}

/* ---- in: operands ---- */

static moepage_status convert(mp_run *run)
{
    struct moepage_session *session = run->session;
    const moepage_ffn *ffn = run->ffn;
    uint32_t hidden = session->step.shape.model->info.hidden;
    uint64_t stride = ffn->x_stride ? ffn->x_stride : hidden;
    uint32_t operand = session->math == MOEPAGE_MATH_FP32 ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_BF16;
    const bool crosses = mp_exchange_crosses(session); /* others do not reach the caller's x */
    const uint32_t n_devices = crosses ? 1 : session->step.shape.n_devices;
    bool as_it_is = ffn->dtype == operand && stride == hidden && !crosses &&
                    session->math != MOEPAGE_MATH_INT8 && (uintptr_t)ffn->x % MP_OPERAND_ALIGN == 0;
    run->x = as_it_is ? ffn->x : NULL;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t d = 0; d < n_devices && !as_it_is && !status; d++) {
        mp_kernel_convert_args args = {
            .x = ffn->x,
            .x_stride = stride,
            .x_dtype = ffn->dtype,
            .math = session->math,
            .n_tokens = run->flight->n_tokens,
            .hidden = hidden,
            .out = session->scratch[d].x,
        };
        status = launch(session, d, MP_KERNEL_CONVERT, &args);
    }
    return status ? status : mp_exchange_spread(session, run->flight);
}

/* ---- experts ---- */

static mp_ffn_expert describe_expert(const mp_run *run, uint32_t entry)
{
    const struct moepage_session *session = run->session;
    const uint32_t first = run->flight->first_row[entry];
    mp_ffn_expert expert = {.first_row = first,
                            .n_rows = run->flight->first_row[entry + 1] - first};
    mp_operands_of(run->operands, &session->step.shape, &run->flight->holds[entry], &expert);
    return expert;
}

static mp_kernel_experts_args kind_of(const struct moepage_session *session,
                                      const mp_image_layout *layout)
{
    const struct moepage_model *model = session->step.shape.model;
    return (mp_kernel_experts_args){
        .hidden = model->info.hidden,
        .intermediate = model->info.expert_intermediate,
        .dtypes = {layout->ffn.gate_dtype, layout->ffn.up_dtype, layout->ffn.down_dtype},
        .bias_dtype = layout->ffn.bias_dtype,
        .math = session->math,
        .scale = layout->ffn.scale,
        .activation = mp_model_activation(model),
        .form = layout->form,
        .group = layout->group,
    };
}

mp_kernel_experts_args mp_session_experts(const struct moepage_session *session, uint32_t layer,
                                          mp_ffn_layout *image)
{
    const mp_pool_shape *shape = &session->step.shape;
    const mp_image_layout *layout =
        &mp_operands_of_layer(&session->operands, shape->model, layer)->images[shape->slot_form];
    *image = layout->ffn;
    return kind_of(session, layout);
}

/* Launches the experts appended to the scratch since `first`, all of one lot. */
static moepage_status launch_experts(mp_run *run, uint32_t shard, const mp_lot *lot, uint32_t first)
{
    struct moepage_session *session = run->session;
    mp_device_scratch *scratch = &session->scratch[shard];
    if (scratch->n_experts == first)
        return MOEPAGE_OK;
    mp_kernel_experts_args args = kind_of(session, &run->operands->images[lot->form]);
    args.x = run->x ? run->x : scratch->x;
    args.experts = &scratch->experts[first];
    args.n_experts = scratch->n_experts - first;
    args.rows = run->flight->rows;
    args.inner = scratch->inner;
    args.partial = session->exchange.partial;
    args.top_k = run->flight->top_k;
    args.on_host = lot->on_host;
    args.scratch = scratch->fast;
    args.scratch_bytes = session->fast_bytes;
    return launch(session, shard, MP_KERNEL_EXPERTS, &args);
}

static bool is_of(const mp_hold *hold, const mp_lot *lot)
{
    return hold->form == lot->form && (hold->kind == MP_HOLD_HOST) == lot->on_host;
}

/* Launches a device's experts of one lot that are ready now. */
static moepage_status launch_lot(mp_run *run, const mp_group *group, uint32_t shard,
                                 const mp_lot *lot)
{
    mp_device_scratch *scratch = &run->session->scratch[shard];
    uint32_t first = scratch->n_experts;
    for (uint32_t i = 0; i < group->n_entries; i++) {
        uint32_t entry = group->first_entry + i;
        const mp_hold *hold = &run->flight->holds[entry];
        if (hold->shard != shard || !hold->ready || run->session->launched[entry] ||
            !is_of(hold, lot))
            continue;
        run->session->launched[entry] = true;
        scratch->experts[scratch->n_experts++] = describe_expert(run, entry);
    }
    return launch_experts(run, shard, lot, first);
}

/* Launches, on each device, the experts of the group that are ready now. */
static moepage_status launch_ready(mp_run *run, const mp_group *group)
{
    const mp_operands *operands = &run->session->operands;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t d = 0; d < run->session->step.shape.n_devices; d++)
        for (uint32_t l = 0; l < operands->n_lots && !status; l++)
            if (!operands->lots[l].on_host || !run->session->aside)
                status = launch_lot(run, group, d, &operands->lots[l]);
    return status;
}

/* ---- experts that the host computes beside the device ---- */

/* Starts to bring x to the host if a group has experts that are computed there. */
static moepage_status fetch_aside(mp_run *run, const mp_group *group)
{
    struct moepage_session *session = run->session;
    const mp_hold *holds = &run->flight->holds[group->first_entry];
    bool any = false;
    for (uint32_t i = 0; i < group->n_entries && session->aside; i++)
        any = any || holds[i].kind == MP_HOLD_HOST;
    if (!any || run->is_fetched)
        return MOEPAGE_OK;
    run->is_fetched = true;
    return mp_aside_fetch(session, run->flight, run->x ? run->x : session->scratch[0].x);
}

static moepage_status run_aside(mp_run *run, const mp_group *group)
{
    struct moepage_session *session = run->session;
    const uint32_t form = session->step.shape.slot_form;
    mp_kernel_experts_args args = kind_of(session, &run->operands->images[form]);
    for (uint32_t i = 0; i < group->n_entries && session->aside; i++) {
        const uint32_t entry = group->first_entry + i;
        if (run->flight->holds[entry].kind != MP_HOLD_HOST)
            continue;
        session->launched[entry] = true;
        mp_aside_experts(session)[args.n_experts++] = describe_expert(run, entry);
    }
    args.rows = run->flight->rows;
    args.top_k = run->flight->top_k;
    return args.n_experts > 0 ? mp_aside_run(session, &args) : MOEPAGE_OK;
}

/* Marks other experts of the group that have landed by now. */
static moepage_status take_landed(mp_run *run, const mp_group *group, uint32_t from)
{
    struct moepage_expert_pool *pool = run->session->step.pool;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = from; i < group->n_entries && !status; i++) {
        mp_hold *hold = &run->flight->holds[group->first_entry + i];
        if (!hold->ready && mp_pool_landed(pool, hold))
            status = mp_pool_wait(pool, hold, NULL);
    }
    return status;
}

/* Runs a group: first the experts that are ready, then each load as it lands, together with others
 * that have landed by then. */
static moepage_status run_group(mp_run *run, const mp_group *group)
{
    struct moepage_session *session = run->session;
    moepage_status status = fetch_aside(run, group);
    if (!status)
        status = launch_ready(run, group);
    for (uint32_t i = 0; i < group->n_entries && !status; i++) {
        mp_hold *hold = &run->flight->holds[group->first_entry + i];
        if (hold->ready)
            continue;
        status = finish_compute(run);
        if (status)
            break;
        status = mp_plan_wait(session, hold, 1, &run->clock_ns);
        if (!status && !session->step.async)
            status = take_landed(run, group, i + 1);
        if (!status)
            status = launch_ready(run, group);
    }
    if (!status)
        status = run_aside(run, group);
    for (uint32_t i = 0; i < group->n_entries && !status; i++)
        assert(session->launched[group->first_entry + i]);
    moepage_status finished = finish_compute(run);
    return status ? status : finished;
}

/* Holds a group; holding charges its own time, so the clock restarts behind it. */
static moepage_status hold_group(mp_run *run, uint32_t group)
{
    charge(run, &run->session->step.stats.compute_ns);
    moepage_status status = mp_plan_hold(run->session, run->flight, group);
    run->clock_ns = mp_step_now_ns(&run->session->step);
    return status;
}

static moepage_status run_groups(mp_run *run)
{
    struct moepage_session *session = run->session;
    mp_flight *flight = run->flight;
    moepage_status status = MOEPAGE_OK;
    for (;;) {
        uint32_t g = flight->group;
        bool more = g + 1 < flight->n_groups;
        if (more && flight->overlap)
            status = hold_group(run, g + 1);
        if (!status)
            status = run_group(run, &flight->groups[g]);
        if (status || !more)
            return status;
        mp_plan_release(session, flight, g);
        if (!flight->overlap)
            status = hold_group(run, g + 1);
        if (status)
            return status;
        flight->group = g + 1;
    }
}

/* ---- out: results ---- */

static moepage_status combine(mp_run *run)
{
    struct moepage_session *session = run->session;
    uint32_t hidden = session->step.shape.model->info.hidden;
    mp_kernel_combine_args args = {
        .partial = session->exchange.partial,
        .weights = run->flight->weights,
        .ids = run->flight->ids,
        .y = run->ffn->y,
        .y_stride = run->ffn->y_stride ? run->ffn->y_stride : hidden,
        .y_dtype = run->ffn->dtype,
        .n_tokens = run->flight->n_tokens,
        .top_k = run->flight->top_k,
        .hidden = hidden,
        .accumulate = run->ffn->accumulate,
    };
    const mp_device_ops *ops = session->scratch[0].device->ops;
    moepage_status status = mp_exchange_gather(session, run->flight);
    if (!status)
        status = launch(session, 0, MP_KERNEL_COMBINE, &args);
    if (!status && session->step.async)
        status =
            ops->follow(run->ffn->stream, session->scratch[0].compute, session->scratch[0].last);
    moepage_status finished = finish_compute(run);
    return status ? status : finished;
}

static moepage_status check_ffn(const struct moepage_session *session, const mp_flight *flight,
                                const moepage_ffn *ffn)
{
    const moepage_model_info *info = &session->step.shape.model->info;
    if (!info->ffn_supported)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the experts of this %s model cannot be run by the "
                       "library: read plans and run your own kernels",
                       info->architecture);
    moepage_status status = mp_operands_check(&session->operands, session->step.shape.model);
    if (status)
        return status;
    if (flight->group != 0)
        return mp_fail(MOEPAGE_E_STATE, "layer %u is past its first group", flight->layer);
    if (ffn->dtype != MOEPAGE_DTYPE_F32 && ffn->dtype != MOEPAGE_DTYPE_F16 &&
        ffn->dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_ARGUMENT, "dtype of x and y is %u, it must be F32, F16 or BF16",
                       ffn->dtype);
    if (ffn->accumulate > 1 || ffn->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "accumulate is %u and reserved %u: they must be 0 or 1, "
                       "and 0",
                       ffn->accumulate, ffn->reserved);
    if (!ffn->x || !ffn->y)
        return mp_fail(MOEPAGE_E_ARGUMENT, "x or y is NULL");
    if ((ffn->x_stride && ffn->x_stride < info->hidden) ||
        (ffn->y_stride && ffn->y_stride < info->hidden))
        return mp_fail(MOEPAGE_E_ARGUMENT, "a stride is shorter than a row of %u elements",
                       info->hidden);
    return MOEPAGE_OK;
}

moepage_status mp_session_ffn(struct moepage_session *session, uint32_t layer,
                              const moepage_ffn *ffn)
{
    mp_flight *flight = mp_session_flight(session, layer);
    if (!flight)
        return MOEPAGE_E_STATE;
    moepage_status status = check_ffn(session, flight, ffn);
    if (!status) /* readers of a plan may run on another stream than this call */
        status = mp_plan_mark(session, flight);
    if (status)
        return status;
    mp_run run = {.session = session,
                  .flight = flight,
                  .ffn = ffn,
                  .operands =
                      mp_operands_of_layer(&session->operands, session->step.shape.model, layer),
                  .clock_ns = mp_step_now_ns(&session->step)};
    for (uint32_t d = 0; d < session->step.shape.n_devices; d++)
        session->scratch[d].n_experts = 0;
    for (uint32_t i = 0; i < flight->n_entries; i++)
        session->launched[i] = false;
    if (flight->dropped)
        status = hold_group(&run, 0);
    flight->dropped = status != MOEPAGE_OK;
    if (!status)
        status = enter(&run);
    if (!status)
        status = convert(&run);
    if (!status)
        status = run_groups(&run);
    if (!status)
        status = combine(&run);
    if (status) {
        drain_compute(&run); /* nothing may read the caller's x or a slot after the return */
        mp_plan_drop(session, flight);
    }
    return status;
}
