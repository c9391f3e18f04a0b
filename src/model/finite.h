/* finite.h — refuses routers with weights that are infinite or NaN. */
#ifndef MP_MODEL_FINITE_H
#define MP_MODEL_FINITE_H

#include <stdbool.h>

#include "model/file.h"
#include "moepage.h"

/* A router's tensor in its file: rows of row_length weights. */
typedef struct mp_router_tensor {
    const mp_model_file *file;
    const char *name;
    uint64_t offset, bytes;
    uint32_t dtype;
    uint64_t row_length;
} mp_router_tensor;

/* Returns true for F32, F16 and BF16. */
bool mp_finite_is_checked(uint32_t dtype);

/* Reads a tensor of such a dtype and looks through it. FORMAT names the first weight that is not
 * finite; IO, NO_MEMORY. */
moepage_status mp_finite_check_router(const mp_router_tensor *router);

#endif
