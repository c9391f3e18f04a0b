/* Decodes a coded chunk one symbol at a time, for all types and wherever its lanes lie: the
 * definition of a chunk's contents. */
#include "codec/exph_decoder.h"

/* Returns at least 57 bits from `bit` on; zeros past the end. */
static uint64_t bits_at(const mp_exph_coded *chunk, uint64_t bit)
{
    uint64_t byte = bit / 8, window = 0;
    if (byte + sizeof window <= chunk->readable)
        window = mp_exph_get64(chunk->base + byte);
    else if (byte < chunk->readable)
        memcpy(&window, chunk->base + byte, chunk->readable - byte);
    return window >> bit % 8;
}

/* Decodes the exponents of one run of a lane and advances *bit. */
static void decode_run(const mp_exph_book *book, const mp_exph_coded *chunk, uint64_t *bit,
                       uint8_t exponents[MP_EXPH_RUN])
{
    for (uint32_t i = 0; i < MP_EXPH_RUN; i += 4) {
        uint64_t window = bits_at(chunk, *bit);
        for (uint32_t k = i; k < i + 4; k++) {
            const uint8_t entry = book->entry[window % MP_EXPH_WINDOWS];
            exponents[k] = book->exponent[entry >> 4];
            window >>= entry & 15;
            *bit += entry & 15;
        }
    }
}

static void join_bf16(const uint8_t exponents[MP_EXPH_RUN], const uint8_t *rests, uint8_t *out)
{
    for (uint32_t i = 0; i < MP_EXPH_RUN; i++)
        mp_exph_put16(out + 2 * i,
                      (rests[i] & 0x80u) << 8 | (uint32_t)exponents[i] << 7 | (rests[i] & 0x7fu));
}

/* Joins n elements from their exponents and their rests. */
static void join_run(mp_exph_type type, const uint8_t exponents[MP_EXPH_RUN], const uint8_t *rests,
                     uint32_t n, uint8_t *out)
{
    if (type.rest_bits == 8 && n == MP_EXPH_RUN) {
        join_bf16(exponents, rests, out);
        return;
    }
    uint8_t padded[2 * MP_EXPH_RUN] = {0};
    memcpy(padded, rests, type.rest_bits);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = i * type.rest_bits;
        const uint32_t rest = mp_exph_get32(padded + at / 8) >> at % 8;
        const uint32_t mantissa = rest & ((1u << type.mantissa_bits) - 1);
        const uint32_t sign = rest >> type.mantissa_bits & 1;
        const uint32_t exponent = exponents[i] & ((1u << type.exponent_bits) - 1);
        const uint32_t element = sign << (type.mantissa_bits + type.exponent_bits) |
                                 exponent << type.mantissa_bits | mantissa;
        memcpy(out + i * type.bytes, &element, type.bytes);
    }
}

void mp_exph_decode_plain(const mp_exph_book *book, const mp_exph_coded *chunk, uint8_t *out)
{
    for (uint32_t lane = 0; lane < mp_exph_tiles(chunk->n) * MP_EXPH_LANES; lane++) {
        uint64_t bit = chunk->start[lane];
        uint32_t element = lane / MP_EXPH_LANES * MP_EXPH_TILE + lane % MP_EXPH_LANES * MP_EXPH_RUN;
        for (uint32_t group = 0; group < MP_EXPH_TILE_GROUPS && element < chunk->n; group++) {
            uint8_t exponents[MP_EXPH_RUN];
            const uint32_t left = chunk->n - element;
            decode_run(book, chunk, &bit, exponents);
            join_run(chunk->type, exponents,
                     chunk->rests + element / MP_EXPH_RUN * chunk->type.rest_bits,
                     left < MP_EXPH_RUN ? left : MP_EXPH_RUN, out + element * chunk->type.bytes);
            element += MP_EXPH_GROUP;
        }
    }
}
