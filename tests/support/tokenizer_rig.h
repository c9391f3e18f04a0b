/* tokenizer_rig.h — writes tokenizers into files, right or wrong on purpose, and opens them. */
#ifndef TOKENIZER_RIG_H
#define TOKENIZER_RIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/bpe.h"
#include "gguf_writer.h"
#include "testing.h"

#define TOK_COUNT(array) (sizeof(array) / sizeof *(array))
#define TOK_IDS(...) ((const uint32_t[]){__VA_ARGS__}), TOK_COUNT(((const uint32_t[]){__VA_ARGS__}))

extern char tok_dir[64];
extern gguf_writer tok_writer;         /* a model, and the tokenizer to be opened */
extern bpe *tok_tokenizer;             /* what was opened */
extern bpe_reason tok_why;             /* why it was not */
extern json_t *tok_loose, *tok_spaced; /* tests/data/tokenizer: as tokenizer.json has them */

/* Set up and take down a case. */
int tok_make(void **state);
int tok_unmake(void **state);

/* A file of tests/data/tokenizer. */
json_t *tok_load(const char *name);

/* ---- Metadata ---- */

/* Begins anew, without a tokenizer. */
void tok_begin_values(void);
/* An array of the numbers in a list, or of n zeros where it is empty. */
void tok_add_numbers(const char *key, uint32_t type, const json_t *of, size_t n);
/* The tokenizer merged by ranks, with that name of its cuts; the one merged by scores. */
void tok_make_loose(const char *pre);
void tok_make_scored(void);

/* ---- Opening: what bpe_open and bpe_open_file return ---- */

int tok_open_gguf(void);
int tok_open_json(const json_t *file);
int tok_open_json_text(const char *text);

/* ---- Texts ---- */

/* A text's tokens, to be freed; returns how many there are. */
size_t tok_encode(const char *text, uint32_t **ids);
void tok_expect_ids(const char *text, const uint32_t *right, size_t n_right);
/* A text's tokens have these bytes together. */
void tok_expect_back(const char *text, const char *right);

#endif
