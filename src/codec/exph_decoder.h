/* exph_decoder.h — the part of decoding that each instruction set supplies: one coded chunk into
 * place.
 *
 * exph_decode.c finds the chunk and proves it in range, patches the escapes in afterwards, and
 * handles the other modes. exph_plain.c defines the result: each lane reads its symbols from its
 * first bit on, wherever they end, and reads zeros past the stream. */
#ifndef MP_CODEC_EXPH_DECODER_H
#define MP_CODEC_EXPH_DECODER_H

#include "codec/exph_code.h"

/* A coded chunk. Lane starts may lie anywhere, also outside `readable`, except for a decoder's fast
 * path: see MP_EXPH_LANE_REACH. */
typedef struct mp_exph_coded {
    const uint8_t *base;  /* of the chunk */
    uint64_t readable;    /* bytes from `base` to the stream's end */
    const uint8_t *rests; /* mp_exph_rest_bytes long, inside the stream */
    uint32_t n;           /* elements, 1..MP_EXPH_CHUNK */
    mp_exph_type type;
    uint32_t start[MP_EXPH_CHUNK_LANES]; /* first bit of each lane, from base */
} mp_exph_coded;

/* Size of the tables that a decoder builds from the code, once per call. */
#define MP_EXPH_SCRATCH_BYTES (40u << 10)

struct mp_exph_decoder {
    const char *name;
    /* Called before the first chunk; up to `elements` elements follow. NULL: nothing to prepare. */
    void (*prepare)(const mp_exph_book *book, uint64_t elements, void *scratch);
    /* Writes all n elements, BF16, to out; an escape gets exponent 0. */
    void (*decode)(const mp_exph_book *book, const void *scratch, const mp_exph_coded *chunk,
                   uint8_t *out);
};

/* A decoder reads at most this many bytes from a lane's first byte on, and gets only chunks in
 * which that range lies within `readable`. */
#define MP_EXPH_LANE_REACH 384u

/* Decodes a chunk one symbol at a time, for any type and any lane starts. */
void mp_exph_decode_plain(const mp_exph_book *book, const mp_exph_coded *chunk, uint8_t *out);

extern const mp_exph_decoder mp_exph_portable;
#if defined(__x86_64__)
extern const mp_exph_decoder mp_exph_avx2;
extern const mp_exph_decoder mp_exph_avx512;
#endif

#endif
