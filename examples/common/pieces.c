/* Cuts text as this regular expression does, the first alternative that matches being taken:
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   [^\r\n\p{L}\p{N}]?\p{L}+
 *   \p{N}
 *   " "?[^\s\p{L}\p{N}]+[\r\n]*
 *   \s*[\r\n]+
 *   \s+(?!\S)
 *   \s+ */
#include "common/pieces.h"

#include "common/letters.h"

size_t pieces_character(const char *text, size_t n, uint32_t *out)
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

static bool is_line_end(uint32_t c)
{
    return c == '\r' || c == '\n';
}

static bool is_sign(uint32_t c)
{
    return !letters_is_space(c) && !letters_is_letter(c) && !letters_is_number(c);
}

/* Returns the length of the run at text[from..n) of characters of the class, `from` included. */
static size_t run_end(const char *text, size_t n, size_t from, bool (*is_of_class)(uint32_t))
{
    uint32_t c;
    while (from < n) {
        size_t length = pieces_character(text + from, n - from, &c);
        if (!length || !is_of_class(c))
            break;
        from += length;
    }
    return from;
}

/* Returns the length of an English ending such as 's, or 0. */
static size_t ending(const char *text, size_t n)
{
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (text[0] != '\'')
        return 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = 0;
        while (endings[i][length] && 1 + length < n &&
               (text[1 + length] | 0x20) == endings[i][length])
            length++;
        if (!endings[i][length])
            return 1 + length;
    }
    return 0;
}

/* Returns the length of the piece that spaces begin, where no word or sign takes the first one. */
static size_t spaces_end(const char *text, size_t n)
{
    const size_t end = run_end(text, n, 0, letters_is_space);
    size_t last = 0;  /* where the last character begins */
    size_t lines = 0; /* the end of the last line end */
    uint32_t c;
    for (size_t at = 0; at < end;) {
        last = at;
        at += pieces_character(text + at, n - at, &c);
        if (is_line_end(c))
            lines = at;
    }
    if (lines)
        return lines;
    /* The last space belongs to the word behind it. */
    return end < n && last ? last : end;
}

size_t pieces_first(const char *text, size_t n)
{
    uint32_t c = 0;
    const size_t first = pieces_character(text, n, &c);
    size_t end = ending(text, n);
    if (end)
        return end;
    const bool letter = letters_is_letter(c), number = letters_is_number(c);
    const size_t word = letter || number || is_line_end(c) ? 0 : first;
    end = run_end(text, n, word, letters_is_letter);
    if (end > word && !number)
        return end;
    if (number)
        return first;
    const size_t sign = c == ' ' ? 1 : 0;
    end = run_end(text, n, sign, is_sign);
    if (end > sign)
        return run_end(text, n, end, is_line_end);
    return spaces_end(text, n);
}
