/* The AVX2 decoder (with BMI2): several symbols per look-up, four lanes at a time so that one's
 * look-up runs while another's waits, then exponents and rests joined in vectors.
 *
 * A tile's exponents go lane by lane to a buffer; what follows joins them group by group. */
#include "codec/exph_decoder.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* Per function, so that the file needs no flags of its own. */
#define MP_AVX2 __attribute__((target("avx2,bmi2")))
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

/* ---- The table ---- */

/* An entry for a window of k bits: the exponents of the symbols that lie whole in it, the first one
 * in the lowest byte; from bit 48 their length in bits; from bit 56 their number. Entries for
 * windows of k bits stand at index 2^k + window. */
enum { MOST_SYMBOLS = 6, AT_LENGTH = 48, AT_COUNT = 56 };

/* Longer windows hold more symbols per look-up, but their table takes longer to make. */
enum { SHORT_WINDOW = 9, LONG_WINDOW = 11, LONG_FROM = 65536 /* elements */ };

#define ONE_MORE (UINT64_C(1) << AT_COUNT)
#define EXPONENTS ((UINT64_C(1) << AT_LENGTH) - 1)

typedef struct wide_table {
    uint32_t window; /* bits */
    uint32_t reserved;
    uint64_t entries[2 << LONG_WINDOW];
} wide_table;

_Static_assert(sizeof(wide_table) <= MP_EXPH_SCRATCH_BYTES, "tables fit the scratch");

/* For a rest that is full: the first MOST_SYMBOLS symbols, one by one. */
static uint64_t full_entry(const mp_exph_book *book, uint32_t window)
{
    uint64_t entry = 0;
    for (uint32_t i = 0; i < MOST_SYMBOLS; i++) {
        const uint32_t found = book->entry[window % MP_EXPH_WINDOWS], length = found & 15;
        entry |= (uint64_t)book->exponent[found >> 4] << (8 * i);
        entry += ONE_MORE | (uint64_t)length << AT_LENGTH;
        window >>= length;
    }
    return entry;
}

/* Windows of k bits that begin with symbol s: what the rest of the window holds, and s before it. */
static void fill_symbol(const mp_exph_book *book, uint32_t s, uint32_t first, uint32_t k,
                        uint64_t *entries)
{
    const uint32_t length = book->length[s];
    const uint64_t *rests = entries + (1u << (k - length));
    const uint64_t head = ONE_MORE | (uint64_t)length << AT_LENGTH | book->exponent[s];
    uint64_t *out = entries + (1u << k) + first;
    for (uint32_t i = 0; i < 1u << (k - length); i++, out += 1u << length) {
        const uint64_t rest = rests[i];
        if (rest >> AT_COUNT < MOST_SYMBOLS)
            *out = ((rest & EXPONENTS) << 8) + (rest & ~EXPONENTS) + head;
        else
            *out = full_entry(book, first + (i << length));
    }
}

static void prepare(const mp_exph_book *book, uint64_t elements, void *scratch)
{
    wide_table *table = scratch;
    uint8_t codes[MP_EXPH_SYMBOLS];
    table->window = elements < LONG_FROM ? SHORT_WINDOW : LONG_WINDOW;
    mp_exph_code_assign(book->length, codes);
    for (uint32_t k = 0; k <= table->window; k++) {
        if (k < MP_EXPH_MAX_LENGTH) /* some windows begin with a longer code: no symbol */
            memset(table->entries + (1u << k), 0, sizeof *table->entries << k);
        for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++) {
            if (book->length[s] && book->length[s] <= k)
                fill_symbol(book, s, codes[s], k, table->entries);
        }
    }
}

/* ---- Lanes ---- */

/* A turn is one load of each of the four lanes' bits and look-ups that these suffice for. */
enum {
    ABREAST = 4,
    TURN_LOOKUPS = 5,
    LANE_SYMBOLS = MP_EXPH_TILE / MP_EXPH_LANES,
    LANE_ROOM = LANE_SYMBOLS + TURN_LOOKUPS * MOST_SYMBOLS + 2
};
_Static_assert(7 + TURN_LOOKUPS * LONG_WINDOW <= 64, "a load suffices for a turn");

/* A lane that is done goes on with the others, and its later symbols are written over. At least one
 * symbol per look-up bounds how far that goes in the stream. */
_Static_assert(LANE_SYMBOLS / TURN_LOOKUPS * TURN_LOOKUPS * LONG_WINDOW / 8 + 24 <=
                   MP_EXPH_LANE_REACH,
               "no lane reads further than was checked");

typedef struct lane {
    const uint8_t *at;
    uint64_t place; /* bits spent of the byte at `at` | symbols decoded << 8 */
} lane;

MP_INLINE void turn(const uint64_t *entries, uint64_t mask, lane *of, uint8_t *out)
{
    uint64_t place = of->place;
    uint64_t bits = mp_exph_get64(of->at) >> (place & 7);
    MP_UNROLL
    for (uint32_t i = 0; i < TURN_LOOKUPS; i++) {
        const uint64_t entry = entries[bits & mask], both = entry >> AT_LENGTH;
        mp_exph_put64(out + (place >> 8), entry);
        bits >>= both & 63;
        place += both;
    }
    of->at += (place & 0xff) >> 3;
    place &= ~UINT64_C(0xf8);
    const uint64_t end = (uint64_t)LANE_SYMBOLS << 8;
    of->place = place < end ? place : end;
}

MP_AVX2 static void decode_lanes(const wide_table *table, const uint8_t *base,
                                 const uint32_t *start, uint32_t symbols,
                                 uint8_t out[ABREAST][LANE_ROOM])
{
    const uint64_t *entries = table->entries + (1u << table->window);
    const uint64_t mask = (1u << table->window) - 1, enough = (uint64_t)symbols << 8;
    lane lanes[ABREAST];
    MP_UNROLL
    for (uint32_t i = 0; i < ABREAST; i++)
        lanes[i] = (lane){.at = base + start[i] / 8, .place = start[i] % 8};
    uint64_t least;
    do {
        least = UINT64_MAX;
        MP_UNROLL
        for (uint32_t i = 0; i < ABREAST; i++) {
            turn(entries, mask, &lanes[i], out[i]);
            least = lanes[i].place < least ? lanes[i].place : least;
        }
    } while (least < enough);
}

/* ---- Joining ---- */

MP_INLINE __m128i load_two(const uint8_t *low, const uint8_t *high)
{
    return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(_mm_loadl_epi64((const __m128i *)low)),
                                         (const double *)high));
}

/* The runs of four lanes. The order of lanes in a register is the one that unpacking undoes. */
MP_INLINE void join_four(uint8_t exponents[][LANE_ROOM], const uint8_t *rests, uint8_t *out)
{
    const __m256i mantissa = _mm256_set1_epi8(0x7f);
    const __m256i exponent =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load_two(exponents[0], exponents[2])),
                                load_two(exponents[1], exponents[3]), 1);
    const __m256i rest = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)rests), 0xd8);
    const __m256i low =
        _mm256_or_si256(_mm256_and_si256(mantissa, rest),
                        _mm256_andnot_si256(mantissa, _mm256_slli_epi16(exponent, 7)));
    const __m256i high =
        _mm256_or_si256(_mm256_andnot_si256(mantissa, rest),
                        _mm256_and_si256(mantissa, _mm256_srli_epi16(exponent, 1)));
    _mm256_storeu_si256((__m256i *)out, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256((__m256i *)(out + 32), _mm256_unpackhi_epi8(low, high));
}

MP_INLINE void join_group(uint8_t exponents[MP_EXPH_LANES][LANE_ROOM], uint32_t group,
                          const uint8_t *rests, uint8_t *out)
{
    for (uint32_t l = 0; l < MP_EXPH_LANES; l += 4)
        join_four((uint8_t(*)[LANE_ROOM])(exponents[l] + group * MP_EXPH_RUN),
                  rests + l * MP_EXPH_RUN, out + 2 * l * MP_EXPH_RUN);
}

MP_AVX2 static void decode_tile(const wide_table *table, const uint8_t *base, const uint32_t *start,
                                const uint8_t *rests, uint32_t n, uint8_t *out)
{
    uint8_t exponents[MP_EXPH_LANES][LANE_ROOM];
    const uint32_t groups = n / MP_EXPH_GROUP, left = n % MP_EXPH_GROUP;
    const uint32_t symbols = (groups + (left != 0)) * MP_EXPH_RUN;
    for (uint32_t l = 0; l < MP_EXPH_LANES; l += ABREAST)
        decode_lanes(table, base, start + l, symbols, exponents + l);
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
    if (!mp_exph_lanes_within(chunk)) {
        mp_exph_portable.decode(book, scratch, chunk, out);
        return;
    }
    for (uint32_t t = 0; t < mp_exph_tiles(chunk->n); t++)
        decode_tile(scratch, chunk->base, chunk->start + t * MP_EXPH_LANES,
                    chunk->rests + t * MP_EXPH_TILE, mp_exph_tile_elements(chunk->n, t),
                    out + 2 * t * MP_EXPH_TILE);
}

const mp_exph_decoder mp_exph_avx2 = {.name = "avx2", .prepare = prepare, .decode = decode};

#endif
