/* arena.h — the one range of device memory, and the boundary inside it.
 *
 * Expert slots stack from the low end, KV granules from the high end:
 *
 *   base                                                     base + bytes
 *   | slot 0 | slot 1 | ... | slot n-1 |  free  | granule | ... | granule |
 *                                      ^experts           ^kv side
 *
 * Trading bytes between the two moves ownership, never mappings. Each side has a unit (slot
 * stride, granule size) that it is cut into; indices stay fixed while the boundary moves, because
 * both sides number from a fixed base: slot i is at base + i * unit, and granule g at
 * kv_base + g * unit, where kv_base is chosen so that the last possible granule ends at the top.
 *
 * A side is resized in one call, under the arena's lock: a claim that would meet the other side is
 * refused and changes nothing. The ledger counts exactly the claimed bytes. */
#ifndef MP_ARENA_ARENA_H
#define MP_ARENA_ARENA_H

#include <pthread.h>
#include <stdint.h>

#include "base/ledger.h"
#include "moepage.h"

typedef enum mp_side { MP_SIDE_EXPERTS, MP_SIDE_KV, MP_SIDES } mp_side;

typedef struct mp_arena {
    unsigned char *base;
    uint64_t bytes;
    mp_ledger *ledger;          /* of the device */
    uint64_t unit[MP_SIDES];    /* 0: no pool on this side */
    uint64_t claimed[MP_SIDES]; /* bytes */
    pthread_mutex_t lock;
} mp_arena;

void mp_arena_init(mp_arena *arena, void *base, uint64_t bytes, mp_ledger *ledger);
void mp_arena_fini(mp_arena *arena);

/* Takes a side for a pool whose unit is `unit` bytes (> 0); BUSY if another pool has it.
 * Claims no bytes. */
moepage_status mp_arena_attach(mp_arena *arena, mp_side side, uint64_t unit);
/* Gives the side up, its claimed bytes included. */
void mp_arena_detach(mp_arena *arena, mp_side side);

/* Makes the side own exactly `units` units; BUDGET if the other side is in the way. */
moepage_status mp_arena_resize(mp_arena *arena, mp_side side, uint64_t units);

/* Returns how many units the side could own while the other side stays as it is. */
uint64_t mp_arena_room(mp_arena *arena, mp_side side);

/* Return the fixed base of a side's numbering, and its number of units if it owned
 * the whole arena. */
unsigned char *mp_arena_side_base(const mp_arena *arena, mp_side side);
uint64_t mp_arena_side_max(const mp_arena *arena, mp_side side);

/* Bytes a side owns now. */
uint64_t mp_arena_claimed(mp_arena *arena, mp_side side);

#endif
