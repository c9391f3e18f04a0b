/* A small checkpoint, and opening it. */
#include "moe_maker.h"

#include <stdio.h>
#include <string.h>

#include "testing.h"

void moe_maker_init_empty(moe_maker *maker)
{
    maker_dir_create(maker->dir);
    maker->config[0] = 0;
    maker->shard.n_tensors = 0;
    maker->shard.padding = 0;
}

void moe_maker_init(moe_maker *maker)
{
    const uint64_t vector[] = {MOE_HIDDEN}, table[] = {MOE_VOCABULARY, MOE_HIDDEN},
                   router[] = {MOE_EXPERTS, MOE_HIDDEN}, in[] = {MOE_INTERMEDIATE, MOE_HIDDEN},
                   out[] = {MOE_HIDDEN, MOE_INTERMEDIATE};
    maker_shard *shard = &maker->shard;
    moe_maker_init_empty(maker);
    snprintf(maker->config, sizeof maker->config,
             "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": %d, \"num_experts\": %d, "
             "\"num_experts_per_tok\": %d, \"hidden_size\": %d, \"moe_intermediate_size\": %d, "
             "\"vocab_size\": %d, \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], "
             "\"hidden_act\": \"silu\", \"torch_dtype\": \"float32\"}",
             MOE_LAYERS, MOE_EXPERTS, MOE_TOP_K, MOE_HIDDEN, MOE_INTERMEDIATE, MOE_VOCABULARY);
    maker_add(shard, "BF16", 2, table, "model.embed_tokens.weight");
    for (int l = 0; l < MOE_LAYERS; l++) {
        maker_add(shard, "BF16", 1, vector, "model.layers.%d.input_layernorm.weight", l);
        maker_add(shard, "BF16", 2, router, "model.layers.%d.mlp.gate.weight", l);
        for (int e = 0; e < MOE_EXPERTS; e++) {
            maker_add(shard, "BF16", 2, in, "model.layers.%d.mlp.experts.%d.gate_proj.weight", l,
                      e);
            maker_add(shard, "BF16", 2, in, "model.layers.%d.mlp.experts.%d.up_proj.weight", l, e);
            maker_add(shard, "BF16", 2, out, "model.layers.%d.mlp.experts.%d.down_proj.weight", l,
                      e);
        }
    }
    maker_add(shard, "F32", 1, vector, "model.norm.weight");
}

void moe_maker_replace(moe_maker *maker, const char *from, const char *to)
{
    char *at = strstr(maker->config, from);
    assert_non_null(at);
    assert_null(strstr(at + 1, from));
    char rest[sizeof maker->config];
    snprintf(rest, sizeof rest, "%s", at + strlen(from));
    size_t room = sizeof maker->config - (size_t)(at - maker->config);
    assert_in_range(snprintf(at, room, "%s%s", to, rest), 1, room - 1);
}

void moe_maker_write(const moe_maker *maker)
{
    maker_write_text(maker->dir, "config.json", maker->config);
    maker_write_shard(&maker->shard, maker->dir, "model.safetensors");
}

void moe_maker_free(moe_maker *maker)
{
    maker_shard_free(&maker->shard);
    maker_dir_remove(maker->dir);
}

void expect_sentence(const char *words)
{
    char copy[256];
    snprintf(copy, sizeof copy, "%s", words);
    char *rest;
    for (char *word = strtok_r(copy, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
        if (!strstr(moepage_last_error(), word))
            fail_msg("\"%s\" is not in \"%s\"", word, moepage_last_error());
}

void moe_expect_refusal(const moe_maker *maker, moepage_status status, const char *words)
{
    moepage_model *model = NULL;
    moepage_status found = moepage_model_open(maker->dir, NULL, &model);
    if (found != status)
        fail_msg("status %d, not %d, for words %s: %s", found, status, words,
                 found ? moepage_last_error() : "accepted");
    assert_null(model);
    expect_sentence(words);
    expect_sentence(maker->dir);
}

moepage_model *moe_expect_open(const moe_maker *maker)
{
    moepage_model *model = NULL;
    moepage_status status = moepage_model_open(maker->dir, NULL, &model);
    if (status)
        fail_msg("not opened: %s", moepage_last_error());
    assert_non_null(model);
    return model;
}

void moe_expect_expert(const struct moepage_model *model, uint32_t layer, uint32_t expert)
{
    static const char *const parts[] = {"gate", "up", "down"};
    const uint64_t matrix = MOE_INTERMEDIATE * MOE_HIDDEN * 2;
    unsigned char bytes[MOE_INTERMEDIATE * MOE_HIDDEN * 2];
    assert_int_equal(model->n_pieces, 3);
    for (uint32_t p = 0; p < 3; p++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, expert,
                 parts[p]);
        assert_int_equal(model->layouts[0].pieces[p].bytes, matrix);
        assert_int_equal(mp_model_read_piece(model, layer, expert, p, 0, matrix, bytes),
                         MOEPAGE_OK);
        for (uint64_t i = 0; i < matrix; i++)
            assert_int_equal(bytes[i], maker_byte(name, i));
    }
}

void moe_expect_whole(const moe_maker *maker)
{
    moepage_model *model = moe_expect_open(maker);
    for (uint32_t l = 0; l < MOE_LAYERS; l++)
        for (uint32_t e = 0; e < MOE_EXPERTS; e++)
            moe_expect_expert(model, l, e);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}
