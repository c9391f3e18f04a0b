/* exph_decoder.h — what an instruction set supplies to the decoder: one coded chunk into place.
 *
 * exph_decode.c finds the chunk and proves it in range, patches the escapes in afterwards, and
 * handles the other modes. What a decoder must yield is written out in exph_plain.c: each lane
 * reads its symbols from its first bit on, wherever they end, and reads zeros past the stream. */
#ifndef MP_CODEC_EXPH_DECODER_H
#define MP_CODEC_EXPH_DECODER_H

#include "codec/exph_code.h"

/* A coded chunk. Lane starts may be anywhere, also outside `readable`, but for a decoder's fast
 * path: see MP_EXPH_LANE_REACH. */
typedef struct mp_exph_coded {
    const uint8_t *base;  /* of the chunk */
    uint64_t readable;    /* bytes from there to the stream's end */
    const uint8_t *rests; /* mp_exph_rest_bytes, inside the stream */
    uint32_t n;           /* elements, 1..MP_EXPH_CHUNK */
    mp_exph_type type;
    uint32_t start[MP_EXPH_CHUNK_LANES]; /* first bit of each lane of its tiles, from base */
} mp_exph_coded;

/* Room for tables that a decoder makes of the code, once per call. */
#define MP_EXPH_SCRATCH_BYTES (40u << 10)

struct mp_exph_decoder {
    const char *name;
    /* Before the first chunk: up to `elements` elements follow. NULL: nothing to prepare. */
    void (*prepare)(const mp_exph_book *book, uint64_t elements, void *scratch);
    /* Writes all n elements, BF16, to out, escapes as exponent 0. */
    void (*decode)(const mp_exph_book *book, const void *scratch, const mp_exph_coded *chunk,
                   uint8_t *out);
};

/* A decoder reads at most this many bytes from a lane's first on, and is given only chunks in which
 * that is within `readable`. */
#define MP_EXPH_LANE_REACH 384u

/* The same for any type and any lanes, a symbol at a time. */
void mp_exph_decode_plain(const mp_exph_book *book, const mp_exph_coded *chunk, uint8_t *out);

extern const mp_exph_decoder mp_exph_portable;
#if defined(__x86_64__)
extern const mp_exph_decoder mp_exph_avx2;
extern const mp_exph_decoder mp_exph_avx512;
#endif

#endif
