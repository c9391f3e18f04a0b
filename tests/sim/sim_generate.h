/* sim_generate.h — the kernels of moepage-generate in their CPU form. */
#ifndef MP_TESTS_SIM_GENERATE_H
#define MP_TESTS_SIM_GENERATE_H

#include "kernels/phase.h"

/* Ends with one whose name is NULL. */
extern const mp_cpu_kernel sim_generate_kernels[];

#endif
