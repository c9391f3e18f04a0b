/* The table of element types. */
#include "model/dtype.h"

#include <string.h>

#include "codec/blocks.h"

static const mp_stored_dtype stored[] = {
    {"F32", 32, MOEPAGE_DTYPE_F32},
    {"F16", 16, MOEPAGE_DTYPE_F16},
    {"BF16", 16, MOEPAGE_DTYPE_BF16},
    {"F8_E4M3", 8, MOEPAGE_DTYPE_F8_E4M3},
    {"F8_E5M2", 8, MOEPAGE_DTYPE_F8_E5M2},
    {"F8_E8M0", 8, MOEPAGE_DTYPE_F8_E8M0},
    {"U8", 8, MOEPAGE_DTYPE_U8},
    {"I8", 8, MOEPAGE_DTYPE_I8},
    {"I32", 32, MOEPAGE_DTYPE_I32},
    {"I64", 64, MOEPAGE_DTYPE_I64},
    {"BOOL", 8, MOEPAGE_DTYPE_NONE},
    {"F4", 4, MOEPAGE_DTYPE_NONE},
    {"F6_E2M3", 6, MOEPAGE_DTYPE_NONE},
    {"F6_E3M2", 6, MOEPAGE_DTYPE_NONE},
    {"F8_E4M3FNUZ", 8, MOEPAGE_DTYPE_NONE},
    {"F8_E5M2FNUZ", 8, MOEPAGE_DTYPE_NONE},
    {"I16", 16, MOEPAGE_DTYPE_NONE},
    {"U16", 16, MOEPAGE_DTYPE_NONE},
    {"U32", 32, MOEPAGE_DTYPE_NONE},
    {"U64", 64, MOEPAGE_DTYPE_NONE},
    {"F64", 64, MOEPAGE_DTYPE_NONE},
    {"C64", 64, MOEPAGE_DTYPE_NONE},
};

static const mp_stored_dtype *of_dtype(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++)
        if (dtype != MOEPAGE_DTYPE_NONE && stored[i].dtype == dtype)
            return &stored[i];
    return NULL;
}

const mp_stored_dtype *mp_stored_dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++)
        if (strcmp(stored[i].name, name) == 0)
            return &stored[i];
    return NULL;
}

uint32_t mp_dtype_bytes(uint32_t dtype)
{
    const mp_stored_dtype *type = of_dtype(dtype);
    return type ? type->bits / 8 : 0;
}

bool mp_dtype_is_float(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 || dtype == MOEPAGE_DTYPE_F16 || dtype == MOEPAGE_DTYPE_BF16;
}

bool mp_dtype_is_stored(uint32_t dtype)
{
    return of_dtype(dtype) || mp_block_format_of(dtype);
}

uint64_t mp_dtype_weights(uint32_t dtype, uint64_t bytes)
{
    const mp_block_format *blocks = mp_block_format_of(dtype);
    if (blocks)
        return bytes / blocks->bytes * blocks->weights;
    return of_dtype(dtype) ? bytes / mp_dtype_bytes(dtype) : 0;
}

uint32_t mp_dtype_align(uint32_t dtype)
{
    const mp_block_format *blocks = mp_block_format_of(dtype);
    if (blocks)
        return blocks->bytes % 2 ? 1 : 2;
    return of_dtype(dtype) ? mp_dtype_bytes(dtype) : 1;
}

const char *mp_dtype_name(uint32_t dtype)
{
    const mp_stored_dtype *type = of_dtype(dtype);
    const mp_block_format *blocks = mp_block_format_of(dtype);
    return type ? type->name : blocks ? blocks->name : "no dtype";
}
