/* path_args.h — what a device-driven path keeps in memory, and what its kernel is given.
 * session/resident.h says how it works. */
#ifndef MP_KERNELS_PATH_ARGS_H
#define MP_KERNELS_PATH_ARGS_H

#include "experts_args.h"

#define MP_PATH_THREADS 256u  /* of the one block */
#define MP_PATH_EXPERTS 1024u /* most of a layer */
#define MP_PATH_SHARED 18496u /* dynamic shared memory of the block */

/* Sequence numbers have 31 bits and are never 0; an answer carries its message's. */
#define MP_PATH_SEQUENCE 0x7fffffffu
#define MP_PATH_ANSWER(sequence, refused) ((sequence) << 1 | (refused))

/* How a layer ends, if not well. */
enum {
    MP_PATH_OK,
    MP_PATH_REFUSED, /* the host could not bring an expert; it knows why */
    MP_PATH_LATE,    /* no answer in time */
    MP_PATH_BAD_ID,  /* `detail` is an id that the layer does not have */
    MP_PATH_LOST,    /* the map lacks an expert that the host said was there */
    MP_PATH_STILL    /* nobody has asked why an earlier layer was given up: nothing new */
};

/* In device memory. All but the answer is the kernel's alone, from one layer to the next. */
typedef struct mp_path_state {
    uint32_t answer; /* the host's, in the order of its stream: MP_PATH_ANSWER */
    uint32_t apart[31];
    uint32_t sequence;  /* of the last message */
    uint32_t owed;      /* 1: its answer has not been seen, because time ran out */
    uint32_t gave_up;   /* counts the reports of layers given up */
    uint32_t error;     /* the report in force: no layer runs before it has been acknowledged */
    uint32_t failed;    /* 1: the layer whose launches are next has no result */
    uint32_t n_experts; /* of that layer's table */
    uint32_t now;       /* counts layers: the time of stamps */
    uint32_t reserved;
    uint64_t layers, all_hit, routed, misses;
} mp_path_state;

/* In memory that both sides see. The lines before `acknowledged` are written by the device. */
typedef struct mp_path_mail {
    /* The message. `sequence` is written last; the rest stays as it is until the next one. */
    uint32_t sequence;
    uint32_t layer;
    uint32_t n; /* distinct experts that the layer needs, resident ones included */
    uint32_t now;
    uint32_t apart_message[28];
    /* The report of a layer given up; `gave_up` is written last. */
    uint32_t gave_up;
    uint32_t reason; /* MP_PATH_* */
    uint32_t in_layer;
    int32_t detail;
    uint32_t apart_report[28];
    /* How far it has come. */
    uint64_t layers, all_hit, routed, misses;
    uint64_t apart_progress[12];
    uint32_t acknowledged; /* the host's: the last report that somebody was told */
    uint32_t apart_host[31];
    uint32_t experts[MP_PATH_EXPERTS]; /* of the message */
} mp_path_mail;

/* Where an expert's operands lie in its slot; UINT64_MAX: nowhere. */
typedef struct mp_path_layout {
    uint64_t gate, up, down;
    uint64_t gate_bias, up_bias, down_bias;
    uint64_t gate_scale, up_scale, down_scale;
} mp_path_layout;

/* Of mp_gpu_path_plan: one block of MP_PATH_THREADS. */
typedef struct mp_gpu_path_plan_args {
    const int32_t *ids; /* [n_rows] */
    mp_path_state *state;
    mp_path_mail *mail;
    uint32_t *mail_stamps; /* [n_keys] of the message */
    const int32_t
        *map;         /* [n_keys] slot of an expert, or -1: written by the host while it answers */
    uint32_t *stamps; /* [n_keys] when an expert was last needed */
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

#endif
