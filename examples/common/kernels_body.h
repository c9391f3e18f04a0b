/* kernels_body.h — the loops of kernels.h once per instruction set: kernels.c includes this with
 * NAME(x) and TARGET set. Not an ordinary header, hence no include guard.
 *
 * Inlining a common body into functions of other targets would not work: compilers split wide
 * vectors for the body's own target first. */

static TARGET float NAME(dot)(const float *a, const float *b, uint32_t n)
{
    lanes even = {0}, odd = {0};
    uint32_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        lanes a0, a1, b0, b1;
        memcpy(&a0, a + i, sizeof a0);
        memcpy(&b0, b + i, sizeof b0);
        memcpy(&a1, a + i + LANES, sizeof a1);
        memcpy(&b1, b + i + LANES, sizeof b1);
        even += a0 * b0;
        odd += a1 * b1;
    }
    float rest = 0;
    for (; i < n; i++)
        rest += a[i] * b[i];
    even += odd;
    float part[LANES];
    memcpy(part, &even, sizeof part);
    for (uint32_t width = LANES / 2; width; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            part[j] += part[j + width];
    return part[0] + rest;
}

static TARGET void NAME(add_scaled)(float *y, const float *x, float scale, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes y0, x0;
        memcpy(&y0, y + i, sizeof y0);
        memcpy(&x0, x + i, sizeof x0);
        y0 += scale * x0;
        memcpy(y + i, &y0, sizeof y0);
    }
    for (; i < n; i++)
        y[i] += scale * x[i];
}

/* Widens LANES halves of F16 or BF16. */
static inline TARGET void NAME(widen_block)(float *out, const void *source, uint32_t dtype)
{
    half_lanes half;
    memcpy(&half, source, sizeof half);
    bit_lanes bits = __builtin_convertvector(half, bit_lanes);
    if (dtype == MOEPAGE_DTYPE_BF16) {
        bits <<= 16;
    } else {
        /* Rebiases by multiplication, which is exact for subnormals too; the exponent of inf and
         * NaN is restored afterwards. */
        bit_lanes sign = (bits & 0x8000u) << 16;
        bit_lanes special = (bit_lanes)((bits & 0x7c00u) == 0x7c00u) & 0x7f800000u;
        bit_lanes magnitude = (bits & 0x7fffu) << 13;
        lanes value;
        memcpy(&value, &magnitude, sizeof value);
        value *= 0x1p112f;
        memcpy(&bits, &value, sizeof bits);
        bits |= sign | special;
    }
    memcpy(out, &bits, sizeof bits);
}

static TARGET void NAME(widen)(float *out, const void *source, uint32_t dtype, uint32_t n)
{
    if (dtype == MOEPAGE_DTYPE_F32) {
        memcpy(out, source, n * sizeof *out);
        return;
    }
    const unsigned char *bytes = source;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        NAME(widen_block)(out + i, bytes + 2 * (size_t)i, dtype);
    if (i < n) {
        uint16_t padded[LANES] = {0};
        float tail[LANES];
        memcpy(padded, bytes + 2 * (size_t)i, (n - i) * sizeof *padded);
        NAME(widen_block)(tail, padded, dtype);
        memcpy(out + i, tail, (n - i) * sizeof *tail);
    }
}

static inline TARGET void NAME(round_block)(float *x)
{
    bit_lanes bits;
    memcpy(&bits, x, sizeof bits);
    bit_lanes nan = (bit_lanes)((bits & 0x7fffffffu) > 0x7f800000u);
    bit_lanes rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    bits = ((nan & (bits | 0x400000u)) | (~nan & rounded)) & 0xffff0000u;
    memcpy(x, &bits, sizeof bits);
}

static TARGET void NAME(round_bf16)(float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        NAME(round_block)(x + i);
    if (i < n) {
        float tail[LANES] = {0};
        memcpy(tail, x + i, (n - i) * sizeof *tail);
        NAME(round_block)(tail);
        memcpy(x + i, tail, (n - i) * sizeof *tail);
    }
}

static const kernels NAME(table) = {STRING(NAME()), NAME(dot), NAME(add_scaled), NAME(widen),
                                    NAME(round_bf16)};

#undef NAME
#undef TARGET
