/* path_rig.h — a device-driven path over the simulated driver (or that of
 * MP_TEST_DEVICE), a caller with a stream and memory of
 * its own, and steps whose right results a session has computed on a device of the same kind. */
#ifndef PATH_RIG_H
#define PATH_RIG_H

#include "driver.h"
#include "moepage_cuda.h"
#include "pool_rig.h"

#define PATH_LAYERS 3
#define PATH_EXPERTS 16
#define PATH_TOP_K 3
#define PATH_HIDDEN 40
#define PATH_INTERMEDIATE 24
#define PATH_TOKENS 12 /* most */
#define PATH_KEYS (PATH_LAYERS * PATH_EXPERTS)
#define PATH_ROWS (PATH_TOKENS * PATH_TOP_K)
#define PATH_Y (PATH_TOKENS * PATH_HIDDEN)
#define PATH_TIMEOUT_MS 600000 /* which never comes */

typedef struct path_step {
    uint32_t n_tokens;
    float x[PATH_Y];
    int32_t ids[PATH_LAYERS][PATH_ROWS];
    float weights[PATH_LAYERS][PATH_ROWS];
    float y[PATH_LAYERS][PATH_Y]; /* as a session computes them */
} path_step;

/* Distinct experts of a layer of a step. */
uint32_t path_step_distinct(const path_step *step, uint32_t layer, bool seen[PATH_EXPERTS]);

typedef struct path_caller {
    moepage_device *home;
    const mp_cuda_driver *driver;
    mp_cu_stream stream;
    int32_t *ids;   /* [layers][rows], device memory like the rest */
    float *weights; /* the same */
    float *x;
    float *y; /* [layers][tokens][hidden] */
} path_caller;

void path_caller_open(path_caller *caller, moepage_device *home);
void path_caller_close(path_caller *caller);
/* Puts a step's inputs into the caller's memory, and garbage where its results will be. The stream
 * is idle: what the simulation calls device memory is the test's to touch. */
void path_caller_write(path_caller *caller, const path_step *step);
void path_caller_sync(path_caller *caller);
/* All layers' results, of a stream that is idle. */
void path_caller_read(path_caller *caller, float (*y)[PATH_Y]);

/* Zero means: F32 weights behind pointers, FP32 math, as many tokens as there may be, as many slots
 * as there are. */
typedef struct path_rig_config {
    uint32_t dtype, math, max_tokens;
    bool callback, clamped;
    uint32_t pack_forms; /* 0: no pack */
    pool_rig_config pool;
    uint32_t slots; /* of the path */
} path_rig_config;

typedef struct path_rig {
    bank_model bank;
    pool_rig pool;
    path_caller caller;
    moepage_session *session;
    moepage_cuda_path *path;
    path_step *steps;
    uint32_t n_steps;
} path_rig;

void path_rig_open(path_rig *rig, const path_rig_config *config, uint32_t n_steps);
/* Waits for the caller's stream first. */
void path_rig_close(path_rig *rig);

/* A path over the rig's session, for tests that destroyed the first. */
moepage_cuda_path *path_rig_create(path_rig *rig, uint32_t slots);

/* Submits all layers of a step of the caller's inputs. */
void path_rig_submit(path_rig *rig, uint32_t n_tokens);
/* The same, for devices that may refuse. */
moepage_status path_rig_try(path_rig *rig, uint32_t n_tokens);
/* The results of layers below `right` are the session's; from there on they are NaN. */
void path_rig_expect(path_rig *rig, const path_step *step, uint32_t right);
/* Both, and what must be done before and between. */
void path_rig_run(path_rig *rig, const path_step *step, uint32_t right);

moepage_cuda_path_stats path_rig_stats(path_rig *rig);

#endif
