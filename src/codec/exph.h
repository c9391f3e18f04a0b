/* exph.h — the exponent-Huffman codec: floating-point weights at about two thirds of their size,
 * bit for bit.
 *
 * Trained weights use few exponents: a handful of values carries almost all of them. A stream
 * stores the exponents of one tensor in a canonical prefix code of at most 8 bits and everything
 * else (sign and mantissa) as it is. It is cut into chunks that can be decoded alone, in any order,
 * by any number of threads. docs/format-exph.md specifies it.
 *
 * Pure functions on bytes: nothing here allocates, locks, keeps state or reads a clock. */
#ifndef MP_CODEC_EXPH_H
#define MP_CODEC_EXPH_H

#include "moepage.h"

#define MP_EXPH_CHUNK 32768u /* elements per chunk; the last one may have fewer */
#define MP_EXPH_ALIGN 16u    /* streams are a multiple of this; devices want them to start at one */

/* ---- encoding ---- */

/* Returns the most bytes of a stream of n elements; 0 for a dtype that is not coded or an n past
 * 2^40. */
uint64_t mp_exph_bound(uint32_t dtype, uint64_t n);

/* Encodes in[0..n) to out (mp_exph_bound bytes), both at any alignment; returns the stream's size,
 * a multiple of MP_EXPH_ALIGN. The caller decides whether the coded form is worth keeping. */
uint64_t mp_exph_encode(uint32_t dtype, const void *in, uint64_t n, void *out);

/* ---- checking ---- */

/* Checks everything that a decoder relies on: sizes, offsets, codebook, modes and escapes; that the
 * stream has `n` elements of `dtype`; and every checksum. Decoding the same bytes afterwards cannot
 * fail. FORMAT with a sentence, VERSION for a newer major. */
moepage_status mp_exph_check(const void *stream, uint64_t bytes, uint32_t dtype, uint64_t n);

/* ---- decoding ---- */

static inline uint64_t mp_exph_chunks(uint64_t n)
{
    return (n + MP_EXPH_CHUNK - 1) / MP_EXPH_CHUNK;
}

/* The decoder for one instruction set. Immutable, in static storage. */
typedef struct mp_exph_decoder mp_exph_decoder;

/* Returns the fastest decoder for this CPU; cheap, but meant to be called once and its result
 * kept. */
const mp_exph_decoder *mp_exph_decoder_best(void);

/* Returns the decoder "portable", "avx2" or "avx512"; NULL for another name or if this CPU cannot
 * run it. */
const mp_exph_decoder *mp_exph_decoder_find(const char *name);
const char *mp_exph_decoder_name(const mp_exph_decoder *decoder);

/* Decodes chunks [first, first + count) of a stream of `n` elements of `dtype` to their places in
 * out, which is the whole tensor's memory at any alignment. Whatever the stream contains, no byte
 * outside its `bytes` is read and none outside those chunks' places is written; only a checked
 * stream gives meaningful numbers. An undecodable part becomes NaNs (every bit set), never old
 * memory. All decoders give the same bits, for damaged streams too; a NULL `decoder` runs the
 * reference decoder, one symbol at a time. Uses at most 96 KiB of stack. */
void mp_exph_decode(const mp_exph_decoder *decoder, const void *stream, uint64_t bytes,
                    uint32_t dtype, uint64_t n, uint64_t first, uint64_t count, void *out);

#endif
