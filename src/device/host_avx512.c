/* The AVX-512 kernel sets: the lanes of a dot product are one register. "avx512" does with two
 * fused multiply-adds what VDPBF16PS does in "avx512-bf16". */
#include "device/host_kernel_set.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "device/host_bf16_x86.h"
#include "device/host_math.h"

/* Per function, so that the file needs no flags of its own. One target serves all sets. */
#define MP_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define MP_INLINE MP_AVX512 static inline __attribute__((always_inline))

/* ---- Tiles ---- */

/* How pairs of bfloat16 are multiplied. */
typedef enum pair_method { PAIRS_NONE, PAIRS_BY_FMA, PAIRS_BY_INSTRUCTION } pair_method;

/* Of 32 elements, those that are inside the row. */
MP_INLINE uint32_t live_lanes(uint32_t left)
{
    return left >= 32 ? 0xffffffffu : (1u << left) - 1u;
}

/* The lanes of one vector that are inside the row. */
MP_INLINE __mmask16 live_of(uint64_t left)
{
    return left < MP_LANES ? (__mmask16)live_lanes((uint32_t)left) : 0xffffu;
}

MP_INLINE __m512 load_weights(mp_tile_kind kind, const void *w, uint32_t i, __mmask16 live)
{
    if (kind == MP_TILE_F32)
        return _mm512_maskz_loadu_ps(live, (const float *)w + i);
    __m256i half = _mm256_maskz_loadu_epi16(live, (const uint16_t *)w + i);
    if (kind == MP_TILE_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* One turn over the lanes in FP32, from element i on. */
MP_INLINE void turn_fp32(mp_tile_kind kind, uint32_t rows, __m512 (*acc)[MP_TILE_WEIGHTS],
                         const void *const *x, const void *const *w, uint32_t i, __mmask16 live)
{
    __m512 weights[MP_TILE_WEIGHTS];
    MP_EACH (c, MP_TILE_WEIGHTS)
        weights[c] = load_weights(kind, w[c], i, live);
    MP_EACH (r, rows) {
        __m512 row = _mm512_maskz_loadu_ps(live, (const float *)x[r] + i);
        MP_EACH (c, MP_TILE_WEIGHTS)
            acc[r][c] = _mm512_fmadd_ps(row, weights[c], acc[r][c]);
    }
}

/* mp_to_bf16. The conversion instruction would lose denormals. */
MP_INLINE __m256i to_bf16(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* 32 floats rounded likewise, and joined. */
MP_INLINE __m512i to_pairs(__m512 low, __m512 high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(low)), to_bf16(high), 1);
}

/* The same, where bfloat16's denormals count as zeros: the instruction takes those of floats for zeros, of which
 * the greatest are rounded to no denormal. */
MP_INLINE __m512i to_pairs_quickly(__m512 low, __m512 high)
{
    const __mmask16 denormal =
        _mm512_fpclass_ps_mask(low, 0x20) | _mm512_fpclass_ps_mask(high, 0x20);
    if (__builtin_expect(denormal != 0, 0))
        return to_pairs(low, high);
    return mp_round_pairs(high, low);
}

/* 32 elements of a row as bfloat16. */
MP_INLINE __m512i load_pairs(mp_tile_kind kind, pair_method pairs, const void *row, uint32_t i,
                             __mmask32 live)
{
    if (kind == MP_TILE_DOT)
        return _mm512_maskz_loadu_epi16(live, (const uint16_t *)row + i);
    const mp_tile_kind wide = kind == MP_TILE_DOT_F16 ? MP_TILE_F16 : MP_TILE_F32;
    const __m512 low = load_weights(wide, row, i, (__mmask16)live);
    const __m512 high = load_weights(wide, row, i + MP_LANES, (__mmask16)(live >> MP_LANES));
    if (pairs == PAIRS_BY_FMA)
        return to_pairs(low, high);
    return kind == MP_TILE_DOT_F16 ? mp_round_pairs(high, low) : to_pairs_quickly(low, high);
}

/* The odd elements of 16 pairs, or the even ones, widened. */
MP_INLINE __m512 half_of_pairs(__m512i pairs, bool odd)
{
    return _mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000))
                                   : _mm512_slli_epi32(pairs, 16));
}

/* One turn over pairs, odd elements first; for use under flush-to-zero. */
MP_INLINE void turn_pairs_fma(mp_tile_kind kind, uint32_t rows, __m512 (*acc)[MP_TILE_WEIGHTS],
                              const void *const *x, const void *const *w, uint32_t i,
                              __mmask32 live)
{
    __m512i both[MP_TILE_WEIGHTS];
    MP_EACH (c, MP_TILE_WEIGHTS)
        both[c] = load_pairs(kind, PAIRS_BY_FMA, w[c], i, live);
    MP_EACH (even, 2) {
        __m512 weights[MP_TILE_WEIGHTS];
        MP_EACH (c, MP_TILE_WEIGHTS)
            weights[c] = half_of_pairs(both[c], !even);
        MP_EACH (r, rows) {
            __m512 row = half_of_pairs(load_pairs(MP_TILE_DOT, PAIRS_BY_FMA, x[r], i, live), !even);
            MP_EACH (c, MP_TILE_WEIGHTS)
                acc[r][c] = _mm512_fmadd_ps(row, weights[c], acc[r][c]);
        }
    }
}

MP_INLINE void turn_pairs(mp_tile_kind kind, uint32_t rows, __m512 (*acc)[MP_TILE_WEIGHTS],
                          const void *const *x, const void *const *w, uint32_t i, __mmask32 live)
{
    __m512i weights[MP_TILE_WEIGHTS];
    MP_EACH (c, MP_TILE_WEIGHTS)
        weights[c] = load_pairs(kind, PAIRS_BY_INSTRUCTION, w[c], i, live);
    MP_EACH (r, rows) {
        __m512i row = load_pairs(MP_TILE_DOT, PAIRS_BY_INSTRUCTION, x[r], i, live);
        MP_EACH (c, MP_TILE_WEIGHTS)
            acc[r][c] = mp_dot_pairs(acc[r][c], row, weights[c]);
    }
}

/* MP_TILE_STEP elements; `live` masks those inside the row. */
MP_INLINE void step(mp_tile_kind kind, pair_method pairs, uint32_t rows,
                    __m512 (*acc)[MP_TILE_WEIGHTS], const void *const *x, const void *const *w,
                    uint32_t i, uint32_t live)
{
    if (pairs == PAIRS_BY_INSTRUCTION) {
        turn_pairs(kind, rows, acc, x, w, i, live);
    } else if (pairs == PAIRS_BY_FMA) {
        turn_pairs_fma(kind, rows, acc, x, w, i, live);
    } else {
        turn_fp32(kind, rows, acc, x, w, i, (__mmask16)live);
        if (live >> MP_LANES)
            turn_fp32(kind, rows, acc, x, w, i + MP_LANES, (__mmask16)(live >> MP_LANES));
    }
}

MP_INLINE void tile_rows(mp_tile_kind kind, pair_method pairs, uint32_t rows, const mp_tile *tile)
{
    __m512 acc[MP_TILE_ROWS][MP_TILE_WEIGHTS];
    const void *x[MP_TILE_ROWS];
    const void *w[MP_TILE_WEIGHTS];
    MP_EACH (c, MP_TILE_WEIGHTS)
        w[c] = tile->w[c];
    MP_EACH (r, rows) {
        x[r] = tile->x[r];
        MP_EACH (c, MP_TILE_WEIGHTS)
            acc[r][c] = tile->resume
                            ? _mm512_load_ps(tile->acc + (r * MP_TILE_WEIGHTS + c) * MP_LANES)
                            : _mm512_setzero_ps();
    }
    const uint32_t k = tile->k;
    mp_fetch fetch = tile->fetch;
    uint32_t i = 0;
    for (; i + MP_TILE_STEP <= k; i += MP_TILE_STEP) {
        mp_fetch_step(&fetch, MP_TILE_WEIGHTS, MP_TILE_STEP * mp_tile_w_bytes(kind),
                      MP_TILE_STEP * mp_tile_x_bytes(kind));
        step(kind, pairs, rows, acc, x, w, i, 0xffffffffu);
    }
    if (i < k)
        step(kind, pairs, rows, acc, x, w, i, live_lanes(k - i));
    MP_EACH (r, rows) {
        MP_EACH (c, MP_TILE_WEIGHTS)
            _mm512_store_ps(tile->acc + (r * MP_TILE_WEIGHTS + c) * MP_LANES, acc[r][c]);
    }
}

MP_TILE_FUNCTION(MP_AVX512, tile_f32, MP_TILE_F32, PAIRS_NONE)
MP_TILE_FUNCTION(MP_AVX512, tile_f16, MP_TILE_F16, PAIRS_NONE)
MP_TILE_FUNCTION(MP_AVX512, tile_bf16, MP_TILE_BF16, PAIRS_NONE)
MP_TILE_FUNCTION(MP_AVX512, tile_pairs, MP_TILE_DOT, PAIRS_BY_INSTRUCTION)
MP_TILE_FUNCTION(MP_AVX512, tile_pairs_f16, MP_TILE_DOT_F16, PAIRS_BY_INSTRUCTION)
MP_TILE_FUNCTION(MP_AVX512, tile_pairs_f32, MP_TILE_DOT_F32, PAIRS_BY_INSTRUCTION)
MP_TILE_FUNCTION(MP_AVX512, tile_pairs_fma_flushed, MP_TILE_DOT, PAIRS_BY_FMA)
MP_TILE_FUNCTION(MP_AVX512, tile_pairs_fma_f16_flushed, MP_TILE_DOT_F16, PAIRS_BY_FMA)
MP_TILE_FUNCTION(MP_AVX512, tile_pairs_fma_f32_flushed, MP_TILE_DOT_F32, PAIRS_BY_FMA)
MP_TILE_UNDER_FLUSH(tile_pairs_fma)
MP_TILE_UNDER_FLUSH(tile_pairs_fma_f16)
MP_TILE_UNDER_FLUSH(tile_pairs_fma_f32)

/* ---- Sums ---- */

/* Four registers of four sums each: first halves, then quarters of 16 lanes. */
MP_INLINE __m512 add_halves(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

MP_INLINE __m512 add_quarters(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

MP_INLINE __m512 add_pairs(__m512 a, __m512 b)
{
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

MP_INLINE __m512 add_singles(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* 16 sums at a time. Sum 4b + j ends in 128-bit block b, position j: blocks come from the first
 * two steps, positions from the last two. The missing ones of a last turn repeat the first. */
MP_AVX512 static void reduce(const float *acc, float *sums, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += MP_LANES) {
        __m512 quarter[4];
        MP_EACH (j, 4) {
            const float *row = acc + ((uint64_t)i + j) * MP_LANES;
            __m512 first = _mm512_load_ps(row);
            __m512 a = i + 4 < n ? _mm512_load_ps(row + 4 * MP_LANES) : first;
            __m512 b = i + 8 < n ? _mm512_load_ps(row + 8 * MP_LANES) : first;
            __m512 c = i + 12 < n ? _mm512_load_ps(row + 12 * MP_LANES) : first;
            quarter[j] = add_quarters(add_halves(first, a), add_halves(b, c));
        }
        __m512 sum =
            add_singles(add_pairs(quarter[0], quarter[1]), add_pairs(quarter[2], quarter[3]));
        _mm512_mask_storeu_ps(sums + i, (__mmask16)live_lanes(n - i), sum);
    }
}

/* ---- Element by element ---- */

/* mp_times_sigmoid of host_math.h. Of max's operands the second is the one whose NaN comes through. */
MP_INLINE __m512 times_sigmoid(__m512 factor, __m512 z)
{
    const __m512 round = _mm512_set1_ps(MP_EXP_ROUND);
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 x = _mm512_max_ps(_mm512_set1_ps(MP_EXP_MIN), _mm512_or_ps(z, _mm512_set1_ps(-0.0f)));
    __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(MP_EXP_LOG2E), round);
    __m512 whole = _mm512_sub_ps(t, round);
    __m512 r = _mm512_fmadd_ps(whole, _mm512_set1_ps(-MP_EXP_LN2_HIGH), x);
    r = _mm512_fmadd_ps(whole, _mm512_set1_ps(-MP_EXP_LN2_LOW), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(MP_EXP_C7), r, _mm512_set1_ps(MP_EXP_C6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MP_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MP_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MP_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MP_EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    __m512i exponent = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_castps_si512(round));
    __m512i half = _mm512_srai_epi32(exponent, 1);
    __m512i bias = _mm512_set1_epi32(127);
    __m512i a = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    __m512i b = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(exponent, half), bias), 23);
    __m512 pa = _mm512_mul_ps(p, _mm512_castsi512_ps(a));
    __m512 scale_b = _mm512_castsi512_ps(b);
    __mmask16 negative = _mm512_cmp_ps_mask(z, _mm512_setzero_ps(), _CMP_LT_OQ);
    __m512 numerator = _mm512_mask_mul_ps(factor, negative, _mm512_mul_ps(factor, pa), scale_b);
    return _mm512_div_ps(numerator, _mm512_fmadd_ps(pa, scale_b, one));
}

/* mp_swiglu of host_math.h. */
MP_AVX512 static void swiglu(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += MP_LANES) {
        __m512 g = _mm512_loadu_ps(gate + i);
        __m512 bounded = _mm512_max_ps(_mm512_set1_ps(MP_EXP_MIN), g);
        __m512 silu = times_sigmoid(bounded, g);
        _mm512_storeu_ps(out + i, _mm512_mul_ps(silu, _mm512_loadu_ps(up + i)));
    }
}

/* mp_swiglu_clamped of host_math.h. Of min's operands, too, the second's NaN comes through. */
MP_AVX512 static void swiglu_clamped(const float *gate, const float *up, float alpha, float limit,
                                     float *out, uint32_t n)
{
    const __m512 most = _mm512_set1_ps(limit), least = _mm512_set1_ps(-limit);
    for (uint32_t i = 0; i < n; i += MP_LANES) {
        __m512 g = _mm512_min_ps(most, _mm512_loadu_ps(gate + i));
        __m512 u = _mm512_max_ps(least, _mm512_min_ps(most, _mm512_loadu_ps(up + i)));
        __m512 z = _mm512_mul_ps(_mm512_set1_ps(alpha), g);
        __mmask16 gone = _mm512_cmp_ps_mask(z, _mm512_set1_ps(MP_EXP_MIN), _CMP_LT_OQ);
        __m512 factor = _mm512_mask_mov_ps(g, gone, _mm512_set1_ps(-0.0f));
        __m512 more = _mm512_add_ps(u, _mm512_set1_ps(1.0f));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(times_sigmoid(factor, z), more));
    }
}

MP_AVX512 static void axpy(float scale, const float *in, float *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += MP_LANES) {
        __mmask16 live = live_of(n - i);
        __m512 sum = _mm512_maskz_loadu_ps(live, out + i);
        sum = _mm512_fmadd_ps(_mm512_set1_ps(scale), _mm512_maskz_loadu_ps(live, in + i), sum);
        _mm512_mask_storeu_ps(out + i, live, sum);
    }
}

MP_INLINE void widen(mp_tile_kind kind, const void *in, float *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += MP_LANES) {
        __mmask16 live = live_of(n - i);
        const uint16_t *from = (const uint16_t *)in + i;
        _mm512_mask_storeu_ps(out + i, live, load_weights(kind, from, 0, live));
    }
}

MP_AVX512 static void widen_f16(const void *in, float *out, uint64_t n)
{
    widen(MP_TILE_F16, in, out, n);
}

MP_AVX512 static void widen_bf16(const void *in, float *out, uint64_t n)
{
    widen(MP_TILE_BF16, in, out, n);
}

MP_INLINE void narrow(mp_tile_kind kind, const float *in, uint16_t *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += MP_LANES) {
        __mmask16 live = live_of(n - i);
        __m512 value = _mm512_maskz_loadu_ps(live, in + i);
        __m256i half = kind == MP_TILE_F16 ? _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)
                                           : to_bf16(value);
        _mm256_mask_storeu_epi16(out + i, live, half);
    }
}

MP_AVX512 static void narrow_f16(const float *in, void *out, uint64_t n)
{
    narrow(MP_TILE_F16, in, out, n);
}

MP_AVX512 static void narrow_bf16(const float *in, void *out, uint64_t n)
{
    narrow(MP_TILE_BF16, in, out, n);
}

/* An E4M3 number's bits, moved up to a half's place, are the half of 2^-8 times its value,
 * denormals included. What would be 480 is NaN. */
MP_AVX512 static void widen_f8(const void *in, float scale, float *out, uint64_t n)
{
    const uint8_t *from = in;
    const __m512 factor = _mm512_set1_ps(0x1p8f), beyond = _mm512_set1_ps(480);
    for (uint64_t i = 0; i < n; i += MP_LANES) {
        __mmask16 live = live_of(n - i);
        __m256i bits = _mm256_cvtepi8_epi16(_mm_maskz_loadu_epi8(live, from + i));
        __m256i half =
            _mm256_and_si256(_mm256_slli_epi16(bits, 7), _mm256_set1_epi16((int16_t)0xbf80));
        __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), factor);
        __mmask16 nan = _mm512_cmp_ps_mask(_mm512_abs_ps(value), beyond, _CMP_EQ_OQ);
        value = _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(NAN));
        _mm512_mask_storeu_ps(out + i, live, _mm512_mul_ps(value, _mm512_set1_ps(scale)));
    }
}

const mp_host_kernel_set mp_host_set_avx512 =
    MP_HOST_KERNEL_SET("avx512", tile_pairs_fma, tile_pairs_fma, 2 * MP_TILE_ROWS,
                       mp_integers_avx512, mp_blocks_avx512, mp_int8_avx2);

const mp_host_kernel_set mp_host_set_avx512_vnni =
    MP_HOST_KERNEL_SET("avx512-vnni", tile_pairs_fma, tile_pairs_fma, 2 * MP_TILE_ROWS,
                       mp_integers_avx512, mp_blocks_avx512, mp_int8_vnni);

const mp_host_kernel_set mp_host_set_avx512_bf16 =
    MP_HOST_KERNEL_SET("avx512-bf16", tile_pairs, tile_pairs, 2 * MP_TILE_ROWS,
                       mp_integers_avx512_bf16, mp_blocks_avx512_bf16, mp_int8_vnni);

const mp_host_kernel_set mp_host_set_avx512_bf16_fma =
    MP_HOST_KERNEL_SET("avx512-bf16-fma", tile_pairs_fma, tile_pairs, 2 * MP_TILE_ROWS,
                       mp_integers_avx512_bf16, mp_blocks_avx512_bf16, mp_int8_vnni);

#endif
