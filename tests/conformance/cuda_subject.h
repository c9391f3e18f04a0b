/* cuda_subject.h — the CUDA device over a simulated machine, as a subject of the suite. */
#ifndef MP_TESTS_CUDA_SUBJECT_H
#define MP_TESTS_CUDA_SUBJECT_H

#include "sim_cuda.h"

/* Runs the suite; the number of failed tests. With MP_TEST_DEVICE=cuda:N it is run on that device
 * of the process's own driver, and `machine` is left alone; MP_TEST_SLOW says that it is
 * simulated. */
int cuda_subject_run(const char *name, const sim_cuda_config *machine);

#endif
