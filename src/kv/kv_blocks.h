/* kv_blocks.h — which KV blocks are free, and how many tables share each of the others.
 *
 * Blocks are numbered 0..total-1 in address order over everything the pool could ever own; those
 * below `first` belong to the other side of the arena for now. Free blocks are the set bits of a
 * tree of 64-bit words, in which a bit of an upper level says that a word below has any. Taking
 * always gives the highest free number: the blocks furthest from the boundary fill first, so that
 * the pool can usually shrink without moving anything, and a block that has to move finds a place
 * beyond the new boundary whenever there is one. A take or a drop touches one word per level, four
 * levels for 16 million blocks.
 *
 * Everything is sized for `total` at the start (pages never touched cost nothing), so that moving
 * the boundary allocates nothing. Callers hold the pool's lock. */
#ifndef MP_KV_KV_BLOCKS_H
#define MP_KV_KV_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

#define MP_KV_LEVELS 6 /* 64^6 > 2^32 */

typedef struct mp_kv_blocks {
    uint32_t *refs; /* [total] tables that hold the block; 0 = free or not the pool's */
    uint64_t *tree[MP_KV_LEVELS]; /* tree[0]: one bit per block; tree[levels - 1]: one word */
    uint32_t levels;
    uint32_t total;
    uint32_t first; /* the boundary */
    uint32_t free;
    uint32_t peak;       /* most ever held by tables at once */
    uint32_t burst_peak; /* most since the controller's last burst began */
    uint64_t wanted;     /* that would be held, had the last call fitted that did not */
} mp_kv_blocks;

/* `total` > 0. The pool owns no block until the boundary moves. May fail with NO_MEMORY. */
moepage_status mp_kv_blocks_init(mp_kv_blocks *blocks, uint32_t total);
/* A zeroed struct is allowed. */
void mp_kv_blocks_fini(mp_kv_blocks *blocks);

/* Makes blocks from `first` on the pool's. Lowering the boundary adds free blocks; before it is
 * raised, every block that leaves must be free or moved away. */
void mp_kv_blocks_set_first(mp_kv_blocks *blocks, uint32_t first);

static inline uint32_t mp_kv_blocks_capacity(const mp_kv_blocks *blocks)
{
    return blocks->total - blocks->first;
}

static inline uint32_t mp_kv_blocks_used(const mp_kv_blocks *blocks)
{
    return mp_kv_blocks_capacity(blocks) - blocks->free;
}

/* Takes the highest free block, held by one table. `free` > 0. */
uint32_t mp_kv_blocks_take(mp_kv_blocks *blocks);
/* Counts one more table for a block that is held. */
void mp_kv_blocks_share(mp_kv_blocks *blocks, uint32_t block);
/* Counts one table less; the last one frees the block. */
void mp_kv_blocks_drop(mp_kv_blocks *blocks, uint32_t block);

/* Moves a held block to the highest free one, which must lie above it, and leaves that number in
 * refs[from] as a forwarding address, so that no table of moves is needed. Afterwards the boundary
 * is raised above `from`, or the block is moved back. */
uint32_t mp_kv_blocks_move(mp_kv_blocks *blocks, uint32_t from);
void mp_kv_blocks_move_back(mp_kv_blocks *blocks, uint32_t from);

/* WOULD_NOT_FIT with its sentence if fewer than `needed` blocks are free. */
moepage_status mp_kv_blocks_check_free(mp_kv_blocks *blocks, uint64_t needed);

#endif
