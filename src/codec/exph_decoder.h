/* exph_decoder.h — what an instruction set supplies to the decoder: one coded chunk into place.
 *
 * exph_decode.c finds the chunk and proves it in range, patches the escapes in afterwards, and
 * handles the other modes. What a decoder must yield is written out in exph_portable.c: each lane
 * reads its symbols from its first bit on, wherever they end, and reads zeros past the stream. */
#ifndef MP_CODEC_EXPH_DECODER_H
#define MP_CODEC_EXPH_DECODER_H

#include "codec/exph_code.h"

/* A coded chunk. Lane starts may be anywhere, also outside `readable`. */
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
    /* Writes all n elements to out, escapes as exponent 0. BF16 only, but the portable one. */
    void (*decode)(const mp_exph_book *book, const void *scratch, const mp_exph_coded *chunk,
                   uint8_t *out);
};

extern const mp_exph_decoder mp_exph_portable;
#if defined(__x86_64__)
extern const mp_exph_decoder mp_exph_avx2;
extern const mp_exph_decoder mp_exph_avx512;
#endif

/* Every fast path reads at most this many bytes from a lane's first on.
 * False: some lane could pass the stream's end. */
#define MP_EXPH_LANE_REACH 384u
bool mp_exph_lanes_within(const mp_exph_coded *chunk);

#endif
