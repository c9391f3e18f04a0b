/* The AVX2 kernel set (with FMA and F16C): the lanes of a dot product are two registers, lanes
 * 0-7 and 8-15. A tile is done in parts whose sums fit in 16 registers. */
#include "device/host_kernel_set.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "device/host_math.h"

/* Per function, so that the file needs no flags of its own. */
#define MP_AVX2 __attribute__((target("avx2,fma,f16c")))
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

#define MP_HALF_LANES (MP_LANES / 2)
#define MP_PART_ROWS 3

/* ---- Tiles ---- */

typedef struct part_sums {
    __m256 of[MP_PART_ROWS][MP_TILE_WEIGHTS][2];
} part_sums;

MP_INLINE bool is_dot(mp_tile_kind kind)
{
    return kind >= MP_TILE_DOT;
}

MP_INLINE uint32_t turn_elements(mp_tile_kind kind)
{
    return is_dot(kind) ? 2 * MP_LANES : MP_LANES;
}

MP_INLINE __m256 load_eight(mp_tile_kind kind, const void *from)
{
    if (kind == MP_TILE_F32)
        return _mm256_loadu_ps(from);
    __m128i half = _mm_loadu_si128(from);
    if (kind == MP_TILE_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* mp_to_bf16 of host_math.h, in the lower halves. */
MP_INLINE __m256i to_bf16(__m256 value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

/* 16 elements of a row as bfloat16. */
MP_INLINE __m256i load_pairs(mp_tile_kind kind, const char *from)
{
    if (kind == MP_TILE_DOT)
        return _mm256_loadu_si256((const __m256i *)(const void *)from);
    const mp_tile_kind wide = kind == MP_TILE_DOT_F16 ? MP_TILE_F16 : MP_TILE_F32;
    const __m256i low = to_bf16(load_eight(wide, from));
    const __m256i high = to_bf16(load_eight(wide, from + 8 * mp_tile_w_bytes(kind)));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

/* The odd elements of 8 pairs, or the even ones, widened. */
MP_INLINE __m256 half_of_pairs(__m256i pairs, bool odd)
{
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000))
                                   : _mm256_slli_epi32(pairs, 16));
}

/* One multiply-add of lanes 8 * half onwards of every sum in the part; `x` and `w` point at the
 * turn. DOT comes here twice per half, for odd and for even elements. */
MP_INLINE void multiply(mp_tile_kind kind, uint32_t rows, uint32_t weights, part_sums *sums,
                        const char *const *x, const char *const *w, uint64_t turn, uint32_t half,
                        bool odd)
{
    const uint64_t first = turn * turn_elements(kind) + half * turn_elements(kind) / 2;
    const uint64_t x_at = first * mp_tile_x_bytes(kind), w_at = first * mp_tile_w_bytes(kind);
    __m256 row[MP_PART_ROWS];
    MP_EACH (r, rows) {
        row[r] = is_dot(kind) ? half_of_pairs(load_pairs(MP_TILE_DOT, x[r] + x_at), odd)
                              : load_eight(MP_TILE_F32, x[r] + x_at);
    }
    MP_EACH (c, weights) {
        __m256 weight = is_dot(kind) ? half_of_pairs(load_pairs(kind, w[c] + w_at), odd)
                                     : load_eight(kind, w[c] + w_at);
        MP_EACH (r, rows)
            sums->of[r][c][half] = _mm256_fmadd_ps(row[r], weight, sums->of[r][c][half]);
    }
}

MP_INLINE void run_turn(mp_tile_kind kind, uint32_t rows, uint32_t weights, part_sums *sums,
                        const char *const *x, const char *const *w, uint64_t turn)
{
    MP_EACH (half, 2) {
        multiply(kind, rows, weights, sums, x, w, turn, half, true);
        if (is_dot(kind))
            multiply(kind, rows, weights, sums, x, w, turn, half, false);
    }
}

/* The last turn of a row, from copies padded with zeros. */
MP_INLINE void run_last_turn(mp_tile_kind kind, uint32_t rows, uint32_t weights, part_sums *sums,
                             const char *const *x, const char *const *w, uint64_t turn,
                             uint32_t left)
{
    char x_copy[MP_PART_ROWS][64], w_copy[MP_TILE_WEIGHTS][128];
    const char *x_padded[MP_PART_ROWS], *w_padded[MP_TILE_WEIGHTS];
    const uint64_t first = turn * turn_elements(kind);
    for (uint32_t r = 0; r < rows; r++) {
        memset(x_copy[r], 0, sizeof x_copy[r]);
        memcpy(x_copy[r], x[r] + first * mp_tile_x_bytes(kind), left * mp_tile_x_bytes(kind));
        x_padded[r] = x_copy[r];
    }
    for (uint32_t c = 0; c < weights; c++) {
        memset(w_copy[c], 0, sizeof w_copy[c]);
        memcpy(w_copy[c], w[c] + first * mp_tile_w_bytes(kind), left * mp_tile_w_bytes(kind));
        w_padded[c] = w_copy[c];
    }
    run_turn(kind, rows, weights, sums, x_padded, w_padded, 0);
}

/* Rows [r0, r0 + rows) by weights [c0, c0 + weights) of a tile. */
MP_INLINE void run_part(mp_tile_kind kind, const mp_tile *tile, uint32_t r0, uint32_t rows,
                        uint32_t c0, uint32_t weights)
{
    part_sums sums;
    const char *x[MP_PART_ROWS], *w[MP_TILE_WEIGHTS];
    MP_EACH (c, weights)
        w[c] = tile->w[c0 + c];
    MP_EACH (r, rows) {
        x[r] = tile->x[r0 + r];
        MP_EACH (c, weights) {
            const float *lanes = tile->acc + ((r0 + r) * MP_TILE_WEIGHTS + c0 + c) * MP_LANES;
            sums.of[r][c][0] = tile->resume ? _mm256_load_ps(lanes) : _mm256_setzero_ps();
            sums.of[r][c][1] =
                tile->resume ? _mm256_load_ps(lanes + MP_HALF_LANES) : _mm256_setzero_ps();
        }
    }
    const uint32_t turns = tile->k / turn_elements(kind);
    const uint32_t step = MP_TILE_STEP / turn_elements(kind);
    mp_fetch fetch = mp_fetch_share(&tile->fetch, c0, weights, turns / step);
    if (tile->n_rows > 2) /* the second level is near enough */
        fetch.near = NULL;
    uint64_t turn = 0;
    for (; turn + step <= turns; turn += step) {
        if (r0 == 0)
            mp_fetch_step(&fetch, weights, MP_TILE_STEP * mp_tile_w_bytes(kind),
                          MP_TILE_STEP * mp_tile_x_bytes(kind));
        MP_EACH (i, step)
            run_turn(kind, rows, weights, &sums, x, w, turn + i);
    }
    for (; turn < turns; turn++)
        run_turn(kind, rows, weights, &sums, x, w, turn);
    if (tile->k % turn_elements(kind) > 0)
        run_last_turn(kind, rows, weights, &sums, x, w, turns, tile->k % turn_elements(kind));
    MP_EACH (r, rows) {
        MP_EACH (c, weights) {
            float *lanes = tile->acc + ((r0 + r) * MP_TILE_WEIGHTS + c0 + c) * MP_LANES;
            _mm256_store_ps(lanes, sums.of[r][c][0]);
            _mm256_store_ps(lanes + MP_HALF_LANES, sums.of[r][c][1]);
        }
    }
}

/* One row by four weights, and more rows in threes or twos by two weights. */
MP_INLINE void run_parts(mp_tile_kind kind, const mp_tile *tile)
{
    if (tile->n_rows == 1) {
        run_part(kind, tile, 0, 1, 0, 4);
        return;
    }
    for (uint32_t c = 0; c < MP_TILE_WEIGHTS; c += 2) {
        uint32_t r = 0;
        for (; tile->n_rows - r >= 3 && tile->n_rows - r != 4; r += 3)
            run_part(kind, tile, r, 3, c, 2);
        for (; r < tile->n_rows; r += 2)
            run_part(kind, tile, r, 2, c, 2);
    }
}

MP_TILE_OF(MP_AVX2, tile_f32, run_parts, MP_TILE_F32)
MP_TILE_OF(MP_AVX2, tile_f16, run_parts, MP_TILE_F16)
MP_TILE_OF(MP_AVX2, tile_bf16, run_parts, MP_TILE_BF16)
MP_TILE_OF(MP_AVX2, tile_dot_flushed, run_parts, MP_TILE_DOT)
MP_TILE_OF(MP_AVX2, tile_dot_f16_flushed, run_parts, MP_TILE_DOT_F16)
MP_TILE_OF(MP_AVX2, tile_dot_f32_flushed, run_parts, MP_TILE_DOT_F32)
MP_TILE_UNDER_FLUSH(tile_dot)
MP_TILE_UNDER_FLUSH(tile_dot_f16)
MP_TILE_UNDER_FLUSH(tile_dot_f32)

/* ---- Sums ---- */

MP_INLINE __m256 add_halves(const float *lanes)
{
    return _mm256_add_ps(_mm256_load_ps(lanes), _mm256_load_ps(lanes + MP_HALF_LANES));
}

MP_INLINE __m256 add_quarters(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

MP_INLINE __m256 add_pairs(__m256 a, __m256 b)
{
    __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}

MP_INLINE __m256 add_singles(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

/* Eight sums at a time; sum 4b + j ends in 128-bit block b, position j. Four at the end repeat
 * themselves in the other block. */
MP_AVX2 static void reduce(const float *acc, float *sums, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const float *low = acc + (uint64_t)i * MP_LANES;
        const float *high = n - i > 4 ? low + 4 * MP_LANES : low;
        __m256 quarter[4];
        MP_EACH (j, 4)
            quarter[j] =
                add_quarters(add_halves(low + j * MP_LANES), add_halves(high + j * MP_LANES));
        __m256 sum =
            add_singles(add_pairs(quarter[0], quarter[1]), add_pairs(quarter[2], quarter[3]));
        if (n - i > 4)
            _mm256_storeu_ps(sums + i, sum);
        else
            _mm_storeu_ps(sums + i, _mm256_castps256_ps128(sum));
    }
}

/* ---- Element by element ---- */

/* mp_times_sigmoid of host_math.h. Of max's operands the second is the one whose NaN comes through. */
MP_INLINE __m256 times_sigmoid(__m256 factor, __m256 z)
{
    const __m256 round = _mm256_set1_ps(MP_EXP_ROUND);
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 x = _mm256_max_ps(_mm256_set1_ps(MP_EXP_MIN), _mm256_or_ps(z, _mm256_set1_ps(-0.0f)));
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(MP_EXP_LOG2E), round);
    __m256 whole = _mm256_sub_ps(t, round);
    __m256 r = _mm256_fmadd_ps(whole, _mm256_set1_ps(-MP_EXP_LN2_HIGH), x);
    r = _mm256_fmadd_ps(whole, _mm256_set1_ps(-MP_EXP_LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(MP_EXP_C7), r, _mm256_set1_ps(MP_EXP_C6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MP_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MP_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MP_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MP_EXP_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(round));
    __m256i half = _mm256_srai_epi32(exponent, 1);
    __m256i rest = _mm256_sub_epi32(exponent, half);
    __m256 scale_a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 scale_b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    __m256 pa = _mm256_mul_ps(p, scale_a);
    __m256 scaled = _mm256_mul_ps(_mm256_mul_ps(factor, pa), scale_b);
    __m256 negative = _mm256_cmp_ps(z, _mm256_setzero_ps(), _CMP_LT_OQ);
    __m256 numerator = _mm256_blendv_ps(factor, scaled, negative);
    return _mm256_div_ps(numerator, _mm256_fmadd_ps(pa, scale_b, one));
}

/* mp_swiglu of host_math.h. */
MP_AVX2 static void swiglu(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i);
        __m256 bounded = _mm256_max_ps(_mm256_set1_ps(MP_EXP_MIN), g);
        __m256 silu = times_sigmoid(bounded, g);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
}

/* mp_swiglu_clamped of host_math.h. Of min's operands, too, the second's NaN comes through. */
MP_AVX2 static void swiglu_clamped(const float *gate, const float *up, float alpha, float limit,
                                   float *out, uint32_t n)
{
    const __m256 most = _mm256_set1_ps(limit), least = _mm256_set1_ps(-limit);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 g = _mm256_min_ps(most, _mm256_loadu_ps(gate + i));
        __m256 u = _mm256_max_ps(least, _mm256_min_ps(most, _mm256_loadu_ps(up + i)));
        __m256 z = _mm256_mul_ps(_mm256_set1_ps(alpha), g);
        __m256 gone = _mm256_cmp_ps(z, _mm256_set1_ps(MP_EXP_MIN), _CMP_LT_OQ);
        __m256 factor = _mm256_blendv_ps(g, _mm256_set1_ps(-0.0f), gone);
        __m256 more = _mm256_add_ps(u, _mm256_set1_ps(1.0f));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(times_sigmoid(factor, z), more));
    }
}

MP_AVX2 static void axpy(float scale, const float *in, float *out, uint64_t n)
{
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 sum = _mm256_fmadd_ps(_mm256_set1_ps(scale), _mm256_loadu_ps(in + i),
                                     _mm256_loadu_ps(out + i));
        _mm256_storeu_ps(out + i, sum);
    }
    mp_host_set_portable.axpy(scale, in + i, out + i, n - i);
}

MP_AVX2 static void widen_f16(const void *in, float *out, uint64_t n)
{
    const uint16_t *from = in;
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, load_eight(MP_TILE_F16, from + i));
    mp_host_set_portable.widen[MOEPAGE_DTYPE_F16](from + i, out + i, n - i);
}

MP_AVX2 static void widen_bf16(const void *in, float *out, uint64_t n)
{
    const uint16_t *from = in;
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, load_eight(MP_TILE_BF16, from + i));
    mp_host_set_portable.widen[MOEPAGE_DTYPE_BF16](from + i, out + i, n - i);
}

MP_AVX2 static void narrow_f16(const float *in, void *out, uint64_t n)
{
    uint16_t *to = out;
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 value = _mm256_loadu_ps(in + i);
        _mm_storeu_si128((__m128i *)(void *)(to + i),
                         _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    }
    mp_host_set_portable.narrow[MOEPAGE_DTYPE_F16](in + i, to + i, n - i);
}

MP_AVX2 static void narrow_bf16(const float *in, void *out, uint64_t n)
{
    uint16_t *to = out;
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i bits = to_bf16(_mm256_loadu_ps(in + i));
        __m128i packed =
            _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
        _mm_storeu_si128((__m128i *)(void *)(to + i), packed);
    }
    mp_host_set_portable.narrow[MOEPAGE_DTYPE_BF16](in + i, to + i, n - i);
}

/* An E4M3 number's bits, moved up to a half's place, are the half of 2^-8 times its value,
 * denormals included. What would be 480 is NaN. */
MP_AVX2 static void widen_f8(const void *in, float scale, float *out, uint64_t n)
{
    const uint8_t *from = in;
    const __m256 factor = _mm256_set1_ps(0x1p8f), beyond = _mm256_set1_ps(480);
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i bits =
            _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(from + i)));
        __m128i half = _mm_and_si128(_mm_slli_epi16(bits, 7), _mm_set1_epi16((int16_t)0xbf80));
        __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), factor);
        __m256 nan = _mm256_cmp_ps(_mm256_and_ps(value, magnitude), beyond, _CMP_EQ_OQ);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_or_ps(value, nan), _mm256_set1_ps(scale)));
    }
    mp_host_set_portable.widen_f8(from + i, scale, out + i, n - i);
}

const mp_host_kernel_set mp_host_set_avx2 =
    MP_HOST_KERNEL_SET("avx2", tile_dot, tile_dot, MP_TILE_ROWS, mp_integers_avx2, mp_blocks_avx2,
                       mp_int8_avx2);

#endif
