/* pieces.h — the cuts that a byte-pair tokenizer of Qwen2's kind makes in a text before it merges:
 * words with what stands before them, single digits, runs of signs, runs of spaces. */
#ifndef EXAMPLE_PIECES_H
#define EXAMPLE_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the length of the first piece of text[0..n), which is valid UTF-8; n above 0. */
size_t pieces_first(const char *text, size_t n);

/* Returns the length of the character that begins at text[0] and gives its code point; 0 if that is
 * not valid UTF-8. */
size_t pieces_character(const char *text, size_t n, uint32_t *out);

#endif
