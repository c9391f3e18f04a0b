/* lossy.h — approximations that a run asks for: the texts of --precision, --remap and --miss, and
 * the library's settings for them. docs/quality.md describes them. */
#ifndef EXAMPLE_LOSSY_H
#define EXAMPLE_LOSSY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/flags.h"
#include "moepage.h"

/* FORM: every expert in it. HI/LO:P%: that percentage of each layer's experts, the hottest, in HI.
 * HI/LO@BYTES, HI/LO@FORM-bytes: as many as fit into that memory, low versions included. */
typedef struct precision_spec {
    const char *text; /* as given; NULL = every expert in the model's own form */
    uint32_t hi_form; /* MOEPAGE_FORM_*; 0 = one form for all, lo_form */
    uint32_t lo_form;
    double percent; /* 0: determined by bytes */
    uint64_t bytes; /* 0: the size of all experts in as_form */
    uint32_t as_form;
} precision_spec;

/* Parses a text; returns false unless it is one of the above. */
bool precision_parse(const char *text, precision_spec *out);

/* Returns the forms that the model must have, as a set of 1u << MOEPAGE_FORM_*. */
uint32_t precision_forms(const precision_spec *spec);

/* Returns true if all experts are in one form other than the model's: the pool's slot_form, lo_form. */
static inline bool precision_is_uniform(const precision_spec *spec)
{
    return spec->text && !spec->hi_form;
}

/* Sets *slot_bytes for experts in one form; leaves it alone for others. RUN_REFUSED if the model lacks the
 * form. */
int precision_slot_bytes(const precision_spec *spec, const moepage_model *model,
                         uint64_t *slot_bytes);

/* Computes the settings of a pool with two versions. One line and RUN_REFUSED if the model lacks a form,
 * or the memory does not hold the low versions. `given` has the remaining settings: serve,
 * interval. */
int precision_settle(const precision_spec *spec, const moepage_model *model,
                     const moepage_precision_config *given, moepage_precision_config *out);

typedef struct remap_spec {
    double alpha, beta; /* 0 = off */
    double resident;
} remap_spec;

/* Readers of flags: "--remap A,B" into a remap_spec, "--remap-resident X" into a double, and
 * "--precision SPEC" into a precision_spec. */
int flag_remap(const flag *self, const char *text, void *out);
int flag_resident(const flag *self, const char *text, void *out);
int flag_precision(const flag *self, const char *text, void *out);

/* Applies the remapping to a session; does nothing when it is off. */
int remap_set(const remap_spec *spec, moepage_session *session);

#endif
