/* decode.cu — the entry of decode.h. Eight blocks on a multiprocessor hide the latencies of memory
 * and of table look-ups from each other: 64 registers at most. */
#include "decode.h"

extern "C" {
MP_GPU_TABLES_ENTRY(decode, mp_gpu_decode_args, mp_gpu_decode_shared, mp_gpu_decode_thread,
                    (MP_DECODE_THREADS, 8))
}
