/* path.cu — the planner of device-driven layers: see path.h. */
#include "path.h"

extern "C" {
MP_GPU_ENTRY(path_plan, mp_gpu_path_plan_args, mp_gpu_path_plan_shared, mp_gpu_path_plan_thread,
             (MP_PATH_THREADS))
MP_GPU_ENTRY(path_wait, mp_gpu_path_wait_args, mp_gpu_path_wait_shared, mp_gpu_path_wait_thread,
             (MP_PATH_WAIT_THREADS))
}
