/* Tensors to encode, and the decoders of this CPU. */
#include "exph_data.h"

#include <math.h>
#include <string.h>

#include "testing.h"

const uint32_t exph_dtypes[4] = {MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_F8_E4M3,
                                 MOEPAGE_DTYPE_F8_E5M2};
const mp_exph_decoder *exph_decoders[3];
uint32_t n_exph_decoders;

int exph_decoders_find(void **state)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        const mp_exph_decoder *decoder = mp_exph_decoder_find(names[i]);
        if (decoder)
            exph_decoders[n_exph_decoders++] = decoder;
        else
            print_message("not run here: %s\n", names[i]);
    }
    return n_exph_decoders && exph_decoders[0] == mp_exph_decoder_find("portable") ? 0 : -1;
}

exph_random exph_random_of(uint64_t seed)
{
    exph_random random = {(seed + 1) * 0x9e3779b97f4a7c15u};
    for (int i = 0; i < 4; i++)
        exph_next(&random);
    return random;
}

uint64_t exph_next(exph_random *random)
{
    random->state ^= random->state << 13;
    random->state ^= random->state >> 7;
    random->state ^= random->state << 17;
    return random->state * 0x2545f4914f6cdd1du;
}

uint64_t exph_below(exph_random *random, uint64_t limit)
{
    return limit ? (exph_next(random) >> 11) % limit : 0;
}

/* ---- Elements ---- */

typedef struct field {
    uint32_t bytes, exponent_bits, mantissa_bits, bias;
} field;

static field field_of(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_BF16: return (field){2, 8, 7, 127};
    case MOEPAGE_DTYPE_F16: return (field){2, 5, 10, 15};
    case MOEPAGE_DTYPE_F8_E4M3: return (field){1, 4, 3, 7};
    default: return (field){1, 5, 2, 15};
    }
}

uint64_t exph_element_bytes(uint32_t dtype)
{
    return field_of(dtype).bytes;
}

/* Any sign and mantissa with this exponent, as far as the type has it. */
static uint32_t with_exponent(exph_random *random, field f, uint32_t exponent)
{
    const uint32_t noise = (uint32_t)exph_next(random), all = (1u << f.exponent_bits) - 1;
    return (noise & ~(all << f.mantissa_bits)) | (exponent & all) << f.mantissa_bits;
}

/* Standard deviation 1/32, but for the smallest type's. */
static uint32_t gaussian(exph_random *random, field f)
{
    const double u = (double)(exph_next(random) >> 11) + 0.5, v = (double)(exph_next(random) >> 11);
    const double x = sqrt(-2 * log(u * 0x1p-53)) * cos(6.283185307179586 * v * 0x1p-53);
    int exponent;
    const double fraction = frexp(fabs(x), &exponent) * 2 - 1; /* of 1..2 */
    exponent += (int)f.bias - (f.exponent_bits == 4 ? 1 : 6);
    if (exponent < 0)
        exponent = 0;
    return (uint32_t)(x < 0) << (f.exponent_bits + f.mantissa_bits) |
           (uint32_t)exponent << f.mantissa_bits | (uint32_t)(fraction * (1u << f.mantissa_bits));
}

/* Numbers that an element's making goes by, fixed for a stretch. */
typedef struct stretch {
    uint32_t kind, first, second, odds;
} stretch;

static stretch stretch_of(exph_random *random, uint32_t kind)
{
    return (stretch){.kind = kind,
                     .first = (uint32_t)exph_below(random, 256),
                     .second = (uint32_t)exph_below(random, 256),
                     .odds = 2u << exph_below(random, 16)};
}

static uint32_t element(exph_random *random, field f, const stretch *s, uint64_t i)
{
    switch (s->kind) {
    case EXPH_GAUSSIAN: return gaussian(random, f);
    case EXPH_CONSTANT: return with_exponent(random, f, s->first);
    case EXPH_TWO:
        return with_exponent(random, f, exph_below(random, s->odds) ? s->first : s->second);
    case EXPH_GEOMETRIC:
        return with_exponent(random, f, (uint32_t)__builtin_ctzll(exph_next(random) | 1ull << 63));
    case EXPH_LANES:
        return with_exponent(random, f, i / 8 % 32 < 24 ? s->first : (uint32_t)(i * i % 13));
    default: return (uint32_t)exph_next(random);
    }
}

void exph_fill(exph_random *random, uint32_t dtype, uint32_t kind, void *out, uint64_t n)
{
    const field f = field_of(dtype);
    stretch s = stretch_of(random, kind);
    uint64_t left = kind == EXPH_BLOCKS ? 0 : n;
    for (uint64_t i = 0; i < n; i++, left--) {
        if (!left) {
            s = stretch_of(random, (uint32_t)exph_below(random, EXPH_BLOCKS));
            left = 1 + exph_below(random, 50000);
        }
        const uint32_t bits = element(random, f, &s, i);
        memcpy((char *)out + i * f.bytes, &bits, f.bytes);
    }
}
