/* moepage-inspect: what it counts, of which experts, and what it says of damaged ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "checkpoint_maker.h"
#include "moe_maker.h"
#include "moepage.h"
#include "testing.h"
#include "tool_runs.h"

/* The exponents of all experts of one layer, counted here. */
static void count_exponents(uint32_t layer, uint64_t count[256])
{
    moepage_model *model;
    moepage_model_info info = {.struct_size = sizeof info};
    if (moepage_model_open(TINY, NULL, &model) || moepage_model_get_info(model, &info))
        fail_msg("%s", moepage_last_error());
    unsigned char *slot = malloc(info.slot_bytes);
    assert_non_null(slot);
    assert_int_equal(info.slot_bytes, info.expert_bytes); /* no padding to leave out */
    for (uint32_t e = 0; e < info.experts; e++) {
        if (moepage_model_read_expert(model, layer, e, slot, info.slot_bytes))
            fail_msg("%s", moepage_last_error());
        for (uint64_t i = 0; i < info.slot_bytes; i += 2)
            count[(slot[i + 1] << 1 & 0xff) | slot[i] >> 7]++;
    }
    free(slot);
    moepage_model_close(model);
}

static void test_inspect_counts_exponents(void **state)
{
    (void)state;
    uint64_t count[256] = {0}, sum = 0;
    count_exponents(5, count);
    json_t *json = run_json("moepage-inspect", LIST(TINY, "--layer", "5", "--json"));
    const json_t *bf16 = json_object_get(json_object_get(json, "exponents"), "bf16");
    const json_t *histogram = json_object_get(bf16, "histogram");
    double entropy = 0;
    for (int e = 0; e < 256; e++)
        sum += count[e];
    for (int e = 0; e < 256; e++) {
        char key[8];
        snprintf(key, sizeof key, "%d", e);
        assert_int_equal(json_integer_value(json_object_get(histogram, key)), count[e]);
        if (count[e])
            entropy -= (double)count[e] / (double)sum * log2((double)count[e] / (double)sum);
    }
    assert_int_equal(integer(bf16, "weights"), sum);
    assert_int_equal(integer(json, "sampled_experts"), 64);
    assert_true(fabs(real(bf16, "pooled_entropy_bits") - entropy) < 1e-9);
    /* A code for each tensor is never worse than one for all. */
    assert_true(real(bf16, "entropy_bits") <= entropy + 1e-9);
    assert_true(fabs(real(bf16, "floor") - (8 + real(bf16, "entropy_bits")) / 16) < 1e-12);
    assert_true(real(json, "exph_ratio") >= real(bf16, "floor"));
    json_decref(json);
}

static void test_inspect_tells_the_same_of_pack_and_checkpoint(void **state)
{
    (void)state;
    static const char *const same[] = {"architecture", "layers",      "moe_layers",
                                       "experts",      "top_k",       "hidden",
                                       "slot_bytes",   "tensors",     "expert_bytes",
                                       "routed_bytes", "dense_bytes", "dense_tensors",
                                       "vocabulary",   "exponents",   "floor"};
    place p;
    place_open(&p);
    pack(LIST(TINY, p.path, "--expert-versions", "dense,exph,int4"));
    json_t *checkpoint = run_json("moepage-inspect", LIST(TINY, "--json"));
    json_t *packed = run_json("moepage-inspect", LIST(p.path, "--json"));
    for (size_t i = 0; i < COUNT(same); i++)
        if (!json_equal(json_object_get(checkpoint, same[i]), json_object_get(packed, same[i])))
            fail_msg("\"%s\" differs", same[i]);
    assert_int_equal(json_object_size(json_object_get(checkpoint, "forms")), 1);
    assert_int_equal(json_object_size(json_object_get(packed, "forms")), 3);
    /* What is stored is what encoding the checkpoint's experts gives. */
    assert_true(fabs(real(packed, "exph_ratio") / real(checkpoint, "exph_ratio") - 1) < 1e-3);
    json_decref(checkpoint);
    json_decref(packed);
    place_close(&p);
}

/* ---- Which experts ------------------------------------------------------------------------- */

/* What exph takes of one layer's experts, encoded here. */
static double encoded_share(uint32_t layer)
{
    enum { TENSORS = 3 };
    moepage_model *model;
    moepage_model_info info = {.struct_size = sizeof info};
    moepage_expert_tensor tensors[TENSORS];
    if (moepage_model_open(TINY, NULL, &model) || moepage_model_get_info(model, &info) ||
        moepage_model_get_expert_tensors(model, tensors, TENSORS))
        fail_msg("%s", moepage_last_error());
    uint64_t room = moepage_exph_bound(MOEPAGE_DTYPE_BF16, info.slot_bytes), sum = 0;
    unsigned char *slot = malloc(info.slot_bytes), *stream = malloc(room);
    assert_non_null(slot);
    assert_non_null(stream);
    for (uint32_t e = 0; e < info.experts; e++) {
        if (moepage_model_read_expert(model, layer, e, slot, info.slot_bytes))
            fail_msg("%s", moepage_last_error());
        for (uint32_t t = 0; t < info.expert_tensors; t++) {
            uint64_t bytes;
            if (moepage_exph_encode(tensors[t].dtype, slot + tensors[t].offset,
                                    tensors[t].bytes / 2, stream, room, &bytes))
                fail_msg("%s", moepage_last_error());
            sum += bytes;
        }
    }
    double share = (double)sum / (double)(info.experts * info.expert_bytes);
    free(slot);
    free(stream);
    moepage_model_close(model);
    return share;
}

static void assert_population(const json_t *json, int64_t layer, int64_t sampled, int64_t of)
{
    const json_t *said = json_object_get(json, "layer");
    assert_true(layer < 0 ? json_is_null(said) : json_integer_value(said) == layer);
    assert_int_equal(integer(json, "sampled_experts"), sampled);
    assert_int_equal(integer(json, "population_experts"), of);
}

/* The ratio and the floor are those of the same experts, in a pack as in a checkpoint. */
static void test_inspect_compares_a_sample_with_itself(void **state)
{
    (void)state;
    static const char *const same[] = {"exph_ratio", "exponents", "floor"};
    place p;
    place_open(&p);
    pack(LIST(TINY, p.path));
    const char *const *const parts[] = {LIST("--json", "--layer", "0"),
                                        LIST("--json", "--sample", "9")};
    for (size_t i = 0; i < COUNT(parts); i++) {
        const char *const *w = parts[i];
        json_t *checkpoint = run_json("moepage-inspect", LIST(TINY, w[0], w[1], w[2]));
        json_t *packed = run_json("moepage-inspect", LIST(p.path, w[0], w[1], w[2]));
        for (size_t k = 0; k < COUNT(same); k++)
            if (!json_equal(json_object_get(checkpoint, same[k]), json_object_get(packed, same[k])))
                fail_msg("%s: \"%s\" differs", w[1], same[k]);
        assert_true(json_is_false(json_object_get(packed, "exph_stored")));
        assert_population(packed, i ? -1 : 0, i ? 9 : 64, i ? 512 : 64);
        if (i == 0)
            assert_true(fabs(real(packed, "exph_ratio") - encoded_share(0)) < 1e-12);
        json_decref(checkpoint);
        json_decref(packed);
    }
    json_t *all = run_json("moepage-inspect", LIST(p.path, "--json"));
    assert_true(json_is_true(json_object_get(all, "exph_stored")));
    assert_population(all, -1, 512, 512);
    json_decref(all);
    place_close(&p);
}

/* ---- Damage ------------------------------------------------------------------------------ */

/* In the last `n` experts of a pack whose experts come last and are alike in size. */
static void damage(const place *p, unsigned n)
{
    size_t size;
    unsigned char *bytes = maker_read(p->dir, "x.moepack", &size);
    for (unsigned i = 0; i < n; i++)
        bytes[size - 20000 - i * (size_t)49152] ^= 0x10;
    maker_write(p->dir, "x.moepack", bytes, size);
    free(bytes);
}

static unsigned count_lines(const char *text)
{
    unsigned n = 0;
    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

static void test_inspect_goes_on_past_damaged_experts(void **state)
{
    (void)state;
    static const unsigned damaged[] = {1, 20};
    for (size_t i = 0; i < COUNT(damaged); i++) {
        place p;
        tool_result text, json;
        place_open(&p);
        pack(LIST("--synthetic", "toy", p.path, "--expert-versions", "dense"));
        damage(&p, damaged[i]);
        tool_run("moepage-inspect", LIST(p.path), &text);
        tool_run("moepage-inspect", LIST(p.path, "--json"), &json);
        assert_int_equal(text.exit_status, 1);
        assert_int_equal(json.exit_status, 1);
        assert_string_equal(text.err, json.err);
        /* one line for each up to a few, and one that counts */
        assert_int_equal(count_lines(text.err), (damaged[i] < 8 ? damaged[i] : 8) + 1);
        assert_non_null(
            strstr(text.err, damaged[i] == 1 ? "layer 3, expert 15" : "layer 2, expert 12"));
        assert_non_null(strstr(text.out, "qwen3_moe, a pack"));
        assert_non_null(strstr(text.out, "2^-7"));
        json_t *root = json_loads(json.out, 0, NULL);
        assert_non_null(root);
        assert_int_equal(integer(root, "damaged_experts"), damaged[i]);
        assert_int_equal(json_array_size(json_object_get(root, "damaged")),
                         damaged[i] < 8 ? damaged[i] : 8);
        const json_t *bf16 = json_object_get(json_object_get(root, "exponents"), "bf16");
        assert_int_equal(integer(bf16, "weights"), (64 - damaged[i]) * 3 * 128 * 64);
        json_decref(root);
        tool_result_free(&text);
        tool_result_free(&json);
        place_close(&p);
    }
}

static void test_inspect_says_whether_the_library_runs_the_experts(void **state)
{
    (void)state;
    json_t *runs = run_json("moepage-inspect", LIST(TINY, "--json"));
    json_t *clamped = run_json("moepage-inspect", LIST("tests/data/hf/gpt_oss", "--json"));
    moe_maker maker;
    moe_maker_init(&maker);
    moe_maker_replace(&maker, "silu", "gelu");
    moe_maker_write(&maker);
    json_t *gelu = run_json("moepage-inspect", LIST(maker.dir, "--json"));
    assert_true(json_is_true(json_object_get(runs, "ffn_supported")));
    assert_true(json_is_true(json_object_get(clamped, "ffn_supported")));
    assert_true(json_is_false(json_object_get(gelu, "ffn_supported")));
    assert_string_equal(json_string_value(json_object_get(runs, "activation")), "swiglu");
    assert_string_equal(json_string_value(json_object_get(clamped, "activation")),
                        "swiglu-clamped");
    json_decref(runs);
    json_decref(clamped);
    json_decref(gelu);
    tool_result text;
    run_well("moepage-inspect", LIST(maker.dir), &text);
    assert_non_null(strstr(text.out, "the library cannot run them"));
    tool_result_free(&text);
    moe_maker_free(&maker);
}

/* Blocks have names, and each layer the types of its own. */
static void test_inspect_tells_the_types_of_a_gguf_file(void **state)
{
    (void)state;
    static const char *const down[] = {"q5_1", "mxfp4"};
    for (size_t layer = 0; layer < 2; layer++) {
        const char *path = "tests/data/gguf/whole.gguf", *number = layer ? "1" : "0";
        json_t *json = run_json("moepage-inspect", LIST(path, "--layer", number, "--json"));
        const json_t *tensors = json_object_get(json, "tensors");
        assert_string_equal(json_string_value(json_object_get(json, "kind")), "gguf");
        assert_int_equal(json_array_size(tensors), 3);
        assert_string_equal(json_string_value(json_object_get(json_array_get(tensors, 0), "dtype")),
                            "q4_0");
        assert_string_equal(json_string_value(json_object_get(json_array_get(tensors, 2), "dtype")),
                            down[layer]);
        json_decref(json);
        tool_result text;
        run_well("moepage-inspect", LIST(path, "--layer", number), &text);
        assert_non_null(strstr(text.out, "deepseek2, a GGUF file"));
        assert_non_null(strstr(text.out, "2 mixtures of types among the layers"));
        tool_result_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inspect_counts_exponents),
        cmocka_unit_test(test_inspect_tells_the_same_of_pack_and_checkpoint),
        cmocka_unit_test(test_inspect_compares_a_sample_with_itself),
        cmocka_unit_test(test_inspect_goes_on_past_damaged_experts),
        cmocka_unit_test(test_inspect_says_whether_the_library_runs_the_experts),
        cmocka_unit_test(test_inspect_tells_the_types_of_a_gguf_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
