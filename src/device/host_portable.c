/* The portable kernel set: scalar C, and the definition that the vector sets must equal. */
#include "device/host_kernel_set.h"
#include "device/host_math.h"

/* ---- Tiles ---- */

static inline float widen_element(mp_tile_kind kind, const void *row, uint32_t i)
{
    if (kind == MP_TILE_F16 || kind == MP_TILE_BF16 || kind == MP_TILE_DOT) {
        uint16_t bits;
        memcpy(&bits, (const char *)row + (uint64_t)i * sizeof bits, sizeof bits);
        return kind == MP_TILE_F16 ? mp_from_f16(bits) : mp_from_bf16(bits);
    }
    float value;
    memcpy(&value, (const char *)row + (uint64_t)i * sizeof value, sizeof value);
    return value;
}

static inline float flush_denormal(float value)
{
    return fabsf(value) < 0x1p-126f ? copysignf(0.0f, value) : value;
}

/* A fused multiply-add that takes denormals as zero and flushes a tiny result. Tininess is judged
 * on the result rounded to 24 bits with unbounded exponent: what lies just below 2^-126 may round
 * up to it as a denormal and still be tiny, so that case is done again with room below. */
static inline float fma_flush(float a, float b, float c)
{
    a = flush_denormal(a);
    b = flush_denormal(b);
    float sum = fmaf(a, b, c);
    if (fabsf(sum) == 0x1p-126f && fabsf(fmaf(a * 0x1p48f, b * 0x1p48f, c * 0x1p96f)) < 0x1p-30f)
        return copysignf(0.0f, sum);
    return flush_denormal(sum);
}

/* One dot product. Beyond the row both factors are zero. */
static void dot_fp32(mp_tile_kind kind, const float *x, const void *w, uint32_t k, float *lanes)
{
    for (uint32_t base = 0; base < k; base += MP_LANES) {
        for (uint32_t lane = 0; lane < MP_LANES; lane++) {
            uint32_t i = base + lane;
            lanes[lane] = i < k ? fmaf(x[i], widen_element(kind, w, i), lanes[lane])
                                : fmaf(0.0f, 0.0f, lanes[lane]);
        }
    }
}

/* As bfloat16. */
static inline float rounded_element(mp_tile_kind kind, const void *w, uint32_t i)
{
    if (kind == MP_TILE_DOT)
        return widen_element(MP_TILE_DOT, w, i);
    return mp_from_bf16(
        mp_to_bf16(widen_element(kind == MP_TILE_DOT_F16 ? MP_TILE_F16 : MP_TILE_F32, w, i)));
}

static void dot_bf16(mp_tile_kind kind, const void *x, const void *w, uint32_t k, float *lanes)
{
    for (uint32_t base = 0; base < k; base += 2 * MP_LANES) {
        for (uint32_t lane = 0; lane < MP_LANES; lane++) {
            for (uint32_t odd = 2; odd-- > 0;) {
                uint32_t i = base + 2 * lane + odd;
                float a = i < k ? widen_element(MP_TILE_DOT, x, i) : 0.0f;
                float b = i < k ? rounded_element(kind, w, i) : 0.0f;
                lanes[lane] = fma_flush(a, b, lanes[lane]);
            }
        }
    }
}

static void tile_any(mp_tile_kind kind, const mp_tile *tile)
{
    for (uint32_t r = 0; r < tile->n_rows; r++) {
        for (uint32_t c = 0; c < MP_TILE_WEIGHTS; c++) {
            float *lanes = tile->acc + (r * MP_TILE_WEIGHTS + c) * MP_LANES;
            if (!tile->resume)
                memset(lanes, 0, MP_LANES * sizeof *lanes);
            if (kind < MP_TILE_DOT)
                dot_fp32(kind, tile->x[r], tile->w[c], tile->k, lanes);
            else
                dot_bf16(kind, tile->x[r], tile->w[c], tile->k, lanes);
        }
    }
}

MP_TILE_OF(, tile_f32, tile_any, MP_TILE_F32)
MP_TILE_OF(, tile_f16, tile_any, MP_TILE_F16)
MP_TILE_OF(, tile_bf16, tile_any, MP_TILE_BF16)
MP_TILE_OF(, tile_dot, tile_any, MP_TILE_DOT)
MP_TILE_OF(, tile_dot_f16, tile_any, MP_TILE_DOT_F16)
MP_TILE_OF(, tile_dot_f32, tile_any, MP_TILE_DOT_F32)

static void reduce(const float *acc, float *sums, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float lanes[MP_LANES];
        memcpy(lanes, acc + (uint64_t)i * MP_LANES, sizeof lanes);
        for (uint32_t half = MP_LANES / 2; half > 0; half /= 2) {
            for (uint32_t lane = 0; lane < half; lane++)
                lanes[lane] += lanes[lane + half];
        }
        sums[i] = lanes[0];
    }
}

/* ---- Element by element ---- */

static void swiglu(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = mp_swiglu(gate[i], up[i]);
}

static void swiglu_clamped(const float *gate, const float *up, float alpha, float limit, float *out,
                           uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = mp_swiglu_clamped(gate[i], up[i], alpha, limit);
}

static void axpy(float scale, const float *in, float *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = fmaf(scale, in[i], out[i]);
}

void mp_widen_f32(const void *in, float *out, uint64_t n)
{
    memcpy(out, in, n * sizeof *out);
}

static void widen_f16(const void *in, float *out, uint64_t n)
{
    const uint16_t *from = in;
    for (uint64_t i = 0; i < n; i++)
        out[i] = mp_from_f16(from[i]);
}

static void widen_bf16(const void *in, float *out, uint64_t n)
{
    const uint16_t *from = in;
    for (uint64_t i = 0; i < n; i++)
        out[i] = mp_from_bf16(from[i]);
}

void mp_narrow_f32(const float *in, void *out, uint64_t n)
{
    memcpy(out, in, n * sizeof *in);
}

static void narrow_f16(const float *in, void *out, uint64_t n)
{
    uint16_t *to = out;
    for (uint64_t i = 0; i < n; i++)
        to[i] = mp_to_f16(in[i]);
}

static void narrow_bf16(const float *in, void *out, uint64_t n)
{
    uint16_t *to = out;
    for (uint64_t i = 0; i < n; i++)
        to[i] = mp_to_bf16(in[i]);
}

static void widen_f8(const void *in, float scale, float *out, uint64_t n)
{
    const uint8_t *from = in;
    for (uint64_t i = 0; i < n; i++)
        out[i] = mp_f8_e4m3_value(from[i]) * scale;
}

const mp_host_kernel_set mp_host_set_portable =
    MP_HOST_KERNEL_SET("portable", tile_dot, tile_dot, MP_TILE_ROWS, mp_integers_portable,
                       mp_blocks_portable, mp_int8_portable);
