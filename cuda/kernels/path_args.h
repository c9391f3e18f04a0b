/* path_args.h — the arguments of a device-driven path's kernel. device_paths/path.h explains how a
 * path works, device/path_mail.h its layout in memory. */
#ifndef MP_KERNELS_PATH_ARGS_H
#define MP_KERNELS_PATH_ARGS_H

#include "experts_args.h"

#include "device/path_mail.h"

#define MP_PATH_THREADS 256u  /* of the one block */
#define MP_PATH_SHARED 20736u /* dynamic shared memory of the block */

/* Of mp_gpu_path_plan: one block of MP_PATH_THREADS. */
typedef struct mp_gpu_path_plan_args {
    const int32_t *ids; /* [n_rows] */
    mp_path_state *state;
    mp_path_mail *mail;
    uint32_t *mail_stamps; /* [n_keys] of the message */
    /* [n_keys] slot of an expert, or -1: written by the host while it answers. */
    const int32_t *map;
    uint32_t *stamps;     /* [n_keys] when an expert was last needed */
    mp_gpu_expert *table; /* [experts] out */
    uint32_t *rows;       /* [n_rows] out: sorted by expert */
    const unsigned char *slots;
    uint64_t slot_bytes;
    mp_path_layout layout;
    uint64_t timeout_ns;
    uint32_t n_keys;
    uint32_t experts; /* per layer */
    uint32_t layer;
    uint32_t n_rows; /* tokens * top_k */
} mp_gpu_path_plan_args;

/* Of mp_gpu_path_wait: one block, whose first thread waits. */
#define MP_PATH_WAIT_THREADS 32u
#define MP_PATH_WAIT_SHARED 4u

/* A mark: where the wait has come to. */
enum { MP_PATH_WAIT_BEGUN = 1, MP_PATH_WAIT_SEEN, MP_PATH_WAIT_LATE };

typedef struct mp_gpu_path_wait_args {
    uint32_t *mark;       /* out, in memory that the host reads */
    const uint32_t *word; /* device memory: waits until it is not 0 */
    uint64_t timeout_ns;
} mp_gpu_path_wait_args;

#endif
