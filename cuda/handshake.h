/* handshake.h — whether streams share hardware queues: shake_hands of device/cuda_ext.h. */
#ifndef MP_CUDA_HANDSHAKE_H
#define MP_CUDA_HANDSHAKE_H

#include "device/cuda_ext.h"

moepage_status mp_cuda_shake_hands(mp_stream *answers, const mp_cuda_handshake *handshake,
                                   bool *is_shared);

#endif
