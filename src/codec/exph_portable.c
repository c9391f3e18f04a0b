/* The decoder for any CPU: several symbols per look-up; exponents and rests are joined eight at a
 * time in 64-bit registers. */
#include "codec/exph_wide.h"

/* Spreads the low half: byte i becomes the low byte of 16-bit field i. */
MP_EXPH_INLINE uint64_t spread(uint64_t bytes)
{
    bytes &= 0xffffffffu;
    bytes = (bytes | bytes << 16) & 0x0000ffff0000ffffu;
    return (bytes | bytes << 8) & 0x00ff00ff00ff00ffu;
}

MP_EXPH_INLINE void join_run(const uint8_t *exponents, const uint8_t *rests, uint8_t *out)
{
    const uint64_t top = 0x8080808080808080u;
    const uint64_t exponent = mp_exph_get64(exponents), rest = mp_exph_get64(rests);
    const uint64_t low = (exponent << 7 & top) | (rest & ~top);
    const uint64_t high = (exponent >> 1 & ~top) | (rest & top);
    mp_exph_put64(out, spread(low) | spread(high) << 8);
    mp_exph_put64(out + 8, spread(low >> 32) | spread(high >> 32) << 8);
}

static void join_group(uint8_t exponents[MP_EXPH_LANES][MP_WIDE_LANE_ROOM], uint32_t group,
                       const uint8_t *rests, uint8_t *out)
{
    for (uint32_t l = 0; l < MP_EXPH_LANES; l++)
        join_run(exponents[l] + group * MP_EXPH_RUN, rests + l * MP_EXPH_RUN,
                 out + 2 * l * MP_EXPH_RUN);
}

static void decode(const mp_exph_book *book, const void *scratch, const mp_exph_coded *chunk,
                   uint8_t *out)
{
    (void)book;
    mp_wide_decode(scratch, join_group, chunk, out);
}

const mp_exph_decoder mp_exph_portable = {.name = "portable",
                                          .prepare = mp_wide_prepare,
                                          .decode = decode};
