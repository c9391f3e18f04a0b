/* topk.cu — the entries of topk.h. */
#include "topk.h"

#define ENTRY(name, args_type, shared_type, thread_type, threads, blocks) \
    MP_GPU_ENTRY(name, args_type, shared_type, thread_type, (threads, blocks))

extern "C" {
MP_TOPK_ENTRIES(ENTRY)
}
