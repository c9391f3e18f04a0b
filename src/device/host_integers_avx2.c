/* The values of integer weights with AVX2: integers become bytes in order, and those, of up to four
 * bits, indexes into a table of the group's values. */
#include "device/host_kernel_set.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define MP_AVX2 __attribute__((target("avx2,fma,f16c")))
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

/* What makes values of a group's integers: q * scale, or (q + offset) * scale of two bits. The offset
 * is not 0 on four levels, which a negative scale says. */
typedef struct group_scale {
    __m256 scale, offset;
} group_scale;

MP_INLINE group_scale scale_of(uint32_t bits_each, const mp_integers *in, uint32_t group)
{
    uint16_t bits;
    memcpy(&bits, (const char *)in->scales + (uint64_t)group * sizeof bits, sizeof bits);
    const __m256 stored = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
    if (bits_each != 2)
        return (group_scale){stored, _mm256_setzero_ps()};
    const __m256 negative = _mm256_cmp_ps(stored, _mm256_setzero_ps(), _CMP_LT_OQ);
    return (group_scale){_mm256_andnot_ps(_mm256_set1_ps(-0.0f), stored),
                         _mm256_and_ps(negative, _mm256_set1_ps(0.5f))};
}

/* ---- 32 integers as bytes ---- */

/* Low and high halves of 16 bytes in turn; above them zeros. */
MP_INLINE __m256i split_nibbles(__m128i bytes)
{
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i low = _mm_and_si128(bytes, mask);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
    return _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
}

/* Zero-extended; of eight bits the integers themselves. */
MP_INLINE __m256i bytes_of(uint32_t bits, const uint8_t *packed)
{
    if (bits == 8)
        return _mm256_loadu_si256((const void *)packed);
    if (bits == 4)
        return split_nibbles(_mm_loadu_si128((const void *)packed));
    const __m128i pairs =
        _mm256_castsi256_si128(split_nibbles(_mm_loadl_epi64((const void *)packed)));
    const __m128i mask = _mm_set1_epi8(3);
    const __m128i low = _mm_and_si128(pairs, mask);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(pairs, 2), mask);
    return _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
}

/* The values that indexes stand for, as signed bytes. */
MP_INLINE __m128i signed_of(uint32_t bits)
{
    return bits == 4 ? _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
                     : _mm_setr_epi8(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
}

/* The values of the first eight of 16 signed bytes. */
MP_INLINE __m256 values_of(uint32_t bits, __m128i bytes, const group_scale *by)
{
    __m256 q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    if (bits == 2)
        q = _mm256_add_ps(q, by->offset);
    return _mm256_mul_ps(q, by->scale);
}

/* mp_to_bf16 of values that are not NaN, zero-extended. */
MP_INLINE __m256i to_bf16(__m256 value)
{
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last);
    return _mm256_srli_epi32(up, 16);
}

/* 16 signed bytes as bfloat16 values. */
MP_INLINE __m256i sixteen_bf16(uint32_t bits, __m128i bytes, const group_scale *by)
{
    const __m256i low = to_bf16(values_of(bits, bytes, by));
    const __m256i high = to_bf16(values_of(bits, _mm_srli_si128(bytes, 8), by));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

/* ---- Steps of 32 ---- */

MP_INLINE void step_f32(uint32_t bits, const uint8_t *packed, const group_scale *by, float *out)
{
    __m256i bytes = bytes_of(bits, packed);
    if (bits != 8)
        bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(signed_of(bits)), bytes);
    MP_EACH (half, 2) {
        const __m128i some =
            half ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes);
        _mm256_storeu_ps(out + half * 16, values_of(bits, some, by));
        _mm256_storeu_ps(out + half * 16 + 8, values_of(bits, _mm_srli_si128(some, 8), by));
    }
}

/* A group's bfloat16 values, their low bytes and their high ones. */
typedef struct byte_tables {
    __m256i low, high;
} byte_tables;

MP_INLINE byte_tables tables_of(uint32_t bits, const group_scale *by)
{
    const __m256i values = sixteen_bf16(bits, signed_of(bits), by);
    const __m256i low = _mm256_and_si256(values, _mm256_set1_epi16(0xff));
    const __m256i high = _mm256_srli_epi16(values, 8);
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
    return (byte_tables){_mm256_permute2x128_si256(both, both, 0x00),
                         _mm256_permute2x128_si256(both, both, 0x11)};
}

MP_INLINE void step_bf16(uint32_t bits, const uint8_t *packed, const group_scale *by,
                         const byte_tables *tables, uint16_t *out)
{
    const __m256i bytes = bytes_of(bits, packed);
    __m256i first, second;
    if (bits == 8) {
        first = sixteen_bf16(bits, _mm256_castsi256_si128(bytes), by);
        second = sixteen_bf16(bits, _mm256_extracti128_si256(bytes, 1), by);
    } else {
        const __m256i low = _mm256_shuffle_epi8(tables->low, bytes);
        const __m256i high = _mm256_shuffle_epi8(tables->high, bytes);
        const __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
        first = _mm256_permute2x128_si256(a, b, 0x20);
        second = _mm256_permute2x128_si256(a, b, 0x31);
    }
    _mm256_storeu_si256((void *)out, first);
    _mm256_storeu_si256((void *)(out + 16), second);
}

/* ---- Rows ---- */

MP_INLINE void prefetch_group(const mp_integers *in, uint64_t at, uint32_t bytes)
{
    if (!in->ahead_bytes)
        return;
    for (uint32_t line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)in->packed + in->ahead_bytes + at + line, _MM_HINT_T1);
}

MP_INLINE void step(bool narrow, uint32_t bits, const uint8_t *packed, const group_scale *by,
                    const byte_tables *tables, void *out, uint32_t i)
{
    if (narrow)
        step_bf16(bits, packed, by, tables, (uint16_t *)out + i);
    else
        step_f32(bits, packed, by, (float *)out + i);
}

/* The last step may have fewer bytes than a whole one. */
MP_INLINE void row(bool narrow, uint32_t bits, const mp_integers *in, void *out)
{
    const uint32_t step_bytes = MP_TILE_STEP * bits / 8;
    byte_tables tables = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (uint32_t i = 0; i < in->n;) {
        const group_scale by = scale_of(bits, in, i / in->group);
        if (narrow && bits != 8)
            tables = tables_of(bits, &by);
        const uint32_t end = i + in->group < in->n ? i + in->group : in->n;
        const uint8_t *packed = in->packed + (uint64_t)i * bits / 8;
        prefetch_group(in, (uint64_t)i * bits / 8, in->group * bits / 8);
        for (; i + MP_TILE_STEP <= end; i += MP_TILE_STEP, packed += step_bytes)
            step(narrow, bits, packed, &by, &tables, out, i);
        if (i < end) {
            uint8_t last[MP_TILE_STEP] = {0};
            memcpy(last, packed, ((end - i) * bits + 7) / 8);
            step(narrow, bits, last, &by, &tables, out, i);
            i = end;
        }
    }
}

#define MP_ROW_FUNCTION(name, narrow, bits)                    \
    MP_AVX2 static void name(const mp_integers *in, void *out) \
    {                                                          \
        row(narrow, bits, in, out);                            \
    }

MP_ROW_FUNCTION(int8_f32, false, 8)
MP_ROW_FUNCTION(int4_f32, false, 4)
MP_ROW_FUNCTION(int2_f32, false, 2)
MP_ROW_FUNCTION(int8_bf16, true, 8)
MP_ROW_FUNCTION(int4_bf16, true, 4)
MP_ROW_FUNCTION(int2_bf16, true, 2)

const mp_integer_set mp_integers_avx2 = {
    .as_f32 = {int8_f32, int4_f32, int2_f32},
    .as_bf16 = {int8_bf16, int4_bf16, int2_bf16},
};

#endif
