/* vocabulary.h — a tokenizer's tokens: found by their texts, and turned back into bytes.
 *
 * The texts of a byte-level vocabulary are bytes, each written as a character of its own. In others a
 * space is written as U+2581, and a byte that no token has in its text is a token <0x0A>. */
#ifndef EXAMPLE_VOCABULARY_H
#define EXAMPLE_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOCABULARY_NONE UINT32_MAX

/* How a space is written where bytes are not: U+2581. */
#define VOCABULARY_SPACE "\xe2\x96\x81"

/* Kinds of tokens, by GGUF's numbers. */
enum {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2, /* as control tokens are */
    TOKEN_CONTROL = 3, /* looked for in a text, has none itself */
    TOKEN_OWN = 4,     /* looked for in a text before all else, which it is */
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

typedef struct vocabulary_token {
    const char *text; /* outlives the vocabulary */
    size_t n;
    float score;
    uint8_t kind;
    bool takes_before, takes_behind; /* the spaces beside it, where it is found in a text */
    bool late;                       /* looked for after the text has been composed */
} vocabulary_token;

/* Tokens that are looked for in a text, in the order of their texts. */
typedef struct token_names {
    uint32_t *ids; /* [n] */
    uint32_t n;
    uint32_t from[257]; /* the first one that begins with this byte, or a greater one */
} token_names;

typedef struct token_set {
    vocabulary_token *tokens; /* [n] */
    uint32_t n;
    bool byte_level;
    size_t longest;         /* bytes of a text */
    uint32_t *by_text;      /* [places] tokens by the hash of their text; NONE = empty */
    uint32_t places;        /* a power of two */
    uint32_t of_byte[256];  /* NONE for bytes that UTF-8 does not have, if they have no token */
    token_names special[2]; /* the early ones and the late ones */
    unsigned char *bytes;   /* all tokens' bytes, back to back */
    size_t *starts;         /* [n + 1] in `bytes` */
} token_set;

/* Makes a vocabulary of tokens, an allocated array that it takes in any case. Of equal texts the first
 * is found. RUN_REFUSED with a line, which begins with `where`, if a byte has no token. */
int vocabulary_make(token_set *v, vocabulary_token *tokens, uint32_t n, bool byte_level,
                    const char *where);
void vocabulary_free(token_set *v);

/* Returns the token with that text, or with those two texts together, or NONE. */
uint32_t vocabulary_find(const token_set *v, const char *text, size_t n);
uint32_t vocabulary_find_both(const token_set *v, const char *left, size_t n_left,
                              const char *right, size_t n_right);

/* Returns the longest special token, early or late, that begins at text[0], or NONE; n above 0. */
uint32_t vocabulary_special(const token_set *v, bool late, const char *text, size_t n);

/* Gives the bytes of a token, `n` of them; 0 for those without text. */
const unsigned char *vocabulary_bytes(const token_set *v, uint32_t token, size_t *n);

/* Writes bytes as a byte-level vocabulary does, 2 * n bytes at most; returns the length. */
size_t vocabulary_write(const char *bytes, size_t n, char *out);

#endif
