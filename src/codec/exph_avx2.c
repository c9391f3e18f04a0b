/* The AVX2 decoder (with BMI2): several symbols per look-up, then exponents and rests joined in
 * vectors. */
#include "codec/exph_wide.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* A function attribute instead of compiler flags, so that the file is built like all others. */
#define MP_AVX2 __attribute__((target("avx2,bmi2")))
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

/* ---- Joining ---- */

MP_INLINE __m128i load_two(const uint8_t *low, const uint8_t *high)
{
    return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(_mm_loadl_epi64((const __m128i *)low)),
                                         (const double *)high));
}

/* Joins the runs of four lanes. Unpacking undoes the order of lanes in the registers. */
MP_INLINE void join_four(uint8_t exponents[][MP_WIDE_LANE_ROOM], const uint8_t *rests, uint8_t *out)
{
    const __m256i mantissa = _mm256_set1_epi8(0x7f);
    const __m256i exponent =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load_two(exponents[0], exponents[2])),
                                load_two(exponents[1], exponents[3]), 1);
    const __m256i rest = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)rests), 0xd8);
    const __m256i low =
        _mm256_or_si256(_mm256_and_si256(mantissa, rest),
                        _mm256_andnot_si256(mantissa, _mm256_slli_epi16(exponent, 7)));
    const __m256i high =
        _mm256_or_si256(_mm256_andnot_si256(mantissa, rest),
                        _mm256_and_si256(mantissa, _mm256_srli_epi16(exponent, 1)));
    _mm256_storeu_si256((__m256i *)out, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256((__m256i *)(out + 32), _mm256_unpackhi_epi8(low, high));
}

MP_INLINE void join_group(uint8_t exponents[MP_EXPH_LANES][MP_WIDE_LANE_ROOM], uint32_t group,
                          const uint8_t *rests, uint8_t *out)
{
    for (uint32_t l = 0; l < MP_EXPH_LANES; l += 4)
        join_four((uint8_t(*)[MP_WIDE_LANE_ROOM])(exponents[l] + group * MP_EXPH_RUN),
                  rests + l * MP_EXPH_RUN, out + 2 * l * MP_EXPH_RUN);
}

MP_AVX2 static void decode(const mp_exph_book *book, const void *scratch,
                           const mp_exph_coded *chunk, uint8_t *out)
{
    (void)book;
    mp_wide_decode(scratch, join_group, chunk, out);
}

const mp_exph_decoder mp_exph_avx2 = {.name = "avx2", .prepare = mp_wide_prepare, .decode = decode};

#endif
