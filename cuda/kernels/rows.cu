/* rows.cu — the entries of rows.h. */
#include "rows.h"

#define ENTRY(name, args_type, shared_type, thread_type, threads, blocks) \
    MP_GPU_ENTRY(name, args_type, shared_type, thread_type, (threads, blocks))

extern "C" {
MP_ROWS_ENTRIES(ENTRY)
}
