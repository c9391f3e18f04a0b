/* Every kernel of cuda/kernels in its CPU form, for the simulated driver. */
#include <stddef.h>

#include "images.h"
#include "kernels/decode.h"
#include "kernels/elementwise.h"
#include "kernels/experts.h"
#include "kernels/fast.h"
#include "kernels/path.h"
#include "kernels/quant.h"
#include "kernels/remap.h"
#include "kernels/rows.h"
#include "kernels/topk.h"
#include "sim_cuda.h"

#define ENTRY(name, args, shared, thread, threads, blocks) MP_CPU_ENTRY(name, args, shared, thread)
#define ROW(name, args, shared, thread, threads, blocks) \
    MP_CPU_BOUND_ROW(name, args, shared, thread, threads),
#define EXPERTS_ENTRY(name, form, dtype, aligned, shared, thread, blocks) \
    MP_CPU_ENTRY(name, mp_gpu_experts_args, shared, thread)
#define EXPERTS_ROW(name, form, dtype, aligned, shared, thread, blocks) \
    MP_CPU_BOUND_ROW(name, mp_gpu_experts_args, shared, thread, MP_EXPERTS_THREADS),
#define DECODE_ENTRIES(X) \
    X(decode, mp_gpu_decode_args, mp_gpu_decode_shared, mp_gpu_decode_thread, MP_DECODE_THREADS, 8)
#define PATH_ENTRIES(X)                                                                   \
    X(path_plan, mp_gpu_path_plan_args, mp_gpu_path_plan_shared, mp_gpu_path_plan_thread, \
      MP_PATH_THREADS, 1)                                                                 \
    X(path_wait, mp_gpu_path_wait_args, mp_gpu_path_wait_shared, mp_gpu_path_wait_thread, \
      MP_PATH_WAIT_THREADS, 1)

#define FAMILY(family, entries, entry, row) \
    entries(entry) static const mp_cpu_kernel family##_kernels[] = {entries(row){0}};

FAMILY(decode, DECODE_ENTRIES, ENTRY, ROW)
FAMILY(elementwise, MP_ELEMENTWISE_ENTRIES, ENTRY, ROW)
FAMILY(experts, MP_EXPERTS_KERNELS, EXPERTS_ENTRY, EXPERTS_ROW)
FAMILY(fast, MP_FAST_ENTRIES, ENTRY, ROW)
FAMILY(path, PATH_ENTRIES, ENTRY, ROW)
FAMILY(quant, MP_QUANT_ENTRIES, ENTRY, ROW)
FAMILY(remap, MP_REMAP_ENTRIES, ENTRY, ROW)
FAMILY(rows, MP_ROWS_ENTRIES, ENTRY, ROW)
FAMILY(topk, MP_TOPK_ENTRIES, ENTRY, ROW)

#define IMAGE(family) {#family, family##_kernels},
const mp_cuda_image sim_images[] = {MP_CUDA_FAMILIES(IMAGE)};
const uint32_t sim_n_images = sizeof sim_images / sizeof sim_images[0];
