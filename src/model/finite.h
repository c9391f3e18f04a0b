/* finite.h — whether every number of a tensor is one. */
#ifndef MP_MODEL_FINITE_H
#define MP_MODEL_FINITE_H

#include <stdbool.h>

#include "moepage.h"

typedef enum mp_finite { MP_FINITE, MP_INFINITE, MP_NAN } mp_finite;

/* Returns true for F32, F16 and BF16. */
bool mp_finite_is_checked(uint32_t dtype);

/* Looks through n elements of such a dtype, at any alignment. *at is the index of the first that is
 * not finite. */
mp_finite mp_finite_find(uint32_t dtype, const unsigned char *data, uint64_t n, uint64_t *at);

#endif
