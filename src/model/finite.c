/* Looks for infinities and NaNs. */
#include "model/finite.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/status.h"
#include "model/dtype.h"

typedef enum number { FINITE, INFINITE, NOT_A_NUMBER } number;

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

/* Looks through n elements, at any alignment. *at is the index of the first that is not finite. */
static number find(uint32_t dtype, const unsigned char *data, uint64_t n, uint64_t *at)
{
    const bool wide = dtype == MOEPAGE_DTYPE_F32;
    const uint32_t exponent = exponent_mask(dtype);
    const uint32_t fraction = (wide ? 0x7fffffffu : 0x7fffu) ^ exponent;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = wide ? mp_get32(data + 4 * i) : mp_get16(data + 2 * i);
        if ((bits & exponent) == exponent) {
            *at = i;
            return bits & fraction ? NOT_A_NUMBER : INFINITE;
        }
    }
    return FINITE;
}

moepage_status mp_finite_check_router(const mp_router_tensor *router)
{
    unsigned char *data;
    moepage_status status = mp_model_file_load(router->file, router->offset, router->bytes, &data);
    if (status)
        return status;
    uint64_t at;
    const number found =
        find(router->dtype, data, router->bytes / mp_dtype_bytes(router->dtype), &at);
    mp_free(data);
    if (found == FINITE)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "%.120s: router tensor \"%.160s\" has %s at row %llu, column %llu: every "
                   "element must be finite",
                   router->file->name, router->name, found == NOT_A_NUMBER ? "NaN" : "an infinity",
                   (unsigned long long)(at / router->row_length),
                   (unsigned long long)(at % router->row_length));
}
