/* transfer.h — the door of the transfer room: an expert's bytes, from a tier to an address.
 *
 *   cold tier --COLD stream--> host tier --bus--> place                            DENSE
 *                              host tier --bus--> staging --decode kernel--> place   EXPH
 *   compressed in device memory                 --decode kernel--> place           EXPH
 *   the model's own files or memory, without a host tier: as from the host tier
 *
 * One mp_transfer serves one device. A load is a *passage*: a number that its owner chooses, whose
 * place (an address in device memory) may hold one expert at a time. The whole load is submitted at
 * once: streams wait for each other's ticks, and no thread has to be there in between. Nothing here
 * knows what a place is used for, or which expert deserves one.
 *
 * The owner's lock is held in every call, unless a comment says otherwise. */
#ifndef MP_TRANSFER_TRANSFER_H
#define MP_TRANSFER_TRANSFER_H

#include <pthread.h>
#include <stdbool.h>

#include "arena/home.h"
#include "model/model.h"
#include "planning/deal.h"

#define MP_MAX_READERS 64 /* streams that read places: one per session */

typedef struct mp_transfer mp_transfer;

/* A device's pipes. FETCH is for demands behind a cold read, which must not hold up others. */
typedef enum mp_pipe_kind {
    MP_PIPE_DEMAND,
    MP_PIPE_FETCH,
    MP_PIPE_PREFETCH,
    MP_PIPES
} mp_pipe_kind;

/* LATER: a prefetch has to wait for its turn. NEVER: every entry of the host tier is in use. */
typedef enum mp_start { MP_START_NOW, MP_START_LATER, MP_START_NEVER } mp_start;

/* Dense bytes per second; 0 = not measured. */
typedef struct mp_rates {
    uint64_t bus, decode, cold;
} mp_rates;

/* Counters since creation, read by the owner. */
typedef struct mp_transfer_counters {
    uint64_t demand_bytes, prefetch_bytes, decodes, compressed_loads;
} mp_transfer_counters;

/* ---- what it reports (tiers.c) ---- */

void mp_transfer_describe(const mp_transfer *transfer, moepage_expert_pool_info *info);
mp_transfer_counters *mp_transfer_get_counters(mp_transfer *transfer);

/* ---- one load (passage.c) ---- */

/* Tells whether a load of `key` could begin on the pipe. */
mp_start mp_transfer_may_start(mp_transfer *transfer, uint32_t key, mp_pipe_kind pipe);
/* Begins a passage to `place`: decides where the bytes come from, and reserves the host tier's
 * entry for them. mp_transfer_may_start has said NOW, and the lock has been held since. */
void mp_passage_begin(mp_transfer *transfer, uint32_t passage, uint32_t key, unsigned char *place,
                      mp_pipe_kind pipe);
/* Submits or stages `limit` of the bytes that have yet to cross the bus, or up to 63 more, for parts begin at
 * multiples of 64, and the decoding behind the last; returns how many. A DEMAND makes streams wait where they
 * must; a PREFETCH does only what need not wait. Staged copies must be flushed before the lock is released. */
uint64_t mp_passage_advance(mp_transfer *transfer, uint32_t passage, mp_pipe_kind pipe,
                            uint64_t limit);
void mp_transfer_flush(mp_transfer *transfer);
/* Ends a passage that has landed, or one that is given up with nothing of it in flight. */
void mp_passage_end(mp_transfer *transfer, uint32_t passage);

/* Return true if the whole load has been submitted, and if all that was submitted has completed. */
bool mp_passage_is_submitted(const mp_transfer *transfer, uint32_t passage);
bool mp_passage_has_landed(const mp_transfer *transfer, uint32_t passage);
/* Returns the failure reported so far, or MOEPAGE_OK, without looking at the source. Any thread. */
moepage_status mp_passage_failure(const mp_transfer *transfer, uint32_t passage);
/* Returns the failure of a load whose transfers have landed, or MOEPAGE_OK. */
moepage_status mp_passage_result(mp_transfer *transfer, uint32_t passage);
bool mp_passage_uses_host_tier(const mp_transfer *transfer, uint32_t passage);
bool mp_passage_waits_for_cold(const mp_transfer *transfer, uint32_t passage);

/* ---- waiting (pipe.c, passage.c); with or without the lock, for a passage that the caller holds ---- */

/* Blocks until its bytes are there, or until only the device itself can fail it: mp_device_ops.settle. */
typedef enum mp_until { MP_UNTIL_LANDED, MP_UNTIL_SETTLED } mp_until;
moepage_status mp_passage_wait(mp_transfer *transfer, uint32_t passage, mp_until until);
/* Makes later work of `reader` start after the load. */
moepage_status mp_passage_lead(mp_transfer *transfer, uint32_t passage, mp_stream *reader);
moepage_status mp_transfer_sync(mp_transfer *transfer);
/* Waits for every read of the cold tier. */
moepage_status mp_transfer_sync_reads(mp_transfer *transfer);

#endif
