/* The expert kernels' entries. */
#include "experts.h"

static_assert(sizeof(mp_experts_thin_shared) == MP_EXPERTS_THIN_SHARED &&
                  sizeof(mp_experts_broad_shared) == MP_EXPERTS_BROAD_SHARED &&
                  sizeof(mp_experts_plain_shared) == MP_EXPERTS_PLAIN_SHARED,
              "what the host asks for is what the kernels use");

extern "C" {
#define MP_EXPERTS_ENTRY(entry, form, dtype, aligned, shared_type, thread_type, blocks) \
    MP_GPU_ENTRY(entry, mp_gpu_experts_args, shared_type, thread_type, (MP_EXPERTS_THREADS, blocks))
MP_EXPERTS_KERNELS(MP_EXPERTS_ENTRY)
}
