/* transfer.h — the door of the transfer room: an expert's bytes, from a tier to an address.
 *
 *   cold tier --COLD stream--> host tier --bus--> place                            DENSE
 *                              host tier --bus--> staging --decode kernel--> place   EXPH
 *   compressed in device memory                 --decode kernel--> place           EXPH
 *   the model's own memory, without a host tier: as from the host tier
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

#define MP_MAX_READERS 64 /* streams that read places: one per session */

typedef struct mp_transfer mp_transfer;

/* DEMAND; FETCH, for demands behind a cold read, so that these do not hold up the others; PREFETCH. */
typedef enum mp_pipe_kind {
    MP_PIPE_DEMAND,
    MP_PIPE_FETCH,
    MP_PIPE_PREFETCH,
    MP_PIPES
} mp_pipe_kind;

/* NOW; LATER: a prefetch has to wait for its turn; NEVER: every entry of the host tier is in use. */
typedef enum mp_start { MP_START_NOW, MP_START_LATER, MP_START_NEVER } mp_start;

/* Dense bytes per second; 0 = not measured. */
typedef struct mp_rates {
    uint64_t bus, decode, cold;
} mp_rates;

/* What is told once. Of every layer's experts the device has those e with e % parts == part. */
typedef struct mp_transfer_setup {
    struct moepage_device *home; /* whose arena's experts' side is attached and empty */
    const struct moepage_model *model;
    pthread_mutex_t *lock;
    uint64_t place_bytes;
    uint32_t part, parts;
    uint32_t bus_form; /* MOEPAGE_FORM_* that crosses the bus */
} mp_transfer_setup;

/* Counters since creation, read by the owner. */
typedef struct mp_transfer_counters {
    uint64_t demand_bytes, prefetch_bytes, decodes, compressed_loads;
} mp_transfer_counters;

/* ---- set-up and end (transfer.c); the lock is not held ---- */

/* Checks the config's tier fields against the model and chooses the form that crosses the bus. */
moepage_status mp_transfer_check(const struct moepage_model *model,
                                 const moepage_expert_pool_config *config, uint32_t *bus_form);
/* Bytes of workspace, and places for compressed experts, on one device of n_devices; the config has
 * passed mp_transfer_check. */
void mp_transfer_sizes(const struct moepage_model *model, const moepage_expert_pool_config *config,
                       uint32_t bus_form, uint32_t n_devices, uint64_t *workspace_bytes,
                       uint64_t *image_places);
/* Opens pipes, host tier and staging, measures them, and chooses which experts stay compressed. */
moepage_status mp_transfer_open(const mp_transfer_setup *setup,
                                const moepage_expert_pool_config *config, mp_transfer **out);
/* Room for passages 0 to n - 1; before the first of them begins. */
moepage_status mp_transfer_set_passages(mp_transfer *transfer, uint32_t n);
/* Brings the compressed experts into device memory; blocks. */
moepage_status mp_transfer_fill(mp_transfer *transfer);
/* Waits for what is under way. NULL is a no-op. */
void mp_transfer_close(mp_transfer *transfer);

void mp_transfer_describe(const mp_transfer *transfer, moepage_expert_pool_info *info);
mp_transfer_counters *mp_transfer_get_counters(mp_transfer *transfer);

/* ---- one load (passage.c) ---- */

/* Tells whether a load of `key` could begin on the pipe. Asked by mp_shard_claim alone. */
mp_start mp_transfer_may_start(mp_transfer *transfer, uint32_t key, mp_pipe_kind pipe);
/* Begins a passage to `place`: decides where the bytes come from, and reserves the host tier's
 * entry for them. mp_transfer_may_start has said NOW, and the lock has been held since. */
void mp_passage_begin(mp_transfer *transfer, uint32_t passage, uint32_t key, unsigned char *place,
                      mp_pipe_kind pipe);
/* Submits or stages up to `limit` of the bytes that still have to cross the bus, and the decoding
 * behind the last; returns how many. A DEMAND goes all the way, waiting where it must; a PREFETCH
 * does what can be done now. What is staged must be flushed before the lock is given up. */
uint64_t mp_passage_advance(mp_transfer *transfer, uint32_t passage, mp_pipe_kind pipe,
                            uint64_t limit);
void mp_transfer_flush(mp_transfer *transfer);
/* Ends a passage whose bytes have landed, or that is given up with nothing of it in flight. */
void mp_passage_end(mp_transfer *transfer, uint32_t passage);

/* Returns true if everything has been submitted; if all that was submitted has completed. */
bool mp_passage_is_submitted(const mp_transfer *transfer, uint32_t passage);
bool mp_passage_has_landed(const mp_transfer *transfer, uint32_t passage);
/* The first failure reported so far, without looking any further; any thread. */
moepage_status mp_passage_failure(const mp_transfer *transfer, uint32_t passage);
/* Why a load whose transfers have landed failed, or MOEPAGE_OK. */
moepage_status mp_passage_result(mp_transfer *transfer, uint32_t passage);
bool mp_passage_uses_host_tier(const mp_transfer *transfer, uint32_t passage);
bool mp_passage_waits_for_cold(const mp_transfer *transfer, uint32_t passage);

/* ---- waiting (passage.c); with the lock or without, for a passage that its caller holds ---- */

moepage_status mp_passage_sync(mp_transfer *transfer, uint32_t passage);
/* Blocks until only the device itself can fail the load: see mp_device_ops.settle. */
moepage_status mp_passage_settle(mp_transfer *transfer, uint32_t passage);
/* Makes what `reader` does from now on start after the load. */
moepage_status mp_passage_lead(mp_transfer *transfer, uint32_t passage, mp_stream *reader);
moepage_status mp_transfer_sync(mp_transfer *transfer);
/* Waits for every read of the cold tier. */
moepage_status mp_transfer_sync_reads(mp_transfer *transfer);

#endif
