/* Standing between the library and its allocator. */
#include "alloc_fault.h"

void *__real_mp_alloc(size_t bytes);
void *__real_mp_realloc(void *block, size_t bytes);
void *__wrap_mp_alloc(size_t bytes);
void *__wrap_mp_realloc(void *block, size_t bytes);

__thread alloc_faults alloc_fault;

static bool counted_down(size_t bytes)
{
    (void)bytes;
    if (!alloc_fault.countdown || --alloc_fault.countdown)
        return false;
    alloc_fault.countdown = alloc_fault.for_good;
    alloc_fault.failures++;
    return true;
}

bool (*alloc_fault_strikes)(size_t bytes) = counted_down;

void *__wrap_mp_alloc(size_t bytes)
{
    return alloc_fault_strikes(bytes) ? NULL : __real_mp_alloc(bytes);
}

void *__wrap_mp_realloc(void *block, size_t bytes)
{
    return alloc_fault_strikes(bytes) ? NULL : __real_mp_realloc(block, bytes);
}
