/* merges.h — makes tokens of a text: the text's characters or bytes are joined in pairs, the pair that
 * comes first in the tokenizer's order at a time, until none is left that may be. */
#ifndef EXAMPLE_MERGES_H
#define EXAMPLE_MERGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/vocabulary.h"

/* Two tokens that become one. */
typedef struct merge {
    uint32_t left, right, whole; /* whole: NONE = an empty place */
    uint32_t rank;               /* lower ones come first */
} merge;

typedef struct merges {
    const token_set *tokens;
    bool by_score; /* any pair whose text is a token's may be joined, the highest score first */
    merge *table;  /* [places] else, by the hash of their halves */
    uint32_t places;
} merges;

/* Room to work in, kept from piece to piece. */
typedef struct symbol {
    uint32_t token; /* NONE: no token has this text */
    uint32_t at, n; /* bytes of the piece */
    uint32_t before, behind;
} symbol;

typedef struct candidate {
    double order; /* lower ones first, then those further to the left */
    uint32_t left, right, whole, n;
} candidate;

typedef struct merge_room {
    symbol *symbols;
    candidate *heap;
    size_t n; /* of the heap */
    size_t places;
} merge_room;

/* Makes a table with room for n merges. Returns false without memory. */
bool merges_make(merges *m, const token_set *tokens, uint32_t n);
void merges_free(merges *m);

/* Adds a merge of the tokens with these texts; of two with the same halves the first counts. Returns false
 * if one of the halves, or the whole, is no token. */
bool merges_add(merges *m, const char *left, size_t n_left, const char *right, size_t n_right,
                uint32_t rank);

/* Makes tokens of a piece, which is not empty, and gives them to `emit` in order: of each its number, or
 * NONE and the bytes that no token has. Returns false without memory. */
typedef void merges_emit(void *self, uint32_t token, const char *bytes, size_t n);
bool merges_apply(const merges *m, merge_room *room, const char *piece, size_t n, merges_emit *emit,
                  void *self);

void merges_free_room(merge_room *room);

#endif
