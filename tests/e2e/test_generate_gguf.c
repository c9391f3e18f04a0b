/* moepage-generate on GGUF files: the bits of a checkpoint with the same values, at every budget, and
 * refusals of what a file lacks. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "generation.h"
#include "gguf_moe.h"
#include "slow.h"
#include "testing.h"
#include "tool_runs.h"
#include "twin_model.h"

#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__})

/* As the checkpoint has them. */
static const twin_types stored = {{GGML_BF16, GGML_BF16},
                                  {GGML_BF16, GGML_BF16},
                                  GGML_BF16,
                                  GGML_BF16};
/* Even layers mix types, and so have smaller experts than odd ones. */
static const twin_types in_blocks = {{GGML_Q4_0, GGML_Q8_0},
                                     {GGML_Q8_0, GGML_Q8_0},
                                     GGML_BF16,
                                     GGML_BF16};
static const twin_types all_in_blocks = {{GGML_Q8_0, GGML_Q4_0},
                                         {GGML_Q8_0, GGML_Q4_0},
                                         GGML_Q8_0,
                                         GGML_Q4_0};

static gguf_writer writer;
static char dir[64], file[96], packed[96];
static reference ref;

static int make(void **state)
{
    (void)state;
    maker_dir_create(dir);
    snprintf(file, sizeof file, "%s/m.gguf", dir);
    snprintf(packed, sizeof packed, "%s/m.moepack", dir);
    gguf_init(&writer);
    reference_load_tiny(&ref);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    maker_dir_remove(dir);
    gguf_free(&writer);
    reference_free(&ref);
    return 0;
}

static void write_file(const twin_types *types)
{
    twin_make(&writer, types);
    gguf_write(&writer, dir, "m.gguf");
}

static generation_part some(void)
{
    return (generation_part){.n = slow_here() ? 1 : 3, .n_tokens = 24, .max_tokens = 12};
}

/* Both models must give the same bits. */
static void compare(const char *checkpoint, const char *math)
{
    const generation_part part = some();
    generation expected, found;
    generation_run(checkpoint, &ref, &part, LIST("--math", math), &expected);
    generation_run(file, &ref, &part, LIST("--math", math), &found);
    generation_assert_same(&expected, &found, math);
    generation_free(&expected);
    generation_free(&found);
}

static void test_generate_gguf_gives_the_bits_of_its_checkpoint(void **state)
{
    (void)state;
    write_file(&stored);
    compare(TWIN_MODEL, "fp32");
    compare(TWIN_MODEL, "bf16");
}

/* The values of blocks are computed here, not by the library. */
static void compare_twins(const twin_types *types)
{
    char checkpoint[64];
    write_file(types);
    maker_dir_create(checkpoint);
    twin_write_checkpoint(&writer, checkpoint);
    compare(checkpoint, "fp32");
    compare(checkpoint, "bf16");
    maker_dir_remove(checkpoint);
}

static void test_generate_gguf_in_blocks_gives_the_bits_of_its_values(void **state)
{
    (void)state;
    compare_twins(&in_blocks);
}

/* The same bits with a part of the experts in memory, and with another number of threads; and other bits
 * than without rounding. */
static void test_generate_gguf_in_integers_depends_on_nothing_else(void **state)
{
    const generation_part part = some();
    generation expected, found, exact;
    (void)state;
    write_file(&in_blocks);
    generation_run(file, &ref, &part, LIST("--math", "int8", "--threads", "1"), &expected);
    generation_run(file, &ref, &part, LIST("--math", "int8", "--threads", "2", "--budget", "40%"),
                   &found);
    generation_assert_same(&expected, &found, "int8");
    generation_run(file, &ref, &part, LIST("--math", "fp32"), &exact);
    assert_int_equal(expected.n_logits, exact.n_logits);
    assert_true(memcmp(expected.logits, exact.logits, exact.n_logits * sizeof(float)) != 0);
    generation_free(&expected);
    generation_free(&found);
    generation_free(&exact);
}

/* The host has no faster way. */
static void test_generate_gguf_in_bf16_fast_gives_the_bits_of_bf16(void **state)
{
    const generation_part part = some();
    generation expected, found;
    (void)state;
    write_file(&all_in_blocks);
    generation_run(file, &ref, &part, LIST("--math", "bf16"), &expected);
    generation_run(file, &ref, &part, LIST("--math", "bf16-fast"), &found);
    generation_assert_same(&expected, &found, "bf16-fast");
    generation_free(&expected);
    generation_free(&found);
}

static void test_generate_gguf_decodes_dense_blocks_exactly(void **state)
{
    (void)state;
    compare_twins(&all_in_blocks);
}

/* The settings must do what they say, or identical bits prove nothing. */
static void check_effect(const generation *g, const char *budget, const char *tier)
{
    const uint64_t slots = generation_stat(g, "slots"), experts = generation_stat(g, "experts");
    uint64_t routed = 0;
    for (uint32_t i = 0; i < writer.n_tensors; i++)
        routed += strstr(writer.tensors[i].name, "_exps") ? writer.tensors[i].bytes : 0;
    assert_int_equal(generation_stat(g, "routed_bytes"), routed);
    assert_int_equal(experts, TWIN_LAYERS * TWIN_EXPERTS);
    assert_true((double)generation_stat(g, "arena_expert_bytes") <=
                atof(budget) / 100 * (double)(experts * generation_stat(g, "slot_bytes")));
    if (atof(budget) < 30)
        assert_true(generation_stat(g, "evictions") > 0 && slots < experts);
    assert_int_equal(generation_stat(g, "cold_reads") > 0, strcmp(tier, "0") != 0);
}

static void test_generate_gguf_bits_do_not_depend_on_settings(void **state)
{
    static const char *const budgets[] = {"100%", "50%", "25%", "12.5%"};
    static const char *const tiers[] = {"0", "1M"}, *const threads[] = {"1", "2"};
    const generation_part part = some();
    generation expected, found;
    (void)state;
    write_file(&in_blocks);
    generation_run(file, &ref, &part, LIST("--threads", "1"), &expected);
    for (size_t i = 0; i < COUNT(budgets); i++)
        for (size_t j = 0; j < 4; j++) {
            const char *tier = tiers[j / 2], *n = threads[j % 2];
            char what[96];
            snprintf(what, sizeof what, "budget %s, host tier %s, %s thread(s)", budgets[i], tier,
                     n);
            generation_run(file, &ref, &part,
                           LIST("--budget", budgets[i], "--host-tier", tier, "--threads", n,
                                "--prefetch", i % 2 ? "on" : "off"),
                           &found);
            generation_assert_same(&expected, &found, what);
            check_effect(&found, budgets[i], tier);
            generation_free(&found);
        }
    generation_free(&expected);
}

/* Files of the checkpoints in tests/data/hf, with the names, shapes and metadata of other architectures,
 * some of their tensors in blocks. */
static const struct {
    const char *file, *checkpoint;
} twins[] = {
    {"deepseek2-lite.gguf", "tests/data/hf/deepseek_v2-lite"},
    {"deepseek2-groups.gguf", "tests/data/hf/deepseek_v3-groups"},
    {"glm4moe.gguf", "tests/data/hf/glm4_moe"},
};

static void test_generate_gguf_twins_have_the_bits_of_their_checkpoints(void **state)
{
    static const char *const ways[][2] = {{"fp32", "100%"},
                                          {"fp32", "50%"},
                                          {"fp32", "25%"},
                                          {"bf16", "25%"}};
    (void)state;
    for (size_t i = 0; i < COUNT(twins); i++) {
        reference own;
        generation expected = {0}, found;
        char path[96];
        snprintf(path, sizeof path, "tests/data/gguf/%s", twins[i].file);
        reference_load_hf(twins[i].checkpoint, &own);
        const generation_part part = {.n = own.n_prompts, .n_tokens = 99, .max_tokens = 8};
        for (size_t w = 0; w < COUNT(ways); w++) {
            if (!w || strcmp(ways[w][0], ways[w - 1][0]) != 0) {
                generation_free(&expected);
                generation_run(twins[i].checkpoint, &own, &part, LIST("--math", ways[w][0]),
                               &expected);
            }
            generation_run(path, &own, &part, LIST("--math", ways[w][0], "--budget", ways[w][1]),
                           &found);
            generation_assert_same(&expected, &found, path);
            assert_int_equal(generation_stat(&found, "evictions") > 0, w > 0);
            generation_free(&found);
        }
        generation_free(&expected);
        reference_free(&own);
    }
}

/* A latent vector and a rotated key per token and layer, whatever the number of heads. */
static void test_generate_gguf_caches_latents_alone(void **state)
{
    enum { RANK = 32, TURNED = 8, LAYERS = 3, TOKENS = 16 };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        reference own;
        generation g;
        reference_load_hf(twins[i].checkpoint, &own);
        const generation_part part = {.n = 1, .n_tokens = 4, .max_tokens = 2};
        generation_run(twins[i].checkpoint, &own, &part, LIST("--threads", "1"), &g);
        assert_int_equal(generation_stat(&g, "kv_block_bytes"),
                         TOKENS * LAYERS * (RANK + TURNED) * sizeof(float));
        generation_free(&g);
        reference_free(&own);
    }
}

/* Packs the file as the tool does, with `words`, to m.moepack beside it. */
static void pack_file(const char *const *words)
{
    const char *line[16] = {file, packed};
    size_t n = 2;
    for (; *words; words++)
        line[n++] = *words;
    line[n] = NULL;
    tool_result result;
    run_well("moepage-pack", line, &result);
    tool_result_free(&result);
}

/* A pack is the file: the same bits from every form, at every budget, through every tier. */
static void test_generate_gguf_packed_gives_the_bits_of_the_file(void **state)
{
    static const twin_types with_floats = {{GGML_Q8_0, GGML_BF16},
                                           {GGML_Q4_0, GGML_Q8_0},
                                           GGML_Q8_0,
                                           GGML_Q4_0};
    static const char *const forms[][5] = {
        {"--verify", NULL},
        {"--expert-versions", "dense", "--cold-level", "3", NULL},
        {"--expert-versions", "dense,exph", NULL},
    };
    static const twin_types *const kinds[] = {&all_in_blocks, &in_blocks, &with_floats};
    const generation_part part = some();
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++) {
        generation expected, found;
        write_file(kinds[k]);
        generation_run(file, &ref, &part, LIST("--threads", "1"), &expected);
        for (size_t f = 0; f < COUNT(forms); f++) {
            pack_file(forms[f]);
            for (int tight = 0; tight < 2; tight++) {
                generation_run(packed, &ref, &part,
                               LIST("--budget", tight ? "25%" : "100%", "--host-tier",
                                    tight ? "1M" : "0", "--prefetch", tight ? "on" : "off"),
                               &found);
                generation_assert_same(&expected, &found, forms[f][0]);
                assert_int_equal(generation_stat(&found, "evictions") > 0, tight);
                assert_int_equal(generation_stat(&found, "routed_bytes"),
                                 generation_stat(&expected, "routed_bytes"));
                generation_free(&found);
            }
        }
        generation_free(&expected);
        gguf_free(&writer);
    }
}

/* Bytes of the model's dense tensors but the embeddings, whose rows are read; *blocks of these are in
 * blocks. */
static uint64_t dense_bytes(uint64_t *blocks)
{
    uint64_t all = *blocks = 0;
    for (uint32_t i = 0; i < writer.n_tensors; i++) {
        const gguf_made *made = &writer.tensors[i];
        if (strstr(made->name, "_exps") || !strcmp(made->name, "token_embd.weight"))
            continue;
        all += made->bytes;
        *blocks += made->type == GGML_Q8_0 || made->type == GGML_Q4_0 ? made->bytes : 0;
    }
    return all;
}

static void test_generate_gguf_keeps_dense_weights_in_their_blocks(void **state)
{
    const twin_types *const kinds[] = {&stored, &all_in_blocks};
    const generation_part part = {.n = 1, .n_tokens = 2, .max_tokens = 1};
    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++) {
        generation g;
        uint64_t blocks;
        write_file(kinds[i]);
        const uint64_t all = dense_bytes(&blocks);
        generation_run(file, &ref, &part, LIST("--threads", "1"), &g);
        assert_int_equal(generation_stat(&g, "dense_bytes"), all);
        assert_int_equal(generation_stat(&g, "dense_decoded_bytes"), 0);
        assert_int_equal(blocks > 0, i);
        generation_free(&g);
        gguf_free(&writer);
    }
}

static void test_generate_gguf_ties_the_head_where_there_is_none(void **state)
{
    const generation_part part = {.n = 1, .n_tokens = 8, .max_tokens = 4};
    generation tied, same;
    (void)state;
    twin_make(&writer, &stored);
    const gguf_made *from = gguf_made_of(&writer, "token_embd.weight");
    gguf_made *head = gguf_made_of(&writer, "output.weight");
    memcpy(head->data, from->data, from->bytes);
    gguf_write(&writer, dir, "m.gguf");
    generation_run(file, &ref, &part, LIST("--threads", "1"), &same);
    gguf_remove(&writer, "output.weight");
    gguf_write(&writer, dir, "m.gguf");
    generation_run(file, &ref, &part, LIST("--threads", "1"), &tied);
    generation_assert_same(&same, &tied, "a head that is tied");
    generation_free(&same);
    generation_free(&tied);
}

/* ---- Refusals ---- */

static void expect_refused(const char *named)
{
    gguf_write(&writer, dir, "m.gguf");
    assert_refused("moepage-generate",
                   LIST("--model", file, "--tokens", "1,2", "--max-tokens", "2"), named);
}

static void test_generate_gguf_refuses_dense_tensors_that_are_wrong(void **state)
{
    static const struct {
        const char *name;
        uint64_t rows;
    } wrong[] = {{"blk.3.attn_k.weight", 96},
                 {"blk.7.attn_output.weight", 64},
                 {"token_embd.weight", 259},
                 {"blk.0.ffn_norm.weight", 2}};
    (void)state;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        twin_make(&writer, &stored);
        gguf_reshape(gguf_made_of(&writer, wrong[i].name), GGML_BF16, 2,
                     SHAPE(TWIN_HIDDEN, wrong[i].rows));
        expect_refused(wrong[i].name);
        gguf_remove(&writer, wrong[i].name);
        expect_refused(wrong[i].name);
        gguf_free(&writer);
    }
}

static void test_generate_gguf_refuses_tensors_that_it_would_leave_out(void **state)
{
    (void)state;
    twin_make(&writer, &stored);
    /* Other architectures have all of these. */
    static const char *const extra[] = {
        "blk.2.attn_q.bias",
        "rope_freqs.weight",
        "blk.0.attn_sinks.weight",
        "blk.7.exp_probs_b.bias",
        "blk.1.ffn_gate_inp.bias",
        "blk.1.ffn_gate.weight",
        "blk.1.ffn_gate_shexp.weight",
        "blk.1.attn_kv_b.weight",
        "blk.3.post_attention_norm.weight",
        "output.bias",
        "blk.3.attn_q_norm.weight2",
    };
    for (size_t i = 0; i < COUNT(extra); i++) {
        gguf_tensor(&writer, GGML_F32, 1, SHAPE(16), extra[i]);
        expect_refused(extra[i]);
        gguf_remove(&writer, extra[i]);
    }
    gguf_reshape(gguf_made_of(&writer, "blk.1.attn_v.weight"), GGML_I8, 2, SHAPE(TWIN_HIDDEN, 64));
    expect_refused("blk.1.attn_v.weight");
}

/* Appends one more value to the model's metadata and forgets it afterwards. */
static void refused_with(void (*add)(const char *key), const char *key, const char *named)
{
    const size_t n = writer.values.n;
    const uint64_t n_values = writer.n_values;
    add(key);
    expect_refused(named);
    writer.values.n = n;
    writer.n_values = n_values;
}

static void add_yarn(const char *key)
{
    gguf_text(&writer, key, "yarn");
}
static void add_seven(const char *key)
{
    gguf_u32(&writer, key, 7);
}
static void add_half(const char *key)
{
    gguf_f32(&writer, key, 0.5f);
}
static void add_list(const char *key)
{
    gguf_array(&writer, key, W_U32, 1);
    gguf_append_uint(&writer.values, 7, 4);
}

static void test_generate_gguf_refuses_settings_that_it_does_not_compute(void **state)
{
    (void)state;
    twin_make(&writer, &stored);
    refused_with(add_yarn, "qwen3moe.rope.scaling.type", "yarn");
    refused_with(add_seven, "qwen3moe.rope.scaling.type", "must be a text");
    refused_with(add_half, "qwen3moe.rope.scaling.factor", "rope.scaling.factor is 0.5, only 1");
    refused_with(add_half, "qwen3moe.rope.scale_linear", "rope.scale_linear is 0.5, only 1");
    refused_with(add_seven, "qwen3moe.rope.dimension_count", "only 32");
    refused_with(add_seven, "qwen3moe.attention.sliding_window", "sliding_window is 7");
    refused_with(add_seven, "qwen3moe.expert_gating_func", "expert_gating_func is 7");
    refused_with(add_half, "qwen3moe.expert_weights_scale", "expert_weights_scale is 0.5");
    refused_with(add_list, "qwen3moe.rope.dimension_count", "from layer to layer");
    refused_with(add_seven, "qwen3moe.expert_weights_norm", "a truth value");
}

static void test_generate_gguf_refuses_metadata_that_is_missing(void **state)
{
    static const char *const keys[] = {"qwen3moe.attention.head_count",
                                       "qwen3moe.attention.layer_norm_rms_epsilon"};
    (void)state;
    twin_make(&writer, &stored);
    for (size_t i = 0; i < COUNT(keys); i++) {
        size_t at = 0;
        while (at < writer.values.n && memcmp(writer.values.at + at, keys[i], strlen(keys[i])))
            at++;
        assert_true(at < writer.values.n);
        writer.values.at[at + strlen(keys[i]) - 1] ^= 1; /* it is another key now */
        expect_refused(keys[i]);
        writer.values.at[at + strlen(keys[i]) - 1] ^= 1;
    }
}

static void test_generate_gguf_refuses_other_architectures_by_name(void **state)
{
    static const char *const others[][2] = {{"olmoe", "feed_forward_length"},
                                            {"llama", "feed_forward_length"},
                                            {"qwen2moe", "expert_feed_forward_length"},
                                            {"minimax-m2", "expert_feed_forward_length"}};
    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        gguf_moe model = gguf_moe_usual();
        char named[64];
        model.architecture = others[i][0];
        model.width_key = others[i][1];
        gguf_moe_make(&writer, &model);
        snprintf(named, sizeof named, "attention of %s in GGUF files", model.architecture);
        expect_refused(named);
        gguf_free(&writer);
    }
}

/* Writes a file of tests/data/gguf with each `from` turned into `to`, of the same length. */
static void write_changed(const char *name, const char *from, const char *to)
{
    size_t n, found = 0;
    unsigned char *bytes = maker_read("tests/data/gguf", name, &n);
    const size_t length = strlen(from);
    assert_int_equal(strlen(to), length);
    for (size_t i = 0; i + length <= n; i++)
        if (!memcmp(bytes + i, from, length)) {
            memcpy(bytes + i, to, length);
            found++;
        }
    assert_true(found > 0);
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    free(bytes);
}

/* A file, words of it and what takes their place, and what the refusal names. */
typedef struct spoiled {
    const char *file, *from, *to, *named;
} spoiled;

static void expect_spoiled_refused(const spoiled *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const spoiled *c = &cases[i];
        if (!i || strcmp(c->file, cases[i - 1].file) != 0) {
            write_changed(c->file, c->from, c->from);
            json_decref(run_json("moepage-generate", LIST("--model", file, "--tokens", "1,2",
                                                          "--max-tokens", "2", "--json")));
        }
        write_changed(c->file, c->from, c->to);
        assert_refused("moepage-generate",
                       LIST("--model", file, "--tokens", "1,2", "--max-tokens", "2"), c->named);
    }
}

#define GPT_OSS "gpt-oss/gpt-oss.gguf"

static void test_generate_gguf_refuses_gpt_oss_without_a_part(void **state)
{
    static const spoiled cases[] = {
        {GPT_OSS, "blk.1.attn_sinks.weight", "blk.1.attn_sinkz.weight", "blk.1.attn_sinks.weight"},
        {GPT_OSS, "blk.2.ffn_gate_inp.bias", "blk.2.ffn_gate_inp.bios", "blk.2.ffn_gate_inp.bias"},
        {GPT_OSS, "blk.0.attn_output.bias", "blk.0.attn_output.bios", "blk.0.attn_output.bias"},
        {GPT_OSS, "blk.0.post_attention_norm.weight", "blk.0.post_attention_norm.weighx",
         "blk.0.post_attention_norm.weight"},
        {GPT_OSS, "gpt-oss.attention.sliding_window", "gpt-oss.attention.sliding_widows",
         "sliding_window is missing"},
        {GPT_OSS, "scaling.original_context_length", "scaling.original_contest_length",
         "original_context_length is missing"},
        {GPT_OSS, "yarn", "yawn", "'yawn'"},
    };
    (void)state;
    expect_spoiled_refused(cases, COUNT(cases));
}

#define LITE "deepseek2-lite.gguf"
#define GROUPS "deepseek2-groups.gguf"
#define GLM "glm4moe.gguf"

/* A part that has another name is missing, or if the model is one without it, left over. */
static void test_generate_gguf_refuses_other_models_without_a_part(void **state)
{
    static const spoiled cases[] = {
        {LITE, "blk.1.attn_kv_a_norm.weight", "blk.1.attn_kv_a_norn.weight",
         "blk.1.attn_kv_a_norm.weight"},
        {LITE, "blk.0.attn_kv_b.weight", "blk.0.attn_kv_c.weight", "blk.0.attn_kv_b.weight"},
        {LITE, "attention.kv_lora_rank", "attention.kv_lora_rang", "kv_lora_rank is missing"},
        {LITE, "yarn_log_multiplier", "yarn_log_multiplies", "yarn_log_multiplier is missing"},
        {LITE, "blk.2.ffn_up_shexp.weight", "blk.2.ffn_up_shexq.weight",
         "blk.2.ffn_up_shexp.weight"},
        {LITE, "blk.0.ffn_gate.weight", "blk.0.ffn_gats.weight", "blk.0.ffn_gate.weight"},
        {GROUPS, "attention.q_lora_rank", "attention.q_lora_rang", "blk.0.attn_q.weight"},
        {GROUPS, "blk.2.attn_v_b.weight", "blk.2.attn_w_b.weight", "blk.2.attn_v_b.weight"},
        {GROUPS, "blk.2.attn_k_b.weight", "blk.2.attn_l_b.weight", "blk.2.attn_kv_b.weight"},
        {GROUPS, "blk.1.exp_probs_b.bias", "blk.1.exp_probs_c.bias", "blk.1.exp_probs_b.bias"},
        {GROUPS, "expert_gating_func", "expert_gating_fund", "blk.1.exp_probs_b.bias"},
        {GROUPS, "blk.3.nextn.enorm.weight", "blk.1.attn_q_norm.weight",
         "blk.1.attn_q_norm.weight"},
        {GLM, "blk.0.attn_q.bias", "blk.0.attn_q.bios", "blk.0.attn_k.bias"},
        {GLM, "blk.2.attn_k.bias", "blk.2.attn_k.bios", "blk.2.attn_k.bias"},
        {GLM, "blk.0.attn_q_norm.weight", "blk.0.attn_q_norn.weight", "blk.0.attn_k_norm.weight"},
        {GLM, "glm4moe.rope.dimension_count", "glm4moe.rope.dimension_counz",
         "dimension_count is missing"},
        {GLM, "blk.1.post_attention_norm.weight", "blk.1.post_attention_nory.weight",
         "blk.1.post_attention_norm.weight"},
    };
    (void)state;
    expect_spoiled_refused(cases, COUNT(cases));
}

/* What a byte-level tokenizer writes byte `i` as, and beyond the bytes other characters. */
static void write_token(uint32_t i, char out[3])
{
    uint32_t c = i;
    if (i <= 32)
        c = 256 + i;
    else if (i >= 127 && i <= 160)
        c = 256 + 33 + i - 127;
    else if (i == 173 || i >= 256)
        c = 256 + 67 + (i == 173 ? 0 : i - 255);
    out[0] = (char)(c < 128 ? c : 0xc0 | c >> 6);
    out[1] = (char)(c < 128 ? 0 : 0x80 | (c & 63));
    out[2] = 0;
}

/* Metadata of a tokenizer whose tokens are the bytes, each at its own value. */
static void add_tokenizer(const char *kind)
{
    gguf_text(&writer, "tokenizer.ggml.model", kind);
    gguf_text(&writer, "tokenizer.ggml.pre", "qwen2");
    gguf_array(&writer, "tokenizer.ggml.tokens", W_TEXT, TWIN_TOKENS);
    for (uint32_t i = 0; i < TWIN_TOKENS; i++) {
        char text[3];
        write_token(i, text);
        gguf_append_text(&writer.values, text);
    }
    gguf_array(&writer, "tokenizer.ggml.token_type", W_I32, TWIN_TOKENS);
    for (uint32_t i = 0; i < TWIN_TOKENS; i++)
        gguf_append_uint(&writer.values, i < 256 ? 1 : 3, 4);
    gguf_array(&writer, "tokenizer.ggml.merges", W_TEXT, 0);
}

/* Text is the bytes where the file has no tokens, and where its tokens are the bytes. */
static void test_generate_gguf_takes_text(void **state)
{
    const char *words[] = {"--model",      file, "--prompt", "int main(\t\n\xc3\xa9",
                           "--max-tokens", "9",  "--json",   NULL};
    (void)state;
    json_t *right = run_json("moepage-generate", LIST("--model", TWIN_MODEL, words[2], words[3],
                                                      words[4], words[5], words[6]));
    for (int with = 0; with < 2; with++) {
        twin_make(&writer, &stored);
        if (with)
            add_tokenizer("gpt2");
        gguf_write(&writer, dir, "m.gguf");
        pack_file(LIST("--verify"));
        for (int whole = 0; whole < 2; whole++) {
            words[1] = whole ? file : packed;
            json_t *found = run_json("moepage-generate", words);
            assert_true(
                json_equal(json_object_get(found, "outputs"), json_object_get(right, "outputs")));
            json_decref(found);
        }
        gguf_free(&writer);
    }
    json_decref(right);
}

/* The same tokens in the tokenizer.json of a checkpoint. */
static void test_generate_gguf_takes_text_for_checkpoints_too(void **state)
{
    static const char *const files[] = {"config.json", "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    (void)state;
    json_t *vocab = json_object();
    for (uint32_t i = 0; i < TWIN_TOKENS; i++) {
        char text[3];
        write_token(i, text);
        json_object_set_new(vocab, text, json_integer(i));
    }
    json_t *tokens =
        json_pack("{s:{s:s,s:o,s:[]},s:{s:s,s:b}}", "model", "type", "BPE", "vocab", vocab,
                  "merges", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0);
    char *text = json_dumps(tokens, 0);
    maker_write_text(dir, "tokenizer.json", text);
    free(text);
    json_decref(tokens);
    for (size_t i = 0; i < COUNT(files); i++) {
        char *from = realpath(TWIN_MODEL, NULL), target[4096], link[128];
        assert_non_null(from);
        snprintf(target, sizeof target, "%s/%s", from, files[i]);
        snprintf(link, sizeof link, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(target, link), 0);
        free(from);
    }
    const char *words[] = {"--model",      dir, "--prompt", "int main(\n",
                           "--max-tokens", "9", "--json",   NULL};
    json_t *found = run_json("moepage-generate", words);
    words[1] = TWIN_MODEL;
    json_t *right = run_json("moepage-generate", words);
    assert_true(json_equal(json_object_get(found, "outputs"), json_object_get(right, "outputs")));
    json_decref(found);
    json_decref(right);
}

static void test_generate_gguf_refuses_text_for_other_tokenizers(void **state)
{
    (void)state;
    twin_make(&writer, &stored);
    add_tokenizer("bert");
    gguf_write(&writer, dir, "m.gguf");
    assert_refused("moepage-generate", LIST("--model", file, "--prompt", "x"),
                   "tokenizer.ggml.model \"bert\" is not known here: use --tokens");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_generate_gguf_gives_the_bits_of_its_checkpoint),
        CASE(test_generate_gguf_in_blocks_gives_the_bits_of_its_values),
        CASE(test_generate_gguf_in_integers_depends_on_nothing_else),
        CASE(test_generate_gguf_in_bf16_fast_gives_the_bits_of_bf16),
        CASE(test_generate_gguf_decodes_dense_blocks_exactly),
        CASE(test_generate_gguf_bits_do_not_depend_on_settings),
        CASE(test_generate_gguf_twins_have_the_bits_of_their_checkpoints),
        CASE(test_generate_gguf_caches_latents_alone),
        CASE(test_generate_gguf_packed_gives_the_bits_of_the_file),
        CASE(test_generate_gguf_keeps_dense_weights_in_their_blocks),
        CASE(test_generate_gguf_ties_the_head_where_there_is_none),
        CASE(test_generate_gguf_refuses_dense_tensors_that_are_wrong),
        CASE(test_generate_gguf_refuses_tensors_that_it_would_leave_out),
        CASE(test_generate_gguf_refuses_settings_that_it_does_not_compute),
        CASE(test_generate_gguf_refuses_metadata_that_is_missing),
        CASE(test_generate_gguf_refuses_other_architectures_by_name),
        CASE(test_generate_gguf_refuses_gpt_oss_without_a_part),
        CASE(test_generate_gguf_refuses_other_models_without_a_part),
        CASE(test_generate_gguf_takes_text),
        CASE(test_generate_gguf_takes_text_for_checkpoints_too),
        CASE(test_generate_gguf_refuses_text_for_other_tokenizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
