/* paged.h — PagedTensor: expert weights at addresses that never change, over a few layers' memory
 * (FluxMoE 4.1).
 *
 * A *buffer* is memory for one layer, all of its experts' tensors, and belongs to at most one
 * layer. A layer's *view* is its range of addresses (equation 4) while a buffer is mapped there.
 * The work on both is a list of jobs, done in the background by a task, or by a thread that needs
 * the outcome before the task has reached it:
 *
 *   submit   hand the layer's loads to the streams, behind the tick of the last reader of the
 *            buffer's previous contents (write after read)
 *   show     map the buffer at the layer's addresses
 *   leave    unmap the view of a layer that has lost its buffer, once its readers are done
 *
 * Loads write through the arena's own addresses and need no view, and a view needs no idle buffer:
 * so none of the three jobs waits for another, except that a returning layer is shown only after
 * its old view has gone. No thread waits for the device except in acquire, whose purpose that is.
 *
 * One lock guards all members after `lock`; it is not held while bytes are submitted or views
 * mapped, and `working` restricts jobs to one thread at a time. */
#ifndef MP_PAGED_TENSOR_PAGED_H
#define MP_PAGED_TENSOR_PAGED_H

#include <pthread.h>
#include <stdbool.h>

#include "arena/home.h"
#include "arena/scratch.h"
#include "model/model.h"

#define MP_PAGED_NONE UINT32_MAX
#define MP_PAGED_WHY 256 /* bytes of a sentence */

/* Where an expert's bytes come from. */
typedef enum mp_paged_source {
    MP_PAGED_PIECES, /* the model's pieces, or its read callback */
    MP_PAGED_STORED, /* DENSE images in a pack */
    MP_PAGED_CODED,  /* EXPH images in a pack, decoded on the device */
    MP_PAGED_READ    /* images to read or unpack first, on COLD streams */
} mp_paged_source;

/* Stream numbers: one load stream per tensor, then one decode stream per tensor, then readers. */
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
    uint32_t buffer; /* its buffer; MP_PAGED_NONE without one */
    uint64_t order;  /* of its last materialisation: the lowest is evicted next */
    bool wanted;     /* materialised, and not acquired since */
    bool acquired;
    bool submitted;
    bool shown;
    bool leaving;           /* its view goes once `readers` are done, before a new one can come */
    mp_tick readers;        /* on the compute stream: tick of its last reader */
    moepage_status failure; /* of its last load; cleared by the next materialisation */
    char why[MP_PAGED_WHY];
} mp_paged_layer;

typedef struct mp_paged_buffer {
    struct moepage_paged *paged;
    uint32_t owner;                  /* layer, or MP_PAGED_NONE */
    mp_tick readers;                 /* of the previous contents, on the compute stream */
    mp_tick ticks[MP_PAGED_STREAMS]; /* last tick of its load on each stream; 0 = none */
    _Atomic int32_t result;          /* of its load's transfers: 0, or the status of one failure */
    mp_decode_job *jobs;             /* [tensors][experts], of coded images */
    _Atomic bool failed;             /* a thread is writing `why`, or has written it */
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
    mp_tick tick[2]; /* tick of the last decoding from each half */
    uint32_t first;  /* jobs of the half being filled: [first, first + n) */
    uint32_t n;
} mp_paged_staging;

/* Addresses that are mapped together: one tensor's, or those of all tensors smaller per layer than
 * the granularity of mappings. */
typedef struct mp_paged_range {
    uint64_t layer_stride;
    uint64_t offset;     /* in each buffer */
    unsigned char *base; /* NULL until reserved */
} mp_paged_range;

/* One expert tensor in all layers: type d of the paper. */
typedef struct mp_paged_type {
    uint64_t expert_stride; /* sigma */
    uint64_t offset;        /* within a layer's part of its range */
    uint32_t range;
    mp_paged_stage stage;
    mp_paged_staging staging;
} mp_paged_type;

/* Host memory that images are read into. */
typedef struct mp_paged_reader {
    mp_scratch scratch;
    mp_tick tick[MOEPAGE_MAX_EXPERT_TENSORS]; /* last load from it, per load stream */
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
    mp_stream *compute; /* the stream that callers' work is ordered against */
    mp_stream *streams[MP_PAGED_STREAMS];
    uint32_t n_readers;
    mp_paged_reader readers[MP_PAGED_READERS];
    void *staging;
    uint64_t staging_bytes;
    mp_decode_job *jobs;
    _Atomic bool stopped;

    pthread_mutex_t lock;
    pthread_cond_t worked; /* signalled when a job is done */
    bool attached;
    bool working;
    bool now_posted, later_posted;
    mp_task now, later; /* both run pending jobs; `later` when a reader is done */
    uint64_t clock;
    mp_paged_layer *layers;
    mp_paged_buffer *buffers;
};

/* ---- paged.c: life cycle, and the caller's operations ---- */

/* Computes the bytes of arena and of workspace that creation would take. `buffers` 0 means 2. */
moepage_status mp_paged_sizes(const struct moepage_device *home, const struct moepage_model *model,
                              uint32_t buffers, uint64_t *arena_bytes, uint64_t *workspace_bytes);
moepage_status mp_paged_create(struct moepage_device *home, struct moepage_model *model,
                               uint32_t buffers, struct moepage_paged **out);
/* Destroys the object; BUSY while a layer is acquired. */
moepage_status mp_paged_destroy(struct moepage_paged *paged);

moepage_status mp_paged_materialise(struct moepage_paged *paged, uint32_t layer);
moepage_status mp_paged_acquire(struct moepage_paged *paged, uint32_t layer, void *native);
moepage_status mp_paged_release(struct moepage_paged *paged, uint32_t layer, void *native);
uint32_t mp_paged_state(struct moepage_paged *paged, uint32_t layer);

/* ---- paged_jobs.c: background work; called with the lock ---- */

void mp_paged_open_jobs(struct moepage_paged *paged);
/* Runs the next job and releases the lock meanwhile; returns false if no job can run now. */
bool mp_paged_work(struct moepage_paged *paged);
/* Schedules the task that runs jobs. */
void mp_paged_kick(struct moepage_paged *paged);
/* Returns true if part of the buffer's load is unfinished; then gives its last unfinished tick. */
bool mp_paged_unfinished(const struct moepage_paged *paged, const mp_paged_buffer *buffer,
                         mp_stream **stream, mp_tick *tick);
/* Records that the layer's load has failed: the layer gives its buffer back once everything in
 * flight has landed, and leaves. */
void mp_paged_fail(struct moepage_paged *paged, uint32_t layer, moepage_status status,
                   const char *why);

/* Unmaps the layer's view. Called without the lock. */
void mp_paged_hide(struct moepage_paged *paged, uint32_t layer);

/* ---- paged_load.c: the bytes; called without the lock, by one thread at a time ---- */

/* Chooses the source of the model's bytes; UNSUPPORTED if it has no lossless form. */
moepage_status mp_paged_choose(const struct moepage_model *model, mp_paged_source *out);
/* Returns the workspace bytes that loads need. */
uint64_t mp_paged_workspace(const struct moepage_model *model, mp_paged_source source);
/* Opens streams, staging and readers. After a failure mp_paged_close_loads closes
 * what was opened. */
moepage_status mp_paged_open_loads(struct moepage_paged *paged);
/* Destroys the streams, which waits for their work and their tasks; then frees the rest. */
void mp_paged_close_loads(struct moepage_paged *paged);
/* Submits a layer's load into its buffer. A failure is that of the whole load, but parts of it may
 * be in flight: the buffer's ticks say which. */
moepage_status mp_paged_submit(struct moepage_paged *paged, uint32_t layer,
                               mp_paged_buffer *buffer);

#endif
