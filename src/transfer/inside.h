/* inside.h — the transfer room's private header: one device's pipes, tiers and passages. */
#ifndef MP_TRANSFER_INSIDE_H
#define MP_TRANSFER_INSIDE_H

#include "transfer/host_tier.h"
#include "transfer/probe.h"
#include "transfer/setup.h"
#include "transfer/tiers.h"

#define MP_NO_PASSAGE UINT32_MAX
#define MP_NO_PLACE UINT32_MAX
#define MP_STAGED UINT64_MAX

/* What is timed while serving. The bus counts bytes as they cross it; the decoder and the cold tier
 * count the bytes of dense experts. */
typedef enum mp_probe_kind {
    MP_PROBE_BUS,
    MP_PROBE_DECODE,
    MP_PROBE_COLD,
    MP_PROBES
} mp_probe_kind;

/* Where a load's bytes come from. */
typedef enum mp_source {
    MP_FROM_NOWHERE,   /* no load is under way */
    MP_FROM_PIECES,    /* the model's pieces: of files, of memory, or of its read callback */
    MP_FROM_STORED,    /* an image in a pack */
    MP_FROM_HOST_TIER, /* an entry of the host tier */
    MP_FROM_DEVICE     /* a compressed image in device memory */
} mp_source;

/* One load: how far it has come, and the ticks at which its submissions end. */
typedef struct mp_passage {
    mp_tick bus[MP_PIPES];    /* MP_STAGED while a transfer is on the pipe's stage */
    mp_tick decode[MP_PIPES]; /* 0: none; MP_STAGED while the image is in the pipe's batch */
    unsigned char *place;
    uint64_t offset; /* in the piece, of the next bytes to stage */
    uint32_t key;
    uint32_t piece;
    uint32_t entry;   /* FROM_HOST_TIER: this passage is one of its users */
    uint32_t staging; /* 1 + the staging buffer that it fills; 0 = none */
    mp_source source;
    _Atomic int32_t result; /* a moepage_status if it has failed; the device may write it, too */
    bool behind_cold;       /* the FETCH bus, which has all its parts, waits for the entry's read */
    bool submitted;         /* everything has been submitted or staged */
} mp_passage;

/* Copies that gather under the lock and go to the device in one submission. Empty whenever the lock
 * is free, so that no load waits for a copy that is not submitted. */
#define MP_STAGE_COPIES 128
typedef struct mp_stage {
    uint32_t n;
    uint32_t passage[MP_STAGE_COPIES];
    bool last[MP_STAGE_COPIES]; /* of a coded image: its decoding is submitted with the stage */
    mp_copy copies[MP_STAGE_COPIES];
} mp_stage;

/* Images that gather under the lock to be decoded in one launch; empty whenever the lock is free.
 * Images take rows in turn, and launches end in their order. An image that is not decoded yet keeps
 * its passage: with as many rows as passages, the next row is always free. */
typedef struct mp_decode_batch {
    mp_decode_job *jobs;           /* [rows][tensors] */
    const _Atomic int32_t **skips; /* [rows][tensors] */
    uint32_t *passages;            /* [rows] */
    uint32_t first, n;             /* rows of the images gathered, which do not wrap */
} mp_decode_batch;

/* A bus stream and the stream of the decoder behind it. */
typedef struct mp_pipe {
    mp_stream *bus;
    mp_stream *decode; /* NULL if nothing is decoded */
    mp_tick last_bus;  /* submitted so far */
    mp_tick last_decode;
    mp_stage stage;
    mp_decode_batch batch;
} mp_pipe;

/* Device memory for an image between bus and decoder. */
typedef struct mp_staging {
    unsigned char *memory;
    uint32_t passage; /* the passage that fills it, or MP_NO_PASSAGE */
    mp_pipe_kind pipe;
    mp_tick tick; /* of the decode, on the pipe above, that reads it last */
} mp_staging;

/* All buffers but the last serve demands in turn, on whichever pipe; with few buffers, a demand may
 * have to wait for one whose image comes from the cold tier. The last buffer serves prefetches. */
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
    mp_tick tick;           /* of the last part submitted */
    _Atomic int32_t result; /* a moepage_status if its source has failed */
} mp_fill;

/* Compressed experts. Place p lies at memory + p * unit and never moves; it belongs to round p /
 * layers of layer p % layers.
 *
 *   copied: [0, next)     landed, and found whole: place_of[key]     decoded from: [0, usable) */
typedef struct mp_compressed {
    unsigned char *memory; /* within the arena */
    uint64_t unit;         /* bytes of a place; 0 = the model has no such images */
    uint32_t *place_of;    /* [keys] where the expert's image has landed, or MP_NO_PLACE; or NULL */
    uint32_t n;            /* places */
    /* Places that may be decoded from: fewer than n while some are being given up. */
    uint32_t usable;
    uint32_t landed;         /* experts with an image */
    uint32_t stride;         /* between the members of a layer that join in consecutive rounds */
    uint32_t next;           /* place whose image is copied next */
    uint64_t offset;         /* in that image, of the next bytes to copy */
    mp_fill fills[MP_FILLS]; /* ring */
    uint32_t first_fill, n_fills;
    mp_tick read[MP_PIPES]; /* the last decode out of a place */
    /* `read` when `usable` last shrank: no later decode reads the places given up. */
    mp_tick leaving[MP_PIPES];
    moepage_status failure; /* the last failure that was not a single image's */
} mp_compressed;

struct mp_transfer {
    struct moepage_device *home;
    const mp_device_ops *ops; /* the device's */
    const struct moepage_model *model;
    pthread_mutex_t *lock; /* the owner's */
    uint64_t place_bytes;
    uint64_t slot_bytes;       /* of an expert of the first layer */
    const mp_scatter *scatter; /* [tensors] or NULL */
    bool in_turn;
    uint32_t layers, experts, keys;
    const mp_deal *deal;
    uint32_t part;
    uint32_t members; /* experts of a layer on this device */
    uint32_t bus_form, slot_form;
    mp_pipe pipes[MP_PIPES];
    mp_staging_ring staging; /* empty when nothing is decoded */
    mp_host_tier *tier;      /* or NULL */
    mp_compressed compressed;
    mp_rates rates;             /* measured at creation */
    mp_probe probes[MP_PROBES]; /* and those measured while it serves */
    mp_passage *passages;
    uint32_t n_passages;
    mp_stream *readers[MP_MAX_READERS]; /* readers.c */
    _Atomic mp_tick *reads; /* [n_read][MP_MAX_READERS]; NULL where no work outlasts its call */
    uint32_t n_read;        /* places whose readers are known: passages', and those added */
    mp_transfer_counters counters;
    mp_failure
        failure; /* of what the device refused, or could not fill; that of cold reads is the tier's */
};

/* ---- measure.c ---- */

/* Measures transfer->rates on the streams and with the kernels that loads will use, never from
 * constants (FluxMoE §4.2). Meanwhile it claims up to `places` places of the arena (0: as many as
 * there is room for) and writes to them. */
moepage_status mp_transfer_measure(mp_transfer *transfer, uint64_t places);

/* ---- pipe.c ---- */

moepage_status mp_pipes_open(mp_transfer *transfer, bool decoders);
/* Waits for submitted work. Safe on pipes that are only partly open. */
void mp_pipes_close(mp_transfer *transfer);
/* Describes the decoder's jobs for an expert whose EXPH image will be at
 * `image`; jobs[MOEPAGE_MAX_EXPERT_TENSORS]. */
void mp_decode_describe(const mp_transfer *transfer, uint32_t key, const unsigned char *image,
                        unsigned char *place, mp_decode_job *jobs);
/* Makes room for the passages' images in batches. Without decoders it does nothing. */
moepage_status mp_pipes_set_passages(mp_transfer *transfer, uint32_t n);
/* Adds the passage's image, at `image` or on its way there, all of it submitted, to the pipe's batch, and
 * launches a batch that is full. If the device refuses, the loads that it refuses have failed. */
void mp_pipe_gather(mp_transfer *transfer, mp_pipe_kind kind, uint32_t passage,
                    const unsigned char *image);
/* Returns true if a prefetch that needs a staging buffer would get one now. */
bool mp_pipe_may_prefetch(const mp_transfer *transfer);
/* Gives the passage a staging buffer. Returns BUSY if a prefetch finds none free. A demand always
 * gets one: its bus waits until the buffer has been read. */
moepage_status mp_pipe_take_staging(mp_transfer *transfer, mp_pipe_kind kind, uint32_t passage);

/* Submits the copies staged on a pipe, and the decoding of what they complete. Images gathered from device
 * memory stay, unless such decoding follows. */
void mp_pipe_flush(mp_transfer *transfer, mp_pipe_kind kind);
/* Make later work of a pipe's bus, or of its decoder, wait for the readers of a place. */
moepage_status mp_readers_before_bus(mp_transfer *transfer, uint32_t place, mp_pipe_kind pipe);
moepage_status mp_readers_before_decode(mp_transfer *transfer, uint32_t place, mp_pipe_kind pipe);
/* Makes later work of a pipe's bus wait for a tick of another stream. */
moepage_status mp_pipe_wait(mp_transfer *transfer, mp_pipe_kind kind, mp_stream *other,
                            mp_tick tick);
/* Keeps the sentence of a fill that has failed; returns its status. Runs on a device's thread, without the
 * lock. */
moepage_status mp_transfer_keep_failure(const mp_copy *copy, moepage_status status);
/* Describes the copy of `bytes` at `offset` of an image in a pack. The whole image is checked before
 * any of it is used. The caller sets dst and result. */
mp_copy mp_transfer_copy_stored(const mp_transfer *transfer, uint32_t key, uint32_t form,
                                uint64_t offset, uint64_t bytes);

/* ---- readers.c ---- */

/* Calls `act` for every tick that the next writer of a place must see completed. */
moepage_status mp_readers_each(const mp_transfer *transfer, uint32_t place,
                               moepage_status (*act)(void *context, mp_stream *reader,
                                                     mp_tick tick),
                               void *context);

/* ---- compressed.c ---- */

/* Prepares for compressed experts, none yet, `at` bytes into the arena. May fail with NO_MEMORY. */
moepage_status mp_images_open(mp_transfer *transfer, uint64_t at, uint64_t unit);
void mp_images_close(mp_transfer *transfer);
/* Returns the key of the expert that a place is for. */
uint32_t mp_images_key(const mp_transfer *transfer, uint32_t place);
/* Returns the address of a compressed expert's image, which has landed. */
const unsigned char *mp_images_find(const mp_transfer *transfer, uint32_t key);

/* Returns an expert's image in a form. */
static inline mp_image mp_transfer_image(const mp_transfer *transfer, uint32_t key, uint32_t form)
{
    mp_image image;
    mp_model_find_image(transfer->model, key / transfer->experts, key % transfer->experts, form,
                        &image);
    return image;
}

/* Returns the address of an expert's tensor in a place. */
static inline unsigned char *mp_transfer_tensor_at(const mp_transfer *transfer, uint32_t key,
                                                   uint32_t tensor, unsigned char *place)
{
    const mp_scatter *scatter = transfer->scatter;
    if (scatter)
        return place + scatter[tensor].at + key % transfer->experts * scatter[tensor].stride;
    return place +
           mp_model_layout(transfer->model, key / transfer->experts)->tensors[tensor].offset;
}

static inline uint64_t mp_transfer_now_ns(const mp_transfer *transfer)
{
    return transfer->ops->now_ns(transfer->home->device);
}

#endif
