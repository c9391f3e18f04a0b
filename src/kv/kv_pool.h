/* kv_pool.h — the kv room's private header: sequences, their block tables, and the granules of the
 * arena that blocks are in. Rooms above include kv.h.
 *
 *   kv_shape     geometry: granules, layers, ids        kv_sequence  create, append, fork, ...
 *   kv_blocks    free blocks and reference counts       kv_swap      to host memory and back
 *   kv_copy      moves whole blocks                     kv_resize    the boundary, relocation
 *   kv_reader    sessions that read blocks              kv_loan      blocks lent to the other side
 *   kv_door      the calls of rooms above
 *
 * Every function declared here is called with the pool's lock held. The lock is taken before
 * the arena's and may be held while block copies run. A function that fails leaves the pool
 * as it was. */
#ifndef MP_KV_KV_POOL_H
#define MP_KV_KV_POOL_H

#include <pthread.h>

#include "kv/kv.h"
#include "kv/kv_blocks.h"
#include "kv/kv_loan.h"
#include "planning/rate.h"

/* A sequence id has the device's running count of sequences in its upper bits, and its slot's index
 * + 1 in its lower bits. Slots are reused, but no id is ever given twice, not even by another pool
 * of the device. */
#define MP_KV_INDEX_BITS 24
#define MP_KV_INDEX_MASK ((1u << MP_KV_INDEX_BITS) - 1)

/* A slot for one sequence. */
typedef struct mp_kv_sequence {
    moepage_seq id;
    uint32_t next_free; /* in a free slot: index + 1 of the next one, 0 ends the list */
    bool live;
    bool swapped;
    bool used;         /* by a step, since it came here */
    uint32_t n_blocks; /* on the device or swapped out */
    uint32_t capacity; /* of `ids` */
    uint64_t n_tokens;
    uint64_t prefilled, decoded; /* in the present turn, while a watch is set */
    uint32_t *ids;               /* [n_blocks] block ids; while swapped, only reserved room */
    void *host; /* if swapped: [n_blocks][block_bytes], a block's layers one after the other */
    uint64_t host_bytes;
} mp_kv_sequence;

typedef struct mp_kv_counters {
    uint64_t swap_bytes;
    uint64_t copies_on_write;
    uint64_t relocated;
    uint64_t swapped_out;
    uint64_t swapped_in;
    uint64_t refused;
    uint64_t resizes;
} mp_kv_counters;

struct mp_kv_reader {
    struct moepage_kv_pool *pool;
    mp_kv_reader *next;
    mp_stream *stream; /* or NULL */
    mp_tick tick;
    bool step_open;
    mp_kv_use *uses; /* [max_sequences] of the last step */
    uint32_t n_uses;
    uint32_t same_steps; /* steps with the same sequences since these were last counted */
};

struct moepage_kv_pool {
    mp_handle handle;
    _Atomic uint32_t n_readers;
    struct moepage_device *home;
    pthread_mutex_t lock;
    mp_kv_shape shape;
    unsigned char *base; /* granule 0, whether the pool owns it now or not */
    mp_kv_blocks blocks;

    mp_kv_sequence *sequences; /* [n_slots], room for slot_capacity */
    uint32_t n_slots;
    uint32_t slot_capacity;
    uint32_t max_sequences;
    uint32_t free_slot; /* index + 1, 0 = none */
    uint32_t live;
    uint32_t swapped;

    mp_stream *inner; /* copies inside the device, which do not cross the bus */
    mp_stream *bus;   /* copies to and from the host; a step waits for them */
    mp_kv_reader *readers;
    mp_copy *copies; /* [layers] of the block under way */
    _Atomic int32_t copy_result;
    mp_kv_counters counters;
    mp_rate swap[2];      /* ns per byte: out, in; where calls wait for copies alone */
    mp_kv_watch *watch;   /* or NULL */
    uint32_t target;      /* sequences that should run at most; 0 = no limit */
    uint64_t most_blocks; /* that may be used after an admission; UINT64_MAX = all */
    uint64_t share;       /* blocks that sequences may use; fewer than there are: all of these */
    pthread_mutex_t loan_lock; /* held while blocks are called back; the first of all locks */
    mp_kv_loan *loan;          /* or NULL; written under both locks */
};

/* Returns the blocks that are lent. */
uint64_t mp_kv_lent(const struct moepage_kv_pool *pool);
/* Returns true if a call that has just failed can be made again once lent blocks are back. */
bool mp_kv_is_short_of_lent(const struct moepage_kv_pool *pool, moepage_status status);
/* Calls blocks back until the pool has the wanted ones; without the lock. */
moepage_status mp_kv_recall(struct moepage_kv_pool *pool, uint64_t wanted, void *native);

/* Finds the sequence of an id; HANDLE for a stale one. Valid until the lock is released. */
moepage_status mp_kv_sequence_find(struct moepage_kv_pool *pool, moepage_seq id,
                                   mp_kv_sequence **out);
moepage_status mp_kv_sequence_create(struct moepage_kv_pool *pool, moepage_seq *out);
moepage_status mp_kv_sequence_append(struct moepage_kv_pool *pool, moepage_seq id,
                                     uint64_t n_tokens, void *native);
moepage_status mp_kv_sequence_truncate(struct moepage_kv_pool *pool, moepage_seq id,
                                       uint64_t n_tokens);
moepage_status mp_kv_sequence_fork(struct moepage_kv_pool *pool, moepage_seq parent,
                                   moepage_seq *out);
moepage_status mp_kv_sequence_free(struct moepage_kv_pool *pool, moepage_seq id);
moepage_status mp_kv_sequence_table(struct moepage_kv_pool *pool, moepage_seq id,
                                    moepage_kv_table *table);
/* Counts its part of a step, while a watch is set. */
void mp_kv_sequence_use(struct moepage_kv_pool *pool, mp_kv_sequence *sequence,
                        const moepage_step_sequence *part);
/* Drops the blocks that the table holds from index `first` on; the table itself stays. */
void mp_kv_sequence_drop_blocks(struct moepage_kv_pool *pool, mp_kv_sequence *sequence,
                                uint32_t first);
/* Returns the sequences that run: those of each session's last step, and those that came since and have not
 * been in one. Known while a watch is set. */
uint32_t mp_kv_running(const struct moepage_kv_pool *pool);
/* Frees all that a live sequence holds, and its slot. */
void mp_kv_sequence_release(struct moepage_kv_pool *pool, mp_kv_sequence *sequence);

moepage_status mp_kv_sequence_swap_out(struct moepage_kv_pool *pool, moepage_seq id, void *native);
moepage_status mp_kv_sequence_swap_in(struct moepage_kv_pool *pool, moepage_seq id, void *native);

/* A run of block copies on one stream, behind the work that the caller's stream, `native`, has now:
 * begin, any number of adds, finish. The adds only submit. Whatever they returned, finish waits for
 * the copies and the caller's kernels, and returns whether everything has arrived. */
typedef struct mp_kv_copy {
    struct moepage_kv_pool *pool;
    mp_stream *stream;
    void *native;
    mp_tick tick;
    moepage_status entered; /* status of entering behind the caller's kernels */
} mp_kv_copy;

/* One end of a block copy: block_bytes of host memory, or a block of the pool if `host` is NULL. */
typedef struct mp_kv_place {
    void *host;
    uint32_t block;
} mp_kv_place;

void mp_kv_copy_begin(mp_kv_copy *copy, struct moepage_kv_pool *pool, mp_stream *stream,
                      void *native);
moepage_status mp_kv_copy_add(mp_kv_copy *copy, mp_kv_place to, mp_kv_place from);
moepage_status mp_kv_copy_finish(mp_kv_copy *copy, moepage_status status);
/* Called instead of finish if only the caller's stream needs the copies: the stream waits, this
 * thread does not. None of the blocks may leave the pool's part of the arena before that. */
moepage_status mp_kv_copy_hand_over(mp_kv_copy *copy, moepage_status status);

#endif
