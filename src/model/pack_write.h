/* pack_write.h — writing any model to a .moepack file.
 *
 * One pass over the experts per form: batches of experts are encoded in parallel while the
 * preceding batch is written, so that the file has the order of the experts. */
#ifndef MP_MODEL_PACK_WRITE_H
#define MP_MODEL_PACK_WRITE_H

#include "model/model.h"

/* Runs all parts of a job, each once, on any threads; returns when the last one is done. */
typedef void (*mp_pack_run_fn)(void *user, void (*part)(void *context, uint32_t part, uint32_t n),
                               void *context, uint32_t n);

typedef struct mp_pack_options {
    uint32_t forms; /* a set of 1u << MOEPAGE_FORM_* */
    int32_t cold_level;
    uint32_t group;
    uint32_t search;
    uint32_t verify;
    moepage_moments_fn moments; /* or NULL */
    void *moments_user;
    uint32_t threads; /* approximate number that `run` uses */
    mp_pack_run_fn run;
    void *run_user;
    int32_t (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* or NULL */
    void *progress_user;
} mp_pack_options;

/* Implements moepage_pack_write; fills all of *stats but the time. */
moepage_status mp_pack_write(const struct moepage_model *model, const char *path,
                             const mp_pack_options *options, moepage_pack_stats *stats);

/* Returns the form that a pack has if none is asked for: EXPH, or DENSE where it codes no weights of any
 * expert. */
uint32_t mp_pack_default_form(const struct moepage_model *model);

/* ---- between the writer's files ---- */

/* The first failure of a job's parts with its sentence, which is otherwise thread-local. */
typedef struct mp_pack_failure {
    _Atomic uint32_t claimed;
    moepage_status status;
    char text[512];
} mp_pack_failure;

/* Keeps the calling thread's latest failure. */
void mp_pack_failure_keep(mp_pack_failure *failure, moepage_status status);
static inline bool mp_pack_failed(const mp_pack_failure *failure)
{
    return atomic_load_explicit(&failure->claimed, memory_order_relaxed);
}
/* Fails with the kept failure, if any; call it after the job. */
moepage_status mp_pack_failure_raise(const mp_pack_failure *failure);

/* The progress of a call. */
typedef struct mp_pack_progress {
    const mp_pack_options *options;
    uint64_t done_bytes;
    uint64_t total_bytes;
} mp_pack_progress;

/* Adds to the progress; CALLBACK if the caller's callback asks to stop. */
moepage_status mp_pack_progress_add(mp_pack_progress *progress, uint64_t bytes);

/* Returns the bytes of the tensors of n experts, from the one of key `first` on. */
uint64_t mp_pack_experts_bytes(const struct moepage_model *model, uint64_t first, uint64_t n);

/* Compares the written model with its source, in every form. */
moepage_status mp_pack_verify(const struct moepage_model *model,
                              const struct moepage_model *written, const mp_pack_options *options,
                              mp_pack_progress *progress);

#endif
