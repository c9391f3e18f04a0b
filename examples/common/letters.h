/* letters.h — the classes of characters by which a tokenizer cuts text, as Unicode 16.0 has them. */
#ifndef EXAMPLE_LETTERS_H
#define EXAMPLE_LETTERS_H

#include <stddef.h>
#include <stdint.h>

/* General categories, one for a character at most, and White_Space. */
enum {
    LETTERS_UPPER = 1 << 0,    /* Lu */
    LETTERS_LOWER = 1 << 1,    /* Ll */
    LETTERS_TITLE = 1 << 2,    /* Lt */
    LETTERS_MODIFIER = 1 << 3, /* Lm */
    LETTERS_OTHER = 1 << 4,    /* Lo */
    LETTERS_MARK = 1 << 5,     /* M */
    LETTERS_NUMBER = 1 << 6,   /* N */
    LETTERS_SIGN = 1 << 7,     /* P */
    LETTERS_SYMBOL = 1 << 8,   /* S */
    LETTERS_SPACE = 1 << 9,
    LETTERS_ALL = 31 /* L */
};

/* Returns the classes of a code point. */
uint32_t letters_classes(uint32_t c);

/* Returns the length of the character that begins at text[0] and gives its code point; 0 if that is
 * not valid UTF-8. n above 0. */
size_t letters_read(const char *text, size_t n, uint32_t *out);

/* Returns how many bytes of a text are whole characters, up to the first that is not valid UTF-8; n may be 0. */
size_t letters_valid(const char *text, size_t n);

/* Writes a code point's UTF-8, 4 bytes at most; returns the length. */
size_t letters_write(uint32_t c, char *out);

#endif
