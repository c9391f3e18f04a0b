/* study_wisp.h — common parts of the WiSP studies: its host, and its static offload. */
#ifndef SIM_STUDY_WISP_H
#define SIM_STUDY_WISP_H

#include "sim/study_bench.h"

#define SIM_GIB (1ull << 30)

/* The host program's time per layer and token, from two statements of the paper: 26.79 tok/s with
 * all experts resident under the pager (table 2), 0.78 ms per layer, a third of it in the pager's
 * hook (app. H). The simulated kernels take 45 us of a layer themselves. */
#define SIM_WISP_LAYER_NS 777657u
#define SIM_WISP_KERNEL_NS 45000u
#define SIM_WISP_HOOK_NS (SIM_WISP_LAYER_NS / 3)
#define SIM_WISP_HOST_NS (SIM_WISP_LAYER_NS - SIM_WISP_HOOK_NS - SIM_WISP_KERNEL_NS)

/* Makes the host keep the last `own` layers, --cpu-offload-gb, and no pager's hook: the others are resident. Of its
 * own layers the kernels read the routed experts in place, or each is copied whole. */
void sim_wisp_offload(const sim_bench *bench, uint32_t own, bool in_place,
                      sim_serve_config *config);

#endif
