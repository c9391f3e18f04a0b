/* The inner loops with AVX2. */
#include "policy/maps_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

/* A function attribute instead of compiler flags, so that the file is built like all others. */
#define MP_AVX2 __attribute__((target("avx2")))
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

enum { HALF = 32, SUMS = 4, GROUP = 64, TILES_AHEAD = 2 };

MP_INLINE __m256i load(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

/* Adds the weighted squares of two experts' codes, interleaved as 16 bits, for eight maps. */
MP_INLINE __m256i add_squares(__m256i sum, __m256i codes, __m256i weights)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_mullo_epi16(codes, codes), weights));
}

/* Adds two experts of 32 maps. Unpacking determines the order of maps in `sums`. */
MP_INLINE void add_pair(__m256i sums[SUMS], __m256i first, __m256i second, __m256i weights)
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low = _mm256_unpacklo_epi8(first, second);
    const __m256i high = _mm256_unpackhi_epi8(first, second);
    sums[0] = add_squares(sums[0], _mm256_unpacklo_epi8(low, zero), weights);
    sums[1] = add_squares(sums[1], _mm256_unpackhi_epi8(low, zero), weights);
    sums[2] = add_squares(sums[2], _mm256_unpacklo_epi8(high, zero), weights);
    sums[3] = add_squares(sums[3], _mm256_unpackhi_epi8(high, zero), weights);
}

MP_INLINE void add_quad(__m256i sums[SUMS], const uint8_t *codes, const int16_t *weights)
{
    const __m256i six = _mm256_set1_epi8(63);
    const __m256i a = load(codes), b = load(codes + MP_MAPS_TILE);
    const __m256i c = load(codes + 2 * MP_MAPS_TILE);
    const __m256i fourth = _mm256_or_si256(
        _mm256_and_si256(_mm256_srli_epi16(a, 6), _mm256_set1_epi8(3)),
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(12)),
                        _mm256_and_si256(_mm256_srli_epi16(c, 2), _mm256_set1_epi8(48))));
    int32_t pairs[2];
    memcpy(pairs, weights, sizeof pairs);
    add_pair(sums, _mm256_and_si256(a, six), _mm256_and_si256(b, six), _mm256_set1_epi32(pairs[0]));
    add_pair(sums, _mm256_and_si256(c, six), fourth, _mm256_set1_epi32(pairs[1]));
}

/* Stores sums[i]: maps 4i..4i+3 are in its low half, those 16 further on in its high one. */
MP_INLINE void store_half(const __m256i sums[SUMS], int32_t *dots)
{
    for (uint32_t i = 0; i < SUMS; i++) {
        _mm_storeu_si128((__m128i *)(dots + 4 * i), _mm256_castsi256_si128(sums[i]));
        _mm_storeu_si128((__m128i *)(dots + 16 + 4 * i), _mm256_extracti128_si256(sums[i], 1));
    }
}

MP_AVX2 static void tile(const uint8_t *codes, const int16_t *weights, uint32_t quads,
                         int32_t dots[MP_MAPS_TILE])
{
    const uint64_t ahead = (uint64_t)TILES_AHEAD * quads * 3 * MP_MAPS_TILE;
    __m256i low[SUMS], high[SUMS];
    for (uint32_t i = 0; i < SUMS; i++)
        low[i] = high[i] = _mm256_setzero_si256();
    for (uint32_t quad = 0; quad < quads; quad++, weights += 4, codes += 3 * MP_MAPS_TILE) {
        uint64_t any;
        memcpy(&any, weights, sizeof any);
        if (!any)
            continue;
        /* Experts with weight 0 are skipped, which breaks the stream that the
         * hardware prefetcher needs. */
        for (uint32_t line = 0; line < 3; line++)
            __builtin_prefetch(codes + ahead + line * MP_MAPS_TILE);
        add_quad(low, codes, weights);
        add_quad(high, codes + HALF, weights);
    }
    store_half(low, dots);
    store_half(high, dots + HALF);
}

/* Sums 64 coordinates: at most 4 * 15 * 127 in each sum. */
MP_INLINE __m256i sketch_group(const uint8_t *codes, const int8_t *query)
{
    const __m256i nibble = _mm256_set1_epi8(15), both = load(codes);
    const __m256i low = _mm256_and_si256(both, nibble);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
    return _mm256_add_epi16(_mm256_maddubs_epi16(low, load((const uint8_t *)query)),
                            _mm256_maddubs_epi16(high, load((const uint8_t *)query + 32)));
}

MP_INLINE int32_t sum_of(__m256i parts)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}

/* Sums four groups, as many as fit 16 bits. */
MP_INLINE __m256i sketch_groups(const uint8_t *codes, const int8_t *query)
{
    const __m256i first =
        _mm256_add_epi16(sketch_group(codes, query), sketch_group(codes + 32, query + 64));
    const __m256i second = _mm256_add_epi16(sketch_group(codes + 64, query + 128),
                                            sketch_group(codes + 96, query + 192));
    return _mm256_madd_epi16(_mm256_add_epi16(first, second), _mm256_set1_epi16(1));
}

MP_AVX2 static void sketch(const uint8_t *codes, uint64_t stride, uint32_t n, const int8_t *query,
                           uint32_t coords, int32_t *dots)
{
    const __m256i one = _mm256_set1_epi16(1);
    for (uint32_t i = 0; i < n; i++, codes += stride) {
        __m256i sum = _mm256_setzero_si256();
        uint32_t c = 0;
        for (; c + 4 * GROUP <= coords; c += 4 * GROUP)
            sum = _mm256_add_epi32(sum, sketch_groups(codes + c / 2, query + c));
        for (; c < coords; c += GROUP)
            sum = _mm256_add_epi32(sum,
                                   _mm256_madd_epi16(sketch_group(codes + c / 2, query + c), one));
        dots[i] = sum_of(sum);
    }
}

const mp_maps_kernels mp_maps_avx2 = {.name = "avx2", .tile = tile, .sketch = sketch};

#endif
