/* kv_pool.h — the inside of the KV pool: sequences, their block tables, and the granules of the arena
 * that the blocks live in. Rooms above include kv.h.
 *
 *   kv_shape     geometry: granules, layers, ids        kv_sequence  create, append, fork, ...
 *   kv_blocks    free blocks and reference counts       kv_swap      to host memory and back
 *   kv_copy      moves whole blocks                     kv_resize    the boundary, relocation
 *   kv_reader    sessions that read blocks              kv_door      what rooms above call
 *
 * Every function declared here is called with the pool's lock held. The lock is taken before the arena's and may be held
 * while block copies run. A function that fails leaves the pool as it was. */
#ifndef MP_KV_KV_POOL_H
#define MP_KV_KV_POOL_H

#include <pthread.h>

#include "kv/kv.h"
#include "kv/kv_blocks.h"

/* A sequence id: a number from the device's count of sequences above, its slot's index + 1 below.
 * Slots are reused, ids are not, nor does another pool of the device give the same ones. */
#define MP_KV_INDEX_BITS 24
#define MP_KV_INDEX_MASK ((1u << MP_KV_INDEX_BITS) - 1)

/* A slot for one sequence. */
typedef struct mp_kv_sequence {
    moepage_seq id;
    uint32_t next_free; /* in a free slot: index + 1 of the next one, 0 ends the list */
    bool live;
    bool swapped;
    uint32_t n_blocks; /* whether on the device or swapped */
    uint32_t capacity; /* of `ids` */
    uint64_t n_tokens;
    uint32_t *ids; /* [n_blocks] block ids; room without meaning while swapped */
    void *host;    /* swapped: [n_blocks][block_bytes], layer after layer in a block */
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
    uint32_t same_steps; /* since they were counted as uses */
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

    mp_stream *inner; /* copies inside the device: they do not cross the bus */
    mp_stream *bus;   /* copies to and from the host: a step waits for them */
    mp_kv_reader *readers;
    mp_copy *copies; /* [layers] of the block under way */
    _Atomic int32_t copy_result;
    mp_kv_counters counters;
    mp_kv_watch *watch; /* or NULL */
};

/* The sequence behind an id; HANDLE for a stale one. Valid until the lock is released. */
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
/* Gives up the blocks that the table holds from index `first` on; the table itself stays. */
void mp_kv_sequence_drop_blocks(struct moepage_kv_pool *pool, mp_kv_sequence *sequence,
                                uint32_t first);
/* Gives up what a live sequence holds, and its slot. */
void mp_kv_sequence_release(struct moepage_kv_pool *pool, mp_kv_sequence *sequence);

moepage_status mp_kv_sequence_swap_out(struct moepage_kv_pool *pool, moepage_seq id, void *native);
moepage_status mp_kv_sequence_swap_in(struct moepage_kv_pool *pool, moepage_seq id, void *native);

/* A run of block copies on one stream, after what the caller's stream, `native`, holds now: begin, any number
 * of adds, finish. The adds only submit; finish waits, whatever the adds returned, for them and the
 * caller's kernels, and says whether everything arrived. */
typedef struct mp_kv_copy {
    struct moepage_kv_pool *pool;
    mp_stream *stream;
    void *native;
    mp_tick tick;
    moepage_status entered; /* behind the caller's kernels */
} mp_kv_copy;

/* One end of a block copy: host memory of block_bytes, or with `host` NULL a block of the pool. */
typedef struct mp_kv_place {
    void *host;
    uint32_t block;
} mp_kv_place;

void mp_kv_copy_begin(mp_kv_copy *copy, struct moepage_kv_pool *pool, mp_stream *stream,
                      void *native);
moepage_status mp_kv_copy_add(mp_kv_copy *copy, mp_kv_place to, mp_kv_place from);
moepage_status mp_kv_copy_finish(mp_kv_copy *copy, moepage_status status);
/* Instead of finish, where only the caller's stream needs the copies: it waits, this thread does
 * not. The blocks stay in the pool. */
moepage_status mp_kv_copy_hand_over(mp_kv_copy *copy, moepage_status status);

#endif
