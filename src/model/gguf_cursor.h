/* gguf_cursor.h — taking numbers and texts off the front of a GGUF file's header.
 *
 * How long the header is shows only when all of it has been taken, so a part of the file is in memory
 * and the rest is not. Nothing is taken before it is known to lie inside the file, and in memory.
 * Errors say how much is missing; the caller adds the name of the key or tensor, and of the file. */
#ifndef MP_MODEL_GGUF_CURSOR_H
#define MP_MODEL_GGUF_CURSOR_H

#include "base/bytes.h"
#include "base/status.h"
#include "moepage.h"

typedef struct mp_gguf_cursor {
    const unsigned char *at;
    uint64_t left; /* bytes from `at` to the end of the file */
    uint64_t held; /* of these in memory */
    uint64_t
        needed; /* not 0: this many more than `held` were asked for, and the taking has failed */
} mp_gguf_cursor;

/* Takes n_bytes; FORMAT if fewer are left; BUSY, and `needed`, if more of the file is needed. */
static inline moepage_status mp_gguf_take(mp_gguf_cursor *from, uint64_t n_bytes,
                                          const unsigned char **out)
{
    if (n_bytes > from->left)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%llu bytes are needed where %llu remain: truncated, or damaged",
                       (unsigned long long)n_bytes, (unsigned long long)from->left);
    if (n_bytes > from->held) {
        from->needed = n_bytes - from->held;
        return mp_fail(MOEPAGE_E_BUSY, "more of the file is needed");
    }
    *out = from->at;
    from->at += n_bytes;
    from->left -= n_bytes;
    from->held -= n_bytes;
    return MOEPAGE_OK;
}

static inline moepage_status mp_gguf_take32(mp_gguf_cursor *from, uint32_t *out)
{
    const unsigned char *bytes;
    moepage_status status = mp_gguf_take(from, 4, &bytes);
    if (!status)
        *out = mp_get32(bytes);
    return status;
}

static inline moepage_status mp_gguf_take64(mp_gguf_cursor *from, uint64_t *out)
{
    const unsigned char *bytes;
    moepage_status status = mp_gguf_take(from, 8, &bytes);
    if (!status)
        *out = mp_get64(bytes);
    return status;
}

/* Takes a text: its length, then its bytes, without a NUL. */
static inline moepage_status mp_gguf_take_text(mp_gguf_cursor *from, const unsigned char **out,
                                               uint64_t *n_bytes)
{
    moepage_status status = mp_gguf_take64(from, n_bytes);
    return status ? status : mp_gguf_take(from, *n_bytes, out);
}

/* Takes the name of a key or a tensor: printable, because C strings and sentences are made of it. */
moepage_status mp_gguf_take_name(mp_gguf_cursor *from, const unsigned char **out,
                                 uint32_t *n_bytes);

#endif
