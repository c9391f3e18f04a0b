/* pipe.h — the ways that an expert's bytes take into a slot.
 *
 *   cold tier --COLD stream--> host tier --bus--> slot                            DENSE
 *                              host tier --bus--> staging --decode kernel--> slot   EXPH
 *   compressed in device memory                 --decode kernel--> slot           EXPH
 *   the model's own memory, without a host tier: as from the host tier
 *
 * A pipe is a bus stream and the stream of the decoder behind it. There are three: DEMAND; FETCH,
 * for demands that wait for a cold read, so that they do not hold up those that need not; and
 * PREFETCH. A whole load is submitted at once: streams wait for each other's ticks, and no thread
 * has to be there in between. The pool's lock is held throughout. */
#ifndef MP_TRANSFER_PIPE_H
#define MP_TRANSFER_PIPE_H

#include <stdbool.h>

#include "device/seam.h"

#define MP_NO_SLOT UINT32_MAX
#define MP_STAGED UINT64_MAX

struct mp_shard;
struct moepage_model;

typedef enum mp_pipe_kind {
    MP_PIPE_DEMAND,
    MP_PIPE_FETCH,
    MP_PIPE_PREFETCH,
    MP_PIPES
} mp_pipe_kind;

/* Where the bytes of a load come from. */
typedef enum mp_source {
    MP_FROM_NOWHERE,   /* not decided yet */
    MP_FROM_PIECES,    /* the model's pieces, or its read callback */
    MP_FROM_MAPPED,    /* an image in a mapped pack */
    MP_FROM_HOST_TIER, /* an entry of the host tier */
    MP_FROM_DEVICE     /* a compressed image in device memory */
} mp_source;

/* One load's way: how far it is, and when what was submitted for it ends. */
typedef struct mp_passage {
    mp_tick bus[MP_PIPES];    /* MP_STAGED while a transfer is on the pipe's stage */
    mp_tick decode[MP_PIPES]; /* 0: none */
    uint64_t offset;          /* of what to stage next, in the piece */
    uint32_t piece;
    uint32_t entry;   /* FROM_HOST_TIER: it is a user of that entry */
    uint32_t staging; /* 1 + the staging buffer that it fills; 0 = none */
    mp_source source;
    bool behind_cold; /* the FETCH bus waits for the entry's read */
    bool complete;    /* everything has been submitted or staged */
} mp_passage;

/* Transfers gathered under the lock and handed to the device in one submission. Empty whenever the
 * lock is free. */
#define MP_STAGE_COPIES 128
typedef struct mp_stage {
    uint32_t n;
    uint32_t slot[MP_STAGE_COPIES];
    bool last[MP_STAGE_COPIES]; /* of a coded image: its decoding follows */
    mp_copy copies[MP_STAGE_COPIES];
} mp_stage;

typedef struct mp_pipe {
    mp_stream *bus;
    mp_stream *decode; /* NULL when nothing is decoded */
    mp_tick last_bus;  /* submitted so far */
    mp_tick last_decode;
    mp_stage stage;
} mp_pipe;

/* Device memory for an image between bus and decoder. */
typedef struct mp_staging {
    unsigned char *memory;
    uint32_t slot; /* that it is being filled for, or MP_NO_SLOT */
    mp_pipe_kind pipe;
    mp_tick tick; /* its last reader is that pipe's decode of this tick */
} mp_staging;

/* All but the last buffer are used by demands, in turn, whichever their pipe: with few of them a
 * demand may wait for one whose image comes from the cold tier. The last one is the prefetches'. */
typedef struct mp_staging_ring {
    mp_staging *buffers;
    uint32_t n; /* 0, or at least 2 */
    uint32_t next;
    void *memory;
    uint64_t bytes;
} mp_staging_ring;

/* Dense bytes per second; 0 = not measured. */
typedef struct mp_rates {
    uint64_t bus, decode, cold;
} mp_rates;

/* Creates the pipes' streams, with decoders or without. */
moepage_status mp_pipes_open(struct mp_shard *shard, bool decoders);
/* Waits for what is under way. Safe on a half-opened shard. */
void mp_pipes_close(struct mp_shard *shard);

/* Hands what is staged to the device, and what follows it. */
void mp_pipe_flush(struct mp_shard *shard, mp_pipe_kind kind);
void mp_pipes_flush(struct mp_shard *shard);

/* Puts a copy for a slot on a pipe's stage. */
void mp_pipe_stage(struct mp_shard *shard, mp_pipe_kind kind, uint32_t slot, const mp_copy *copy,
                   bool last);

/* What a pipe's bus does from now on waits for a tick of another stream. */
moepage_status mp_pipe_wait(struct mp_shard *shard, mp_pipe_kind kind, mp_stream *other,
                            mp_tick tick);

/* The decoder's jobs for an expert whose EXPH image will be at `image`; jobs
 * [MOEPAGE_MAX_EXPERT_TENSORS]. */
void mp_decode_describe(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                        const unsigned char *image, unsigned char *slot, mp_decode_job *jobs);

/* Decodes the slot's jobs once all its transfers, which have been submitted, are done. False if the
 * device refused: the load has then failed. */
bool mp_pipe_decode(struct mp_shard *shard, mp_pipe_kind kind, uint32_t slot);

/* Would a prefetch get a staging buffer now, if it needs one? */
bool mp_pipe_may_prefetch(const struct mp_shard *shard);

/* Gives the slot's load a staging buffer: BUSY when a prefetch finds none free. A demand always
 * gets one, whose bus waits until it has been read. */
moepage_status mp_pipe_take_staging(struct mp_shard *shard, mp_pipe_kind kind, uint32_t slot);

/* Blocks until the pipes have done everything that was submitted. */
moepage_status mp_pipes_sync(struct mp_shard *shard);

/* The same for one load. */
moepage_status mp_pipe_sync(struct mp_shard *shard, const mp_passage *passage);

/* Blocks until only the device itself can fail the load: see mp_device_ops.settle. */
moepage_status mp_pipe_settle(struct mp_shard *shard, const mp_passage *passage);

/* What `reader` does from now on starts after the load. */
moepage_status mp_pipe_lead(struct mp_shard *shard, const mp_passage *passage, mp_stream *reader);

#endif
