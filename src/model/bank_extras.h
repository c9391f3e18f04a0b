/* bank_extras.h — what a model of caller-held experts has besides its experts. */
#ifndef MP_MODEL_BANK_EXTRAS_H
#define MP_MODEL_BANK_EXTRAS_H

#include "model/model.h"

typedef struct mp_bank_extras {
    char *architecture;     /* NULL: "banks" */
    char *config_text;      /* or NULL */
    mp_dense_tensor *dense; /* [n_dense] sorted by name */
    uint64_t n_dense;
    uint64_t dense_bytes;
    char *names; /* theirs, back to back */
} mp_bank_extras;

/* Copies what `banks` has; ARGUMENT for what it may not be. */
moepage_status mp_bank_extras_create(const moepage_banks *banks, mp_bank_extras **out);

/* NULL is a no-op. */
void mp_bank_extras_free(mp_bank_extras *extras);

/* Does a model of these banks need them? */
bool mp_bank_extras_needed(const moepage_banks *banks);

#endif
