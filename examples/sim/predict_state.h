/* predict_state.h — memory as predictors ask for it. */
#ifndef SIM_PREDICT_STATE_H
#define SIM_PREDICT_STATE_H

#include <stdint.h>

/* Zeros, aligned to 64 bytes; NULL without memory. Freed by free(). */
void *sim_alloc_state(uint64_t bytes);

#endif
