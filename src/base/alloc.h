/* Host allocation: the one place where tests count allocations and make them fail (link with
 * -Wl,--wrap=mp_alloc,--wrap=mp_realloc). No other code of the library calls malloc. */
#ifndef MP_BASE_ALLOC_H
#define MP_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* Returns zero-filled memory, or NULL. A request of 0 bytes gives a unique pointer. */
void *mp_alloc(size_t bytes);

/* Grows or shrinks a block; new bytes are not cleared. Returns NULL on failure and then keeps the
 * old block. */
void *mp_realloc(void *block, size_t bytes);

/* Returns count * bytes zero-filled bytes, or NULL; an overflow is a failure. */
void *mp_alloc_array(size_t count, size_t bytes);

char *mp_strdup(const char *text);

/* Frees a block; NULL is a no-op. */
void mp_free(void *block);

#endif
