/* Admission, preemption, and the balance of the KV pool. */
#include "serve/room.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/fail.h"

static int get_info(const server *s, moepage_kv_pool_info *info)
{
    *info = (moepage_kv_pool_info){.struct_size = sizeof *info};
    return moepage_kv_pool_get_info(s->engine.host.kv, info) ? fail_library(RUN_FAILED, "KV pool")
                                                             : RUN_OK;
}

static void *stream_of(const server *s)
{
    return s->engine.decoder.dense->stream;
}

/* ---- Admission -------------------------------------------------------------------------- */

/* Returns the blocks already committed: those of running prompts not yet prefilled, a spare one for
 * each running request, and those that a move of the split waits for. */
static uint64_t promised_blocks(const server *s)
{
    const schedule *q = &s->schedule;
    uint64_t blocks = q->n_running + server_draining(s);
    for (uint32_t i = 0; i < q->n_running; i++) {
        uint32_t fed = q->requests[q->running[i]].fed;
        blocks += engine_blocks_for((uint64_t)fed + schedule_prompt_left(q, q->running[i])) -
                  engine_blocks_for(fed);
    }
    return blocks;
}

/* Checks whether the request fits with its whole prompt or, if that is more, with its tokens so far
 * and one more. */
static int ask(const server *s, uint32_t request, bool *fits)
{
    const schedule_request *r = &s->schedule.requests[request];
    const uint64_t tokens = r->fed < r->prompt_tokens ? r->prompt_tokens : r->fed + 1ull;
    moepage_kv_admission answer = {.struct_size = sizeof answer};
    if (moepage_kv_admit(s->engine.host.kv, &tokens, 1, &answer))
        return fail_library(RUN_FAILED, "admission");
    *fits = answer.fits && answer.needed_blocks + promised_blocks(s) <= answer.free_blocks;
    return RUN_OK;
}

static int resume(server *s, uint32_t request, bool *in)
{
    int code = ask(s, request, in);
    if (code || !*in)
        return code;
    uint64_t start = clock_now_ns();
    moepage_status status =
        moepage_kv_swap_in(s->engine.host.kv, s->requests[request].seq, stream_of(s));
    s->result->swap_ns += clock_now_ns() - start;
    *in = status == MOEPAGE_OK;
    return status && status != MOEPAGE_E_WOULD_NOT_FIT ? fail_library(RUN_FAILED, "swapping in")
                                                       : RUN_OK;
}

static int admit(server *s, uint32_t request, bool *in)
{
    int code = ask(s, request, in);
    if (code || !*in)
        return code;
    return moepage_kv_create(s->engine.host.kv, &s->requests[request].seq)
               ? fail_library(RUN_FAILED, "a sequence")
               : RUN_OK;
}

/* Checks, while no request runs, whether this one would fit even with the whole pool to itself. The
 * last token of an answer is never fed back. */
static int is_too_long(const server *s, uint32_t request, bool *too_long)
{
    const schedule_request *r = &s->schedule.requests[request];
    moepage_kv_pool_info info;
    int code = get_info(s, &info);
    *too_long = !code && r->state == SCHEDULE_WAITING &&
                engine_blocks_for((uint64_t)r->prompt_tokens + r->output_tokens - 1) > info.blocks;
    return code;
}

static int let_in_next(server *s, uint32_t request, bool *in)
{
    bool too_long = false;
    int code = RUN_OK;
    if (!s->schedule.n_running)
        code = is_too_long(s, request, &too_long);
    *in = too_long; /* after a refusal the next one may fit */
    if (too_long)
        schedule_refuse(&s->schedule, request);
    if (code || too_long)
        return code;
    code = s->schedule.requests[request].state == SCHEDULE_PREEMPTED ? resume(s, request, in)
                                                                     : admit(s, request, in);
    if (!code && *in)
        schedule_let_in(&s->schedule, request);
    return code;
}

int room_let_in(server *s)
{
    bool in = true;
    int code = RUN_OK;
    while (in && !code) {
        uint32_t request = schedule_candidate(&s->schedule);
        if (request == SCHEDULE_NONE)
            break;
        code = let_in_next(s, request, &in);
    }
    return code;
}

/* ---- Preemption ------------------------------------------------------------------------- */

static int preempt(server *s, uint32_t request)
{
    uint64_t start = clock_now_ns();
    if (moepage_kv_swap_out(s->engine.host.kv, s->requests[request].seq, stream_of(s)))
        return fail_library(RUN_FAILED, "swapping out");
    s->result->swap_ns += clock_now_ns() - start;
    schedule_preempt(&s->schedule, request);
    return RUN_OK;
}

/* Shares are ordered by rank and victims by reverse rank: the victim's share, if any, is the last,
 * and has not been appended yet. */
static int make_room(server *s, const schedule_share *wanting)
{
    uint32_t victim = schedule_victim(&s->schedule);
    if (victim == SCHEDULE_NONE)
        return fail(RUN_FAILED,
                    "request %" PRIu32 " runs alone, and the KV pool has become too "
                    "small for it",
                    wanting->request);
    int code = preempt(s, victim);
    if (s->n_shares && s->shares[s->n_shares - 1].request == victim)
        s->n_shares--;
    return code;
}

int room_reserve(server *s)
{
    int code = RUN_OK;
    for (uint32_t i = 0; i < s->n_shares && !code;) {
        const schedule_share *share = &s->shares[i];
        moepage_status status =
            moepage_kv_append(s->engine.host.kv, s->requests[share->request].seq, share->n_tokens,
                              stream_of(s));
        if (!status)
            i++;
        else if (status == MOEPAGE_E_WOULD_NOT_FIT)
            code = make_room(s, share);
        else
            code = fail_library(RUN_FAILED, "KV cache");
    }
    return code;
}

int room_shrink(server *s, uint64_t blocks)
{
    for (;;) {
        moepage_kv_pool_info info;
        int code = get_info(s, &info);
        uint32_t victim = schedule_victim(&s->schedule);
        if (code || info.blocks - info.free_blocks <= blocks || victim == SCHEDULE_NONE)
            return code;
        if ((code = preempt(s, victim)))
            return code;
    }
}

int room_free(server *s, uint32_t request)
{
    moepage_seq seq = s->requests[request].seq;
    s->requests[request].seq = 0;
    return seq && moepage_kv_free(s->engine.host.kv, seq) ? fail_library(RUN_FAILED, "KV cache")
                                                          : RUN_OK;
}

int room_close(server *s)
{
    moepage_kv_pool_info info;
    int code = RUN_OK;
    for (uint32_t i = 0; i < s->schedule.n && !code; i++)
        if (s->schedule.requests[i].state == SCHEDULE_RUNNING ||
            s->schedule.requests[i].state == SCHEDULE_PREEMPTED)
            code = room_free(s, i);
    if (!code)
        code = get_info(s, &info);
    if (!code &&
        (info.sequences || info.swapped || info.swap_bytes || info.free_blocks != info.blocks))
        code = fail(RUN_FAILED,
                    "the KV pool is out of balance: %" PRIu32 " sequences, %" PRIu64 " of %" PRIu64
                    " blocks free",
                    info.sequences, info.free_blocks, info.blocks);
    return code;
}
