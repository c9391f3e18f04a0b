/* kernel_rig.h — a GPU that is a function: what a launch of cuda/launch_*.c puts on a stream runs
 * at once, in its CPU form, blocks and threads in random orders, on shared memory and registers
 * full of garbage that end where the launch says. Or, where gpu_reach.h says so, on a real GPU, one
 * launch after the other. */
#ifndef KERNEL_RIG_H
#define KERNEL_RIG_H

#include "gpu.h"
#include "launch.h"

/* One for the whole test program; `multiprocessors` decides how some launches cut their work.
 * Forgets the launches before. */
mp_cuda *kernel_rig(uint32_t multiprocessors);

/* Until the next kernel_rig, grids are cut to so many blocks, which must take turns then. */
void kernel_rig_cut(uint32_t n_blocks);

uint32_t kernel_rig_launches(void);
/* Of the launch before, the last one is 0. */
uint32_t kernel_rig_threads(uint32_t back);

#endif
