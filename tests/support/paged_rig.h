/* paged_rig.h — a PagedTensor over a bank model, its caller, and what must always hold of it. */
#ifndef PAGED_RIG_H
#define PAGED_RIG_H

#include "bank_model.h"
#include "driver.h"
#include "late_device.h"

typedef enum paged_where {
    PAGED_ON_HOST, /* calls are the caller's only order */
    PAGED_LATE,    /* the host, but the caller has a stream */
    PAGED_ON_SIM   /* a CUDA device over the simulated driver */
} paged_where;

typedef struct paged_rig {
    bank_model bank;
    moepage_device *device;
    paged_where where;
    moepage_paged_config config;
    bool gated;
    late_caller caller;  /* PAGED_LATE */
    mp_cu_stream native; /* PAGED_ON_SIM */
    moepage_paged *paged;
    moepage_paged_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS]; /* as they were at the start */
    uint64_t used_bytes;                                      /* of the device, after creation */
} paged_rig;

/* Zero means: the plain host device, two buffers. */
typedef struct paged_rig_config {
    paged_where where;
    uint32_t buffers;
    uint32_t bus_form;
    uint32_t compressed; /* experts of each layer */
    uint32_t host_tier;  /* experts that it has room for */
    bool roomy;          /* the device's budget could be twice as large */
} paged_rig_config;

/* Opens model and device, with an arena of exactly what creation takes, and creates the PagedTensor. */
void paged_rig_open(paged_rig *rig, const bank_shape *shape, const paged_rig_config *config);
/* Only the first part: `paged` stays NULL. */
void paged_rig_open_device(paged_rig *rig, const bank_shape *shape, const paged_rig_config *config);
moepage_status paged_rig_create(paged_rig *rig, const paged_rig_config *config);
/* Destroys what there is; the device's bytes go down to nothing. */
void paged_rig_close(paged_rig *rig);

/* The caller's stream, NULL where there is none. */
void *paged_rig_stream(paged_rig *rig);
/* While its gate is shut, nothing that is put on it starts. No-ops without a stream. */
void paged_rig_shut(paged_rig *rig);
void paged_rig_open_gate(paged_rig *rig);
/* Opens the gate and waits for all that is on the stream. */
void paged_rig_wait(paged_rig *rig);

/* Keeps other numbers of experts compressed, and again while that is BUSY; the device then holds what
 * moepage_paged_sizes says. */
void paged_rig_resize(paged_rig *rig, uint32_t compressed);
moepage_paged_info paged_rig_info(paged_rig *rig);

uint32_t paged_rig_state(paged_rig *rig, uint32_t layer);
/* Waits for a state that comes by itself. */
void paged_rig_await(paged_rig *rig, uint32_t layer, uint32_t state);

/* Bytes of a layer's experts, all of its tensors one after the other. */
uint64_t paged_rig_layer_bytes(const paged_rig *rig);
/* Memory for a layer's bytes. */
unsigned char *paged_rig_alloc(paged_rig *rig);
void paged_rig_free(paged_rig *rig, unsigned char *bytes);
/* Copies a layer out of its addresses, now or in the order of the caller's stream. */
void paged_rig_read(paged_rig *rig, uint32_t layer, unsigned char *out);
/* Is this the layer? */
bool paged_rig_is_layer(const paged_rig *rig, uint32_t layer, const unsigned char *bytes);
/* Acquires, reads, compares and releases a layer; waits for the caller's stream. */
void paged_rig_visit(paged_rig *rig, uint32_t layer);
/* Can every page of the layer's addresses be read; can none be? */
bool paged_rig_all_readable(const paged_rig *rig, uint32_t layer);
bool paged_rig_none_readable(const paged_rig *rig, uint32_t layer);

/* Addresses are what they were, buffers and layers belong to each other, and the device holds what
 * it held. */
void paged_rig_check(paged_rig *rig);

/* Returns when the background has nothing to do that could be done now. */
void paged_rig_idle(paged_rig *rig);
/* And when the bus has done what is ready: what was to wait and did not has then happened. */
void paged_rig_quiesce(paged_rig *rig);

#endif
