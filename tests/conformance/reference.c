/* Number formats and the SwiGLU expert in double precision. */
#include "reference.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "moepage.h"

typedef struct number_format {
    int mantissa_bits, exponent_bits, bias;
} number_format;

static number_format format_of(uint32_t dtype)
{
    if (dtype == MOEPAGE_DTYPE_F16)
        return (number_format){10, 5, 15};
    if (dtype == MOEPAGE_DTYPE_BF16)
        return (number_format){7, 8, 127};
    if (dtype == MOEPAGE_DTYPE_F8_E4M3)
        return (number_format){3, 4, 7};
    return (number_format){23, 8, 127};
}

uint32_t reference_size(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 ? 4 : dtype == MOEPAGE_DTYPE_F8_E4M3 ? 1 : 2;
}

double reference_load(const void *array, size_t i, uint32_t dtype)
{
    if (dtype == MOEPAGE_DTYPE_F32)
        return ((const float *)array)[i];
    number_format f = format_of(dtype);
    bool byte = dtype == MOEPAGE_DTYPE_F8_E4M3;
    uint32_t bits = byte ? ((const uint8_t *)array)[i] : ((const uint16_t *)array)[i];
    double sign = bits >> (f.mantissa_bits + f.exponent_bits) ? -1 : 1;
    int exponent = (int)(bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
    double mantissa = (double)(bits & ((1u << f.mantissa_bits) - 1));
    if (byte && (bits & 0x7f) == 0x7f)
        return NAN;
    if (!byte && exponent == (1 << f.exponent_bits) - 1)
        return mantissa > 0 ? NAN : sign * INFINITY;
    if (exponent > 0)
        mantissa += ldexp(1, f.mantissa_bits);
    return sign * ldexp(mantissa, (exponent > 0 ? exponent : 1) - f.bias - f.mantissa_bits);
}

/* The distance between neighbours at |value|, as a power of two. */
static int spacing(double value, number_format f)
{
    int exponent = value == 0 ? 1 - f.bias : ilogb(value);
    return (exponent < 1 - f.bias ? 1 - f.bias : exponent) - f.mantissa_bits;
}

double reference_round(double value, uint32_t dtype)
{
    if (!isfinite(value))
        return value;
    number_format f = format_of(dtype);
    int unit = spacing(value, f);
    double rounded = ldexp(nearbyint(ldexp(value, -unit)), unit);
    double limit = ldexp(1, f.bias + 1);
    return fabs(rounded) < limit ? rounded : copysign(INFINITY, value);
}

void reference_store(void *array, size_t i, uint32_t dtype, double value)
{
    double rounded = reference_round(value, dtype);
    if (dtype == MOEPAGE_DTYPE_F32) {
        ((float *)array)[i] = (float)rounded;
        return;
    }
    number_format f = format_of(dtype);
    uint32_t bits = signbit(rounded) ? 1u << 15 : 0;
    uint32_t top = (1u << f.exponent_bits) - 1;
    if (isnan(rounded)) {
        bits |= top << f.mantissa_bits | 1u << (f.mantissa_bits - 1);
    } else if (isinf(rounded)) {
        bits |= top << f.mantissa_bits;
    } else {
        int unit = spacing(rounded, f);
        uint32_t digits = (uint32_t)ldexp(fabs(rounded), -unit);
        uint32_t exponent = (uint32_t)(unit + f.mantissa_bits + f.bias);
        bits |= digits >> f.mantissa_bits ? exponent << f.mantissa_bits : 0;
        bits |= digits & ((1u << f.mantissa_bits) - 1);
    }
    ((uint16_t *)array)[i] = (uint16_t)bits;
}

/* A dot product with a bias, and what FP32 accumulation in any order may be off by: n products and
 * one bias make at most n + 1 roundings on the way of each term (Higham's gamma). A product of
 * BF16s is exact in FP32, one of FP32s is fused into its addition or rounds once more. */
typedef struct dot {
    double value, bound;
} dot;

static double gamma_of(uint32_t roundings)
{
    double u = ldexp(1, -24);
    return roundings * u / (1 - roundings * u);
}

static double weight(const void *array, size_t i, uint32_t dtype, uint32_t math)
{
    double value = reference_load(array, i, dtype);
    return math == MOEPAGE_MATH_BF16 ? reference_round(value, MOEPAGE_DTYPE_BF16) : value;
}

static double bias(const void *array, size_t i, uint32_t dtype)
{
    return array ? reference_load(array, i, dtype) : 0;
}

static dot x_dot(const void *weights, const void *biases, size_t row, const void *x, uint32_t n,
                 uint32_t dtype, uint32_t math)
{
    uint32_t operand = math == MOEPAGE_MATH_BF16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32;
    double sum = bias(biases, row, dtype), magnitude = fabs(sum);
    for (uint32_t i = 0; i < n; i++) {
        double product = weight(weights, row * n + i, dtype, math) * reference_load(x, i, operand);
        sum += product;
        magnitude += fabs(product);
    }
    return (dot){sum, gamma_of(n + 2) * magnitude};
}

/* silu(g) * u. |silu'| < 1.1; the device's own silu is allowed a relative error of 2^-20. */
static dot swiglu(dot g, dot u, uint32_t math)
{
    double silu = g.value / (1 + exp(-g.value));
    double value = silu * u.value;
    double bound = 1.1 * g.bound * (fabs(u.value) + u.bound) + fabs(silu) * u.bound;
    bound += ldexp(fabs(value) + bound, -20);
    if (math == MOEPAGE_MATH_BF16)
        bound += ldexp(fabs(value) + bound, -8); /* its product is rounded to BF16 */
    return (dot){value, bound};
}

void reference_expert_row(const mp_ffn_expert *expert, const void *x, uint32_t hidden,
                          uint32_t intermediate, uint32_t dtype, uint32_t math, double *out,
                          double *bound)
{
    dot *inner = calloc(intermediate, sizeof *inner);
    for (uint32_t i = 0; i < intermediate; i++) {
        dot g = x_dot(expert->gate, expert->gate_bias, i, x, hidden, dtype, math);
        dot u = x_dot(expert->up, expert->up_bias, i, x, hidden, dtype, math);
        inner[i] = swiglu(g, u, math);
    }
    for (uint32_t h = 0; h < hidden; h++) {
        double sum = bias(expert->down_bias, h, dtype), magnitude = fabs(sum), carried = 0;
        for (uint32_t i = 0; i < intermediate; i++) {
            double w = weight(expert->down, (size_t)h * intermediate + i, dtype, math);
            sum += w * inner[i].value;
            magnitude += fabs(w) * (fabs(inner[i].value) + inner[i].bound);
            carried += fabs(w) * inner[i].bound;
        }
        out[h] = sum;
        bound[h] = carried + gamma_of(intermediate + 2) * magnitude;
    }
    free(inner);
}
