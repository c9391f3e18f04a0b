/* exph_format.h — the bytes of an exponent-Huffman stream: offsets, numbers and limits that all of
 * the codec shares. docs/format-exph.md is the specification.
 *
 *   header (12) | codebook (24) | chunk table (12 each) | to 16 | chunk | chunk | ...
 *   coded chunk = tile heads (4 each) | lane lengths (32 per tile) | escapes | bits | to 16 | rests
 *
 * Little-endian; values lie unaligned and are copied in and out. */
#ifndef MP_CODEC_EXPH_FORMAT_H
#define MP_CODEC_EXPH_FORMAT_H

#include <stdbool.h>
#include <string.h>

#include "codec/exph.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "streams are copied as they lie");

/* Unrolls a loop completely, so that its indices are constants and the arrays they index can live
 * in registers. */
#if defined(__clang__)
#define MP_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MP_UNROLL _Pragma("GCC unroll 8")
#endif

#define MP_EXPH_VERSION 1u
#define MP_EXPH_MAX_ELEMENTS (UINT64_C(1) << 40)

/* A run is 8 consecutive elements: lane l of a tile owns run l of each group. */
enum {
    MP_EXPH_RUN = 8,
    MP_EXPH_LANES = 32,
    MP_EXPH_GROUP = MP_EXPH_RUN * MP_EXPH_LANES, /* 256 elements */
    MP_EXPH_TILE_GROUPS = 32,
    MP_EXPH_TILE = MP_EXPH_GROUP * MP_EXPH_TILE_GROUPS, /* 8192 elements */
    MP_EXPH_TILES = MP_EXPH_CHUNK / MP_EXPH_TILE,
    MP_EXPH_CHUNK_LANES = MP_EXPH_TILES * MP_EXPH_LANES
};

enum {
    MP_EXPH_SYMBOLS = 16, /* 15 exponents and the escape */
    MP_EXPH_ESCAPE = 15,
    MP_EXPH_MAX_LENGTH = 8,
    MP_EXPH_WINDOWS = 1 << MP_EXPH_MAX_LENGTH
};

/* Offsets from the start of a stream. */
enum {
    MP_EXPH_AT_VERSION = 0,
    MP_EXPH_AT_DTYPE = 1,
    MP_EXPH_AT_ELEMENTS = 2, /* 5 bytes */
    MP_EXPH_AT_RESERVED = 7,
    MP_EXPH_AT_CHECKSUM = 8,
    MP_EXPH_AT_EXPONENTS = 12, /* 15 bytes and a zero */
    MP_EXPH_AT_LENGTHS = 28,   /* 16 nibbles */
    MP_EXPH_AT_TABLE = 36
};

/* An entry of the chunk table. */
enum {
    MP_EXPH_ENTRY_OFFSET = 0, /* 5 bytes, in units of MP_EXPH_ALIGN */
    MP_EXPH_ENTRY_MODE = 5,
    MP_EXPH_ENTRY_VALUE = 6, /* 2 bytes */
    MP_EXPH_ENTRY_CHECKSUM = 8,
    MP_EXPH_ENTRY_BYTES = 12
};

enum { MP_EXPH_CODED = 0, MP_EXPH_CONSTANT = 1, MP_EXPH_RAW = 2 };

/* A tile head: u16 first byte of its bits, from the chunk's first; u16 shortest lane | shift << 12.
 */
enum { MP_EXPH_HEAD_BYTES = 4, MP_EXPH_SHORTEST_BITS = 12, MP_EXPH_ESCAPE_BYTES = 3 };

static inline uint32_t mp_exph_get16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t mp_exph_get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t mp_exph_get40(const uint8_t *at)
{
    return mp_exph_get32(at) | (uint64_t)at[4] << 32;
}

static inline uint64_t mp_exph_get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline void mp_exph_put16(uint8_t *at, uint32_t value)
{
    const uint16_t low = (uint16_t)value;
    memcpy(at, &low, sizeof low);
}

static inline void mp_exph_put32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline void mp_exph_put40(uint8_t *at, uint64_t value)
{
    mp_exph_put32(at, (uint32_t)value);
    at[4] = (uint8_t)(value >> 32);
}

static inline void mp_exph_put64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline uint64_t mp_exph_align(uint64_t bytes)
{
    return (bytes + MP_EXPH_ALIGN - 1) & ~(uint64_t)(MP_EXPH_ALIGN - 1);
}

/* How an element is split: its exponent field, and the rest (sign and mantissa, moved together). */
typedef struct mp_exph_type {
    uint32_t bytes;         /* of an element; 0: the codec does not code this dtype */
    uint32_t exponent_bits; /* at most 8 */
    uint32_t mantissa_bits; /* the exponent lies above them */
    uint32_t rest_bits;     /* mantissa_bits + 1: also the bytes of a run's rests */
} mp_exph_type;

mp_exph_type mp_exph_type_of(uint32_t dtype);

/* Returns the bytes of n elements' rests: whole runs, rounded up to MP_EXPH_ALIGN. */
static inline uint64_t mp_exph_rest_bytes(const mp_exph_type *type, uint64_t n)
{
    return mp_exph_align((n + MP_EXPH_RUN - 1) / MP_EXPH_RUN * type->rest_bits);
}

/* Returns the offset of the first chunk. */
static inline uint64_t mp_exph_front_bytes(uint64_t n)
{
    return mp_exph_align(MP_EXPH_AT_TABLE + mp_exph_chunks(n) * MP_EXPH_ENTRY_BYTES);
}

/* Returns the number of elements in chunk `index` of a tensor of n. */
static inline uint32_t mp_exph_chunk_elements(uint64_t n, uint64_t index)
{
    const uint64_t left = n - index * MP_EXPH_CHUNK;
    return left < MP_EXPH_CHUNK ? (uint32_t)left : MP_EXPH_CHUNK;
}

static inline uint32_t mp_exph_tiles(uint32_t chunk_elements)
{
    return (chunk_elements + MP_EXPH_TILE - 1) / MP_EXPH_TILE;
}

/* Returns the number of elements in tile `index` of a chunk of n. */
static inline uint32_t mp_exph_tile_elements(uint32_t n, uint32_t index)
{
    const uint32_t left = n - index * MP_EXPH_TILE;
    return left < MP_EXPH_TILE ? left : MP_EXPH_TILE;
}

/* Returns the bytes of a coded chunk before its bits. */
static inline uint32_t mp_exph_index_bytes(uint32_t chunk_elements, uint32_t escapes)
{
    return mp_exph_tiles(chunk_elements) * (MP_EXPH_HEAD_BYTES + MP_EXPH_LANES) +
           escapes * MP_EXPH_ESCAPE_BYTES;
}

/* Returns the low 32 bits of the XXH3 of all bytes between the checksum and the first chunk, seeded
 * with the 8 bytes before the checksum. */
uint32_t mp_exph_front_checksum(const uint8_t *stream, uint64_t front_bytes);
uint32_t mp_exph_chunk_checksum(const uint8_t *chunk, uint64_t bytes);

#endif
