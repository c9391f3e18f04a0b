/* The kernels' entries: dense_embed, dense_norm ... */
#include "entries.h"

GPU_ENTRIES(GPU_ENTRY)
