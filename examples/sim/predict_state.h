/* predict_state.h — memory for predictors. */
#ifndef SIM_PREDICT_STATE_H
#define SIM_PREDICT_STATE_H

#include <stdint.h>

/* Returns zeroed memory aligned to 64 bytes; NULL when out of memory. Release it with free(). */
void *sim_alloc_state(uint64_t bytes);

#endif
