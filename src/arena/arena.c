/* Moves the boundary between expert slots and KV granules: each side's claim and its resizing. */
#include "arena/arena.h"

#include <assert.h>
#include <stdbool.h>

#include "base/status.h"

static const char *const side_names[MP_SIDES] = {"expert", "KV"};

void mp_arena_init(mp_arena *arena, void *base, uint64_t bytes, mp_ledger *ledger)
{
    *arena = (mp_arena){.base = base, .bytes = bytes, .ledger = ledger};
    pthread_mutex_init(&arena->lock, NULL);
}

void mp_arena_fini(mp_arena *arena)
{
    assert(!arena->claimed[MP_SIDE_EXPERTS] && !arena->claimed[MP_SIDE_KV]);
    pthread_mutex_destroy(&arena->lock);
}

/* Returns the bytes that the other side holds and `side` therefore cannot have. */
static uint64_t taken_bytes(const mp_arena *arena, mp_side side)
{
    return arena->claimed[side == MP_SIDE_KV ? MP_SIDE_EXPERTS : MP_SIDE_KV];
}

moepage_status mp_arena_attach(mp_arena *arena, mp_side side, uint64_t unit)
{
    assert(unit > 0);
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&arena->lock);
    if (arena->unit[side])
        status =
            mp_fail(MOEPAGE_E_BUSY, "the device has one %s pool already, and can have one only",
                    side_names[side]);
    else
        arena->unit[side] = unit;
    pthread_mutex_unlock(&arena->lock);
    return status;
}

void mp_arena_detach(mp_arena *arena, mp_side side)
{
    pthread_mutex_lock(&arena->lock);
    mp_ledger_release(arena->ledger, arena->claimed[side]);
    arena->claimed[side] = 0;
    arena->unit[side] = 0;
    pthread_mutex_unlock(&arena->lock);
}

/* Changes a side's claim. The ledger is charged before the side owns the bytes, and credited after
 * the side has given them up. */
static moepage_status set_claim(mp_arena *arena, mp_side side, uint64_t bytes)
{
    uint64_t before = arena->claimed[side];
    if (bytes > before && !mp_ledger_try_reserve(arena->ledger, bytes - before))
        return mp_fail(
            MOEPAGE_E_BUDGET,
            "the %s side needs %llu more bytes than the device's budget of %llu still has",
            side_names[side], (unsigned long long)(bytes - before),
            (unsigned long long)arena->ledger->limit);
    arena->claimed[side] = bytes;
    if (bytes < before)
        mp_ledger_release(arena->ledger, before - bytes);
    return MOEPAGE_OK;
}

moepage_status mp_arena_resize(mp_arena *arena, mp_side side, uint64_t units)
{
    pthread_mutex_lock(&arena->lock);
    uint64_t unit = arena->unit[side];
    assert(unit > 0);
    uint64_t room = (arena->bytes - taken_bytes(arena, side)) / unit;
    moepage_status status;
    if (units > room)
        status = mp_fail(MOEPAGE_E_BUDGET,
                         "the %s side cannot own %llu units of %llu bytes: the arena has room for "
                         "%llu beside the other side",
                         side_names[side], (unsigned long long)units, (unsigned long long)unit,
                         (unsigned long long)room);
    else
        status = set_claim(arena, side, units * unit);
    pthread_mutex_unlock(&arena->lock);
    return status;
}

uint64_t mp_arena_room(mp_arena *arena, mp_side side)
{
    pthread_mutex_lock(&arena->lock);
    assert(arena->unit[side] > 0);
    uint64_t room = (arena->bytes - taken_bytes(arena, side)) / arena->unit[side];
    pthread_mutex_unlock(&arena->lock);
    return room;
}

unsigned char *mp_arena_side_base(const mp_arena *arena, mp_side side)
{
    assert(arena->unit[side] > 0);
    return arena->base + (side == MP_SIDE_EXPERTS ? 0 : arena->bytes % arena->unit[side]);
}

uint64_t mp_arena_side_max(const mp_arena *arena, mp_side side)
{
    assert(arena->unit[side] > 0);
    return arena->bytes / arena->unit[side];
}

uint64_t mp_arena_claimed(mp_arena *arena, mp_side side)
{
    pthread_mutex_lock(&arena->lock);
    uint64_t bytes = arena->claimed[side];
    pthread_mutex_unlock(&arena->lock);
    return bytes;
}
