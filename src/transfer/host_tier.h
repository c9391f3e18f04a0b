/* host_tier.h — experts in host memory: a cache of the cold tier with a byte budget of its own.
 *
 * The tier is one range of host memory cut into equal entries, each holding one expert's image in
 * the form that crosses the bus. An image is read from the model (file, mapping or read callback)
 * by the device's COLD streams; loads into slots then copy it from here.
 *
 *   EMPTY -> READING -> VALID -> (evicted, see `in_turn`) -> EMPTY
 *               |  the read failed
 *               +-----> FAILED: cannot be found; EMPTY when its last user has let go
 *
 * An entry with users is never given away: a load uses its entry from the moment it finds or
 * fetches it until the copy out of it has completed. Every call is made under the owner's lock, except those
 * marked "any thread"; only the fill callback runs outside of it, on an I/O thread. */
#ifndef MP_TRANSFER_HOST_TIER_H
#define MP_TRANSFER_HOST_TIER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "arena/home.h"
#include "model/model.h"
#include "policy/ring.h"
#include "transfer/failure.h"
#include "transfer/probe.h"

#define MP_NO_ENTRY UINT32_MAX

typedef enum mp_entry_state {
    MP_ENTRY_EMPTY,
    MP_ENTRY_READING,
    MP_ENTRY_VALID,
    MP_ENTRY_FAILED
} mp_entry_state;

typedef struct mp_host_entry {
    uint32_t key;
    mp_entry_state state;
    uint32_t users;
    uint32_t lane;          /* that the read was submitted to */
    mp_tick tick;           /* of the read; 0 = the lane refused it */
    bool guess;             /* READING for a prefetch that no demand has joined */
    _Atomic int32_t result; /* of the read */
    _Atomic uint64_t read_bytes;
    _Atomic bool buffered; /* some of the read went through the page cache, or came out of memory */
} mp_host_entry;

#define MP_MAX_COLD_LANES 64

typedef struct mp_cold_lane {
    mp_stream *stream;
    mp_direct_desk desk; /* of its reads, one at a time; empty if the model's need none */
    mp_tick last;        /* submitted */
    uint32_t reading;    /* the ring of its READING entries, in order of submission */
} mp_cold_lane;

typedef struct mp_host_tier {
    struct moepage_device *home;
    const struct moepage_model *model;
    uint32_t form;
    mp_host_memory memory;
    uint64_t unit;      /* bytes per entry: the model's image room */
    uint64_t timed;     /* bytes that the probe counts for a read */
    uint32_t n_entries; /* >= 1 */
    uint32_t n_keys;
    mp_host_entry *entries;
    uint32_t *entry_of; /* [n_keys] READING or VALID entry of an expert, or MP_NO_ENTRY */
    mp_link *links;     /* [n_entries + 1 + MP_MAX_COLD_LANES] the rings' sentinels come last */
    uint32_t valid;     /* the ring of VALID entries, in order of use */
    /* Experts are needed one after the other, again and again: the one found last is evicted, since it is
     * needed last. Otherwise the one found least recently. */
    bool in_turn;
    uint32_t n_valid;
    uint32_t n_guesses; /* entries with `guess` set */
    uint32_t *empty;    /* stack */
    uint32_t n_empty;
    mp_cold_lane lanes[MP_MAX_COLD_LANES];
    uint32_t n_lanes;
    uint64_t hits;       /* calls of find that found the expert */
    uint64_t reads;      /* begun */
    uint64_t cold_bytes; /* of reads that have ended */
    /* Reads among these that went through the page cache, or came out of memory. */
    uint64_t buffered;
    mp_probe *probe; /* of reads, in bytes of dense experts or of integers; the owner's, or NULL */
    mp_failure failure;
} mp_host_tier;

/* Opens a tier of `bytes` (rounded down to whole entries) for all experts of the model in `form`;
 * key k is expert k % experts of layer k / experts. Fails with BUDGET if not even one entry fits,
 * and with NO_MEMORY. */
moepage_status mp_host_tier_create(struct moepage_device *home, const struct moepage_model *model,
                                   uint32_t form, uint64_t bytes, mp_host_tier **out);

/* Waits for reads under way. NULL is a no-op. */
void mp_host_tier_destroy(mp_host_tier *tier);

/* Settles the entry of an expert and returns it, READING or VALID, or MP_NO_ENTRY. Counts a hit if
 * there is one; a VALID entry becomes the newest. */
uint32_t mp_host_tier_find(mp_host_tier *tier, uint32_t key);

/* Starts reading an expert that has no entry. If no entry is empty, it settles the reads that have
 * ended, lane by lane, and then evicts if it must. Returns MP_NO_ENTRY while every entry is in use
 * or READING. A refused submission becomes the entry's result. The entry has no user yet. May wait
 * for room in a cold stream's queue. `guess`: for a prefetch. */
uint32_t mp_host_tier_fetch(mp_host_tier *tier, uint32_t key, bool guess);

/* Returns true if find or fetch would give an entry now. Settles reads that have ended. */
bool mp_host_tier_has_room(mp_host_tier *tier, uint32_t key);

/* Notes that a demand depends on the entry, which is then no longer counted as a guess. */
void mp_host_tier_demand(mp_host_tier *tier, uint32_t entry);

/* Begin and end a load's use of an entry, which is READING or VALID when it begins. The last user
 * of a FAILED entry empties it. */
void mp_host_tier_use(mp_host_tier *tier, uint32_t entry);
void mp_host_tier_let_go(mp_host_tier *tier, uint32_t entry);

/* If the entry's read has ended, moves it from READING to VALID, as the newest, or to FAILED, which
 * becomes EMPTY at once if it has no user. Otherwise does nothing. */
void mp_host_tier_settle(mp_host_tier *tier, uint32_t entry);

/* Returns true if the read of an entry in use has ended: one atomic load. Any thread. */
bool mp_host_tier_landed(const mp_host_tier *tier, uint32_t entry);

/* Returns the address at which the image of an entry is, or will be. */
const unsigned char *mp_host_tier_image(const mp_host_tier *tier, uint32_t entry);

/* Blocks until every read under way has ended. */
moepage_status mp_host_tier_sync(mp_host_tier *tier);

#endif
