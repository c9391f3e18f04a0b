/* upload.h — a model's dense weights in device memory. */
#ifndef EXAMPLE_CUDA_UPLOAD_H
#define EXAMPLE_CUDA_UPLOAD_H

#include "cuda/machine.h"

/* Copies every matrix and vector, and describes the copies in *out, whose pointers are the
 * device's. Matrices stay as they are stored; in BF16 math operands of products are rounded to
 * BF16. `layers` of *out is to be freed. */
int upload_weights(machine *m, const model_config *config, const model_weights *weights,
                   uint32_t math, model_weights *out);

#endif
