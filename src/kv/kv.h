/* kv.h — the door of the KV pool: block tables of sequences, the pool's part of the arena, its readers
 * and its watch. Every function takes the pool's lock if it needs it. One that fails leaves the pool
 * as it was. */
#ifndef MP_KV_KV_H
#define MP_KV_KV_H

#include "arena/home.h"
#include "kv/kv_shape.h"

#define MP_KV_MAX_SEQUENCES 0xfffffeu /* an id has 24 bits for its slot */

/* ---- the pool ---- */

/* `config` has its defaults filled in, blocks and blocks_per_granule excepted. */
moepage_status mp_kv_pool_create(struct moepage_device *home, const moepage_kv_pool_config *config,
                                 struct moepage_kv_pool **out);
/* Buries the handle; the pool has no readers and no watch. */
void mp_kv_pool_destroy(struct moepage_kv_pool *pool);

/* What never changes about a pool. */
struct moepage_device *mp_kv_pool_home(const struct moepage_kv_pool *pool);
const mp_kv_shape *mp_kv_pool_shape(const struct moepage_kv_pool *pool);
uint32_t mp_kv_pool_max_sequences(const struct moepage_kv_pool *pool);

void mp_kv_pool_info(struct moepage_kv_pool *pool, moepage_kv_pool_info *info);
/* `layer` is in range. */
void mp_kv_pool_layer(const struct moepage_kv_pool *pool, uint32_t layer,
                      moepage_kv_layer_view *view);
moepage_status mp_kv_pool_admit(struct moepage_kv_pool *pool, const uint64_t *tokens,
                                uint32_t n_sequences, moepage_kv_admission *out);

/* ---- sequences; HANDLE for a stale id ---- */

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

/* What a pool is at one moment, in blocks. */
typedef struct mp_kv_survey {
    uint64_t blocks;
    uint64_t used;
    uint64_t burst_peak; /* most used since the burst began */
} mp_kv_survey;

mp_kv_survey mp_kv_pool_look(struct moepage_kv_pool *pool);
void mp_kv_pool_begin_burst(struct moepage_kv_pool *pool);

/* Checks that live blocks would still fit if the pool had `blocks` (> 0) blocks; *bytes is what it
 * would then own of the arena. Whether the other side is in the way is not asked: in a split it is
 * about to move. BUDGET, ARGUMENT. */
moepage_status mp_kv_pool_check_resize(struct moepage_kv_pool *pool, uint64_t blocks,
                                       uint64_t *bytes);
/* Makes the pool own `blocks` > 0 blocks, rounded up to whole granules. Live blocks in granules
 * that go are copied elsewhere, and every table follows them, before any granule is given up.
 * Borrowed tables end if so. Allocates nothing. BUDGET: live blocks or the other side need the
 * room. BUSY: blocks would have to be copied while a session's step may read them. A shrinking
 * pool waits for what ended steps, and `native`, the stream of the caller's kernels, have
 * submitted. */
moepage_status mp_kv_pool_resize(struct moepage_kv_pool *pool, uint64_t blocks, void *native);

/* ---- readers ---- */

/* A session, as the pool knows it: from the beginning of a step to its end it may read any block,
 * and where work outlasts the calls that submit it, until a tick of its stream. */
typedef struct mp_kv_reader mp_kv_reader;

/* `stream` is of the pool's device; NULL: nothing of the session's outlasts its calls. NO_MEMORY. */
moepage_status mp_kv_reader_open(struct moepage_kv_pool *pool, uint32_t max_sequences,
                                 mp_stream *stream, mp_kv_reader **out);
/* NULL is a no-op. */
void mp_kv_reader_close(mp_kv_reader *reader);
uint32_t mp_kv_pool_readers(const struct moepage_kv_pool *pool);

/* A step is about to open, and no table changes until it ends. HANDLE if it names a stale sequence. */
moepage_status mp_kv_reader_begin(mp_kv_reader *reader, const moepage_step *step);
/* The step has ended; what it has submitted reads blocks until `tick`. */
void mp_kv_reader_end(mp_kv_reader *reader, mp_tick tick);

/* ---- the watch ---- */

typedef struct mp_kv_use {
    moepage_seq seq;
    uint32_t blocks;
} mp_kv_use;

/* Both functions are called under the pool's lock. */
typedef struct mp_kv_watch mp_kv_watch;
struct mp_kv_watch {
    /* The sequences that a step names, one at least, and the blocks of each now; `used_blocks` of all
     * of the pool's. `again`: the session has named just these lately, so that nothing has come back. */
    void (*used)(mp_kv_watch *watch, const mp_kv_use *uses, uint32_t n, uint64_t used_blocks,
                 bool again);
    void (*freed)(mp_kv_watch *watch, moepage_seq seq);
};

/* Sets the pool's only watch, or takes it away (NULL); no step is open. */
void mp_kv_pool_set_watch(struct moepage_kv_pool *pool, mp_kv_watch *watch);
bool mp_kv_pool_is_watched(const struct moepage_kv_pool *pool);

#endif
