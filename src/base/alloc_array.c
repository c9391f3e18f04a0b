/* Allocations of a computed size. Separate from alloc.c because the linker's --wrap, with which
 * tests make mp_alloc fail, reaches only calls from another object file. */
#include "base/alloc.h"

#include <string.h>

void *mp_alloc_array(size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total))
        return NULL;
    return mp_alloc(total);
}

char *mp_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = mp_alloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}
