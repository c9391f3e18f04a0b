/* The decoder for any CPU: several symbols per look-up, then exponents and rests joined eight at a
 * time in 64-bit registers. */
#include "codec/exph_wide.h"

/* Byte i of the low half to the low byte of 16-bit field i. */
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

static void decode_tile(const mp_wide_table *table, const uint8_t *base, const uint32_t *start,
                        const uint8_t *rests, uint32_t n, uint8_t *out)
{
    uint8_t exponents[MP_EXPH_LANES][MP_WIDE_LANE_ROOM];
    const uint32_t groups = n / MP_EXPH_GROUP, left = n % MP_EXPH_GROUP;
    const uint32_t symbols = (groups + (left != 0)) * MP_EXPH_RUN;
    for (uint32_t l = 0; l < MP_EXPH_LANES; l += MP_WIDE_ABREAST)
        mp_wide_decode_lanes(table, base, start + l, symbols, exponents + l);
    for (uint32_t g = 0; g < groups; g++)
        join_group(exponents, g, rests + g * MP_EXPH_GROUP, out + 2 * g * MP_EXPH_GROUP);
    if (left) {
        uint8_t last_rests[MP_EXPH_GROUP] = {0}, last[2 * MP_EXPH_GROUP];
        memcpy(last_rests, rests + groups * MP_EXPH_GROUP, left);
        join_group(exponents, groups, last_rests, last);
        memcpy(out + 2 * groups * MP_EXPH_GROUP, last, 2 * left);
    }
}

static void decode(const mp_exph_book *book, const void *scratch, const mp_exph_coded *chunk,
                   uint8_t *out)
{
    (void)book;
    for (uint32_t t = 0; t < mp_exph_tiles(chunk->n); t++)
        decode_tile(scratch, chunk->base, chunk->start + t * MP_EXPH_LANES,
                    chunk->rests + t * MP_EXPH_TILE, mp_exph_tile_elements(chunk->n, t),
                    out + 2 * t * MP_EXPH_TILE);
}

const mp_exph_decoder mp_exph_portable = {.name = "portable",
                                          .prepare = mp_wide_prepare,
                                          .decode = decode};
