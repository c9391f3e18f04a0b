/* host_tier.h — experts in host memory: a cache of the cold tier with a byte budget of its own.
 *
 * The tier is one range of host memory cut into equal entries, each holding one expert's image in
 * the form that crosses the bus. An image is read from the model (file, mapping or read callback)
 * by the device's COLD streams; loads into slots then copy it from here.
 *
 *   EMPTY -> READING -> VALID -> (evicted, least recently found first) -> EMPTY
 *               |  the read failed
 *               +-----> FAILED, found by nobody, EMPTY when its last user lets go
 *
 * An entry with users is never given away: a slot's load uses its entry from the moment it finds or
 * fetches it until the copy out of it has completed. Everything here is under the owning pool's
 * lock; only the fill callback runs elsewhere, on an I/O thread. */
#ifndef MP_TRANSFER_HOST_TIER_H
#define MP_TRANSFER_HOST_TIER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "arena/home.h"
#include "model/model.h"
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
    uint32_t newer, older;  /* neighbours in the entry's list; MP_NO_ENTRY at the ends */
    uint32_t lane;          /* that reads it */
    mp_tick tick;           /* when it will have; 0 = the lane refused to */
    bool guess;             /* READING for a prefetch that no demand has joined */
    _Atomic int32_t result; /* of the read */
    _Atomic uint64_t read_bytes;
    _Atomic bool buffered; /* and not all of it past the page cache */
} mp_host_entry;

/* VALID entries in order of use, or one lane's READING ones in order of submission. */
typedef struct mp_entry_list {
    uint32_t newest, oldest; /* MP_NO_ENTRY when there is none */
} mp_entry_list;

#define MP_MAX_COLD_LANES 64

typedef struct mp_cold_lane {
    mp_stream *stream;
    mp_tick last; /* submitted */
    mp_entry_list reading;
} mp_cold_lane;

typedef struct mp_host_tier {
    struct moepage_device *home;
    const struct moepage_model *model;
    uint32_t form;
    mp_host_memory memory;
    uint64_t unit;      /* bytes per entry: the model's image room */
    uint32_t n_entries; /* >= 1 */
    uint32_t n_keys;
    mp_host_entry *entries;
    uint32_t *entry_of; /* [n_keys] READING or VALID entry of an expert, or MP_NO_ENTRY */
    mp_entry_list valid;
    uint32_t n_valid;
    uint32_t n_guesses; /* entries with `guess` set */
    uint32_t *empty;    /* stack */
    uint32_t n_empty;
    mp_cold_lane lanes[MP_MAX_COLD_LANES];
    uint32_t n_lanes;
    uint64_t hits;       /* finds that found */
    uint64_t reads;      /* begun */
    uint64_t cold_bytes; /* of reads that have ended */
    uint64_t buffered;   /* of these, through the page cache, or out of memory */
    mp_probe *probe;     /* of reads, in bytes of dense experts; the owner's, or NULL */
    pthread_mutex_t failure_lock;
    uint32_t failure_key; /* the last failed read's expert, and its sentence */
    char failure[512];
} mp_host_tier;

/* A tier of `bytes` (rounded down to whole entries) for experts [0, n_keys) of the model in `form`;
 * expert of key k is layer k / experts, expert k % experts. BUDGET when not even one entry fits,
 * NO_MEMORY. */
moepage_status mp_host_tier_create(struct moepage_device *home, const struct moepage_model *model,
                                   uint32_t form, uint64_t bytes, mp_host_tier **out);

/* Waits for reads under way. NULL is a no-op. */
void mp_host_tier_destroy(mp_host_tier *tier);

/* The entry of an expert, READING or VALID, or MP_NO_ENTRY; settled first. Counts a hit if it is
 * there; a VALID one becomes the newest. */
uint32_t mp_host_tier_find(mp_host_tier *tier, uint32_t key);

/* Starts reading an expert that find did not find. When no entry is empty it settles the reads that
 * have ended, lane by lane, and then, if it must, evicts. MP_NO_ENTRY while every entry is in use or
 * READING; a refused submission shows as the entry's result. The entry has no user yet. May wait for
 * room in a cold stream's queue. `guess`: for a prefetch. */
uint32_t mp_host_tier_fetch(mp_host_tier *tier, uint32_t key, bool guess);

/* Would find or fetch give an entry now? Settles reads that have ended. */
bool mp_host_tier_has_room(mp_host_tier *tier, uint32_t key);

/* A demand depends on the entry: if it was read for a guess, it is one no more. */
void mp_host_tier_demand(mp_host_tier *tier, uint32_t entry);

/* A load begins to depend on an entry, READING or VALID, or ends to. The last user of a FAILED entry
 * empties it. */
void mp_host_tier_use(mp_host_tier *tier, uint32_t entry);
void mp_host_tier_let_go(mp_host_tier *tier, uint32_t entry);

/* Moves an entry on whose read has ended: READING to VALID, the newest, or to FAILED, which is EMPTY
 * at once where it has no user. Nothing happens to any other. */
void mp_host_tier_settle(mp_host_tier *tier, uint32_t entry);

/* Has the read of an entry in use ended? One atomic load; any thread. */
bool mp_host_tier_landed(const mp_host_tier *tier, uint32_t entry);

/* Where the image of an entry is, or will be. */
const unsigned char *mp_host_tier_image(const mp_host_tier *tier, uint32_t entry);

/* Copies the sentence of the last failed read if that was this expert's, else ""; any thread. */
void mp_host_tier_failure(mp_host_tier *tier, uint32_t key, char *out, size_t capacity);

/* Blocks until every read under way has ended. */
moepage_status mp_host_tier_sync(mp_host_tier *tier);

#endif
