/* The values of integer weights in scalar C: the definition that the vector sets must equal. */
#include "device/host_kernel_set.h"
#include "device/host_math.h"

static float scale_at(const mp_integers *in, uint32_t group)
{
    uint16_t bits;
    memcpy(&bits, (const char *)in->scales + (uint64_t)group * sizeof bits, sizeof bits);
    return mp_from_f16(bits);
}

/* Two's complement, the first element in a byte's lowest bits. */
static inline int32_t integer_at(const uint8_t *packed, uint32_t i, uint32_t bits)
{
    const uint32_t per_byte = 8 / bits;
    const uint32_t above = 8 - bits - i % per_byte * bits;
    return (int8_t)(uint8_t)(packed[i / per_byte] << above) >> (8 - bits);
}

/* A negative scale says that its group, of two bits, has four levels. */
static inline float value_at(const mp_integers *in, uint32_t i, uint32_t bits)
{
    const float scale = scale_at(in, i / in->group), q = (float)integer_at(in->packed, i, bits);
    return bits == 2 && scale < 0 ? (q + 0.5f) * -scale : q * scale;
}

static inline void to_f32(const mp_integers *in, uint32_t bits, float *out)
{
    for (uint32_t i = 0; i < in->n; i++)
        out[i] = value_at(in, i, bits);
}

static inline void to_bf16(const mp_integers *in, uint32_t bits, uint16_t *out)
{
    for (uint32_t i = 0; i < in->n; i++)
        out[i] = mp_to_bf16(value_at(in, i, bits));
}

static void int8_f32(const mp_integers *in, void *out)
{
    to_f32(in, 8, out);
}

static void int4_f32(const mp_integers *in, void *out)
{
    to_f32(in, 4, out);
}

static void int2_f32(const mp_integers *in, void *out)
{
    to_f32(in, 2, out);
}

static void int8_bf16(const mp_integers *in, void *out)
{
    to_bf16(in, 8, out);
}

static void int4_bf16(const mp_integers *in, void *out)
{
    to_bf16(in, 4, out);
}

static void int2_bf16(const mp_integers *in, void *out)
{
    to_bf16(in, 2, out);
}

const mp_integer_set mp_integers_portable = {
    .as_f32 = {int8_f32, int4_f32, int2_f32},
    .as_bf16 = {int8_bf16, int4_bf16, int2_bf16},
};
