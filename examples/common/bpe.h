/* bpe.h — the tokenizer that a model comes with: in a GGUF file's metadata, or as the tokenizer.json of
 * its directory.
 *
 * A text is cut at the names of special tokens (<|im_end|>), what is between them into pieces, and the
 * characters of a piece are merged: by ranks (byte-pair encoding, of bytes or of characters) or by the
 * scores of tokens (SentencePiece's). Text is UTF-8. */
#ifndef EXAMPLE_BPE_H
#define EXAMPLE_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "moepage.h"

typedef struct bpe bpe;

/* Why a tokenizer cannot be used here, in words that follow its name; empty if it can. */
typedef struct bpe_reason {
    char text[200];
} bpe_reason;

/* Opens the model's own tokenizer. *out is NULL, with a reason, if it is of a kind that is not computed;
 * RUN_REFUSED with a line for one that contradicts itself. The model must stay open. */
int bpe_open(const moepage_model *model, bpe **out, bpe_reason *why);

/* The same of a tokenizer.json; *out is NULL without a reason if there is none. */
int bpe_open_file(const char *path, bpe **out, bpe_reason *why);

void bpe_close(bpe *t);

/* Gives the tokens of a text, with those that the tokenizer adds around it; *out is to be freed.
 * RUN_REFUSED with a line unless the text is UTF-8. */
int bpe_encode(const bpe *t, const char *text, uint32_t **out, size_t *n);

/* Gives the bytes of a token, `n` of them; 0 for control tokens. */
const unsigned char *bpe_text(const bpe *t, uint32_t token, size_t *n);

#endif
