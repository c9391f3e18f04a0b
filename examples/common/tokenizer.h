/* tokenizer.h — text and tokens of byte-level models: token = byte value, larger ids are special; and
 * of others by the tokenizer that they come with (bpe.h).
 *
 * Models of which that is not known here are run with token ids; their tokens have no text. */
#ifndef EXAMPLE_TOKENIZER_H
#define EXAMPLE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/bpe.h"
#include "common/config.h"

/* A vocabulary of the 256 bytes and at most this many special tokens is byte-level. */
#define TOKENIZER_MAX_SPECIAL 64

/* Returns true if the model at `path` is byte-level, false if it comes with a tokenizer: in its
 * directory, or in the file itself. */
bool tokenizer_is_bytes(const char *path, const model_config *config);

/* At most one of `bytes` and `bpe` is set. */
typedef struct tokenizer {
    bool bytes;
    bpe *bpe;
    bpe_reason why;          /* if neither is, in words that follow the model's name */
    unsigned char byte[256]; /* each byte at its own index */
} tokenizer;

/* Opens the tokenizer of the model at `path`, if it has one that is known here. RUN_REFUSED with a line for
 * one that contradicts itself. */
int tokenizer_open(const char *path, const moepage_model *model, const model_config *config,
                   tokenizer *out);
void tokenizer_close(tokenizer *t);

/* Returns true if tokens have text. */
bool tokenizer_has_text(const tokenizer *t);

/* Gives the tokens of a text, *n of them; *out is to be freed. */
int tokenizer_encode(const tokenizer *t, const char *text, uint32_t **out, size_t *n);

/* Gives the bytes of a token, `n` of them; 0 for special ones, and where tokens have no text. */
const unsigned char *tokenizer_text(const tokenizer *t, uint32_t token, size_t *n);

/* Turns bytes into valid UTF-8 in `out` (room for 3 * n bytes): every maximal ill-formed part
 * becomes one U+FFFD, as the Unicode standard recommends (chapter 3.9). Returns the length. */
size_t tokenizer_to_utf8(const unsigned char *bytes, size_t n, char *out);

#endif
