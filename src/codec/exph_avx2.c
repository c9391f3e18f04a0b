/* The AVX2 decoder (with BMI2 and LZCNT): several symbols per look-up, then exponents and rests
 * joined in vectors. */
#if defined(__x86_64__)

/* A function attribute instead of compiler flags, so that the file is built like all others. */
#define MP_AVX2 __attribute__((target("avx2,bmi2,lzcnt")))
#define MP_WIDE_TARGET MP_AVX2
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

#include "codec/exph_wide.h"

#include <immintrin.h>

/* ---- Joining ---- */

MP_INLINE __m128i load_two(const uint8_t *low, const uint8_t *high)
{
    return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(_mm_loadl_epi64((const __m128i *)low)),
                                         (const double *)high));
}

/* Loads a group's exponents of lanes l to l + 3, in the order 0, 2, 1, 3. */
MP_INLINE __m256i load_runs(const uint8_t *room, uint32_t group, uint32_t l)
{
    const __m256i up =
        _mm256_broadcastsi128_si256(_mm_set_epi64x(0x08090a0b0c0d0e0f, 0x0001020304050607));
    const __m128i low = load_two(mp_wide_run(room, l, group), mp_wide_run(room, l + 2, group));
    const __m128i high = load_two(mp_wide_run(room, l + 1, group), mp_wide_run(room, l + 3, group));
    return _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), up);
}

/* Joins the runs of four lanes. Unpacking undoes the order of lanes in the registers. */
MP_INLINE void join_four(__m256i exponent, const uint8_t *rests, uint8_t *out)
{
    const __m256i rest = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)rests), 0xd8);
    const __m256i differ =
        _mm256_and_si256(_mm256_xor_si256(exponent, rest), _mm256_set1_epi8(0x7f));
    const __m256i low = _mm256_xor_si256(exponent, differ);
    const __m256i high = _mm256_xor_si256(rest, differ);
    _mm256_storeu_si256((__m256i *)out, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256((__m256i *)(out + 32), _mm256_unpackhi_epi8(low, high));
}

MP_INLINE void join_group(const uint8_t *room, uint32_t group, const uint8_t *rests, uint8_t *out)
{
    MP_UNROLL
    for (uint32_t l = 0; l < MP_EXPH_LANES; l += 4)
        join_four(load_runs(room, group, l), rests + l * MP_EXPH_RUN, out + 2 * l * MP_EXPH_RUN);
}

MP_AVX2 static void decode(const mp_exph_book *book, const void *scratch,
                           const mp_exph_coded *chunk, uint8_t *out)
{
    (void)book;
    mp_wide_decode(scratch, join_group, chunk, out);
}

const mp_exph_decoder mp_exph_avx2 = {.name = "avx2", .prepare = mp_wide_prepare, .decode = decode};

#endif
