/* tokenizer.h — text and tokens of byte-level models: token = byte value, larger ids are special.
 *
 * Models with a real vocabulary are run with token ids; their tokens have no text here. */
#ifndef EXAMPLE_TOKENIZER_H
#define EXAMPLE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A vocabulary of the 256 bytes and at most this many special tokens is byte-level. */
#define TOKENIZER_MAX_SPECIAL 64

/* Returns true if the model in `directory` is byte-level, false if it comes with a tokenizer. */
bool tokenizer_is_bytes(const char *directory, uint32_t vocabulary);

/* Returns the byte that a token stands for, or -1. */
int tokenizer_byte(uint32_t token);

/* Turns bytes into valid UTF-8 in `out` (room for 3 * n bytes): every maximal ill-formed part
 * becomes one U+FFFD, as the Unicode standard recommends (chapter 3.9). Returns the length. */
size_t tokenizer_to_utf8(const unsigned char *bytes, size_t n, char *out);

#endif
