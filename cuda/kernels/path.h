/* path.h — the kernel that plans a layer on the device: which experts its ids name, where they are,
 * and, where some are absent, the message to the host and the wait for its answer.
 *
 * One block. Every step handles a few words per expert or row. A layer whose experts are all resident
 * costs a few barriers and two round trips to memory, one for ids and state and one for the map, and does
 * not touch host memory, but for the counters of progress once a step. */
#ifndef MP_KERNELS_PATH_H
#define MP_KERNELS_PATH_H

#include "lanes.h"
#include "path_args.h"

#define MP_PATH_NO_ROW 0xffffffffu
#define MP_PATH_NO_EXPERT (-1) /* MOEPAGE_NO_EXPERT */

#define MP_PATH_WARPS (MP_PATH_THREADS / MP_LANES)

typedef struct mp_gpu_path_plan_shared {
    uint32_t count[MP_PATH_EXPERTS];          /* rows of each expert of the layer */
    uint32_t next[MP_PATH_EXPERTS];           /* where the next of them goes */
    uint32_t list[MP_PATH_EXPERTS];           /* the distinct experts, ascending */
    uint32_t first[MP_PATH_EXPERTS];          /* and their first rows */
    int32_t slot[MP_PATH_EXPERTS];            /* of each that is needed, before any message */
    uint32_t experts_of[MP_PATH_WARPS];       /* distinct experts of a warp's threads */
    uint32_t rows_of[MP_PATH_WARPS];          /* and their rows */
    uint64_t layers, all_hit, routed, misses; /* the state's, when the layer began */
    uint32_t now;                             /* likewise */
    uint32_t in_layer;                        /* likewise */
    uint32_t outcome;                         /* MP_PATH_* */
    int32_t detail;
    uint32_t bad_row; /* the first whose id is wrong, or MP_PATH_NO_ROW */
    uint32_t missing;
    uint32_t n; /* distinct experts */
    uint32_t lost;
} mp_gpu_path_plan_shared;
typedef char mp_path_shared_is_enough[sizeof(mp_gpu_path_plan_shared) <= MP_PATH_SHARED ? 1 : -1];

typedef struct mp_gpu_path_plan_thread {
    int32_t id;       /* of row `thread` */
    uint32_t experts; /* distinct ones of its share; then of all lanes up to it */
    uint32_t rows;    /* likewise */
} mp_gpu_path_plan_thread;

/* ---- Memory that others write meanwhile ---- */

#if MP_ON_GPU

/* A word that the host writes; for polling, because it orders nothing. */
MP_GPU uint32_t mp_path_peek(const uint32_t *at)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* Acquire: what the host wrote before the value that is read is visible from here on. */
MP_GPU uint32_t mp_path_read(const uint32_t *at)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* Release: what this thread wrote, and others before a barrier that it has passed, is visible to
 * those who read the value. */
MP_GPU void mp_path_write(uint32_t *at, uint32_t value)
{
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

MP_GPU int32_t mp_path_slot(const int32_t *at)
{
    int32_t value; /* past caches that may hold it from before the host's answer */
    asm volatile("ld.relaxed.sys.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

MP_GPU void mp_path_show(uint64_t *at, uint64_t value)
{
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

MP_GPU uint64_t mp_path_clock_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

#define MP_PATH_PAUSE() __nanosleep(100)
#define MP_PATH_ADD(at, value) atomicAdd((at), (value))
#define MP_PATH_MIN(at, value) atomicMin((at), (value))

#else

MP_GPU uint32_t mp_path_peek(const uint32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

MP_GPU uint32_t mp_path_read(const uint32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

MP_GPU void mp_path_write(uint32_t *at, uint32_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

MP_GPU int32_t mp_path_slot(const int32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

MP_GPU void mp_path_show(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
}

/* On the CPU, supplied by the program that runs the kernel there. */
uint64_t mp_cpu_clock_ns(void);
void mp_cpu_pause(void);

MP_GPU uint64_t mp_path_clock_ns(void)
{
    return mp_cpu_clock_ns();
}

#define MP_PATH_PAUSE() mp_cpu_pause()

MP_GPU uint32_t MP_PATH_ADD(uint32_t *at, uint32_t value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

MP_GPU void MP_PATH_MIN(uint32_t *at, uint32_t value)
{
    uint32_t known = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value < known &&
           !__atomic_compare_exchange_n(at, &known, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

#endif

/* ---- Messages, answers, reports: the first thread ---- */

MP_GPU uint32_t mp_path_await(const mp_gpu_path_plan_args *args)
{
    const uint32_t sequence = args->state->sequence;
    const uint64_t began_ns = mp_path_clock_ns();
    while (mp_path_peek(&args->state->answer) >> 1 != sequence) {
        if (mp_path_clock_ns() - began_ns > args->timeout_ns)
            return MP_PATH_LATE;
        MP_PATH_PAUSE();
    }
    return mp_path_read(&args->state->answer) & 1 ? MP_PATH_REFUSED : MP_PATH_OK;
}

MP_GPU void mp_path_give_up(const mp_gpu_path_plan_args *args, uint32_t reason, int32_t detail)
{
    mp_path_state *state = args->state;
    mp_path_mail *mail = args->mail;
    state->gave_up = state->gave_up == 0xffffffffu ? 1 : state->gave_up + 1;
    state->error = state->gave_up;
    mail->reason = reason;
    mail->in_layer = args->layer;
    mail->detail = detail;
    mp_path_write(&mail->gave_up, state->gave_up);
}

/* Returns OK if the layer may run: after a failure, only once that has been acknowledged; after a
 * timeout, only once the host has answered that message, because until then slots may change while
 * kernels read them. */
MP_GPU uint32_t mp_path_open(const mp_gpu_path_plan_args *args)
{
    mp_path_state *state = args->state;
    if (!state->error)
        return MP_PATH_OK;
    if (mp_path_read(&args->mail->acknowledged) != state->error)
        return MP_PATH_STILL;
    if (state->owed && mp_path_await(args) == MP_PATH_LATE)
        return MP_PATH_LATE;
    state->owed = 0;
    state->error = 0;
    return MP_PATH_OK;
}

MP_GPU void mp_path_begin(const mp_gpu_path_plan_args *args, mp_gpu_path_plan_shared *shared)
{
    const mp_path_state *state = args->state;
    shared->now = state->now;
    shared->in_layer = state->in_layer;
    shared->layers = state->layers;
    shared->all_hit = state->all_hit;
    shared->routed = state->routed;
    shared->misses = state->misses;
    shared->bad_row = MP_PATH_NO_ROW;
    shared->detail = 0;
    shared->missing = 0;
    shared->lost = 0;
    shared->outcome = mp_path_open(args);
}

/* Asks the host: the rest of the message has been written. */
MP_GPU uint32_t mp_path_ask(const mp_gpu_path_plan_args *args,
                            const mp_gpu_path_plan_shared *shared)
{
    mp_path_state *state = args->state;
    mp_path_mail *mail = args->mail;
    state->sequence = state->sequence == MP_PATH_SEQUENCE ? 1 : state->sequence + 1;
    mail->layer = args->layer;
    mail->n = shared->n;
    mail->now = shared->now;
    mp_path_write(&mail->sequence, state->sequence);
    const uint32_t outcome = mp_path_await(args);
    state->owed = outcome == MP_PATH_LATE;
    return outcome;
}

/* Of a layer with a wrong id, or an absent expert. */
MP_GPU void mp_path_decide(const mp_gpu_path_plan_args *args, mp_gpu_path_plan_shared *shared)
{
    if (shared->bad_row == MP_PATH_NO_ROW) {
        shared->outcome = mp_path_ask(args, shared);
        return;
    }
    shared->outcome = MP_PATH_BAD_ID;
    shared->detail = args->ids[shared->bad_row];
}

/* Returns whether the host learns how far the path has come: at the end of a step, as far as that can be
 * told, and where it has been asked anyway. */
MP_GPU uint32_t mp_path_tells(const mp_gpu_path_plan_args *args,
                              const mp_gpu_path_plan_shared *shared)
{
    const uint32_t last = args->n_keys - args->experts; /* the last layer's first key */
    return shared->missing || args->layer * args->experts == last ||
           args->layer <= shared->in_layer;
}

MP_GPU void mp_path_account(const mp_gpu_path_plan_args *args,
                            const mp_gpu_path_plan_shared *shared)
{
    mp_path_state *state = args->state;
    mp_path_mail *mail = args->mail;
    const uint32_t outcome = shared->lost ? (uint32_t)MP_PATH_LOST : shared->outcome;
    const uint32_t failed = outcome != MP_PATH_OK;
    state->now = shared->now + 1;
    state->in_layer = args->layer;
    state->failed = failed;
    state->n_experts = failed ? 0 : shared->n;
    if (failed) {
        if (outcome != MP_PATH_STILL)
            mp_path_give_up(args, outcome, shared->detail);
        return;
    }
    const uint64_t layers = shared->layers + 1, all_hit = shared->all_hit + !shared->missing;
    const uint64_t routed = shared->routed + shared->n, misses = shared->misses + shared->missing;
    state->layers = layers;
    state->all_hit = all_hit;
    state->routed = routed;
    state->misses = misses;
    if (mp_path_tells(args, shared)) {
        mp_path_show(&mail->layers, layers);
        mp_path_show(&mail->all_hit, all_hit);
        mp_path_show(&mail->routed, routed);
        mp_path_show(&mail->misses, misses);
    }
}

/* ---- A thread's share of a phase ---- */

MP_GPU void mp_path_count_row(const mp_gpu_path_plan_args *args, mp_gpu_path_plan_shared *shared,
                              uint32_t row, int32_t id)
{
    if ((uint32_t)id < args->experts)
        MP_PATH_ADD(&shared->count[id], 1);
    else if (id != MP_PATH_NO_EXPERT)
        MP_PATH_MIN(&shared->bad_row, row);
}

/* The first of a thread's rows has been read. */
MP_GPU void mp_path_count(const mp_gpu_path_plan_args *args, mp_gpu_path_plan_shared *shared,
                          const mp_gpu_path_plan_thread *self, uint32_t thread)
{
    if (thread < args->n_rows)
        mp_path_count_row(args, shared, thread, self->id);
    for (uint32_t r = thread + MP_PATH_THREADS; r < args->n_rows; r += MP_PATH_THREADS)
        mp_path_count_row(args, shared, r, args->ids[r]);
}

/* A thread's consecutive experts of the layer. */
MP_GPU uint32_t mp_path_share(const mp_gpu_path_plan_args *args, uint32_t thread)
{
    const uint32_t each = (args->experts + MP_PATH_THREADS - 1) / MP_PATH_THREADS;
    return each * thread < args->experts ? each * thread : args->experts;
}

MP_GPU void mp_path_look_up(const mp_gpu_path_plan_args *args, mp_gpu_path_plan_shared *shared,
                            mp_gpu_path_plan_thread *self, uint32_t thread)
{
    const uint32_t end = mp_path_share(args, thread + 1);
    const uint64_t first_key = (uint64_t)args->layer * args->experts;
    uint32_t missing = 0;
    self->experts = self->rows = 0;
    for (uint32_t e = mp_path_share(args, thread); e < end; e++) {
        if (!shared->count[e])
            continue;
        self->experts++;
        self->rows += shared->count[e];
        args->stamps[first_key + e] = shared->now;
        shared->slot[e] = mp_path_slot(&args->map[first_key + e]);
        missing += shared->slot[e] < 0;
    }
    if (missing)
        MP_PATH_ADD(&shared->missing, missing);
}

/* Leaves in every lane what the warp's lanes up to it have found, and the warp's total in shared memory. */
MP_GPU void mp_path_scan(MP_LANES_PARAMETERS(mp_gpu_path_plan_thread),
                         mp_gpu_path_plan_shared *shared, uint32_t warp)
{
    MP_LANES_SCAN(experts);
    MP_LANES_SCAN(rows);
    MP_EACH_LANE(mp_gpu_path_plan_thread)
        if (lane == MP_LANES - 1) {
            shared->experts_of[warp] = own->experts;
            shared->rows_of[warp] = own->rows;
        }
    MP_EACH_LANE_END
}

MP_GPU void mp_path_list(const mp_gpu_path_plan_args *args, mp_gpu_path_plan_shared *shared,
                         const mp_gpu_path_plan_thread *self, uint32_t thread)
{
    const uint32_t begin = mp_path_share(args, thread), end = mp_path_share(args, thread + 1);
    uint32_t at = self->experts, row = self->rows; /* behind its own */
    for (uint32_t w = 0; w < thread / MP_LANES; w++) {
        at += shared->experts_of[w];
        row += shared->rows_of[w];
    }
    if (thread == MP_PATH_THREADS - 1)
        shared->n = at;
    for (uint32_t e = end; e > begin; e--) {
        const uint32_t rows = shared->count[e - 1];
        if (!rows)
            continue;
        row -= rows;
        shared->list[--at] = e - 1;
        shared->first[at] = row;
        shared->next[e - 1] = row;
    }
}

MP_GPU void mp_path_compose(const mp_gpu_path_plan_args *args,
                            const mp_gpu_path_plan_shared *shared, uint32_t thread)
{
    for (uint32_t i = thread; i < shared->n; i += MP_PATH_THREADS)
        args->mail->experts[i] = shared->list[i];
    for (uint32_t k = thread; k < args->n_keys; k += MP_PATH_THREADS)
        args->mail_stamps[k] = args->stamps[k];
}

MP_GPU const void *mp_path_operand(const unsigned char *slot, uint64_t offset)
{
    return offset == UINT64_MAX ? (const void *)0 : slot + offset;
}

MP_GPU void mp_path_fill(const mp_gpu_path_plan_args *args, mp_gpu_path_plan_shared *shared,
                         uint32_t thread)
{
    const mp_path_layout *layout = &args->layout;
    for (uint32_t i = thread; i < shared->n; i += MP_PATH_THREADS) {
        const uint32_t e = shared->list[i];
        const uint64_t key = (uint64_t)args->layer * args->experts + e;
        const int32_t index = shared->missing ? mp_path_slot(&args->map[key]) : shared->slot[e];
        if (index < 0) {
            shared->lost = 1; /* every thread that writes it writes 1 */
            continue;
        }
        const unsigned char *slot = args->slots + (uint64_t)(uint32_t)index * args->slot_bytes;
        mp_gpu_expert *out = &args->table[i];
        out->gate = slot + layout->gate;
        out->up = slot + layout->up;
        out->down = slot + layout->down;
        out->gate_bias = mp_path_operand(slot, layout->gate_bias);
        out->up_bias = mp_path_operand(slot, layout->up_bias);
        out->down_bias = mp_path_operand(slot, layout->down_bias);
        out->gate_scale = mp_path_operand(slot, layout->gate_scale);
        out->up_scale = mp_path_operand(slot, layout->up_scale);
        out->down_scale = mp_path_operand(slot, layout->down_scale);
        out->first_row = shared->first[i];
        out->n_rows = shared->count[e];
    }
}

/* The order of an expert's rows is not defined: no result depends on it. */
MP_GPU void mp_path_sort(const mp_gpu_path_plan_args *args, mp_gpu_path_plan_shared *shared,
                         uint32_t thread)
{
    for (uint32_t r = thread; r < args->n_rows; r += MP_PATH_THREADS) {
        const int32_t id = args->ids[r];
        if (id >= 0)
            args->rows[MP_PATH_ADD(&shared->next[id], 1)] = r;
    }
}

/* ---- The block ---- */

MP_GPU void mp_gpu_path_plan_block(MP_BLOCK_PARAMETERS(mp_gpu_path_plan_args,
                                                       mp_gpu_path_plan_shared,
                                                       mp_gpu_path_plan_thread))
{
    (void)block;
    (void)n_blocks;
    MP_PHASE
        self->id = thread < args->n_rows ? args->ids[thread] : MP_PATH_NO_EXPERT;
        for (uint32_t e = thread; e < args->experts; e += MP_PATH_THREADS)
            shared->count[e] = 0;
        if (thread == 0)
            mp_path_begin(args, shared);
    MP_PHASE_END
    uint32_t outcome = shared->outcome;
    MP_PHASE
        if (outcome == MP_PATH_OK)
            mp_path_count(args, shared, self, thread);
    MP_PHASE_END
    MP_PHASE
        mp_path_look_up(args, shared, self, thread);
    MP_PHASE_END
    MP_WARPS(mp_gpu_path_plan_thread)
        (void)n_warps;
        mp_path_scan(MP_LANES_PASS, shared, warp);
    MP_WARPS_END
    MP_PHASE
        mp_path_list(args, shared, self, thread);
    MP_PHASE_END
    if (shared->missing || shared->bad_row != MP_PATH_NO_ROW) {
        MP_PHASE
            if (shared->bad_row == MP_PATH_NO_ROW)
                mp_path_compose(args, shared, thread);
        MP_PHASE_END
        MP_PHASE
            if (thread == 0)
                mp_path_decide(args, shared);
        MP_PHASE_END
        outcome = shared->outcome;
    }
    MP_PHASE
        if (outcome == MP_PATH_OK) {
            mp_path_fill(args, shared, thread);
            mp_path_sort(args, shared, thread);
        }
    MP_PHASE_END
    MP_PHASE
        if (thread == 0)
            mp_path_account(args, shared);
    MP_PHASE_END
}

/* ---- A wait alone, for finding out what it holds up ---- */

typedef struct mp_gpu_path_wait_shared {
    uint32_t none;
} mp_gpu_path_wait_shared;

typedef struct mp_gpu_path_wait_thread {
    uint32_t none;
} mp_gpu_path_wait_thread;

MP_GPU void mp_path_wait(const mp_gpu_path_wait_args *args)
{
    const uint64_t began_ns = mp_path_clock_ns();
    mp_path_write(args->mark, MP_PATH_WAIT_BEGUN);
    while (!mp_path_peek(args->word)) {
        if (mp_path_clock_ns() - began_ns > args->timeout_ns) {
            mp_path_write(args->mark, MP_PATH_WAIT_LATE);
            return;
        }
        MP_PATH_PAUSE();
    }
    mp_path_write(args->mark, MP_PATH_WAIT_SEEN);
}

MP_GPU void mp_gpu_path_wait_block(MP_BLOCK_PARAMETERS(mp_gpu_path_wait_args,
                                                       mp_gpu_path_wait_shared,
                                                       mp_gpu_path_wait_thread))
{
    (void)block;
    (void)n_blocks;
    (void)shared;
    MP_PHASE
        if (thread == 0)
            mp_path_wait(args);
    MP_PHASE_END
}

#endif
