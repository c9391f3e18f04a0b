/* Recording at work: passes the events of a step on to a trace's writer. */
#include "features/recording.h"

#include "base/status.h"
#include "session/step_hooks.h"
#include "trace/trace.h"

static void begin(void *state, const moepage_step *step)
{
    moepage_step_sequence all = {.n_tokens = step->n_tokens, .phase = step->phase};
    bool named = step->n_sequences > 0;
    mp_trace_step_begin(state, step->n_tokens, named ? step->sequences : &all,
                        named ? step->n_sequences : 1, step->semantic, step->semantic_dim);
}

static void routed(void *state, const mp_flight *flight, const moepage_routing *routing)
{
    mp_trace_step_layer(state, flight->layer, routing->top_k, routing->ids, routing->weights,
                        routing->probabilities);
}

static void ended(void *state, bool whole)
{
    if (whole)
        mp_trace_step_end(state);
    else
        mp_trace_step_cancel(state);
}

static void stop(void *state)
{
    moepage_trace *trace = state;
    atomic_fetch_sub(&trace->users, 1);
}

static const mp_step_hooks recording_hooks = {.begin = begin,
                                              .routed = routed,
                                              .ended = ended,
                                              .close = stop};

/* Checks that the trace describes this session's model, and that no other session records to it. */
static moepage_status check_trace(const mp_step_view *step, const moepage_trace *trace,
                                  const moepage_trace *now)
{
    const mp_pool_shape *shape = &step->shape;
    if (!trace->writer)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the trace is open for reading");
    if (trace->info.moe_layers != shape->layers || trace->info.experts != shape->experts ||
        trace->info.max_top_k < step->config.max_top_k)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "the trace is for %u layers of %u experts, top-k up to "
                       "%u; the session has %u, %u and %u",
                       trace->info.moe_layers, trace->info.experts, trace->info.max_top_k,
                       shape->layers, shape->experts, step->config.max_top_k);
    if (atomic_load(&trace->users) && now != trace)
        return mp_fail(MOEPAGE_E_BUSY, "another session records to the trace");
    return MOEPAGE_OK;
}

moepage_status mp_recording_set(struct moepage_session *session, moepage_trace *trace)
{
    const mp_step_view *step = mp_session_view(session);
    moepage_status status = MOEPAGE_OK;
    if (step->open)
        return mp_fail(MOEPAGE_E_STATE, "a step is open: recording starts between steps");
    if (trace)
        status = check_trace(step, trace, mp_session_find(session, &recording_hooks));
    if (status)
        return status;
    mp_session_detach(session, &recording_hooks);
    if (trace) {
        atomic_fetch_add(&trace->users, 1);
        mp_session_attach(session, &recording_hooks, trace);
    }
    return MOEPAGE_OK;
}
