/* cold_rig.h — a device whose cold reads happen when the test says so, and a bank model to read.
 *
 * It has host memory, streams and completed(), all that a host tier asks of a device. A read runs on
 * the test's thread when the test lands it, so every interleaving of reads and calls can be had. */
#ifndef COLD_RIG_H
#define COLD_RIG_H

#include "bank_model.h"
#include "transfer/host_tier.h"

#define COLD_RIG_LAYERS 3
#define COLD_RIG_EXPERTS 5
#define COLD_RIG_KEYS (COLD_RIG_LAYERS * COLD_RIG_EXPERTS)

typedef struct cold_rig {
    mp_device device; /* first: the rig is found from its address */
    struct moepage_device home;
    bank_model bank;
    uint64_t mapped_bytes;
    uint32_t streams;   /* open */
    uint32_t refuse_in; /* countdowns: 1 = the next submission, stream or mapping is refused, and */
    uint32_t no_stream_in; /* later ones are not; 0 = none */
    uint32_t no_memory_in;
    bool poisoned; /* reads are skipped from now on */
} cold_rig;

/* The model reads through its callback. */
void cold_rig_open(cold_rig *rig, uint32_t io_threads);
/* Asserts that nothing is left of what the device gave out. */
void cold_rig_close(cold_rig *rig);

/* A tier of so many dense experts. */
mp_host_tier *cold_rig_tier(cold_rig *rig, uint32_t entries);

/* Runs the next read of a lane; false when there is none. */
bool cold_rig_land(mp_host_tier *tier, uint32_t lane);
/* Runs all reads there are. */
void cold_rig_land_all(mp_host_tier *tier);

/* Does this image hold this expert? */
bool cold_rig_matches(const bank_model *bank, uint32_t key, const unsigned char *image);

#endif
