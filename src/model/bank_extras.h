/* bank_extras.h — everything but the experts of a model whose experts the caller holds. */
#ifndef MP_MODEL_BANK_EXTRAS_H
#define MP_MODEL_BANK_EXTRAS_H

#include "model/model.h"

typedef struct mp_bank_extras {
    char *architecture;     /* NULL stands for "banks" */
    char *config_text;      /* or NULL */
    mp_dense_tensor *dense; /* [n_dense] sorted by name */
    uint64_t n_dense;
    uint64_t dense_bytes;
    char *names; /* the names of `dense`, back to back */
} mp_bank_extras;

/* Copies the extras of `banks`; ARGUMENT for values out of range. */
moepage_status mp_bank_extras_create(const moepage_banks *banks, mp_bank_extras **out);

/* Frees the extras; NULL is a no-op. */
void mp_bank_extras_free(mp_bank_extras *extras);

/* Returns true if `banks` has anything that a model must keep as extras. */
bool mp_bank_extras_needed(const moepage_banks *banks);

#endif
