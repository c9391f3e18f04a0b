/* paged.h — PagedTensor: expert weights at addresses that never change, over a few layers' memory
 * (FluxMoE 4.1).
 *
 * A *buffer* is memory for one layer, all of its experts' tensors, and belongs to at most one
 * layer. A layer's *view* is its range of addresses (equation 4) while a buffer is shown there. What
 * becomes of them is a list of jobs, done in the background by a task or, where that has not come to
 * it yet, by the thread that needs the outcome:
 *
 *   submit   hand the layer's loads to the streams, behind the tick after which nobody reads what
 *            the buffer held (write after read)
 *   show     map the buffer at the layer's addresses
 *   leave    once its readers are done, take away the view of a layer that has lost its buffer
 *
 * Loads are written through the arena's own addresses and need no view, and a view needs no idle
 * buffer: so none of the three waits for another, except that a layer that comes back is shown only
 * when its old view has gone. No thread waits for the device but in acquire, where that is what it
 * is for.
 *
 * One lock guards all that follows `lock`; it is not held while bytes are submitted or views mapped,
 * and `working` keeps jobs to one thread at a time. */
#ifndef MP_PAGED_PAGED_H
#define MP_PAGED_PAGED_H

#include <pthread.h>
#include <stdbool.h>

#include "arena/home.h"
#include "arena/scratch.h"
#include "model/model.h"

#define MP_PAGED_NONE UINT32_MAX
#define MP_PAGED_WHY 256 /* bytes of a sentence */

/* How an expert's bytes come. */
typedef enum mp_paged_source {
    MP_PAGED_PIECES, /* the model's pieces, or its read callback */
    MP_PAGED_MAPPED, /* DENSE images in a mapped pack */
    MP_PAGED_CODED,  /* EXPH images in a mapped pack, decoded on the device */
    MP_PAGED_READ    /* images that have to be read or unpacked first, by COLD streams */
} mp_paged_source;

/* Streams by number: one load stream per tensor, then one decode stream per tensor, then readers. */
#define MP_PAGED_READERS 16u
#define MP_PAGED_WRITERS (2u * MOEPAGE_MAX_EXPERT_TENSORS)
#define MP_PAGED_STREAMS (MP_PAGED_WRITERS + MP_PAGED_READERS)

typedef enum mp_paged_job {
    MP_PAGED_IDLE,
    MP_PAGED_SUBMIT,
    MP_PAGED_SHOW,
    MP_PAGED_LEAVE
} mp_paged_job;

typedef struct mp_paged_layer {
    uint32_t state;  /* MOEPAGE_PAGED_* */
    uint32_t buffer; /* its own; MP_PAGED_NONE when it has none */
    uint64_t order;  /* of its last materialisation: the lowest gives its buffer up next */
    bool wanted;     /* materialised, and not acquired since */
    bool acquired;
    bool submitted;
    bool shown;
    bool leaving;           /* its view goes after `readers`, before a new one can come */
    mp_tick readers;        /* on the compute stream: nobody reads it after this */
    moepage_status failure; /* of its last load, until it is materialised again */
    char why[MP_PAGED_WHY];
} mp_paged_layer;

typedef struct mp_paged_buffer {
    struct moepage_paged *paged;
    uint32_t owner;                  /* layer, or MP_PAGED_NONE */
    mp_tick readers;                 /* on the compute stream, of what it held */
    mp_tick ticks[MP_PAGED_STREAMS]; /* of its load, the last per stream; 0 = none */
    _Atomic int32_t result;          /* of its load's transfers: 0, or one's failure */
    mp_decode_job *jobs;             /* [tensors][experts], of coded images */
    _Atomic bool failed;             /* somebody writes `why`, or has */
    char why[MP_PAGED_WHY];          /* the first failure's sentence; read once all has settled */
} mp_paged_buffer;

/* Transfers gathered for one submission. */
#define MP_PAGED_STAGE 32u
typedef struct mp_paged_stage {
    uint32_t n;
    mp_copy copies[MP_PAGED_STAGE];
} mp_paged_stage;

/* Device memory for coded images between bus and decoder: two halves, filled in turn. */
typedef struct mp_paged_staging {
    unsigned char *memory;
    uint64_t half_bytes;
    uint64_t used;   /* of the half being filled */
    uint32_t half;   /* 0 or 1 */
    mp_tick tick[2]; /* of the last decoding out of each half */
    uint32_t first;  /* jobs of the half being filled: [first, first + n) */
    uint32_t n;
} mp_paged_staging;

/* Addresses that are mapped together: one tensor's, or those of all tensors that are smaller, in a
 * layer, than the granularity of mappings. */
typedef struct mp_paged_range {
    uint64_t layer_stride;
    uint64_t offset;     /* in a buffer */
    unsigned char *base; /* NULL until reserved */
} mp_paged_range;

/* One expert tensor in all layers: type d of the paper. */
typedef struct mp_paged_type {
    uint64_t expert_stride; /* sigma */
    uint64_t offset;        /* in a layer's part of its range */
    uint32_t range;
    mp_paged_stage stage;
    mp_paged_staging staging;
} mp_paged_type;

/* Host memory that an image is read into. */
typedef struct mp_paged_reader {
    mp_scratch scratch;
    mp_tick tick[MOEPAGE_MAX_EXPERT_TENSORS]; /* of the last load out of it, per load stream */
} mp_paged_reader;

struct moepage_paged {
    mp_handle handle;
    struct moepage_device *home;
    struct moepage_model *model;
    mp_paged_source source;
    uint32_t n_layers, n_types, n_ranges, n_experts, n_buffers;
    uint64_t unit;       /* bytes of one buffer */
    unsigned char *base; /* of buffer 0, in the arena */
    mp_paged_type types[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_paged_range ranges[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_stream *compute; /* where the caller's work is heard of */
    mp_stream *streams[MP_PAGED_STREAMS];
    uint32_t n_readers;
    mp_paged_reader readers[MP_PAGED_READERS];
    void *staging;
    uint64_t staging_bytes;
    mp_decode_job *jobs;
    _Atomic bool stopped;

    pthread_mutex_t lock;
    pthread_cond_t worked; /* a job is done */
    bool attached;
    bool working;
    bool now_posted, later_posted;
    mp_task now, later; /* both do what there is; `later` when a reader is done */
    uint64_t clock;
    mp_paged_layer *layers;
    mp_paged_buffer *buffers;
};

/* ---- paged.c: life, and what callers do ---- */

/* Bytes of arena and of workspace that creation would take. `buffers` 0 = 2. */
moepage_status mp_paged_sizes(const struct moepage_device *home, const struct moepage_model *model,
                              uint32_t buffers, uint64_t *arena_bytes, uint64_t *workspace_bytes);
moepage_status mp_paged_create(struct moepage_device *home, struct moepage_model *model,
                               uint32_t buffers, struct moepage_paged **out);
/* BUSY while a layer is acquired. */
moepage_status mp_paged_destroy(struct moepage_paged *paged);

moepage_status mp_paged_materialise(struct moepage_paged *paged, uint32_t layer);
moepage_status mp_paged_acquire(struct moepage_paged *paged, uint32_t layer, void *native);
moepage_status mp_paged_release(struct moepage_paged *paged, uint32_t layer, void *native);
uint32_t mp_paged_state(struct moepage_paged *paged, uint32_t layer);

/* ---- paged_jobs.c: what happens in the background; with the lock ---- */

void mp_paged_open_jobs(struct moepage_paged *paged);
/* Does the next job, giving the lock up meanwhile; false when there is none that can be done now. */
bool mp_paged_work(struct moepage_paged *paged);
/* Sees to it that jobs are done. */
void mp_paged_kick(struct moepage_paged *paged);
/* Is there anything of the buffer's load still to come? Its last unfinished tick if so. */
bool mp_paged_unfinished(const struct moepage_paged *paged, const mp_paged_buffer *buffer,
                         mp_stream **stream, mp_tick *tick);
/* The layer's load has failed: it gives its buffer back when all has landed, and leaves. */
void mp_paged_fail(struct moepage_paged *paged, uint32_t layer, moepage_status status,
                   const char *why);

/* Takes a layer's view away; without the lock. */
void mp_paged_hide(struct moepage_paged *paged, uint32_t layer);

/* ---- paged_load.c: the bytes; without the lock, by one thread at a time ---- */

/* How the model's bytes come; UNSUPPORTED if it has no lossless form. */
moepage_status mp_paged_choose(const struct moepage_model *model, mp_paged_source *out);
/* Workspace that loads need. */
uint64_t mp_paged_workspace(const struct moepage_model *model, mp_paged_source source);
/* Streams, staging, readers. What it opened before a failure is mp_paged_close_loads' to close. */
moepage_status mp_paged_open_loads(struct moepage_paged *paged);
/* Destroys streams, which waits for their work and their tasks; then the rest. */
void mp_paged_close_loads(struct moepage_paged *paged);
/* Submits a layer's load into its buffer. After a failure, which is the whole load's, some of it may
 * be under way: the buffer's ticks say so. */
moepage_status mp_paged_submit(struct moepage_paged *paged, uint32_t layer,
                               mp_paged_buffer *buffer);

#endif
