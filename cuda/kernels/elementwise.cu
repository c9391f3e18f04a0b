/* elementwise.cu — the entries of elementwise.h. */
#include "elementwise.h"

extern "C" {
MP_GPU_ENTRY(convert, mp_gpu_convert_args, mp_gpu_elementwise_shared, mp_gpu_elementwise_thread,
             (MP_ELEMENTWISE_THREADS, 4))
MP_GPU_TABLES_ENTRY(combine, mp_gpu_combine_args, mp_gpu_elementwise_shared,
                    mp_gpu_elementwise_thread, (MP_ELEMENTWISE_THREADS, 4))
}
