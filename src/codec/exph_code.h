/* exph_code.h — the prefix code of a stream: its lengths, its codes, and the table that decodes it.
 */
#ifndef MP_CODEC_EXPH_CODE_H
#define MP_CODEC_EXPH_CODE_H

#include "codec/exph_format.h"

/* Computes the lengths (at most MP_EXPH_MAX_LENGTH; 0 for a count of 0) of the prefix code that
 * spends the fewest bits on symbols with these counts. At least two counts must be above 0. */
void mp_exph_code_lengths(const uint64_t counts[MP_EXPH_SYMBOLS], uint8_t lengths[MP_EXPH_SYMBOLS]);

/* Assigns the canonical codes of these lengths: counting up in order of length, then of symbol; the
 * bit written first is bit 0. Returns false if the lengths are not those of a complete prefix
 * code. */
bool mp_exph_code_assign(const uint8_t lengths[MP_EXPH_SYMBOLS], uint8_t codes[MP_EXPH_SYMBOLS]);

/* A code in the form that decoders use. */
typedef struct mp_exph_book {
    uint8_t exponent[MP_EXPH_SYMBOLS]; /* 0 for the escape */
    uint8_t length[MP_EXPH_SYMBOLS];
    uint8_t entry[MP_EXPH_WINDOWS]; /* indexed by the next 8 bits: symbol << 4 | length */
    bool valid;                     /* false: nothing can be decoded with this code */
} mp_exph_book;

/* Reads a stream's codebook; safe for any bytes. */
void mp_exph_book_read(const uint8_t *stream, mp_exph_book *book);

#endif
