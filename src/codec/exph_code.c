/* Length-limited codes by package-merge, in canonical form. */
#include "codec/exph_code.h"

/* A leaf is a symbol; a package is two neighbours in the list one level below. */
typedef struct item {
    uint64_t count;
    int32_t leaf; /* symbol, or -1 */
} item;

typedef struct level {
    item items[2 * MP_EXPH_SYMBOLS];
    uint32_t n;
} level;

/* Sorts the used symbols, rarest first; equals by descending number. */
static void sort_leaves(const uint64_t counts[MP_EXPH_SYMBOLS], level *leaves)
{
    leaves->n = 0;
    for (int32_t s = MP_EXPH_SYMBOLS - 1; s >= 0; s--) {
        if (!counts[s])
            continue;
        uint32_t at = leaves->n++;
        for (; at && leaves->items[at - 1].count > counts[s]; at--)
            leaves->items[at] = leaves->items[at - 1];
        leaves->items[at] = (item){.count = counts[s], .leaf = s};
    }
}

/* Merges the leaves with the packages of `below`, in order of count; leaves first among equals. */
static void merge(const level *leaves, const level *below, level *out)
{
    uint32_t leaf = 0, package = 0;
    out->n = 0;
    while (leaf < leaves->n || package < below->n / 2) {
        uint64_t sum = UINT64_MAX;
        if (package < below->n / 2)
            sum = below->items[2 * package].count + below->items[2 * package + 1].count;
        if (leaf < leaves->n && leaves->items[leaf].count <= sum) {
            out->items[out->n++] = leaves->items[leaf++];
        } else {
            out->items[out->n++] = (item){.count = sum, .leaf = -1};
            package++;
        }
    }
}

/* The first 2n - 2 items of the top list are selected; a selected package selects its two items
 * below. A symbol's code length is the number of times that its leaf is selected. */
void mp_exph_code_lengths(const uint64_t counts[MP_EXPH_SYMBOLS], uint8_t lengths[MP_EXPH_SYMBOLS])
{
    level leaves, levels[MP_EXPH_MAX_LENGTH];
    sort_leaves(counts, &leaves);
    levels[0] = leaves;
    for (uint32_t i = 1; i < MP_EXPH_MAX_LENGTH; i++)
        merge(&leaves, &levels[i - 1], &levels[i]);
    memset(lengths, 0, MP_EXPH_SYMBOLS);
    uint32_t taken = leaves.n < 2 ? 0 : 2 * leaves.n - 2;
    for (uint32_t i = MP_EXPH_MAX_LENGTH; i-- > 0;) {
        uint32_t packages = 0;
        for (uint32_t k = 0; k < taken; k++) {
            if (levels[i].items[k].leaf >= 0)
                lengths[levels[i].items[k].leaf]++;
            else
                packages++;
        }
        taken = 2 * packages;
    }
}

static uint8_t reversed(uint32_t code, uint32_t length)
{
    uint32_t out = 0;
    for (uint32_t i = 0; i < length; i++)
        out |= (code >> i & 1) << (length - 1 - i);
    return (uint8_t)out;
}

bool mp_exph_code_assign(const uint8_t lengths[MP_EXPH_SYMBOLS], uint8_t codes[MP_EXPH_SYMBOLS])
{
    uint32_t next = 0;
    for (uint32_t length = 1; length <= MP_EXPH_MAX_LENGTH; length++) {
        next <<= 1;
        for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++) {
            if (lengths[s] == length)
                codes[s] = reversed(next++, length);
        }
    }
    for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++) {
        if (lengths[s] > MP_EXPH_MAX_LENGTH)
            return false;
    }
    return next == MP_EXPH_WINDOWS;
}

void mp_exph_book_read(const uint8_t *stream, mp_exph_book *book)
{
    uint8_t codes[MP_EXPH_SYMBOLS];
    memset(book, 0, sizeof *book);
    memcpy(book->exponent, stream + MP_EXPH_AT_EXPONENTS, MP_EXPH_ESCAPE);
    for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++)
        book->length[s] = stream[MP_EXPH_AT_LENGTHS + s / 2] >> (s % 2 * 4) & 15;
    book->valid = mp_exph_code_assign(book->length, codes);
    for (uint32_t s = 0; book->valid && s < MP_EXPH_SYMBOLS; s++) {
        if (!book->length[s])
            continue;
        for (uint32_t w = codes[s]; w < MP_EXPH_WINDOWS; w += 1u << book->length[s])
            book->entry[w] = (uint8_t)(s << 4 | book->length[s]);
    }
}
