/* paged.h — PagedTensor: expert weights at addresses that never change, over a few layers' memory
 * (FluxMoE 4.1).
 *
 * A *buffer* is memory for one layer, all of its experts' tensors, and belongs to at most one
 * layer. A layer's *view* is its range of addresses (equation 4), which shows a buffer. It stays
 * after the layer has lost the buffer: in cyclic order, with buffers that divide the layers, a layer
 * gets the same one again, and nothing is ever mapped anew. The bytes come through the device's
 * transfers (transfer.h), for which a buffer is a place that a layer's experts share.
 *
 * The work is a list of jobs, done in the background by a task, or by a thread that needs the
 * outcome before the task has reached it:
 *
 *   submit   hand the layer's loads to the streams, behind the tick of the last reader of the
 *            buffer's previous contents (write after read)
 *   show     map the buffer at the layer's addresses, if they show another
 *   copy     copy images of experts that are to be kept compressed in device memory
 *
 * Loads write through the arena's own addresses and need no view, and a view needs no idle buffer:
 * so neither of the first two waits for the other. A view that shows another buffer is unmapped
 * behind the layer's last readers. No thread waits for the device except in acquire, whose purpose
 * that is.
 *
 * `lock` guards all members after it; it is not held while bytes are submitted or views mapped, and
 * `working` restricts jobs to one thread at a time. `loads`, which may be taken under it, guards the
 * transfers. */
#ifndef MP_PAGED_TENSOR_PAGED_H
#define MP_PAGED_TENSOR_PAGED_H

#include <pthread.h>
#include <stdbool.h>

#include "transfer/setup.h"
#include "transfer/tiers.h"

#define MP_PAGED_NONE UINT32_MAX
#define MP_PAGED_WHY 256 /* bytes of a sentence */

typedef enum mp_paged_job {
    MP_PAGED_IDLE,
    MP_PAGED_SUBMIT,
    MP_PAGED_SHOW,
    MP_PAGED_COPY
} mp_paged_job;

typedef struct mp_paged_layer {
    uint32_t state;  /* MOEPAGE_PAGED_* */
    uint32_t buffer; /* its buffer; MP_PAGED_NONE without one */
    uint32_t shown;  /* the buffer that its view shows, or MP_PAGED_NONE */
    uint64_t order;  /* of its last materialisation: the lowest is evicted next */
    bool wanted;     /* materialised, and not acquired since */
    bool acquired;
    bool submitted;
    bool leaving;           /* `readers`, or its failed load, may still be at work */
    mp_tick readers;        /* on the compute stream: tick of its last reader */
    moepage_status failure; /* of its last load; cleared by the next materialisation */
    char why[MP_PAGED_WHY];
} mp_paged_layer;

/* How far a buffer's load has come. */
typedef struct mp_paged_load {
    uint32_t begun;         /* experts; the others wait for `obstacle` */
    mp_event obstacle;      /* stream NULL: nothing */
    mp_event ends[MP_ENDS]; /* of those begun; stream NULL: none on it */
} mp_paged_load;

typedef struct mp_paged_buffer {
    uint32_t owner;  /* layer, or MP_PAGED_NONE */
    mp_tick readers; /* of the previous contents, on the compute stream */
    mp_paged_load load;
    /* Guarded by `loads`: the first failure among its passages that have ended, and whose it is. */
    moepage_status failure;
    uint32_t failed;
} mp_paged_buffer;

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
} mp_paged_type;

/* Offsets within a buffer and within a layer's addresses. */
typedef struct mp_paged_layout {
    mp_paged_type types[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_paged_range ranges[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_scatter scatter[MOEPAGE_MAX_EXPERT_TENSORS]; /* of a buffer's experts */
    uint32_t n_ranges;
    uint64_t unit; /* bytes of one buffer */
} mp_paged_layout;

struct moepage_paged {
    mp_handle handle;
    struct moepage_device *home;
    struct moepage_model *model;
    uint32_t n_layers, n_experts, n_buffers;
    mp_paged_layout layout;
    unsigned char *base; /* of buffer 0, in the arena */
    mp_stream *compute;  /* the stream that callers' work is ordered against */
    mp_deal deal;        /* all experts are this device's */
    uint32_t bus_form;
    _Atomic bool stopped;

    pthread_mutex_t lock;
    pthread_cond_t worked; /* signalled when a job is done */
    bool attached;
    bool working;
    bool now_posted, later_posted;
    mp_task now, later; /* both run pending jobs; `later` behind what they wait for */
    uint64_t clock;
    uint64_t mappings; /* of views, ever made */
    bool copying;      /* images are left to copy */
    mp_event copied;   /* what the next of them waits for */
    mp_paged_layer *layers;
    mp_paged_buffer *buffers;

    pthread_mutex_t loads;
    mp_transfer *transfer;
    bool *open; /* [n_buffers][n_experts] passages that have begun, and not ended */
};

/* ---- paged_layout.c: sizes ---- */

moepage_status mp_paged_lay_out(const struct moepage_model *model, uint64_t view_bytes,
                                mp_paged_layout *out);
/* Checks a config and fills its defaults in; *bus_form is the form that crosses the bus. */
moepage_status mp_paged_choose(const struct moepage_device *home, const struct moepage_model *model,
                               moepage_paged_config *config, uint32_t *bus_form);
/* Returns the part of the config that the transfers read. */
moepage_expert_pool_config mp_paged_tiers(const moepage_paged_config *config, uint32_t bus_form);
/* Computes the bytes of arena and of workspace that creation would take. */
moepage_status mp_paged_sizes(const struct moepage_device *home, const struct moepage_model *model,
                              const moepage_paged_config *config, uint64_t *arena_bytes,
                              uint64_t *workspace_bytes);

/* ---- paged.c: life cycle, and the caller's operations ---- */

moepage_status mp_paged_create(struct moepage_device *home, struct moepage_model *model,
                               const moepage_paged_config *config, struct moepage_paged **out);
/* Destroys the object; BUSY while a layer is acquired. */
moepage_status mp_paged_destroy(struct moepage_paged *paged);

moepage_status mp_paged_materialise(struct moepage_paged *paged, uint32_t layer);
moepage_status mp_paged_acquire(struct moepage_paged *paged, uint32_t layer, void *native);
moepage_status mp_paged_release(struct moepage_paged *paged, uint32_t layer, void *native);
uint32_t mp_paged_state(struct moepage_paged *paged, uint32_t layer);
void mp_paged_get_info(struct moepage_paged *paged, moepage_paged_info *info);

/* ---- paged_jobs.c: background work; called with the lock ---- */

void mp_paged_open_jobs(struct moepage_paged *paged);
/* Runs the next job and releases the lock meanwhile; returns false if no job can run now. */
bool mp_paged_work(struct moepage_paged *paged);
/* Schedules the task that runs jobs. */
void mp_paged_kick(struct moepage_paged *paged);
/* Finds what a layer that is not ready waits for; returns false if that is only a job. */
bool mp_paged_waits(const struct moepage_paged *paged, const mp_paged_layer *layer, mp_event *out);
/* Returns true if part of the buffer's load is unfinished; then gives its last event. */
bool mp_paged_unfinished(const struct moepage_paged *paged, const mp_paged_buffer *buffer,
                         mp_event *out);
/* Ends the leaving of a layer if nothing is at work there any more. */
void mp_paged_try_leave(struct moepage_paged *paged, mp_paged_layer *layer);
/* Records that the layer's load has failed: the layer gives its buffer back once everything in
 * flight has landed. */
void mp_paged_fail(struct moepage_paged *paged, uint32_t layer, moepage_status status,
                   const char *why);

/* Unmaps the layer's view. Called without the lock. */
void mp_paged_hide(struct moepage_paged *paged, uint32_t layer);

/* ---- paged_load.c: the bytes; called without `loads`, which they take ---- */

/* Opens the transfers, in the arena's experts' side, which is attached and empty. */
moepage_status mp_paged_open_loads(struct moepage_paged *paged, const moepage_paged_config *config);
/* Begins as much of a layer's load as can begin now, behind `readers`. Called without the lock, by one
 * thread at a time. */
moepage_status mp_paged_submit(struct moepage_paged *paged, uint32_t layer, uint32_t buffer,
                               mp_tick readers, mp_paged_load *load);
/* Returns the failure of a load that can fail no more, or MOEPAGE_OK; then writes why. */
moepage_status mp_paged_result(struct moepage_paged *paged, uint32_t layer, uint32_t buffer,
                               char why[MP_PAGED_WHY]);
/* Goes on copying images; returns false when none is left, else *next is what the rest waits for. */
bool mp_paged_copy_images(struct moepage_paged *paged, mp_event *next);

/* ---- paged_resize.c ---- */

/* Returns the arena's bytes for the buffers and so many compressed experts per layer; all are those of the
 * buffers where none can be kept compressed. */
uint64_t mp_paged_bytes(const struct moepage_paged *paged, uint32_t compressed);
/* Returns the compressed experts per layer that have places. */
uint32_t mp_paged_compressed(struct moepage_paged *paged);
/* Takes the arena's bytes for the buffers and so many compressed experts per layer, or gives back what
 * is more. Called with `loads`, or while nobody else uses the object. */
moepage_status mp_paged_claim(struct moepage_paged *paged, uint32_t compressed);
/* Keeps `compressed` experts of each layer compressed: BUSY while images that go are in use, BUDGET if
 * KV is in the way. */
moepage_status mp_paged_resize(struct moepage_paged *paged, uint32_t compressed);

#endif
