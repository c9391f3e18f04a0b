/* exph_code.h — the prefix code of a stream: its lengths, its codes, and the table that decodes it.
 */
#ifndef MP_CODEC_EXPH_CODE_H
#define MP_CODEC_EXPH_CODE_H

#include "codec/exph_format.h"

/* The lengths (at most MP_EXPH_MAX_LENGTH; 0 for a count of 0) of a prefix code that spends the
 * fewest bits on symbols that occur so often. At least two counts must be above 0. */
void mp_exph_code_lengths(const uint64_t counts[MP_EXPH_SYMBOLS], uint8_t lengths[MP_EXPH_SYMBOLS]);

/* The canonical codes of these lengths: in order of length, then of symbol, counting up; the bit
 * that is written first is bit 0. False where the lengths are not those of a complete prefix code.
 */
bool mp_exph_code_assign(const uint8_t lengths[MP_EXPH_SYMBOLS], uint8_t codes[MP_EXPH_SYMBOLS]);

/* A code as decoders use it. */
typedef struct mp_exph_book {
    uint8_t exponent[MP_EXPH_SYMBOLS]; /* the escape's is 0 */
    uint8_t length[MP_EXPH_SYMBOLS];
    uint8_t entry[MP_EXPH_WINDOWS]; /* by the next 8 bits: symbol << 4 | length */
    bool valid;                     /* else nothing can be decoded with it */
} mp_exph_book;

/* Reads the codebook of a stream, whatever it holds. */
void mp_exph_book_read(const uint8_t *stream, mp_exph_book *book);

#endif
