/* Looks for infinities and NaNs. */
#include "model/finite.h"

#include "base/bytes.h"

/* Returns the bits that are all ones in an infinity or NaN, in the element's own width; 0 for types
 * that are not checked. */
static uint32_t exponent_mask(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_F32: return 0x7f800000u;
    case MOEPAGE_DTYPE_F16: return 0x7c00u;
    case MOEPAGE_DTYPE_BF16: return 0x7f80u;
    default: return 0;
    }
}

bool mp_finite_is_checked(uint32_t dtype)
{
    return exponent_mask(dtype);
}

mp_finite mp_finite_find(uint32_t dtype, const unsigned char *data, uint64_t n, uint64_t *at)
{
    const bool wide = dtype == MOEPAGE_DTYPE_F32;
    const uint32_t exponent = exponent_mask(dtype);
    const uint32_t fraction = (wide ? 0x7fffffffu : 0x7fffu) ^ exponent;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = wide ? mp_get32(data + 4 * i) : mp_get16(data + 2 * i);
        if ((bits & exponent) == exponent) {
            *at = i;
            return bits & fraction ? MP_NAN : MP_INFINITE;
        }
    }
    return MP_FINITE;
}
