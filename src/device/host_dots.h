/* host_dots.h — the dot products of rows of x with a weight matrix: which tiles compute them, of weights in place
 * or of what they are converted to, and how many at a time. */
#ifndef MP_DEVICE_HOST_DOTS_H
#define MP_DEVICE_HOST_DOTS_H

#include "codec/blocks.h"
#include "device/host_kernel_set.h"

/* Most weight rows of one matrix in a panel, and most bytes unless that leaves no whole tile or products
 * are in integers: gate's and up's panels and the rows that meet them share a second-level cache of 1 MiB. */
#define MP_PANEL 32
#define MP_PANEL_BYTES (256u << 10)
/* Bytes that lone rows in integers fetch ahead at least: they are faster than memory's latency. */
#define MP_AHEAD_BYTES (16u << 10)
/* Bytes of a row of x per piece. Shorter ones lose more to reloading lanes than they gain in the
 * first-level cache. */
#define MP_PIECE_BYTES 4096
/* Elements converted at a time, of weight rows that tiles cannot read in place. All groups of
 * integers and all blocks end there. */
#define MP_CONVERTED 1024

/* Dot products of activation rows with the rows of a weight matrix. */
typedef struct mp_dots {
    const mp_host_kernel_set *set;
    mp_tile_kind kind;
    uint32_t weight_dtype;
    mp_block_scale scale;          /* of the weights */
    uint32_t bits, group;          /* of weights that are integers; 0 = they are not */
    const mp_block_format *blocks; /* of weights in blocks, or NULL */
    mp_run_tile *direct;           /* reads integers or blocks as they lie; or NULL, */
    mp_value_integers *integers;   /* and this makes operands of integers, */
    mp_value_blocks *decode;       /* or this floats of blocks */
    bool in_integers;   /* blocks meet rows of x in 8 bits: host_int8.h; nothing of the above */
    bool convert;       /* weights, to the operand type: tiles cannot read them as they lie */
    bool lone;          /* one tile's rows only */
    uint32_t k;         /* length of every row */
    uint32_t piece;     /* elements of it at a time */
    uint32_t panel;     /* most weight rows at a time */
    uint32_t ahead;     /* rows that a lone group fetches ahead */
    uint64_t x_element; /* bytes */
    uint64_t x_bytes;   /* of a row */
    uint64_t w_element; /* of `weight_dtype`, unless its weights are in blocks */
    uint64_t row_bytes; /* of weights */
} mp_dots;

/* A weight matrix. */
typedef struct mp_matrix {
    const char *weights;
    const char *scales; /* of blocks or groups, or NULL */
} mp_matrix;

/* Returns true if the matrix meets rows of x in 8 bits. */
bool mp_dots_in_integers(const mp_kernel_experts_args *args, uint32_t which);

/* The products of n_rows rows with one of the expert's matrices. */
mp_dots mp_dots_of(const mp_host_kernel_set *set, const mp_kernel_experts_args *args,
                   uint32_t which, uint32_t n_rows);

/* Points a tile at four weight rows from `first` on, of which n_weights exist, from element `from` on;
 * or at `converted`, where it puts what they become. */
void mp_dots_take_weights(const mp_dots *dots, const mp_matrix *matrix, uint32_t first,
                          uint32_t n_weights, uint32_t from, uint64_t ahead_bytes, mp_tile *tile,
                          float (*converted)[MP_CONVERTED]);

#endif
