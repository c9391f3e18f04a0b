/* kv.h — the door of the KV pool: sequences' block tables, the pool's part of the arena, its
 * readers and its watch. Functions take the pool's lock themselves where they need it. A function
 * that fails leaves the pool as it was. */
#ifndef MP_KV_KV_H
#define MP_KV_KV_H

#include "arena/home.h"
#include "kv/kv_shape.h"

#define MP_KV_MAX_SEQUENCES 0xfffffeu /* an id has 24 bits for its slot */

/* ---- the pool ---- */

/* The defaults of `config` are filled in, except for blocks and blocks_per_granule. */
moepage_status mp_kv_pool_create(struct moepage_device *home, const moepage_kv_pool_config *config,
                                 struct moepage_kv_pool **out);
/* Destroys a pool without readers and without a watch, and buries its handle. */
void mp_kv_pool_destroy(struct moepage_kv_pool *pool);

/* Properties of a pool that never change. */
struct moepage_device *mp_kv_pool_home(const struct moepage_kv_pool *pool);
const mp_kv_shape *mp_kv_pool_shape(const struct moepage_kv_pool *pool);
uint32_t mp_kv_pool_max_sequences(const struct moepage_kv_pool *pool);

void mp_kv_pool_info(struct moepage_kv_pool *pool, moepage_kv_pool_info *info);
/* `layer` is in range. */
void mp_kv_pool_layer(const struct moepage_kv_pool *pool, uint32_t layer,
                      moepage_kv_layer_view *view);
moepage_status mp_kv_pool_admit(struct moepage_kv_pool *pool, const uint64_t *tokens,
                                uint32_t n_sequences, moepage_kv_admission *out);
/* Sets how many sequences mp_kv_pool_admit lets run at once, 0 = no limit, and how many blocks they may come to,
 * UINT64_MAX = all. */
void mp_kv_pool_set_target(struct moepage_kv_pool *pool, uint32_t target, uint64_t most_blocks);

/* ---- sequences; a stale id fails with HANDLE ---- */

/* `native` is the stream of the caller's kernels. */
moepage_status mp_kv_create(struct moepage_kv_pool *pool, moepage_seq *out);
moepage_status mp_kv_append(struct moepage_kv_pool *pool, moepage_seq seq, uint64_t n_tokens,
                            void *native);
moepage_status mp_kv_truncate(struct moepage_kv_pool *pool, moepage_seq seq, uint64_t n_tokens);
moepage_status mp_kv_fork(struct moepage_kv_pool *pool, moepage_seq parent, moepage_seq *out);
moepage_status mp_kv_free(struct moepage_kv_pool *pool, moepage_seq seq);
moepage_status mp_kv_swap_out(struct moepage_kv_pool *pool, moepage_seq seq, void *native);
moepage_status mp_kv_swap_in(struct moepage_kv_pool *pool, moepage_seq seq, void *native);
moepage_status mp_kv_get_table(struct moepage_kv_pool *pool, moepage_seq seq,
                               moepage_kv_table *table);

/* ---- the boundary ---- */

/* The state of a pool at one moment, in blocks. */
typedef struct mp_kv_survey {
    uint64_t blocks, lent, used;
    uint64_t share;      /* mp_kv_pool_set_share */
    uint64_t burst_peak; /* most used since the burst began */
    /* Of one byte that is swapped; 0 = not known: none yet, or calls also wait for the caller's kernels. */
    double out_ns, in_ns;
} mp_kv_survey;

mp_kv_survey mp_kv_pool_look(struct moepage_kv_pool *pool);
void mp_kv_pool_begin_burst(struct moepage_kv_pool *pool);

/* Checks that live blocks would still fit if the pool had `blocks` blocks; *bytes: the bytes of the
 * arena that it would then own. The other side of the arena is not looked at: in a split it is
 * about to move. May fail with BUDGET or ARGUMENT. */
moepage_status mp_kv_pool_check_resize(struct moepage_kv_pool *pool, uint64_t blocks,
                                       uint64_t *bytes);
/* Makes the pool own `blocks` > 0 blocks, rounded up to whole granules. Before granules are given
 * up, the live blocks in them are copied elsewhere and all tables updated; tables that callers have
 * borrowed are then invalid. Allocates nothing. Fails with BUDGET if live blocks or the other side
 * need the room, and with BUSY if blocks would have to be copied while a session's step may read
 * them. A pool that shrinks waits for work submitted by steps that have ended, and on `native`, the
 * stream of the caller's kernels. */
moepage_status mp_kv_pool_resize(struct moepage_kv_pool *pool, uint64_t blocks, void *native);

/* ---- readers ---- */

/* What the pool knows of a session. From the beginning of a step to its end, the session
 * may read any block; on a device whose work outlasts the calls that submit it, until a
 * tick of its stream. */
typedef struct mp_kv_reader mp_kv_reader;

/* `stream` is one of the pool's device, or NULL if no work of the session outlasts its calls. May
 * fail with NO_MEMORY. */
moepage_status mp_kv_reader_open(struct moepage_kv_pool *pool, uint32_t max_sequences,
                                 mp_stream *stream, mp_kv_reader **out);
/* Waits for the work of ended steps. NULL is a no-op. */
void mp_kv_reader_close(mp_kv_reader *reader);
uint32_t mp_kv_pool_readers(const struct moepage_kv_pool *pool);

/* Announces a step: until it ends, no table changes. Fails with HANDLE if it names a stale sequence. */
moepage_status mp_kv_reader_begin(mp_kv_reader *reader, const moepage_step *step);
/* Announces the step's end; its submitted work reads blocks until `tick`. */
void mp_kv_reader_end(mp_kv_reader *reader, mp_tick tick);

/* ---- the watch ---- */

typedef struct mp_kv_use {
    moepage_seq seq;
    uint32_t blocks;
} mp_kv_use;

/* All functions are called under the pool's lock. */
typedef struct mp_kv_watch mp_kv_watch;
struct mp_kv_watch {
    /* Reports the sequences that a step names, at least one, with their blocks; `used_blocks`: the whole pool's.
     * `again`: the session's last step named the same ones, so none of them has come back. */
    void (*used)(mp_kv_watch *watch, const mp_kv_use *uses, uint32_t n, uint64_t used_blocks,
                 bool again);
    void (*freed)(mp_kv_watch *watch, moepage_seq seq);
    /* Reports a turn that has ended, with the next prefill behind a decode or with its sequence. */
    void (*turned)(mp_kv_watch *watch, uint64_t prefilled, uint64_t decoded);
};

/* Sets the pool's one watch, or removes it (NULL). No step is open. */
void mp_kv_pool_set_watch(struct moepage_kv_pool *pool, mp_kv_watch *watch);
bool mp_kv_pool_is_watched(const struct moepage_kv_pool *pool);

#endif
