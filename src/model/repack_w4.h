/* repack_w4.h — W4A16 matrices in the layouts of GPTQ, AWQ and compressed-tensors, as blocks of W4.
 *
 * All store integers of four bits, eight to a word of 32 bits, a scale and a zero-point for each group of
 * columns of a row. They differ in what is next to what. N rows of K weights in G groups:
 *
 *              weights               scales      zero-points          groups of columns
 *   GPTQ       [K/8, N], along K     [G, N]      [G, N/8], along N    [K], or none
 *   AWQ        [K, N/8], along N     [G, N]      [G, N/8], along N
 *   packed     [N, K/8], along K     [N, G]      [N/8, G], along N    [K], or none
 *
 * The first of eight is in a word's lowest bits; AWQ's order is 0, 2, 4, 6, 1, 3, 5, 7. GPTQ's first version
 * stores zero-points less 1. Without stored zero-points all are 8; without stored groups columns are of group
 * 0, 0, ..., 1, 1, ..., as many of each. */
#ifndef MP_MODEL_REPACK_W4_H
#define MP_MODEL_REPACK_W4_H

#include "model/repack.h"

/* A piece's sources; those that there are not have no rows. */
enum { MP_W4_WEIGHTS, MP_W4_SCALES, MP_W4_ZEROS, MP_W4_GROUPS, MP_W4_SOURCES };

typedef enum mp_w4_layout { MP_W4_GPTQ_V1, MP_W4_GPTQ_V2, MP_W4_AWQ, MP_W4_PACKED } mp_w4_layout;

/* Returns the kind of pieces that are rows of blocks of W4. FORMAT, besides what a file can fail with: a column
 * of another group than its place says, and a zero-point of GPTQ's first version that has no one meaning. */
const mp_repack_kind *mp_repack_w4(mp_w4_layout layout);

/* Returns the kind of pieces that are rows of weights' values, in the type of the scales: columns may be of any
 * groups (act-order), which blocks have no room for. Of GPTQ and PACKED, with stored groups. */
const mp_repack_kind *mp_repack_w4_values(mp_w4_layout layout, bool bf16);

/* Returns the longest block of W4 that divides a group of columns; 0 if none does. */
uint32_t mp_w4_block(uint64_t group);

#endif
