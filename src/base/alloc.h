/* Host allocation: one place to count, and to fail on purpose in tests (link with
 * -Wl,--wrap=mp_alloc,--wrap=mp_realloc). No other code of ours calls malloc. */
#ifndef MP_BASE_ALLOC_H
#define MP_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* Zero-filled bytes, or NULL. `bytes` 0 gives a unique pointer. */
void *mp_alloc(size_t bytes);

/* Grows or shrinks; new bytes are not cleared. NULL on failure, the old block is then kept. */
void *mp_realloc(void *block, size_t bytes);

/* count * bytes zero-filled, or NULL; overflow is a failure. */
void *mp_alloc_array(size_t count, size_t bytes);

char *mp_strdup(const char *text);

/* NULL is a no-op. */
void mp_free(void *block);

#endif
