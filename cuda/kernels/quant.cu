/* quant.cu — the entries of quant.h. */
#include "quant.h"

#define ENTRY(name, args_type, shared_type, thread_type, threads, blocks) \
    MP_GPU_ENTRY(name, args_type, shared_type, thread_type, (threads, blocks))

extern "C" {
MP_QUANT_ENTRIES(ENTRY)
}
