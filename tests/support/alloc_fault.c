/* Standing between the library and its allocator. */
#include "alloc_fault.h"

#include <stddef.h>

void *__real_mp_alloc(size_t bytes);
void *__real_mp_realloc(void *block, size_t bytes);
void *__wrap_mp_alloc(size_t bytes);
void *__wrap_mp_realloc(void *block, size_t bytes);

__thread alloc_faults alloc_fault;

static bool strikes(void)
{
    if (!alloc_fault.countdown || --alloc_fault.countdown)
        return false;
    alloc_fault.countdown = alloc_fault.for_good;
    alloc_fault.failures++;
    return true;
}

void *__wrap_mp_alloc(size_t bytes)
{
    return strikes() ? NULL : __real_mp_alloc(bytes);
}

void *__wrap_mp_realloc(void *block, size_t bytes)
{
    return strikes() ? NULL : __real_mp_realloc(block, bytes);
}
