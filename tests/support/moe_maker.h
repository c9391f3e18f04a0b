/* moe_maker.h — a whole small checkpoint: 2 layers of 4 experts, top 2, H = 8, I = 4, in BF16. */
#ifndef MOE_MAKER_H
#define MOE_MAKER_H

#include "checkpoint_maker.h"
#include "model/model.h"
#include "moepage.h"

enum {
    MOE_LAYERS = 2,
    MOE_EXPERTS = 4,
    MOE_TOP_K = 2,
    MOE_HIDDEN = 8,
    MOE_INTERMEDIATE = 4,
    MOE_VOCABULARY = 16
};

typedef struct moe_maker {
    char dir[64];
    char config[2048];
    maker_shard shard;
} moe_maker;

/* Makes a directory and, in memory, a good qwen3_moe checkpoint for it. */
void moe_maker_init(moe_maker *maker);
/* Makes a directory and an empty checkpoint. */
void moe_maker_init_empty(moe_maker *maker);
/* Replaces the one occurrence of `from` in config.json. */
void moe_maker_replace(moe_maker *maker, const char *from, const char *to);
/* Writes config.json and model.safetensors. */
void moe_maker_write(const moe_maker *maker);
/* Removes the directory and what is in it. */
void moe_maker_free(moe_maker *maker);

/* Opens the directory and expects a status; every one of `words`, separated by '|', must be in the
 * sentence of a failure. */
void moe_expect_refusal(const moe_maker *maker, moepage_status status, const char *words);
moepage_model *moe_expect_open(const moe_maker *maker);
/* An expert's pieces must be the maker's bytes, gate before up before down. */
void moe_expect_expert(const struct moepage_model *model, uint32_t layer, uint32_t expert);
/* Opens the directory, in which every expert must be. */
void moe_expect_whole(const moe_maker *maker);
void expect_sentence(const char *words);

#endif
