/* What a session tells whoever watches its pools: the KV that a step uses, and what the step was. */
#include "session/session.h"

/* Sequences that go on together, step after step, are one use in so many. */
#define SAME_STEPS 64u

static bool is_same(const struct moepage_session *session, const moepage_step *step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        if (!step->sequences[i].seq)
            continue;
        if (n == session->n_kv_uses || session->kv_uses[n].seq != step->sequences[i].seq)
            return false;
        n++;
    }
    return n == session->n_kv_uses;
}

void mp_session_tell_kv(struct moepage_session *session, const moepage_step *step)
{
    mp_watch *watch = session->kv->watch;
    if (!watch)
        return;
    bool again = is_same(session, step) && ++session->kv_same < SAME_STEPS;
    session->kv_same = again ? session->kv_same : 0;
    session->n_kv_uses = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        mp_kv_sequence *sequence;
        if (step->sequences[i].seq &&
            !mp_kv_sequence_find(session->kv, step->sequences[i].seq, &sequence))
            session->kv_uses[session->n_kv_uses++] =
                (mp_watch_use){.seq = sequence->id, .blocks = sequence->n_blocks};
    }
    if (session->n_kv_uses)
        watch->kv(watch, session->kv_uses, session->n_kv_uses, again);
}

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
    mp_watch *watch = session->pool->watch;
    const moepage_session_stats *stats = &session->step_stats;
    if (!watch)
        return;
    mp_watch_step step = {
        .tokens = (uint32_t)stats->tokens,
        .layers = (uint32_t)stats->layers,
        .prefill = session->prefill,
        .wall_ns = stats->wall_ns,
        .stall_ns = stats->stall_ns,
        .compute_ns = stats->compute_ns,
        .misses = stats->misses + stats->late,
    };
    watch->step(watch, &step);
}
