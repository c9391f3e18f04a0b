/* decode_rig.h — the decoder's kernel in its CPU form: whole launches with grids, orders of blocks
 * and threads, shared memory and registers of any kind, none of which may matter. */
#ifndef DECODE_RIG_H
#define DECODE_RIG_H

#include "device/kernels.h"
#include "exph_data.h"

/* Runs all blocks of a launch of n_blocks over a table that ends at an inaccessible page. */
void decode_rig_launch(exph_random *random, const mp_decode_job *jobs, uint32_t n_jobs,
                       uint32_t n_blocks);

/* The same with any number of blocks, from one to many more than there is work for. */
void decode_rig_run(exph_random *random, const mp_decode_job *jobs, uint32_t n_jobs);

#endif
