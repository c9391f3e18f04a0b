/* The values of blocks with AVX2. */
#include "device/host_kernel_set.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "device/host_blocks_x86.h"

#define MP_AVX2 __attribute__((target("avx2,fma,f16c")))
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

#define MP_HALF_LANES (MP_LANES / 2)

/* Values [8 * quarter, 8 * quarter + 8) of a step: scale * byte - minimum. */
MP_INLINE __m256 eight_values(uint32_t dtype, __m256i bytes, uint32_t quarter, __m256 scale,
                              __m256 minimum)
{
    __m128i some = quarter / 2 ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes);
    if (quarter % 2)
        some = _mm_unpackhi_epi64(some, some);
    const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(some));
    return mp_block_has_minimum(dtype) ? _mm256_fmsub_ps(value, scale, minimum)
                                       : _mm256_mul_ps(value, scale);
}

/* The 16 values of a block of W4, numbers of 16 bits of which the bytes are apart, in both halves. */
typedef struct w4_table {
    __m256i low, high;
} w4_table;

/* Eight rounded products. NaNs stay NaNs: those of BF16 scales end in zeros. */
MP_INLINE __m128i w4_levels(uint32_t dtype, __m256 level, __m256 scale)
{
    const __m256 value = _mm256_mul_ps(level, scale);
    if (!mp_block_is_bf16(dtype))
        return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff))),
                          16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}

MP_INLINE w4_table w4_table_of(uint32_t dtype, const mp_block_at *at)
{
    const uint32_t i = mp_scale_index(dtype, at->row, at->number, 0);
    const __m256 scale = _mm256_broadcast_ss(&at->scales->scale[i]);
    const __m256 zero = _mm256_broadcast_ss(&at->scales->zero[i]);
    const __m256 first = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 second = _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15);
    const __m128i a = w4_levels(dtype, _mm256_sub_ps(first, zero), scale);
    const __m128i b = w4_levels(dtype, _mm256_sub_ps(second, zero), scale);
    const __m128i mask = _mm_set1_epi16(255);
    return (w4_table){
        .low = _mm256_broadcastsi128_si256(
            _mm_packus_epi16(_mm_and_si128(a, mask), _mm_and_si128(b, mask))),
        .high = _mm256_broadcastsi128_si256(
            _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8))),
    };
}

MP_INLINE __m256 eight_w4(uint32_t dtype, __m128i bits)
{
    return mp_block_is_bf16(dtype)
               ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
               : _mm256_cvtph_ps(bits);
}

MP_INLINE void values_w4(uint32_t dtype, const mp_block_at *at, uint32_t step, __m256 *out)
{
    const w4_table table = w4_table_of(dtype, at);
    const __m256i indices = mp_block_bytes_at(dtype, at->block, step);
    const __m256i low = _mm256_shuffle_epi8(table.low, indices);
    const __m256i high = _mm256_shuffle_epi8(table.high, indices);
    const __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    out[0] = eight_w4(dtype, _mm256_castsi256_si128(a));
    out[1] = eight_w4(dtype, _mm256_castsi256_si128(b));
    out[2] = eight_w4(dtype, _mm256_extracti128_si256(a, 1));
    out[3] = eight_w4(dtype, _mm256_extracti128_si256(b, 1));
}

/* Weights [32 * step, 32 * step + 32) of a block. */
MP_INLINE void values(uint32_t dtype, const mp_block_at *at, uint32_t step, __m256 *out)
{
    const mp_block_scales *scales = at->scales;
    if (mp_block_has_zero(dtype)) {
        values_w4(dtype, at, step, out);
        return;
    }
    const __m256i bytes = mp_block_bytes_at(dtype, at->block, step);
    MP_EACH (quarter, 4) {
        const uint32_t group = mp_block_group(dtype, step, quarter / 2);
        const uint32_t i = mp_scale_index(dtype, at->row, at->number, group);
        const __m256 scale = _mm256_broadcast_ss(&scales->scale[i]);
        const __m256 minimum = mp_block_has_minimum(dtype)
                                   ? _mm256_broadcast_ss(&scales->minimum[i])
                                   : _mm256_setzero_ps();
        out[quarter] = eight_values(dtype, bytes, quarter, scale, minimum);
    }
}

/* ---- Rows ---- */

MP_INLINE void put_values(uint32_t dtype, const mp_block_at *at, uint32_t step, float *out)
{
    __m256 some[4];
    values(dtype, at, step, some);
    MP_EACH (quarter, 4)
        _mm256_storeu_ps(out + MP_HALF_LANES * quarter, some[quarter]);
}

MP_DECODE_ROW(MP_INLINE)

/* ---- One row of x, four rows of weights ---- */

typedef __m256 row_sums[MP_TILE_WEIGHTS][2];

/* A run of four rows. */
MP_INLINE void tile_run(uint32_t dtype, const float *x, uint32_t n_blocks, const uint8_t **block,
                        const mp_block_scales *scales, row_sums acc)
{
    for (uint32_t b = 0; b < n_blocks; b++) {
        MP_EACH (step, mp_block_weights(dtype) / MP_BLOCK_STEP) {
            MP_EACH (c, MP_TILE_WEIGHTS) {
                const mp_block_at at = {block[c], scales, c, b};
                __m256 some[4];
                values(dtype, &at, step, some);
                MP_EACH (quarter, 4)
                    acc[c][quarter % 2] =
                        _mm256_fmadd_ps(_mm256_loadu_ps(x + quarter * MP_HALF_LANES), some[quarter],
                                        acc[c][quarter % 2]);
            }
            x += MP_BLOCK_STEP;
        }
        MP_EACH (c, MP_TILE_WEIGHTS)
            block[c] += mp_block_bytes(dtype);
    }
}

MP_INLINE void tile_row(uint32_t dtype, const mp_tile *tile)
{
    const uint32_t weights = mp_block_weights(dtype), k = tile->k;
    const uint32_t run_bytes = MP_BLOCK_RUN / weights * mp_block_bytes(dtype);
    const float *x = tile->x[0];
    const uint64_t ahead_bytes = tile->ahead_bytes;
    mp_block_scales scales[2];
    row_sums acc;
    const uint8_t *block[MP_TILE_WEIGHTS], *ahead[MP_TILE_WEIGHTS];
    MP_EACH (c, MP_TILE_WEIGHTS) {
        const float *lanes = tile->acc + c * MP_LANES;
        block[c] = ahead[c] = tile->w[c];
        MP_EACH (half, 2)
            acc[c][half] =
                tile->resume ? _mm256_load_ps(lanes + half * MP_HALF_LANES) : _mm256_setzero_ps();
    }
    for (uint32_t i = 0, turn = 0; i < k + MP_BLOCK_RUN; i += MP_BLOCK_RUN, turn ^= 1) {
        if (i < k)
            mp_scales_of_rows(dtype, ahead, mp_run_blocks(dtype, i, k), &scales[turn]);
        MP_EACH (c, MP_TILE_WEIGHTS)
            ahead[c] += run_bytes;
        if (i == 0)
            continue;
        if (ahead_bytes)
            MP_EACH (c, MP_TILE_WEIGHTS)
                mp_prefetch_run(dtype, block[c], ahead_bytes);
        tile_run(dtype, x + i - MP_BLOCK_RUN, mp_run_blocks(dtype, i - MP_BLOCK_RUN, k), block,
                 &scales[turn ^ 1], acc);
    }
    MP_EACH (c, MP_TILE_WEIGHTS) {
        MP_EACH (half, 2)
            _mm256_store_ps(tile->acc + c * MP_LANES + half * MP_HALF_LANES, acc[c][half]);
    }
}

/* ---- Every format ---- */

#define MP_FORMAT(name, dtype)                                      \
    MP_AVX2 static void name##_f32(const mp_blocks *in, float *out) \
    {                                                               \
        decode_row(dtype, in, out);                                 \
    }                                                               \
    MP_AVX2 static void name##_tile_f32(const mp_tile *tile)        \
    {                                                               \
        tile_row(dtype, tile);                                      \
    }

MP_EVERY_BLOCK_FORMAT(MP_FORMAT)

const mp_block_set mp_blocks_avx2 = {
    .as_f32 = MP_BLOCK_FUNCTIONS(f32),
    .tile_rows = 1,
    .tile_f32 = MP_BLOCK_FUNCTIONS(tile_f32),
};

#endif
