/* cuts.h — the cuts that a byte-pair tokenizer makes in a text before it merges.
 *
 * Published tokenizers say where to cut by regular expressions, applied one after another: each cuts
 * every piece that is there into what it matches, from the left, and what lies between. The
 * expressions that are known are in cuts_known.c, as they were published; no other is run. */
#ifndef EXAMPLE_CUTS_H
#define EXAMPLE_CUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* No kind of tokenizer has more expressions. */
#define CUTS_MOST 8

/* What the name of a pre-tokenizer in GGUF files stands for. */
typedef struct cuts_kind {
    const char *names; /* each with a space before and behind it */
    const char *expressions[CUTS_MOST];
    bool whole_first; /* a piece that is a token is not merged */
    bool begins;      /* BOS is added unless the file denies it */
} cuts_kind;

/* Returns the kind of that name, which need not end in NUL, or NULL. */
const cuts_kind *cuts_find_kind(const char *name, size_t n);

/* Returns the known expression that reads so, or NULL. */
const char *cuts_find_expression(const char *text);

/* What a byte-level tokenizer that names no expression of its own cuts by. */
extern const char cuts_byte_level[];
/* Single numbers, and runs of them. */
extern const char cuts_numbers[], cuts_number_runs[];

/* Expressions, ready to run. */
typedef struct cuts cuts;

/* Prepares expressions of cuts_known.c, which may be none; NULL without memory. */
cuts *cuts_make(const char *const *expressions, uint32_t n);
void cuts_free(cuts *c);

/* Writes where the pieces of text[0..n), which is valid UTF-8, end: offsets in order, the last being n.
 * *ends is to be freed. Returns false without memory. */
bool cuts_apply(const cuts *c, const char *text, size_t n, size_t **ends, size_t *n_ends);

#endif
