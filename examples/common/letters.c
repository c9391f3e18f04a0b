/* Classes of characters, and UTF-8. */
#include "common/letters.h"

#include <stdbool.h>

#include "common/letters_table.h"

static bool is_space(uint32_t c)
{
    return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

uint32_t letters_classes(uint32_t c)
{
    enum { TURNS = 10 };
    size_t first = 0, last = sizeof letters_runs / sizeof *letters_runs;
    while (last - first > 1) {
        const size_t middle = first + (last - first) / 2;
        if (letters_runs[middle] >> 4 <= c)
            first = middle;
        else
            last = middle;
    }
    const uint32_t kind = letters_runs[first] & 15, at = c - (letters_runs[first] >> 4);
    const uint32_t space = is_space(c) ? LETTERS_SPACE : 0;
    if (kind == TURNS)
        return at % 2 ? LETTERS_LOWER : LETTERS_UPPER;
    return kind ? 1u << (kind - 1) | space : space;
}

size_t letters_read(const char *text, size_t n, uint32_t *out)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t length = at[0] < 0x80                    ? 1
                    : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
                    : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
                    : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                    : 0;
    if (!length || length > n)
        return 0;
    uint32_t c = length == 1 ? at[0] : at[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (at[i] & 0x3fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < least[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *out = c;
    return length;
}

size_t letters_valid(const char *text, size_t n)
{
    size_t valid = 0;
    uint32_t c;
    for (size_t length; valid < n && (length = letters_read(text + valid, n - valid, &c));)
        valid += length;
    return valid;
}

size_t letters_write(uint32_t c, char *out)
{
    const size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(leads[length] | c);
    return length;
}
