/* tables.h — host tables of kernels on their way to the GPU: a ring of pinned memory with a mirror
 * in device memory.
 *
 * A launch's tables are copied into the ring when it is submitted, so that the caller may free them,
 * and from there, when the launch is issued, into the kernel's arguments if they are small; else to the same
 * place in the mirror, on the launch's own stream. Their space is free again when the launch's tick has
 * completed. Guarded by the stream's lock. */
#ifndef MP_CUDA_TABLES_H
#define MP_CUDA_TABLES_H

#include "context.h"

#define MP_CUDA_TABLES_BYTES (256u << 10) /* initial size; outside the budget */
#define MP_CUDA_TABLES_AHEAD 4u   /* launches of one size that must fit, or the ring grows */
#define MP_CUDA_TABLES_SPANS 256u /* launches that can be under way */

/* A launch's part of the ring; 0 bytes for a kernel without tables. */
typedef struct mp_cuda_span {
    uint64_t at, bytes;
} mp_cuda_span;

/* Where tables start in the ring: for the widest loads of kernels, and each in a cache line of its own. */
#define MP_CUDA_TABLES_ALIGN 64u

typedef struct mp_cuda_tables {
    mp_cuda_shared pinned;
    void *mirror;        /* device memory, pinned.bytes */
    uint64_t head, tail; /* bytes ever taken and given back */
    struct {
        mp_tick tick;
        uint64_t end; /* `tail` when it is given back */
    } spans[MP_CUDA_TABLES_SPANS];
    uint32_t first, n; /* oldest span, spans */
} mp_cuda_tables;

/* Bytes of ring that a launch's tables take. */
uint64_t mp_cuda_tables_need(mp_kernel kernel, const mp_kernel_args *args);

/* NO_MEMORY. */
moepage_status mp_cuda_tables_open(mp_cuda *cuda, uint64_t bytes, mp_cuda_tables *tables);
void mp_cuda_tables_close(mp_cuda *cuda, mp_cuda_tables *tables);

/* Takes `bytes`, at most the ring's size, for the launch that will have `tick`. False: no room
 * until more has completed than `completed`; the oldest span's tick is what to wait for. */
bool mp_cuda_tables_take(mp_cuda_tables *tables, uint64_t bytes, mp_tick tick, mp_tick completed,
                         mp_cuda_span *out);
mp_tick mp_cuda_tables_oldest(const mp_cuda_tables *tables);
/* Copies the tables of `args` into the span and makes `args` point there. */
void mp_cuda_tables_fill(const mp_cuda_tables *tables, const mp_cuda_span *span, mp_kernel kernel,
                         mp_kernel_args *args);

/* Returns true if the launch takes its tables inside the kernel's arguments. */
bool mp_cuda_tables_small(const mp_cuda_span *span, mp_kernel kernel);
/* Puts the copy of the span to the mirror on `stream`, unless the tables are small, and returns the device's
 * form of `args` in `gpu`: with NULL for small tables. */
moepage_status mp_cuda_tables_send(mp_cuda *cuda, const mp_cuda_tables *tables,
                                   const mp_cuda_span *span, mp_cu_stream stream, mp_kernel kernel,
                                   const mp_kernel_args *args, mp_kernel_args *gpu);

#endif
