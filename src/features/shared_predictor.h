/* shared_predictor.h — a predictor that sessions share, the object behind a
 * moepage_predictor handle.
 *
 *   shared_predictor.c        its life; every question and answer, one at a time, under its lock
 *   shared_predictor_file.c   what it has learnt, kept in a file
 *
 * Its lock is the last in the order of locks: while it is held, no other lock is taken and no other
 * room is called. */
#ifndef MP_FEATURES_SHARED_PREDICTOR_H
#define MP_FEATURES_SHARED_PREDICTOR_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/handle.h"
#include "model/gates.h"
#include "model/model.h"
#include "policy/predictor.h"

struct moepage_predictor {
    mp_handle handle;
    _Atomic uint32_t users; /* sessions and controllers */
    const mp_predictor *kind;
    mp_predict_config config; /* defaults filled in */
    mp_gates gates;           /* for predictors that need the hidden state */
    uint64_t slot_bytes;      /* of the model */
    uint64_t bytes;           /* of memory */
    void *state_block;        /* the allocation that holds the aligned `state` */

    pthread_mutex_t lock; /* protects the fields below and all contexts */
    void *state;
    uint64_t iterations; /* learnt from */
    uint64_t asked;
};

/* The predictor's memory of one sequence of one session. Zero-filled, it is a request that
 * has not begun. */
typedef struct mp_predict_context {
    void *block; /* the allocation that holds the aligned `memory` */
    void *memory;
} mp_predict_context;

moepage_status mp_predictor_create(const struct moepage_model *model,
                                   const moepage_predictor_config *config,
                                   struct moepage_predictor **out);
/* Frees a predictor without users. NULL is a no-op. */
void mp_predictor_free(struct moepage_predictor *predictor);
void mp_predictor_info(struct moepage_predictor *predictor, moepage_predictor_info *info);
moepage_status mp_predictor_rightsize(struct moepage_predictor *predictor, moepage_rightsize *size);
/* UNSUPPORTED for predictors that do not count uses. */
moepage_status mp_predictor_check_uses(const struct moepage_predictor *predictor);
/* Copies how often each expert has been used, [layers * experts], of a predictor that counts it. */
void mp_predictor_uses(struct moepage_predictor *predictor, uint32_t *out);

/* Begin and end a session's or a controller's use. Holding fails with ARGUMENT if the model's shape is not the
 * predictor's; nothing is to be released then. */
moepage_status mp_predictor_hold(struct moepage_predictor *predictor,
                                 const moepage_model_info *model);
void mp_predictor_release(struct moepage_predictor *predictor);

/* Opening may fail with NO_MEMORY. Closing is safe on a zero-filled struct. */
moepage_status mp_predictor_context_open(const struct moepage_predictor *predictor,
                                         mp_predict_context *out);
void mp_predictor_context_close(mp_predict_context *context);

/* As the functions of the same names in policy/predictor.h, callable from any thread; each context
 * by one thread at a time. */
void mp_predictor_request(struct moepage_predictor *predictor, mp_predict_context *context);
void mp_predictor_begin(struct moepage_predictor *predictor, mp_predict_context *context,
                        const float *semantic);
void mp_predictor_observe(struct moepage_predictor *predictor, mp_predict_context *context,
                          const mp_seen *seen);
uint32_t mp_predictor_predict(struct moepage_predictor *predictor, mp_predict_context *context,
                              uint32_t layer, mp_guess *out, float *score);
void mp_predictor_end(struct moepage_predictor *predictor, mp_predict_context *context);

moepage_status mp_predictor_save(struct moepage_predictor *predictor, const char *path);
moepage_status mp_predictor_load(struct moepage_predictor *predictor, const char *path);

#endif
