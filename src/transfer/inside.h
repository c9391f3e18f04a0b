/* inside.h — what the files of the transfer room share: one device's pipes, tiers and passages. */
#ifndef MP_TRANSFER_INSIDE_H
#define MP_TRANSFER_INSIDE_H

#include "transfer/host_tier.h"
#include "transfer/probe.h"
#include "transfer/tiers.h"

#define MP_NO_PASSAGE UINT32_MAX
#define MP_NO_PLACE UINT32_MAX
#define MP_STAGED UINT64_MAX

/* What is timed while serving: bytes as they cross the bus, dense ones out of the decoder and of the
 * cold tier. */
typedef enum mp_probe_kind {
    MP_PROBE_BUS,
    MP_PROBE_DECODE,
    MP_PROBE_COLD,
    MP_PROBES
} mp_probe_kind;

/* Where the bytes of a load come from. */
typedef enum mp_source {
    MP_FROM_NOWHERE,   /* no load is under way */
    MP_FROM_PIECES,    /* the model's pieces, or its read callback */
    MP_FROM_MAPPED,    /* an image in a mapped pack */
    MP_FROM_HOST_TIER, /* an entry of the host tier */
    MP_FROM_DEVICE     /* a compressed image in device memory */
} mp_source;

/* One load: how far it is, and when what was submitted for it ends. */
typedef struct mp_passage {
    mp_tick bus[MP_PIPES];    /* MP_STAGED while a transfer is on the pipe's stage */
    mp_tick decode[MP_PIPES]; /* 0: none */
    unsigned char *place;
    uint64_t offset; /* of what to stage next, in the piece */
    uint32_t key;
    uint32_t piece;
    uint32_t entry;   /* FROM_HOST_TIER: in use by this passage */
    uint32_t staging; /* 1 + the staging buffer that it fills; 0 = none */
    mp_source source;
    _Atomic int32_t result; /* a moepage_status once it has failed; the device writes it, too */
    bool behind_cold;       /* the FETCH bus waits for the entry's read */
    bool submitted;         /* everything has been submitted or staged */
} mp_passage;

/* Transfers gathered under the lock and handed to the device in one submission. Empty whenever the
 * lock is free. */
#define MP_STAGE_COPIES 128
typedef struct mp_stage {
    uint32_t n;
    uint32_t passage[MP_STAGE_COPIES];
    bool last[MP_STAGE_COPIES]; /* of a coded image: its decoding follows */
    mp_copy copies[MP_STAGE_COPIES];
} mp_stage;

/* A bus stream and the stream of the decoder behind it. */
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
    uint32_t passage; /* that fills it, or MP_NO_PASSAGE */
    mp_pipe_kind pipe;
    mp_tick tick; /* its last reader is that pipe's decode of this tick */
} mp_staging;

/* All but the last buffer serve demands, in turn, whichever their pipe: with few of them a demand may
 * wait for one whose image comes from the cold tier. The last one serves prefetches. */
typedef struct mp_staging_ring {
    mp_staging *buffers;
    uint32_t n; /* 0, or at least 2 */
    uint32_t next;
    void *memory;
    uint64_t bytes;
} mp_staging_ring;

#define MP_FILLS 4

/* One compressed image on its way to its place. */
typedef struct mp_fill {
    uint32_t place;
    bool whole;             /* all of it has been submitted */
    mp_tick tick;           /* of what has */
    _Atomic int32_t result; /* a moepage_status once its source has failed */
} mp_fill;

/* Compressed experts: place p, at memory + p * unit for good, is of round p / layers in layer
 * p % layers.
 *
 *   copied: [0, next)     landed, and found whole: place_of[key]     decoded from: [0, usable) */
typedef struct mp_compressed {
    unsigned char *memory;   /* the arena's base */
    uint64_t unit;           /* bytes of a place; 0 = the model has no such images */
    uint32_t *place_of;      /* [keys] whose image has landed there, or MP_NO_PLACE; or NULL */
    uint32_t n;              /* places */
    uint32_t usable;         /* of these, what may be decoded from: fewer while some are to go */
    uint32_t landed;         /* experts with an image */
    uint32_t stride;         /* between the members that join in consecutive rounds */
    uint32_t next;           /* place whose image is copied next */
    uint64_t offset;         /* of what is copied next, in the image */
    mp_fill fills[MP_FILLS]; /* ring */
    uint32_t first_fill, n_fills;
    mp_tick read[MP_PIPES];    /* the last decoding out of a place */
    mp_tick leaving[MP_PIPES]; /* as `read` was when places last became fewer */
    moepage_status failure;    /* the last one that was not an image's own */
} mp_compressed;

struct mp_transfer {
    struct moepage_device *home;
    const mp_device_ops *ops; /* the device's */
    const struct moepage_model *model;
    pthread_mutex_t *lock; /* the owner's */
    uint64_t place_bytes;
    uint32_t layers, experts, keys;
    uint32_t part, parts;
    uint32_t members; /* experts of a layer on this device */
    uint32_t bus_form;
    mp_pipe pipes[MP_PIPES];
    mp_staging_ring staging; /* empty when nothing is decoded */
    mp_host_tier *tier;      /* or NULL */
    mp_compressed compressed;
    mp_rates rates;             /* measured at creation */
    mp_probe probes[MP_PROBES]; /* and while it serves */
    mp_passage *passages;
    uint32_t n_passages;
    mp_decode_job *jobs;                /* [n_passages][MOEPAGE_MAX_EXPERT_TENSORS], or NULL */
    mp_stream *readers[MP_MAX_READERS]; /* readers.c */
    _Atomic mp_tick *reads; /* [n_passages][MP_MAX_READERS]; NULL where no work outlasts its call */
    mp_transfer_counters counters;
};

/* ---- measure.c ---- */

/* Fills transfer->rates on the streams and kernels that loads will use, never from constants
 * (FluxMoE §4.2). Up to `places` places (0: all that there is room for) of the arena are claimed for the
 * time being, and written. */
moepage_status mp_transfer_measure(mp_transfer *transfer, uint64_t places);

/* ---- pipe.c ---- */

moepage_status mp_pipes_open(mp_transfer *transfer, bool decoders);
/* Waits for what is under way. Safe when half open. */
void mp_pipes_close(mp_transfer *transfer);
/* Describes the decoder's jobs for an expert whose EXPH image will be at `image`;
 * jobs[MOEPAGE_MAX_EXPERT_TENSORS]. */
void mp_decode_describe(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                        const unsigned char *image, unsigned char *place, mp_decode_job *jobs);
/* Decodes the passage's jobs once all its transfers, which have been submitted, are done. False if the
 * device refused: the load has then failed. */
bool mp_pipe_decode(mp_transfer *transfer, mp_pipe_kind kind, uint32_t passage);
/* Returns true if a prefetch that needs a staging buffer would get one now. */
bool mp_pipe_may_prefetch(const mp_transfer *transfer);
/* Gives the passage a staging buffer: BUSY when a prefetch finds none free. A demand always gets one,
 * whose bus waits until it has been read. */
moepage_status mp_pipe_take_staging(mp_transfer *transfer, mp_pipe_kind kind, uint32_t passage);

/* Hands what is staged on a pipe to the device, and what follows it. */
void mp_pipe_flush(mp_transfer *transfer, mp_pipe_kind kind);
/* Applies an operation of the seam to each tick that a passage has on the pipes, to the first failure. */
moepage_status mp_pipes_each_tick(mp_transfer *transfer, uint32_t passage,
                                  moepage_status (*act)(mp_stream *stream, mp_tick tick));
/* Makes what a pipe's bus, or decoder, does from now on wait for the readers of a passage's place. */
moepage_status mp_readers_before_bus(mp_transfer *transfer, uint32_t passage, mp_pipe_kind pipe);
moepage_status mp_readers_before_decode(mp_transfer *transfer, uint32_t passage, mp_pipe_kind pipe);
/* Makes what a pipe's bus does from now on wait for a tick of another stream. */
moepage_status mp_pipe_wait(mp_transfer *transfer, mp_pipe_kind kind, mp_stream *other,
                            mp_tick tick);
/* The next `bytes` from `offset` on of an image in mapped memory, which is checked before any of it is
 * used; the caller sets dst and result. */
mp_copy mp_transfer_copy_mapped(const mp_transfer *transfer, uint32_t key, uint32_t form,
                                uint64_t offset, uint64_t bytes);

/* ---- readers.c ---- */

moepage_status mp_readers_open(mp_transfer *transfer);
/* Calls `act` for every tick that the next writer of a passage's place must see completed. */
moepage_status mp_readers_each(const mp_transfer *transfer, uint32_t passage,
                               moepage_status (*act)(void *context, mp_stream *reader,
                                                     mp_tick tick),
                               void *context);

/* ---- compressed.c ---- */

/* No memory is taken yet. NO_MEMORY. */
moepage_status mp_images_open(mp_transfer *transfer, uint64_t unit);
void mp_images_close(mp_transfer *transfer);
/* The expert that a place is for. */
uint32_t mp_images_key(const mp_transfer *transfer, uint32_t place);
/* Where the expert's image is, which is there to be decoded. */
const unsigned char *mp_images_find(const mp_transfer *transfer, uint32_t key);

static inline mp_image mp_transfer_image(const mp_transfer *transfer, uint32_t key, uint32_t form)
{
    mp_image image;
    mp_model_find_image(transfer->model, key / transfer->experts, key % transfer->experts, form,
                        &image);
    return image;
}

static inline uint64_t mp_transfer_now_ns(const mp_transfer *transfer)
{
    return transfer->ops->now_ns(transfer->home->device);
}

#endif
