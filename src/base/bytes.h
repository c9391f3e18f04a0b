/* bytes.h — numbers as files store them: little-endian, at any alignment. */
#ifndef MP_BASE_BYTES_H
#define MP_BASE_BYTES_H

#include <stdint.h>

static inline void mp_put16(unsigned char *out, uint16_t value)
{
    out[0] = (unsigned char)value;
    out[1] = (unsigned char)(value >> 8);
}

static inline void mp_put32(unsigned char *out, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(value >> 8 * i);
}

static inline void mp_put64(unsigned char *out, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(value >> 8 * i);
}

static inline uint16_t mp_get16(const unsigned char *in)
{
    return (uint16_t)(in[0] | (uint32_t)in[1] << 8);
}

static inline uint32_t mp_get32(const unsigned char *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static inline uint64_t mp_get64(const unsigned char *in)
{
    return (uint64_t)mp_get32(in) | (uint64_t)mp_get32(in + 4) << 32;
}

#endif
