/* fast.cu — the entries of fast.h. */
#include "fast.h"

#define ENTRY(name, args_type, shared_type, thread_type, threads, blocks) \
    MP_GPU_ENTRY(name, args_type, shared_type, thread_type, (threads, blocks))

extern "C" {
MP_FAST_ENTRIES(ENTRY)
}
