/* What a session tells the watch of its expert pool: what a step was. */
#include "session/session.h"

void mp_session_note_phase(struct moepage_session *session, const moepage_step *step)
{
    session->prefill = step->n_sequences > 0 || step->phase == MOEPAGE_PHASE_PREFILL;
    session->decode = step->n_sequences > 0 || step->phase == MOEPAGE_PHASE_DECODE;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        bool prefill = step->sequences[i].phase == MOEPAGE_PHASE_PREFILL;
        session->prefill &= prefill;
        session->decode &= !prefill || step->sequences[i].n_tokens == 0;
    }
}

void mp_session_tell_step(const struct moepage_session *session)
{
    const moepage_session_stats *stats = &session->step_stats;
    mp_watch_step step = {
        .tokens = (uint32_t)stats->tokens,
        .layers = (uint32_t)stats->layers,
        .prefill = session->prefill,
        .wall_ns = stats->wall_ns,
        .stall_ns = stats->stall_ns,
        .compute_ns = stats->compute_ns,
        .misses = stats->misses + stats->late,
    };
    mp_pool_tell_step(session->pool, &step);
}
