/* bpe.h — the byte-pair tokenizer that a GGUF file carries: "gpt2" with the cuts of "qwen2".
 *
 * A token's text is bytes, each written as a character of its own, and merges say in which order
 * neighbours become one. Control tokens (<|im_end|>) are found in a prompt by their names, and have
 * no text. Text is taken as it is, without Unicode normalisation. */
#ifndef EXAMPLE_BPE_H
#define EXAMPLE_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "moepage.h"

typedef struct bpe bpe;

/* Opens the model's tokenizer; *out is NULL if it has none of this kind. RUN_REFUSED with a line for
 * one that contradicts itself. The model must stay open. */
int bpe_open(const moepage_model *model, bpe **out);
void bpe_close(bpe *t);

/* Writes the tokens of a text to `out`, which has room for one per byte. RUN_REFUSED with a line
 * unless the text is UTF-8. */
int bpe_encode(const bpe *t, const char *text, uint32_t *out, size_t *n);

/* Gives the bytes of a token, `n` of them; 0 for control tokens. */
const unsigned char *bpe_text(const bpe *t, uint32_t token, size_t *n);

#endif
