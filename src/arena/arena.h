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
 * refused and changes nothing. The ledger counts exactly the claimed bytes.
 *
 * The sides may own `limit` bytes in all. Where that is less than the addresses, part of what is free between
 * them has no memory: the hole, in whole parts of the device's. It moves out of the way of a side that grows:
 *
 *   | slot 0 | ... | slot n-1 | free |   hole, no memory   | free | granule | ... | granule |
 *
 * so that neither side's memory ever has to move for the budget, and none moves between the sides
 * where the limit is all there is. Parts that a side owns in part count as its own: close to the limit, up to two
 * parts less one byte each cannot be owned. */
#ifndef MP_ARENA_ARENA_H
#define MP_ARENA_ARENA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ledger.h"
#include "device/seam.h"
#include "moepage.h"

typedef enum mp_side { MP_SIDE_EXPERTS, MP_SIDE_KV, MP_SIDES } mp_side;

typedef struct mp_arena {
    unsigned char *base;
    uint64_t bytes; /* of addresses */
    uint64_t limit; /* that the sides may own; may be less than they do while a budget shrinks */
    uint64_t hole_first, hole_end;
    uint64_t part;              /* as the device's part_bytes */
    mp_device *device;          /* NULL without a hole */
    mp_ledger *ledger;          /* of the device */
    uint64_t unit[MP_SIDES];    /* 0: no pool on this side */
    uint64_t claimed[MP_SIDES]; /* bytes */
    pthread_mutex_t lock;
} mp_arena;

void mp_arena_init(mp_arena *arena, void *base, uint64_t bytes, mp_ledger *ledger);
void mp_arena_fini(mp_arena *arena);

/* ---- the limit ---- */

/* Before the arena's first use: gives it a device, and a limit, which is `bytes` or, with parts, less. If
 * not all of it is `backed`, it has no memory yet, and gets what the limit allows. NO_MEMORY. */
moepage_status mp_arena_open_hole(mp_arena *arena, mp_device *device, uint64_t limit, bool backed);
/* Raises the limit: memory first, so that it can be owned at once. NO_MEMORY, and the limit stays. May block for long. */
moepage_status mp_arena_grow(mp_arena *arena, uint64_t limit);
/* Sets the limit of claims from now on; no memory moves. It may be less than what the sides own. */
void mp_arena_aim(mp_arena *arena, uint64_t limit);
/* Gives back the memory past the limit. False, and nothing done, if the sides own more. */
bool mp_arena_settle(mp_arena *arena);

/* The limit of claims. */
uint64_t mp_arena_limit(mp_arena *arena);
/* Bytes that have memory. */
uint64_t mp_arena_backed(mp_arena *arena);
/* Bytes within the limit that the sides can divide in any proportion. */
uint64_t mp_arena_divisible(mp_arena *arena);
/* Returns the least limit under which both sides could own so much; they fit the addresses. */
uint64_t mp_arena_least(const mp_arena *arena, uint64_t experts, uint64_t kv);
/* Return the bytes that a side could own under a limit beside `other` bytes of the other one, and whether both
 * fit. */
uint64_t mp_arena_most(const mp_arena *arena, uint64_t limit, mp_side side, uint64_t other);
bool mp_arena_fits(const mp_arena *arena, uint64_t limit, uint64_t experts, uint64_t kv);

/* ---- the sides ---- */

/* Takes a side for a pool whose unit is `unit` bytes (> 0); BUSY if another pool has it.
 * Claims no bytes. */
moepage_status mp_arena_attach(mp_arena *arena, mp_side side, uint64_t unit);
/* Gives the side up, its claimed bytes included. */
void mp_arena_detach(mp_arena *arena, mp_side side);

/* Makes the side own exactly `units` units. BUDGET if the other side or the limit is in the way; NO_MEMORY if
 * the hole is, and cannot move: memory that the other side gave up may then be lost until the budget moves. */
moepage_status mp_arena_resize(mp_arena *arena, mp_side side, uint64_t units);

/* Return how many units, or bytes, the side could own while the other side stays as it is. */
uint64_t mp_arena_room(mp_arena *arena, mp_side side);
uint64_t mp_arena_room_bytes(mp_arena *arena, mp_side side);

/* Return the fixed base of a side's numbering, and its number of units if it owned
 * all addresses. */
unsigned char *mp_arena_side_base(const mp_arena *arena, mp_side side);
uint64_t mp_arena_side_max(const mp_arena *arena, mp_side side);

/* Bytes a side owns now. */
uint64_t mp_arena_claimed(mp_arena *arena, mp_side side);

#endif
