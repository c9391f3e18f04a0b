/* quantised.h — what tests of quantised checkpoints share, whatever the layout: numbers that a matrix consists of, a
 * checkpoint of such matrices, what must be read of it, and what must be refused.
 *
 * A matrix's numbers are a fixed function of its name and of their place, so that a test can say what must be read
 * without keeping a copy. */
#ifndef QUANTISED_H
#define QUANTISED_H

#include "moe_maker.h"

/* A number by the matrix, by what it is, and by its place; 24 bits. */
uint32_t quantised_number(const char *name, uint32_t what, uint64_t row, uint64_t column);

/* ---- The checkpoint ---- */

typedef struct quantised_sizes {
    uint32_t layers, experts, hidden, intermediate;
} quantised_sizes;

/* Adds the parts of the matrix `name`, without ".weight". */
typedef void quantised_add(maker_shard *shard, const void *of, const char *name, uint64_t rows,
                           uint64_t columns);

/* Makes a directory and, in memory, a qwen3_moe checkpoint of these members of quantization_config, of which the
 * experts and q_proj, 24 rows, are as `add` adds them. */
void quantised_init(moe_maker *maker, const quantised_sizes *sizes, const char *quantisation,
                    quantised_add *add, const void *of);

/* The name of an expert's piece, without ".weight"; room for 128 bytes. */
void quantised_name(uint32_t layer, uint32_t expert, uint32_t piece, char *out);

/* ---- What is read ---- */

/* A piece whole, and then in ranges that begin and end anywhere. */
void quantised_expect_piece(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                            uint32_t piece, const unsigned char *want, uint64_t bytes);

/* A dense matrix, by its whole name. */
void quantised_expect_dense(const struct moepage_model *model, const char *name, uint32_t dtype,
                            uint64_t rows, uint64_t columns, const unsigned char *want,
                            uint64_t bytes);

/* Dense are the routers and q_proj of two layers alone, and no part. */
void quantised_expect_names(const struct moepage_model *model);

/* ---- What is refused: each frees the maker ---- */

typedef struct quantised_bad_config {
    int method;
    const char *from, *to;
    moepage_status status;
    const char *words;
} quantised_bad_config;

void quantised_expect_bad_config(moe_maker *maker, const quantised_bad_config *bad);

/* A part of expert 1 of layer 1 in another shape or type, or not at all where the type is NULL. */
typedef struct quantised_bad_part {
    int method;
    const char *part, *dtype;
    uint64_t shape[2];
    moepage_status status;
    const char *words;
} quantised_bad_part;

void quantised_expect_bad_part(moe_maker *maker, const quantised_bad_part *bad);

/* Expert 1 of layer 1 has an up projection that cannot be loaded. */
void quantised_expect_failed_load(moe_maker *maker, const char *words);

#endif
