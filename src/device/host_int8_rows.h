/* host_int8_rows.h — what one row of x needs in every vector set: rows of weights fetched ahead, and a last run
 * that is not whole, copied with zeros behind it. */
#ifndef MP_DEVICE_HOST_INT8_ROWS_H
#define MP_DEVICE_HOST_INT8_ROWS_H

#include <immintrin.h>

#include "device/host_blocks_x86.h"
#include "device/host_int8.h"

#define MP_FEW 4 /* rows of weights that are taken together */

typedef struct mp_short_run {
    uint8_t weights[MP_FEW][MP_BLOCK_RUN / 32 * 34];
    _Alignas(64) char x[4 * MP_BLOCK_RUN];
} mp_short_run;

/* `n` weights from element `from` of x on. */
static inline mp_int8_row mp_short_x(const mp_int8_row *x, uint32_t from, uint32_t n,
                                     mp_short_run *out)
{
    const uint32_t n_groups = n / MP_INT8_GROUP;
    const mp_int8_row old = mp_int8_row_from(*x, from / MP_INT8_GROUP);
    const mp_int8_row new = mp_int8_row_at(out->x, MP_BLOCK_RUN);
    memset(out->x, 0, sizeof out->x);
    memcpy(new.q, old.q, n);
    memcpy(new.scale, old.scale, 4ull * n_groups);
    for (uint32_t by = 0; by < 2; by++) {
        const uint64_t bytes = by == MP_INT8_BY_16 ? 8ull * n_groups : 4ull * n_groups;
        memcpy(new.sum[by], old.sum[by], bytes);
        memcpy(new.negative[by], old.negative[by], bytes);
    }
    return new;
}

/* `bytes` of each of four rows, which then begin there. */
static inline void mp_short_rows(const uint8_t **run, uint32_t bytes, mp_short_run *out)
{
    memset(out->weights, 0, sizeof out->weights);
    for (uint32_t c = 0; c < MP_FEW; c++) {
        memcpy(out->weights[c], run[c], bytes);
        run[c] = out->weights[c];
    }
}

/* Fetches `bytes` to the first-level cache from `near` past `at` on, and to the second from `far` on; 0 = not. */
static inline __attribute__((always_inline)) void mp_fetch_run(const uint8_t *at, uint64_t near,
                                                               uint64_t far, uint32_t bytes)
{
    for (uint32_t line = 0; line < bytes && near; line += 64)
        _mm_prefetch((const char *)at + near + line, _MM_HINT_T0);
    for (uint32_t line = 0; line < bytes && far; line += 64)
        _mm_prefetch((const char *)at + far + line, _MM_HINT_T1);
}

#endif
