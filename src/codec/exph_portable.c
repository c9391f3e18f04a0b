/* The decoder for any CPU: several symbols per look-up; exponents and rests are joined sixteen at a
 * time in vectors of the compiler's, which every CPU has or gets as plain code. */
#include "codec/exph_wide.h"

typedef uint8_t bytes __attribute__((vector_size(2 * MP_EXPH_RUN)));
typedef uint64_t runs __attribute__((vector_size(2 * MP_EXPH_RUN)));

/* Arranges the bytes of two vectors; b's are numbered from 16. */
#if defined(__clang__)
#define ARRANGE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ARRANGE(a, b, ...) __builtin_shuffle(a, b, (bytes){__VA_ARGS__})
#endif

/* Joins two lanes' runs. */
MP_WIDE_INLINE void join_two(runs exponents, const uint8_t *rests, uint8_t *out)
{
    bytes rest;
    memcpy(&rest, rests, sizeof rest);
    const bytes exponent = (bytes)exponents, differ = (exponent ^ rest) & 0x7f;
    const bytes low = exponent ^ differ, high = rest ^ differ;
    const bytes first = ARRANGE(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const bytes second =
        ARRANGE(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    memcpy(out, &first, sizeof first);
    memcpy(out + sizeof first, &second, sizeof second);
}

/* Returns a run with its first exponent in the lowest byte. */
MP_WIDE_INLINE uint64_t load_run(const uint8_t *room, uint32_t lane, uint32_t group)
{
    return __builtin_bswap64(mp_exph_get64(mp_wide_run(room, lane, group)));
}

static void join_group(const uint8_t *room, uint32_t group, const uint8_t *rests, uint8_t *out)
{
    MP_UNROLL
    for (uint32_t l = 0; l < MP_EXPH_LANES; l += 2)
        join_two((runs){load_run(room, l, group), load_run(room, l + 1, group)},
                 rests + l * MP_EXPH_RUN, out + 2 * l * MP_EXPH_RUN);
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
