/* peers.h — a GPU's access to the memory of another. */
#ifndef MP_CUDA_PEERS_H
#define MP_CUDA_PEERS_H

#include "context.h"

/* As in mp_cuda_ext. */
moepage_status mp_cuda_reach(mp_device *device, mp_device *other, bool *can);

#endif
