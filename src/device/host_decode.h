/* host_decode.h — the DECODE kernel on the host: many tensors, cut into chunks, dealt to the parts.
 *
 * One phase. Nothing here allocates, locks, fails or keeps state. */
#ifndef MP_DEVICE_HOST_DECODE_H
#define MP_DEVICE_HOST_DECODE_H

#include "codec/exph.h"
#include "device/kernels.h"

/* A launch's size: bytes of BF16 that take as long to decode. */
uint64_t mp_host_decode_work(const mp_kernel_decode_args *args);

/* Runs share `part` of `n_parts` (part < n_parts). Shares are disjoint, may be empty and may run in
 * any order on any threads. */
void mp_host_decode(const mp_exph_decoder *decoder, const mp_kernel_decode_args *args,
                    uint32_t part, uint32_t n_parts);

#endif
