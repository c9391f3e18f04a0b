/* remap.cu — the entries of remap.h. */
#include "remap.h"

#define ENTRY(name, args_type, shared_type, thread_type, threads, blocks) \
    MP_GPU_ENTRY(name, args_type, shared_type, thread_type, (threads, blocks))

extern "C" {
MP_REMAP_ENTRIES(ENTRY)
}
