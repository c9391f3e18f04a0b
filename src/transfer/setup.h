/* setup.h — the transfer room's door for owners: opening a device's transfers, and closing them.
 *
 * The lock is not held in these calls. */
#ifndef MP_TRANSFER_SETUP_H
#define MP_TRANSFER_SETUP_H

#include "transfer/transfer.h"

/* Where one tensor of expert e lies in a place that several experts share: at `at` + e * `stride`. */
typedef struct mp_scatter {
    uint64_t at, stride;
} mp_scatter;

typedef struct mp_transfer_setup {
    struct moepage_device *home; /* whose arena's experts' side is attached and empty */
    const struct moepage_model *model;
    pthread_mutex_t *lock;
    uint64_t place_bytes, slot_bytes; /* of a place; of an expert of the first layer */
    uint64_t images_at;               /* where compressed experts begin, in bytes of that side */
    const mp_scatter *scatter;        /* [tensors] outlives the transfers; NULL: places are slots */
    const mp_deal *deal;              /* outlives the transfers: which experts the device has */
    uint32_t part;                    /* its number there */
    uint32_t bus_form, slot_form; /* MOEPAGE_FORM_* that crosses the bus, and that places hold */
    bool in_turn; /* layers are needed one after the other; demands of others on the bus go first */
} mp_transfer_setup;

/* Checks the config's tier fields against the model and chooses the form that crosses the bus. */
moepage_status mp_transfer_check(const struct moepage_model *model,
                                 const moepage_expert_pool_config *config, uint32_t *bus_form);
/* Computes the bytes of workspace, and of compressed experts, on one of n_devices that are alike. */
void mp_transfer_sizes(const struct moepage_model *model, const moepage_expert_pool_config *config,
                       uint32_t bus_form, uint32_t n_devices, uint64_t *workspace_bytes,
                       uint64_t *image_bytes);
/* Opens pipes, host tier and staging, measures them, and chooses which experts stay compressed. */
moepage_status mp_transfer_open(const mp_transfer_setup *setup,
                                const moepage_expert_pool_config *config, mp_transfer **out);
/* Makes room for passages 0 to n - 1. Called before the first of them begins. */
moepage_status mp_transfer_set_passages(mp_transfer *transfer, uint32_t n);
/* Copies the compressed experts into device memory and waits for them. */
moepage_status mp_transfer_fill(mp_transfer *transfer);
/* Waits for work under way and closes. NULL is a no-op. */
void mp_transfer_close(mp_transfer *transfer);

#endif
