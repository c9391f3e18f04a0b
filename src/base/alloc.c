/* Host allocation: zero-filled memory from the C library. */
#include "base/alloc.h"

#include <stdlib.h>

void *mp_alloc(size_t bytes)
{
    return calloc(1, bytes ? bytes : 1);
}

void *mp_realloc(void *block, size_t bytes)
{
    return realloc(block, bytes ? bytes : 1);
}

void mp_free(void *block)
{
    free(block);
}
