/* path_mail.h — what the host and a device-driven path's kernel both read: the mailbox, the path's
 * state, and the places of operands in a slot. device_paths/path.h explains their use.
 *
 * Plain C with fields of fixed size, because kernels include it, too; for runtime compilers without
 * <stdint.h>, kernels/phase.h stands in for that header. */
#ifndef MP_DEVICE_PATH_MAIL_H
#define MP_DEVICE_PATH_MAIL_H

#if !defined(__CUDACC_RTC__)
#include <stdint.h>
#endif

#define MP_PATH_EXPERTS 1024u /* most of a layer */

/* Sequence numbers have 31 bits and are never 0; an answer carries its message's. */
#define MP_PATH_SEQUENCE 0x7fffffffu
#define MP_PATH_ANSWER(sequence, refused) ((sequence) << 1 | (refused))

/* How a layer ends. */
enum {
    MP_PATH_OK,
    MP_PATH_REFUSED, /* the host could not load an expert, and knows the reason */
    MP_PATH_LATE,    /* no answer in time */
    MP_PATH_BAD_ID,  /* `detail` is an id that the layer does not have */
    MP_PATH_LOST,    /* the map lacks an expert that the host said was there */
    MP_PATH_STILL    /* the report of an earlier layer has not been acknowledged: nothing new */
};

/* In device memory; the host zeroes it before the first layer. From then on all but the answer
 * belongs to the kernel. `apart` puts what the two sides write on different cache lines. */
typedef struct mp_path_state {
    uint32_t answer; /* the host's, in the order of its stream: MP_PATH_ANSWER */
    uint32_t apart[31];
    uint32_t sequence;  /* of the last message */
    uint32_t owed;      /* 1: its answer has not been seen yet, because time ran out */
    uint32_t gave_up;   /* counts the reports of layers given up */
    uint32_t error;     /* the report in force: no layer runs before it has been acknowledged */
    uint32_t failed;    /* 1: the layer whose launches are next has no result */
    uint32_t n_experts; /* of that layer's table */
    uint32_t now;       /* counts layers: the time of stamps */
    uint32_t in_layer;  /* the layer that was run last */
    uint64_t layers, all_hit, routed, misses;
} mp_path_state;

/* In memory that both sides reach; [keys] stamps follow it. The device writes the
 * lines before `acknowledged`. */
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
    /* The state's counts: as of the model's last layer, a layer that follows none before it, or one that
     * waited for the host. Others leave the host alone. */
    uint64_t layers, all_hit, routed, misses;
    uint64_t apart_progress[12];
    uint32_t acknowledged; /* the host's: the last report that the caller has seen */
    uint32_t apart_host[31];
    uint32_t experts[MP_PATH_EXPERTS]; /* of the message */
} mp_path_mail;

/* The offsets of an expert's operands in its slot; UINT64_MAX if there is none. */
typedef struct mp_path_layout {
    uint64_t gate, up, down;
    uint64_t gate_bias, up_bias, down_bias;
    uint64_t gate_scale, up_scale, down_scale;
} mp_path_layout;

#endif
