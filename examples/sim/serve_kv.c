/* Room in the KV pool: admission, the prefix cache, preemption.
 *
 * The cache consists of sequences, not of blocks: a session's next turn takes its sequence over;
 * another request that shares a part of it forks it. */
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "sim/serve_inside.h"

static int broken(const char *doing)
{
    return fail_library(RUN_FAILED, doing);
}

/* ---- Lists ------------------------------------------------------------------------------- */

static void list_add(sim_host *host, sim_list *list, uint32_t job)
{
    sim_kv *kv = &host->kv[job];
    kv->before = list->last;
    kv->behind = SIM_NO_JOB;
    if (list->last == SIM_NO_JOB)
        list->first = job;
    else
        host->kv[list->last].behind = job;
    list->last = job;
}

static void list_remove(sim_host *host, sim_list *list, uint32_t job)
{
    const sim_kv *kv = &host->kv[job];
    *(kv->before == SIM_NO_JOB ? &list->first : &host->kv[kv->before].behind) = kv->behind;
    *(kv->behind == SIM_NO_JOB ? &list->last : &host->kv[kv->behind].before) = kv->before;
}

static void set_state(sim_host *host, uint32_t job, sim_kv_state state)
{
    sim_kv *kv = &host->kv[job];
    if (kv->state == SIM_KV_IDLE)
        list_remove(host, &host->idle, job);
    if (kv->state == SIM_KV_SWAPPED) {
        list_remove(host, &host->swapped, job);
        host->swapped_tokens -= kv->tokens;
    }
    kv->state = (uint8_t)state;
    if (state == SIM_KV_IDLE)
        list_add(host, &host->idle, job);
    if (state == SIM_KV_SWAPPED) {
        list_add(host, &host->swapped, job);
        host->swapped_tokens += kv->tokens;
    }
}

/* ---- Swapping ---------------------------------------------------------------------------- */

static int swap(sim_host *host, moepage_seq seq, bool out)
{
    moepage_status status = out ? moepage_kv_swap_out(host->stack.kv, seq, NULL)
                                : moepage_kv_swap_in(host->stack.kv, seq, NULL);
    sim_host_charge(host, &host->result->swap_ns);
    return status ? broken(out ? "swapping out" : "swapping in") : RUN_OK;
}

static int forget(sim_host *host, uint32_t job)
{
    moepage_status status = moepage_kv_free(host->stack.kv, host->kv[job].seq);
    set_state(host, job, SIM_KV_NONE);
    return status ? broken("freeing KV") : RUN_OK;
}

/* ---- Room -------------------------------------------------------------------------------- */

static uint64_t blocks_for(const sim_host *host, uint64_t tokens)
{
    return (tokens + host->block_tokens - 1) / host->block_tokens;
}

static int free_blocks(const sim_host *host, uint64_t *out)
{
    uint64_t none = 0;
    moepage_kv_admission answer = {.struct_size = sizeof answer};
    if (moepage_kv_admit(host->stack.kv, &none, 1, &answer))
        return broken("asking for room");
    *out = answer.free_blocks;
    return RUN_OK;
}

/* Evicts the least recently used prefix. */
static int give_up(sim_host *host, uint32_t job)
{
    host->result->evicted_prefixes++;
    if (host->config->recompute)
        return forget(host, job);
    int code = swap(host, host->kv[job].seq, true);
    set_state(host, job, SIM_KV_SWAPPED);
    uint64_t limit = host->config->host_kv_bytes;
    uint64_t token_bytes = sim_shape_kv_token_bytes(host->shape);
    while (!code && limit && host->swapped_tokens * token_bytes > limit)
        code = forget(host, host->swapped.first);
    return code;
}

/* Evicts prefixes, except `spared`, until `needed` blocks are free; *fits is the outcome. */
static int make_room(sim_host *host, uint64_t needed, uint32_t spared, bool *fits)
{
    for (;;) {
        uint64_t room = 0;
        int code = free_blocks(host, &room);
        *fits = room >= needed;
        uint32_t victim = host->idle.first;
        if (victim == spared && victim != SIM_NO_JOB)
            victim = host->kv[victim].behind;
        if (code || *fits || victim == SIM_NO_JOB)
            return code;
        code = give_up(host, victim);
        if (code)
            return code;
    }
}

int sim_kv_shrink_to(sim_host *host, uint64_t blocks)
{
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    if (moepage_kv_pool_get_info(host->stack.kv, &info))
        return broken("looking at the KV pool");
    bool fits;
    return blocks < info.blocks ? make_room(host, info.blocks - blocks, SIM_NO_JOB, &fits) : RUN_OK;
}

/* ---- Prefixes ---------------------------------------------------------------------------- */

/* Returns the job whose KV has the longest common prefix with this job, and the length of that
 * prefix. */
static uint32_t find_prefix(const sim_host *host, uint32_t job, uint32_t *tokens)
{
    const sim_job *jobs = host->jobs->jobs;
    uint32_t shared = jobs[job].prefix_tokens;
    for (uint32_t p = jobs[job].parent; p != SIM_NO_JOB && shared;) {
        uint32_t holder = p, held = shared;
        while (host->kv[holder].state == SIM_KV_TAKEN) {
            holder = host->kv[holder].taken_by;
            if (held > jobs[holder].prefix_tokens)
                held = jobs[holder].prefix_tokens;
        }
        if (held > host->kv[holder].tokens)
            held = host->kv[holder].tokens;
        if (host->kv[holder].state != SIM_KV_NONE && held) {
            *tokens = held;
            return holder;
        }
        if (shared > jobs[p].prefix_tokens)
            shared = jobs[p].prefix_tokens;
        p = jobs[p].parent;
    }
    *tokens = 0;
    return SIM_NO_JOB;
}

static int use_prefix(const sim_host *host, uint32_t session, uint32_t tokens)
{
    if (!host->stack.controller || !tokens)
        return RUN_OK;
    return moepage_controller_kv_use(host->stack.controller, session + 1ull, tokens)
               ? broken("telling of a prefix")
               : RUN_OK;
}

/* Returns true if the job is the next turn, and no other job continues its parent. */
static bool takes_over(const sim_host *host, uint32_t job, uint32_t holder)
{
    const sim_job *j = &host->jobs->jobs[job];
    return j->turn && holder == j->parent && host->kv[holder].state != SIM_KV_RUNNING;
}

/* Gives the job the holder's sequence, or a copy that shares its blocks. */
static int take_prefix(sim_host *host, uint32_t job, uint32_t holder, uint32_t tokens)
{
    moepage_kv_pool *pool = host->stack.kv;
    sim_kv *from = &host->kv[holder], *to = &host->kv[job];
    bool take_over = takes_over(host, job, holder);
    host->was_swapped = from->state == SIM_KV_SWAPPED;
    if (from->state == SIM_KV_SWAPPED) {
        int code = swap(host, from->seq, false);
        if (code)
            return code;
        set_state(host, holder, SIM_KV_IDLE);
    }
    if (take_over) {
        to->seq = from->seq;
        set_state(host, holder, SIM_KV_TAKEN);
        from->taken_by = job;
        return RUN_OK;
    }
    if (from->state == SIM_KV_IDLE) { /* used most recently */
        set_state(host, holder, SIM_KV_NONE);
        set_state(host, holder, SIM_KV_IDLE);
    }
    if (moepage_kv_fork(pool, from->seq, &to->seq) || moepage_kv_truncate(pool, to->seq, tokens))
        return broken("forking a prefix");
    return RUN_OK;
}

/* ---- Admission --------------------------------------------------------------------------- */

/* Returns the blocks that must be free before the job starts: for its prompt, and one for each
 * running sequence, so that the next steps do not preempt it at once. */
static uint64_t blocks_to_start(const sim_host *host, uint32_t job, uint32_t holder,
                                uint32_t tokens)
{
    uint64_t blocks = blocks_for(host, host->jobs->jobs[job].prompt_tokens) + 1 + host->n_running;
    if (holder == SIM_NO_JOB)
        return blocks;
    if (host->kv[holder].state != SIM_KV_SWAPPED)
        return blocks - tokens / host->block_tokens;
    if (takes_over(host, job, holder))
        return blocks;
    return blocks + blocks_for(host, host->kv[holder].tokens); /* it is swapped in whole */
}

/* Cuts the parent's sequence to the part that the next turn shares. */
static int cut_parent(sim_host *host, uint32_t job, uint32_t holder, uint32_t tokens)
{
    sim_kv *kv = &host->kv[holder];
    if (holder == SIM_NO_JOB || !takes_over(host, job, holder) || kv->tokens == tokens)
        return RUN_OK;
    if (kv->state == SIM_KV_SWAPPED)
        host->swapped_tokens -= kv->tokens - tokens;
    kv->tokens = tokens;
    return moepage_kv_truncate(host->stack.kv, kv->seq, tokens) ? broken("cutting a prefix")
                                                                : RUN_OK;
}

/* Forks first if prefix and holder together are too large, so that the rest of the holder can be
 * evicted. If there is still no room, undoes the fork. */
static int fork_first(sim_host *host, uint32_t job, uint32_t holder, uint32_t tokens, bool *fits)
{
    uint64_t needed = blocks_to_start(host, job, holder, tokens);
    int code = take_prefix(host, job, holder, tokens);
    if (!code)
        code = make_room(host, needed, SIM_NO_JOB, fits);
    if (!code && !*fits && moepage_kv_free(host->stack.kv, host->kv[job].seq))
        code = broken("freeing KV");
    return code;
}

static int start_sequence(sim_host *host, uint32_t job, uint32_t holder, uint32_t tokens)
{
    if (holder != SIM_NO_JOB)
        return take_prefix(host, job, holder, tokens);
    return moepage_kv_create(host->stack.kv, &host->kv[job].seq) ? broken("creating a sequence")
                                                                 : RUN_OK;
}

static void count_prefix(sim_host *host, bool there, uint32_t tokens)
{
    sim_result *result = host->result;
    *(!there ? &result->kv_gone : host->was_swapped ? &result->kv_swapped : &result->kv_hits) += 1;
    result->reused_tokens += tokens;
}

/* Gives the job its sequence, from a prefix or empty, if there is room. */
static int find_room(sim_host *host, uint32_t job, uint32_t *holder, uint32_t *tokens, bool *fits)
{
    *holder = find_prefix(host, job, tokens);
    int code = cut_parent(host, job, *holder, *tokens);
    if (!code)
        code = make_room(host, blocks_to_start(host, job, *holder, *tokens), *holder, fits);
    if (!code && *fits)
        return start_sequence(host, job, *holder, *tokens);
    if (code || *holder == SIM_NO_JOB)
        return code;
    if (host->kv[*holder].state == SIM_KV_IDLE && !takes_over(host, job, *holder))
        return fork_first(host, job, *holder, *tokens, fits);
    if (host->kv[*holder].state != SIM_KV_SWAPPED)
        return RUN_OK;
    *holder = SIM_NO_JOB; /* swapping it in whole takes too much */
    *tokens = 0;
    code = make_room(host, blocks_to_start(host, job, *holder, 0), *holder, fits);
    return code || !*fits ? code : start_sequence(host, job, *holder, 0);
}

int sim_kv_admit(sim_host *host, uint32_t job, bool *fits, uint32_t *tokens)
{
    const sim_job *j = &host->jobs->jobs[job];
    uint32_t holder;
    int code = find_room(host, job, &holder, tokens, fits);
    if (code || !*fits)
        return code;
    if (j->parent != SIM_NO_JOB)
        code = use_prefix(host, host->jobs->jobs[j->parent].session, j->prefix_tokens);
    if (j->parent != SIM_NO_JOB)
        count_prefix(host, holder != SIM_NO_JOB, *tokens);
    host->kv[job].tokens = *tokens;
    set_state(host, job, SIM_KV_RUNNING);
    return code;
}

int sim_kv_grow(sim_host *host, sim_running *running, uint32_t n_tokens, bool *fits)
{
    moepage_kv_pool *pool = host->stack.kv;
    sim_kv *kv = &host->kv[running->job];
    uint64_t before = blocks_for(host, running->tokens);
    uint64_t needed = blocks_for(host, (uint64_t)running->tokens + n_tokens) - before;
    *fits = true;
    if (needed) {
        int code = make_room(host, needed, SIM_NO_JOB, fits);
        if (code || !*fits)
            return code;
    }
    moepage_status status = moepage_kv_append(pool, kv->seq, n_tokens, NULL);
    if (status == MOEPAGE_E_WOULD_NOT_FIT) { /* a shared last block must be copied first */
        int code = make_room(host, needed + 1, SIM_NO_JOB, fits);
        if (code || !*fits)
            return code;
        status = moepage_kv_append(pool, kv->seq, n_tokens, NULL);
    }
    if (status)
        return broken("making room for tokens");
    running->tokens += n_tokens;
    kv->tokens = running->tokens;
    return RUN_OK;
}

/* ---- Preemption -------------------------------------------------------------------------- */

static int take_off(sim_host *host, sim_running *victim)
{
    sim_kv *kv = &host->kv[victim->job];
    if (!host->config->recompute)
        return swap(host, kv->seq, true);
    if (moepage_kv_truncate(host->stack.kv, kv->seq, 0))
        return broken("preempting");
    if (victim->known < victim->tokens)
        victim->known = victim->tokens;
    victim->tokens = kv->tokens = 0;
    return RUN_OK;
}

int sim_kv_preempt(sim_host *host)
{
    host->n_running--;
    host->n_preempted++;
    host->result->preemptions++;
    return take_off(host, &host->running[host->n_running]);
}

int sim_kv_rotate(sim_host *host)
{
    uint32_t last = host->n_running + host->n_preempted - 1;
    sim_running first = host->running[0];
    memmove(&host->running[0], &host->running[1], last * sizeof first);
    host->running[last] = first;
    host->n_running--;
    host->n_preempted++;
    return take_off(host, &host->running[last]);
}

int sim_kv_resume(sim_host *host, bool *fits)
{
    sim_running *next = &host->running[host->n_running];
    uint64_t tokens = host->config->recompute
                          ? (uint64_t)host->jobs->jobs[next->job].prompt_tokens + next->generated
                          : next->tokens;
    int code = make_room(host, blocks_for(host, tokens) + 1 + host->n_running, SIM_NO_JOB, fits);
    if (code || !*fits)
        return code;
    if (!host->config->recompute)
        code = swap(host, host->kv[next->job].seq, false);
    next->since = host->result->steps;
    host->n_running++;
    host->n_preempted--;
    return code;
}

int sim_kv_end(sim_host *host, const sim_running *running)
{
    const sim_job *job = &host->jobs->jobs[running->job];
    if (!job->kept)
        return forget(host, running->job);
    set_state(host, running->job, SIM_KV_IDLE);
    return use_prefix(host, job->session, running->tokens);
}

/* ---- Life cycle -------------------------------------------------------------------------- */

int sim_kv_open(sim_host *host)
{
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    host->idle = host->swapped = (sim_list){SIM_NO_JOB, SIM_NO_JOB};
    host->kv = calloc(host->jobs->n, sizeof *host->kv);
    if (!host->kv)
        return fail_memory();
    if (moepage_kv_pool_get_info(host->stack.kv, &info))
        return broken("looking at the KV pool");
    host->block_tokens = info.block_tokens;
    return RUN_OK;
}

void sim_kv_close(sim_host *host)
{
    free(host->kv);
}
