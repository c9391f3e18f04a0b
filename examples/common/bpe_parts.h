/* bpe_parts.h — what the readers of files make a tokenizer of. */
#ifndef EXAMPLE_BPE_PARTS_H
#define EXAMPLE_BPE_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/bpe.h"
#include "common/cuts.h"
#include "common/merges.h"
#include "common/vocabulary.h"

/* No published tokenizer puts more tokens around a text. */
#define BPE_MOST_AROUND 4

/* Whether a space is put before a text that has none: never; before all that is between special tokens;
 * the same unless it begins with one; or, so, before the beginning of the whole text alone. */
enum { BPE_AS_IT_IS, BPE_SPACE, BPE_SPACE_UNLESS, BPE_SPACE_FIRST };

typedef struct bpe_rules {
    bool byte_level; /* else spaces are U+2581 */
    bool by_score;
    bool whole_first; /* a piece that is a token is not merged */
    bool composes;    /* text is brought to Unicode's normal form C first */
    uint32_t space;
    const char *expressions[CUTS_MOST];
    uint32_t n_expressions;
    uint32_t before[BPE_MOST_AROUND], behind[BPE_MOST_AROUND]; /* around every text */
    uint32_t n_before, n_behind;
} bpe_rules;

/* Makes a tokenizer of its parts, which it takes in any case: the vocabulary, merges of it, and the
 * memory, or NULL, that the vocabulary's texts lie in. NULL without memory. */
bpe *bpe_make(const bpe_rules *rules, token_set *tokens, merges *pairs, char *texts);

#endif
