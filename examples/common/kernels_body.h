/* kernels_body.h — the loops of kernels.h once per instruction set: kernels.c includes this with
 * NAME(x), TARGET and the sizes of tiles set, and NAME(add_product) defined: *sum = a * b + *sum,
 * rounded once. Not an ordinary header, hence no include guard.
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

/* ---- Weighted sums of rows ---- */

/* Sums [q, q + n_sums) over columns [i, i + n_lanes * LANES); both counts are constants where it is
 * inlined. */
static inline __attribute__((always_inline)) TARGET void
NAME(sum_tile)(const weighted_sums *s, uint32_t q, uint32_t i, uint32_t n_sums, uint32_t n_lanes)
{
    lanes acc[MANY][LONG];
    UNROLL
    for (uint32_t j = 0; j < n_sums; j++)
        UNROLL
    for (uint32_t v = 0; v < n_lanes; v++)
        if (s->resume)
            memcpy(&acc[j][v], s->out[q + j] + i + v * LANES, sizeof acc[j][v]);
        else
            acc[j][v] = (lanes){0};
    for (uint32_t k = 0; k < s->n_rows; k++) {
        lanes row[LONG];
        UNROLL
        for (uint32_t v = 0; v < n_lanes; v++)
            memcpy(&row[v], s->rows + k * s->stride + i + v * LANES, sizeof row[v]);
        UNROLL
        for (uint32_t j = 0; j < n_sums; j++) {
            const lanes weight = s->weights[q + j][k] - (lanes){0};
            UNROLL
            for (uint32_t v = 0; v < n_lanes; v++)
                NAME(add_product)(&acc[j][v], &weight, &row[v]);
        }
    }
    UNROLL
    for (uint32_t j = 0; j < n_sums; j++)
        UNROLL
    for (uint32_t v = 0; v < n_lanes; v++)
        memcpy(s->out[q + j] + i + v * LANES, &acc[j][v], sizeof acc[j][v]);
}

static TARGET void NAME(sum_long)(const weighted_sums *s, uint32_t i)
{
    uint32_t q = 0;
    for (; q + FEW <= s->n_sums; q += FEW)
        NAME(sum_tile)(s, q, i, FEW, LONG);
    for (; q < s->n_sums; q++)
        NAME(sum_tile)(s, q, i, 1, LONG);
}

static TARGET void NAME(sum_short)(const weighted_sums *s, uint32_t i)
{
    uint32_t q = 0;
    for (; q + MANY <= s->n_sums; q += MANY)
        NAME(sum_tile)(s, q, i, MANY, 1);
    for (; q < s->n_sums; q++)
        NAME(sum_tile)(s, q, i, 1, 1);
}

static TARGET void NAME(sum_rows)(const weighted_sums *s)
{
    uint32_t i = 0;
    for (; i + LONG * LANES <= s->n; i += LONG * LANES)
        NAME(sum_long)(s, i);
    for (; i + LANES <= s->n; i += LANES)
        NAME(sum_short)(s, i);
    for (; i < s->n; i++)
        for (uint32_t q = 0; q < s->n_sums; q++) {
            float sum = s->resume ? s->out[q][i] : 0;
            for (uint32_t k = 0; k < s->n_rows; k++)
                sum = fmaf(s->weights[q][k], s->rows[k * s->stride + i], sum);
            s->out[q][i] = sum;
        }
}

/* ---- Softmax ---- */

/* x[i] becomes e^x[i] for x[i] of at most 0, and 0 below -87: 2^n e^r with |r| <= ln 2 / 2, and e^r by its
 * series. */
static inline TARGET void NAME(exp)(lanes *x)
{
    static const float series[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
    const lanes zero = {0}, per_two = zero + 0x1.715476p+0f;
    const lanes high = zero - 0x1.62e400p-1f, low = zero - 0x1.7f7d1cp-20f; /* - ln 2 */
    const bit_lanes counts = (bit_lanes)(*x >= -87.0f), nan = (bit_lanes)(*x != *x);
    lanes shifted = zero + 0x1.8p+23f, r = *x, e = zero + 1.0f / 5040;
    NAME(add_product)(&shifted, x, &per_two);
    const lanes n = shifted - 0x1.8p+23f;
    NAME(add_product)(&r, &n, &high);
    NAME(add_product)(&r, &n, &low);
    for (uint32_t i = 0; i < sizeof series / sizeof *series; i++) {
        lanes next = zero + series[i];
        NAME(add_product)(&next, &e, &r);
        e = next;
    }
    bit_lanes bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; /* 2^n: the low bits of `shifted` are n's */
    lanes power;
    memcpy(&power, &bits, sizeof power);
    e *= power;
    memcpy(&bits, &e, sizeof bits);
    bits = (bits & counts) | (nan & 0x7fc00000u);
    memcpy(x, &bits, sizeof bits);
}

/* x[i] becomes e^ of it for up to LANES elements, and is added to lane i. */
static inline TARGET void NAME(exp_some)(float *x, uint32_t n, float scale, float most, lanes *sums)
{
    lanes some = {0};
    memcpy(&some, x, n * sizeof *x);
    some = some * scale - most;
    NAME(exp)(&some);
    for (uint32_t i = n; i < LANES; i++)
        some[i] = 0;
    memcpy(x, &some, n * sizeof *x);
    *sums += some;
}

static TARGET float NAME(most)(const float *x, uint32_t n)
{
    lanes most = (lanes){0} + x[0];
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes some;
        memcpy(&some, x + i, sizeof some);
        const bit_lanes above = (bit_lanes)(some > most);
        most = (lanes)(((bit_lanes)some & above) | ((bit_lanes)most & ~above));
    }
    float greatest = most[0];
    for (uint32_t j = 1; j < LANES; j++)
        greatest = most[j] > greatest ? most[j] : greatest;
    for (; i < n; i++)
        greatest = x[i] > greatest ? x[i] : greatest;
    return greatest;
}

static TARGET void NAME(softmax)(float *x, uint32_t n, float scale)
{
    const float most = NAME(most)(x, n) * scale;
    lanes sums = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        NAME(exp_some)(x + i, LANES, scale, most, &sums);
    if (i < n)
        NAME(exp_some)(x + i, n - i, scale, most, &sums);
    for (uint32_t width = LANES / 2; width; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            sums[j] += sums[j + width];
    const float sum = sums[0];
    for (i = 0; i + LANES <= n; i += LANES) {
        lanes some;
        memcpy(&some, x + i, sizeof some);
        some /= sum;
        memcpy(x + i, &some, sizeof some);
    }
    for (; i < n; i++)
        x[i] /= sum;
}

static const kernels NAME(table) = {STRING(NAME()),   NAME(dot),      NAME(add_scaled), NAME(widen),
                                    NAME(round_bf16), NAME(sum_rows), NAME(softmax)};

#undef NAME
#undef TARGET
#undef LONG
#undef FEW
#undef MANY
