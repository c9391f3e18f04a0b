/* Moves the boundary between expert slots and KV granules: each side's claim and its resizing; and the hole
 * between them, which has no memory. */
#include "arena/arena.h"

#include <assert.h>

#include "base/status.h"

static const char *const side_names[MP_SIDES] = {"expert", "KV"};

void mp_arena_init(mp_arena *arena, void *base, uint64_t bytes, mp_ledger *ledger)
{
    *arena = (mp_arena){.base = base, .bytes = bytes, .limit = bytes, .ledger = ledger};
    pthread_mutex_init(&arena->lock, NULL);
}

void mp_arena_fini(mp_arena *arena)
{
    assert(!arena->claimed[MP_SIDE_EXPERTS] && !arena->claimed[MP_SIDE_KV]);
    pthread_mutex_destroy(&arena->lock);
}

/* ---- the hole ---- */

static uint64_t rounded_up(const mp_arena *arena, uint64_t bytes)
{
    return bytes / arena->part * arena->part + (bytes % arena->part ? arena->part : 0);
}

static uint64_t rounded_down(const mp_arena *arena, uint64_t bytes)
{
    return bytes - bytes % arena->part;
}

/* Returns how large the hole must be for a limit: whole parts. */
static uint64_t hole_for(const mp_arena *arena, uint64_t limit)
{
    assert(limit >= arena->bytes || arena->part);
    return limit < arena->bytes ? rounded_up(arena, arena->bytes - limit) : 0;
}

static uint64_t hole_now(const mp_arena *arena)
{
    return arena->hole_end - arena->hole_first;
}

/* Returns the end of what experts may own beside so many bytes of KV. */
static uint64_t experts_end(const mp_arena *arena, uint64_t limit, uint64_t kv)
{
    uint64_t hole = hole_for(arena, limit), end = arena->bytes - kv;
    if (!hole)
        return end;
    end = rounded_down(arena, end);
    return end > hole ? end - hole : 0;
}

/* Returns the first byte that KV may own beside so many bytes of experts. */
static uint64_t kv_first(const mp_arena *arena, uint64_t limit, uint64_t experts)
{
    uint64_t hole = hole_for(arena, limit);
    return hole ? rounded_up(arena, experts) + hole : experts;
}

uint64_t mp_arena_most(const mp_arena *arena, uint64_t limit, mp_side side, uint64_t other)
{
    if (side == MP_SIDE_EXPERTS)
        return experts_end(arena, limit, other);
    uint64_t first = kv_first(arena, limit, other);
    return first < arena->bytes ? arena->bytes - first : 0;
}

bool mp_arena_fits(const mp_arena *arena, uint64_t limit, uint64_t experts, uint64_t kv)
{
    uint64_t hole = hole_for(arena, limit);
    if (experts > arena->bytes || kv > arena->bytes - experts)
        return false;
    return !hole || rounded_up(arena, experts) + hole <= rounded_down(arena, arena->bytes - kv);
}

uint64_t mp_arena_least(const mp_arena *arena, uint64_t experts, uint64_t kv)
{
    if (!arena->part)
        return arena->bytes;
    uint64_t low = rounded_up(arena, experts), high = rounded_down(arena, arena->bytes - kv);
    return low < high ? arena->bytes - (high - low) : arena->bytes;
}

static moepage_status back(mp_arena *arena, uint64_t from, uint64_t to)
{
    return from < to ? arena->device->ops->back(arena->device, from, to - from) : MOEPAGE_OK;
}

static void unback(mp_arena *arena, uint64_t from, uint64_t to)
{
    if (from < to)
        arena->device->ops->unback(arena->device, from, to - from);
}

/* Moves the hole, which reaches from `first` to `end` afterwards. What loses memory is free, and loses it
 * before anything else gets some. A failure leaves the hole where it was, or larger if even that has no
 * memory any more. */
static moepage_status move_hole(mp_arena *arena, uint64_t first, uint64_t end)
{
    uint64_t was_first = arena->hole_first, was_end = arena->hole_end;
    if (first < was_first) {
        unback(arena, first, was_first);
        arena->hole_first = first;
    }
    if (end > was_end) {
        unback(arena, was_end, end);
        arena->hole_end = end;
    }
    moepage_status status = back(arena, was_first, first);
    if (!status) {
        arena->hole_first = first;
        status = back(arena, end, was_end);
    }
    if (!status) {
        arena->hole_end = end;
        return MOEPAGE_OK;
    }
    const mp_kept_error kept = mp_error_keep();
    if (first < was_first && !back(arena, first, was_first))
        arena->hole_first = was_first;
    if (end > was_end && !back(arena, was_end, end))
        arena->hole_end = was_end;
    return mp_fail_kept(status, &kept);
}

/* Moves the hole out of the way of what the sides are to own. */
static moepage_status make_way(mp_arena *arena, uint64_t experts, uint64_t kv)
{
    uint64_t hole = hole_now(arena), wanted = hole_for(arena, arena->limit);
    if (!hole)
        return MOEPAGE_OK;
    uint64_t kept = hole < wanted ? hole : wanted;
    uint64_t low = rounded_up(arena, experts), high = rounded_down(arena, arena->bytes - kv);
    uint64_t first = arena->hole_first, end = arena->hole_end;
    if (first < low) {
        first = low;
        end = end > low + kept ? end : low + kept;
    }
    if (end > high) {
        end = high;
        first = first < high - kept ? first : high - kept;
    }
    return move_hole(arena, first, end);
}

/* Makes the hole as large as the limit asks for; the sides are out of its way. */
static void widen(mp_arena *arena)
{
    uint64_t hole = hole_for(arena, arena->limit);
    if (hole <= hole_now(arena))
        return;
    uint64_t high = rounded_down(arena, arena->bytes - arena->claimed[MP_SIDE_KV]);
    if (!hole_now(arena))
        arena->hole_first = arena->hole_end = rounded_up(arena, arena->claimed[MP_SIDE_EXPERTS]);
    uint64_t end = arena->hole_first + hole < high ? arena->hole_first + hole : high;
    (void)move_hole(arena, end - hole, end); /* gives memory to nothing */
}

/* ---- the limit ---- */

moepage_status mp_arena_open_hole(mp_arena *arena, mp_device *device, uint64_t limit, bool backed)
{
    moepage_status status = MOEPAGE_OK;
    arena->device = device;
    arena->part = device->part_bytes;
    arena->limit = limit;
    if (backed)
        return MOEPAGE_OK;
    arena->hole_end = rounded_down(arena, arena->bytes);
    arena->hole_first = arena->hole_end - hole_for(arena, limit);
    status = back(arena, 0, arena->hole_first);
    return status ? status : back(arena, arena->hole_end, arena->bytes);
}

void mp_arena_aim(mp_arena *arena, uint64_t limit)
{
    pthread_mutex_lock(&arena->lock);
    arena->limit = limit;
    pthread_mutex_unlock(&arena->lock);
}

bool mp_arena_settle(mp_arena *arena)
{
    pthread_mutex_lock(&arena->lock);
    bool there = mp_arena_fits(arena, arena->limit, arena->claimed[MP_SIDE_EXPERTS],
                               arena->claimed[MP_SIDE_KV]);
    if (there)
        widen(arena);
    pthread_mutex_unlock(&arena->lock);
    return there;
}

moepage_status mp_arena_grow(mp_arena *arena, uint64_t limit)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&arena->lock);
    uint64_t hole = hole_now(arena), wanted = hole_for(arena, limit);
    if (wanted < hole) /* from its low end, where experts are */
        status = move_hole(arena, arena->hole_end - wanted, arena->hole_end);
    if (!status)
        arena->limit = limit;
    pthread_mutex_unlock(&arena->lock);
    return status;
}

uint64_t mp_arena_limit(mp_arena *arena)
{
    pthread_mutex_lock(&arena->lock);
    uint64_t limit = arena->limit;
    pthread_mutex_unlock(&arena->lock);
    return limit;
}

uint64_t mp_arena_backed(mp_arena *arena)
{
    pthread_mutex_lock(&arena->lock);
    uint64_t bytes = arena->bytes - hole_now(arena);
    pthread_mutex_unlock(&arena->lock);
    return bytes;
}

uint64_t mp_arena_divisible(mp_arena *arena)
{
    pthread_mutex_lock(&arena->lock);
    uint64_t hole = hole_for(arena, arena->limit);
    uint64_t lost = hole ? hole + 2 * (arena->part - 1) : 0;
    uint64_t bytes = arena->bytes > lost ? arena->bytes - lost : 0;
    pthread_mutex_unlock(&arena->lock);
    return bytes;
}

/* ---- the sides ---- */

static mp_side other_side(mp_side side)
{
    return side == MP_SIDE_KV ? MP_SIDE_EXPERTS : MP_SIDE_KV;
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

/* Gives a side more. The ledger is charged, and the bytes have memory, before the side owns them. */
static moepage_status give(mp_arena *arena, mp_side side, uint64_t bytes)
{
    uint64_t more = bytes - arena->claimed[side], others = arena->claimed[other_side(side)];
    if (!mp_ledger_try_reserve(arena->ledger, more))
        return mp_fail(
            MOEPAGE_E_BUDGET,
            "the %s side needs %llu more bytes than the device's budget of %llu still has",
            side_names[side], (unsigned long long)more,
            (unsigned long long)atomic_load(&arena->ledger->limit));
    moepage_status status =
        side == MP_SIDE_EXPERTS ? make_way(arena, bytes, others) : make_way(arena, others, bytes);
    if (status)
        mp_ledger_release(arena->ledger, more);
    else
        arena->claimed[side] = bytes;
    return status;
}

moepage_status mp_arena_resize(mp_arena *arena, mp_side side, uint64_t units)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&arena->lock);
    uint64_t unit = arena->unit[side], before = arena->claimed[side];
    assert(unit > 0);
    uint64_t room =
        mp_arena_most(arena, arena->limit, side, arena->claimed[other_side(side)]) / unit;
    if (units <= before / unit) {
        arena->claimed[side] = units * unit;
        mp_ledger_release(arena->ledger, before - units * unit);
    } else if (units > room) {
        status = mp_fail(MOEPAGE_E_BUDGET,
                         "the %s side cannot own %llu units of %llu bytes: the arena has room for "
                         "%llu beside the other side",
                         side_names[side], (unsigned long long)units, (unsigned long long)unit,
                         (unsigned long long)room);
    } else {
        status = give(arena, side, units * unit);
    }
    pthread_mutex_unlock(&arena->lock);
    return status;
}

uint64_t mp_arena_room_bytes(mp_arena *arena, mp_side side)
{
    pthread_mutex_lock(&arena->lock);
    uint64_t bytes = mp_arena_most(arena, arena->limit, side, arena->claimed[other_side(side)]);
    pthread_mutex_unlock(&arena->lock);
    return bytes;
}

uint64_t mp_arena_room(mp_arena *arena, mp_side side)
{
    assert(arena->unit[side] > 0);
    return mp_arena_room_bytes(arena, side) / arena->unit[side];
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
