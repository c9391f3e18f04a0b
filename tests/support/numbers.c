/* Floating-point test data. */
#include "numbers.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "moepage.h"
#include "testing.h"

static uint64_t random_state = 1;

uint32_t num_random_bits(void)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 32);
}

float num_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t num_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Either sign, 2^-6 to 2^2: sums of these round at every step. */
float num_random(void)
{
    uint32_t bits = num_random_bits();
    return num_of_bits((bits & 0x807fffffu) | (121u + (bits >> 23 & 7u)) << 23);
}

double num_e4m3(uint8_t bits)
{
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    if ((bits & 0x7f) == 0x7f)
        value = NAN;
    return bits & 0x80 ? -value : value;
}

uint8_t *num_e4m3_array(uint64_t n)
{
    uint8_t *array = guarded_alloc(n);
    for (uint64_t i = 0; i < n; i++)
        do
            array[i] = (uint8_t)(num_random_bits() >> 24);
        while ((array[i] & 0x7f) == 0x7f);
    return array;
}

uint64_t num_bytes(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 ? 4 : 2;
}

/* The value nearest to x among those with `digits` bits and exponents from `least` to `most`. */
static double nearest(double x, int digits, int least, int most)
{
    if (x == 0 || !isfinite(x))
        return x;
    int exponent = ilogb(x) < least ? least : ilogb(x);
    double unit = ldexp(1.0, exponent - digits + 1);
    double rounded = rint(x / unit) * unit;
    return fabs(rounded) >= ldexp(1.0, most + 1) ? copysign(INFINITY, x) : rounded;
}

double num_rounded(uint32_t dtype, float x)
{
    if (dtype == MOEPAGE_DTYPE_F16)
        return nearest(x, 11, -14, 15);
    return dtype == MOEPAGE_DTYPE_BF16 ? nearest(x, 8, -126, 127) : (double)x;
}

float num_get(uint32_t dtype, const void *array, uint64_t i)
{
    uint16_t half;
    if (dtype == MOEPAGE_DTYPE_F32) {
        float value;
        memcpy(&value, (const char *)array + i * 4, 4);
        return value;
    }
    memcpy(&half, (const char *)array + i * 2, 2);
    if (dtype == MOEPAGE_DTYPE_BF16)
        return num_of_bits((uint32_t)half << 16);
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                   : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                  : ldexp(mantissa, -24);
    return (float)(half & 0x8000 ? -value : value);
}

/* Stores a number that has been rounded to the type. */
void num_put(uint32_t dtype, void *array, uint64_t i, double value)
{
    uint32_t bits = num_bits((float)value);
    uint16_t half = (uint16_t)(bits >> 16);
    if (dtype == MOEPAGE_DTYPE_F32) {
        memcpy((char *)array + i * 4, &bits, 4);
        return;
    }
    if (dtype == MOEPAGE_DTYPE_F16) { /* normal halves only */
        assert_true(fabs(value) >= 0x1p-14 && fabs(value) < 65536);
        half = (uint16_t)((bits >> 16 & 0x8000u) | ((bits & 0x7fffffffu) - 0x38000000u) >> 13);
    }
    memcpy((char *)array + i * 2, &half, 2);
}

int num_same(float a, float b)
{
    return num_bits(a) == num_bits(b) || (isnan(a) && isnan(b));
}

/* ---- Memory that ends at an inaccessible page ---- */

void (*guarded_notice)(void *base, uint64_t bytes, bool made);

static uint64_t mapped_bytes(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *guarded_alloc(uint64_t bytes)
{
    uint64_t mapped = mapped_bytes(bytes), page = (uint64_t)sysconf(_SC_PAGESIZE);
    char *base =
        mmap(NULL, mapped + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    assert_int_equal(mprotect(base + mapped, page, PROT_NONE), 0);
    if (guarded_notice && mapped)
        guarded_notice(base, mapped, true);
    return base + mapped - bytes;
}

void guarded_free(void *memory, uint64_t bytes)
{
    uint64_t mapped = mapped_bytes(bytes), page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (guarded_notice && memory && mapped)
        guarded_notice((char *)memory + bytes - mapped, mapped, false);
    if (memory)
        munmap((char *)memory + bytes - mapped, mapped + page);
}

void *num_array(uint32_t dtype, uint64_t n)
{
    void *array = guarded_alloc(n * num_bytes(dtype));
    for (uint64_t i = 0; i < n; i++)
        num_put(dtype, array, i, num_rounded(dtype, num_random()));
    return array;
}
