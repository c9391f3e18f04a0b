/* elementwise.cu — the entries of elementwise.h. */
#include "elementwise.h"

#define ENTRY(name, args_type, shared_type, thread_type, threads, blocks) \
    MP_GPU_ENTRY(name, args_type, shared_type, thread_type, (threads, blocks))

extern "C" {
MP_ELEMENTWISE_ENTRIES(ENTRY)
}
