/* Packs of models whose layers mix types, and of GGUF files: every expert has the file's bytes, the metadata
 * is all there, and a section that breaks a rule, under checksums that are right, is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "gguf_moe.h"
#include "model/model.h"
#include "moe_maker.h"
#include "pack_maker.h"
#include "testing.h"

enum { SHAPE = 1, CONFIG = 2, INDEX = 5, DATA = 6, METADATA = 7 };
enum { HIDDEN = 256, WIDTH = 256, EXPERTS = 2, TENSORS = 3, LAYOUT = 24 + TENSORS * 64 };

static char dir[64], file[96], path[96];
static gguf_writer writer;

static int make(void **state)
{
    (void)state;
    maker_dir_create(dir);
    snprintf(file, sizeof file, "%s/m.gguf", dir);
    snprintf(path, sizeof path, "%s/m.moepack", dir);
    gguf_init(&writer);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    gguf_free(&writer);
    maker_dir_remove(dir);
    return 0;
}

static const struct {
    uint32_t forms;
    int32_t cold_level;
} kinds[] = {
    {PACK_FORM(DENSE), 0},
    {PACK_FORM(DENSE), 1},
    {PACK_FORM(EXPH), 0},
    {PACK_FORM(DENSE) | PACK_FORM(EXPH), 3},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const uint32_t formats[] = {GGML_Q4_0,   GGML_Q4_1,   GGML_Q5_0,  GGML_Q5_1, GGML_Q8_0,
                                   GGML_Q2_K,   GGML_Q3_K,   GGML_Q4_K,  GGML_Q5_K, GGML_Q6_K,
                                   GGML_IQ4_NL, GGML_IQ4_XS, GGML_MXFP4, GGML_NVFP4};

/* ---- Models ------------------------------------------------------------------------------ */

static gguf_moe blocks_of(uint32_t type)
{
    gguf_moe of = gguf_moe_usual();
    of.type = type;
    of.hidden = HIDDEN;
    of.width = WIDTH;
    of.experts = EXPERTS;
    return of;
}

/* Numbers as trained weights have them, which exponents of two bytes show best. */
static void make_bf16(const char *name)
{
    gguf_made *made = gguf_made_of(&writer, name);
    for (uint64_t i = 0; i < made->bytes; i += 2)
        made->data[i + 1] = (unsigned char)(0x3c | (made->data[i] & 0x80));
}

/* Three layers of three layouts: blocks alone, blocks beside BF16, and blocks with F16. */
static void make_mixed(void)
{
    gguf_moe of = blocks_of(GGML_Q4_K);
    of.dense = 1;
    gguf_moe_make(&writer, &of);
    gguf_moe_retype(&writer, 1, "down", GGML_Q6_K);
    gguf_moe_retype(&writer, 2, "gate", GGML_BF16);
    gguf_moe_retype(&writer, 2, "up", GGML_BF16);
    gguf_moe_retype(&writer, 3, "down", GGML_F16);
    make_bf16("blk.2.ffn_gate_exps.weight");
    make_bf16("blk.2.ffn_up_exps.weight");
}

static moepage_model *open_gguf(void)
{
    gguf_write(&writer, dir, "m.gguf");
    return pack_open(file);
}

/* ---- Round trips ------------------------------------------------------------------------- */

/* What the pack says of an expert is what was put into the GGUF file, which the test itself wrote. */
static void expect_written_bytes(const moepage_model *model, uint32_t dense_layers)
{
    static const char *const names[TENSORS] = {"gate", "up", "down"};
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    unsigned char *slot = malloc(info.slot_bytes);
    for (uint32_t layer = 0; layer < info.moe_layers; layer++)
        for (uint32_t e = 0; e < info.experts; e++) {
            moepage_expert_tensor tensors[TENSORS];
            assert_int_equal(moepage_model_get_layer_tensors(model, layer, tensors, TENSORS), 0);
            assert_int_equal(moepage_model_read_expert(model, layer, e, slot, info.slot_bytes),
                             MOEPAGE_OK);
            for (uint32_t t = 0; t < TENSORS; t++) {
                char name[64];
                snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", dense_layers + layer,
                         names[t]);
                const gguf_made *made = gguf_made_of(&writer, name);
                assert_int_equal(tensors[t].bytes * info.experts, made->bytes);
                assert_memory_equal(slot + tensors[t].offset, made->data + e * tensors[t].bytes,
                                    tensors[t].bytes);
            }
        }
    free(slot);
}

static void expect_round_trip(const moepage_model *model, uint32_t forms, int32_t cold_level,
                              uint32_t dense_layers)
{
    moepage_pack_config config = pack_config(forms, cold_level);
    config.verify = 1;
    if (moepage_pack_write(model, path, &config, NULL))
        fail_msg("not packed: %s", moepage_last_error());
    moepage_model *pack = pack_open(path);
    pack_expect_same(model, pack);
    expect_written_bytes(pack, dense_layers);
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

static void test_mixed_pack_of_every_block_format_is_the_same_model(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        const gguf_moe of = blocks_of(formats[f]);
        gguf_moe_make(&writer, &of);
        moepage_model *model = open_gguf();
        for (int i = 0; i < N_KINDS; i++)
            expect_round_trip(model, kinds[i].forms, kinds[i].cold_level, 0);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        gguf_free(&writer);
    }
}

static void test_mixed_pack_of_all_block_formats_in_one_file_is_the_same_model(void **state)
{
    (void)state;
    enum { LAYERS = sizeof formats / sizeof *formats };
    gguf_moe of = blocks_of(GGML_Q8_0);
    of.layers = LAYERS;
    gguf_moe_make(&writer, &of);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        gguf_moe_retype(&writer, layer, "gate", formats[layer]);
        gguf_moe_retype(&writer, layer, "down", formats[(layer + 5) % LAYERS]);
    }
    moepage_model *model = open_gguf();
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.layouts, LAYERS);
    for (int i = 0; i < N_KINDS; i++)
        expect_round_trip(model, kinds[i].forms, kinds[i].cold_level, 0);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_mixed_pack_of_layers_that_mix_types_is_the_same_model(void **state)
{
    (void)state;
    make_mixed();
    moepage_model *model = open_gguf();
    for (int i = 0; i < N_KINDS; i++)
        expect_round_trip(model, kinds[i].forms, kinds[i].cold_level, 1);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* Only floats become integers, and only where a layer has them; its other layers refuse the form. */
static void test_mixed_pack_takes_integer_forms_of_floats_alone(void **state)
{
    (void)state;
    gguf_moe of = blocks_of(GGML_F16);
    gguf_moe_make(&writer, &of);
    gguf_moe_retype(&writer, 1, "down", GGML_BF16);
    for (uint32_t i = 0; i < writer.n_tensors;
         i++) /* finite, and no larger than a scale can hold */
        if (strstr(writer.tensors[i].name, "_exps"))
            for (uint64_t at = 1; at < writer.tensors[i].bytes; at += 2)
                writer.tensors[i].data[at] &= 0xbf;
    moepage_model *model = open_gguf();
    moepage_pack_config config =
        pack_config(PACK_FORM(DENSE) | PACK_FORM(INT8) | PACK_FORM(INT4) | PACK_FORM(INT2), 0);
    config.verify = 1;
    if (moepage_pack_write(model, path, &config, NULL))
        fail_msg("not packed: %s", moepage_last_error());
    moepage_model *pack = pack_open(path);
    pack_expect_same(model, pack);
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    gguf_moe_retype(&writer, 2, "up", GGML_Q4_0);
    model = open_gguf();
    assert_int_equal(moepage_pack_write(model, path, &config, NULL), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("tensor 1 is Q4_0");
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_mixed_pack_codes_the_parts_that_are_floats(void **state)
{
    (void)state;
    make_mixed();
    moepage_model *model = open_gguf();
    moepage_pack_config config = pack_config(PACK_FORM(EXPH), 0);
    moepage_pack_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_pack_write(model, path, &config, &stats), MOEPAGE_OK);
    moepage_model *pack = pack_open(path);
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t layer = 0; layer < 3; layer++) {
            mp_model_find_parts(pack, layer, e, MOEPAGE_FORM_EXPH, parts);
            for (uint32_t t = 0; t < TENSORS; t++)
                if (mp_model_layout(pack, layer)->tensors[t].dtype == MOEPAGE_DTYPE_BF16)
                    assert_int_equal(parts[t].form, MOEPAGE_FORM_EXPH);
                else if (mp_model_layout(pack, layer)->tensors[t].dtype != MOEPAGE_DTYPE_F16)
                    assert_int_equal(parts[t].form, MOEPAGE_FORM_DENSE);
        }
    assert_true(stats.form_bytes[MOEPAGE_FORM_EXPH] < stats.routed_bytes);
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* Nothing is coded where there is nothing to code. */
static void test_mixed_pack_of_blocks_is_dense_by_default(void **state)
{
    (void)state;
    for (int coded = 0; coded < 2; coded++) {
        const gguf_moe of = blocks_of(GGML_Q4_K);
        gguf_moe_make(&writer, &of);
        if (coded)
            gguf_moe_retype(&writer, 2, "down", GGML_F16);
        moepage_model *model = open_gguf();
        assert_int_equal(moepage_pack_write(model, path, NULL, NULL), MOEPAGE_OK);
        moepage_model *pack = pack_open(path);
        assert_int_equal(mp_model_has_form(pack, MOEPAGE_FORM_EXPH), coded);
        assert_int_equal(mp_model_has_form(pack, MOEPAGE_FORM_DENSE), !coded);
        assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        gguf_free(&writer);
    }
}

/* The first has it from the file, the second from the first. */
static void test_mixed_pack_of_a_pack_keeps_the_metadata(void **state)
{
    (void)state;
    char again[96];
    snprintf(again, sizeof again, "%s/n.moepack", dir);
    make_mixed();
    moepage_model *model = open_gguf();
    assert_int_equal(moepage_pack_write(model, path, NULL, NULL), MOEPAGE_OK);
    moepage_model *first = pack_open(path);
    moepage_pack_config config = pack_config(PACK_FORM(DENSE), 0);
    assert_int_equal(moepage_pack_write(first, again, &config, NULL), MOEPAGE_OK);
    moepage_model *second = pack_open(again);
    pack_expect_same(model, second);
    moepage_metadata tokens[GM_TOKENS + 1] = {{0}};
    uint64_t count;
    assert_int_equal(moepage_model_get_metadata(second, "tokenizer.ggml.tokens", 0, tokens,
                                                GM_TOKENS + 1, &count),
                     MOEPAGE_OK);
    assert_int_equal(count, GM_TOKENS);
    assert_int_equal(tokens[GM_TOKENS - 1].text_bytes, 3);
    assert_memory_equal(tokens[GM_TOKENS - 1].text, "tok", 3);
    assert_int_equal(moepage_model_get_metadata(second, "absent", 0, NULL, 0, &count),
                     MOEPAGE_E_NOT_FOUND);
    assert_int_equal(moepage_model_close(second), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(first), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- The bytes of the file --------------------------------------------------------------- */

static unsigned char *packed(uint32_t forms, uint64_t *n_bytes)
{
    moepage_model *model = open_gguf();
    unsigned char *bytes = pack_make(model, forms, 0, n_bytes);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    return bytes;
}

static void expect_version(uint32_t major, uint32_t minor)
{
    uint64_t n;
    unsigned char *bytes = packed(PACK_FORM(DENSE), &n);
    assert_int_equal(pack_number(bytes + 8, 2), major);
    assert_int_equal(pack_number(bytes + 10, 2), minor);
    free(bytes);
}

/* Those of readers that could not read the rest are refused by them. */
static void test_mixed_pack_has_the_oldest_version_that_can_hold_it(void **state)
{
    (void)state;
    gguf_moe of = blocks_of(GGML_Q4_K);
    gguf_moe_make(&writer, &of);
    expect_version(1, 1);
    gguf_moe_retype(&writer, 2, "down", GGML_Q6_K);
    expect_version(2, 0);
}

static void put_tensor(unsigned char **at, uint32_t role, uint32_t dtype, const uint64_t *shape,
                       uint64_t bytes, uint64_t offset)
{
    memset(*at, 0, 64);
    pack_set_number(*at, role, 4);
    pack_set_number(*at + 4, dtype, 4);
    pack_set_number(*at + 8, 2, 4);
    pack_set_number(*at + 16, shape[0], 8);
    pack_set_number(*at + 24, shape[1], 8);
    pack_set_number(*at + 48, bytes, 8);
    pack_set_number(*at + 56, offset, 8);
    *at += 64;
}

static void put_tensors(unsigned char **at, const uint32_t dtypes[TENSORS],
                        const uint64_t bytes[TENSORS])
{
    static const uint32_t roles[TENSORS] = {2, 3, 4};
    uint64_t offset = 0;
    for (int t = 0; t < TENSORS; t++) {
        put_tensor(at, roles[t], dtypes[t], (uint64_t[]){256, 256}, bytes[t], offset);
        offset += (bytes[t] + 255) / 256 * 256;
    }
}

/* SHAPE by hand, from docs/format-moepack.md: three layouts of as many layers, behind one without experts. */
static void test_mixed_pack_has_the_bytes_that_the_format_says(void **state)
{
    (void)state;
    enum { Q4_K = 144 * 256, Q6_K = 210 * 256, TWO = 2 * 65536 };
    static const uint32_t numbers[] = {4, 3, EXPERTS, 2, 256, 256, 0, 7, TENSORS, 1, 0, 0, 0, 3};
    static const uint32_t dtypes[3][TENSORS] = {{23, 23, 25}, {3, 3, 23}, {23, 23, 2}};
    static const uint64_t bytes[3][TENSORS] = {{Q4_K, Q4_K, Q6_K},
                                               {TWO, TWO, Q4_K},
                                               {Q4_K, Q4_K, TWO}};
    static const uint64_t slots[3] = {2 * Q4_K + Q6_K, 2 * TWO + Q4_K, 2 * Q4_K + TWO};
    unsigned char shape[2048] = "qwen3moe", *at = shape + 64;
    make_mixed();
    for (int i = 0; i < 14; i++, at += 4)
        pack_set_number(at, numbers[i], 4);
    pack_set_number(at, slots[0], 8);
    at += 8;
    put_tensors(&at, dtypes[0], bytes[0]);
    for (int layer = 1; layer < 4; layer++, at += 4)
        pack_set_number(at, (uint64_t)layer, 4);
    for (int layout = 0; layout < 3; layout++, at += 4)
        pack_set_number(at, (uint64_t)layout, 4);
    for (int layout = 1; layout < 3; layout++) {
        memset(at, 0, 16);
        pack_set_number(at + 16, slots[layout], 8);
        at += 24;
        put_tensors(&at, dtypes[layout], bytes[layout]);
    }
    uint64_t n;
    unsigned char *written = packed(PACK_FORM(DENSE), &n);
    pack_section of = pack_find_section(written, SHAPE, 0);
    assert_int_equal(of.bytes, at - shape);
    assert_memory_equal(written + of.offset, shape, of.bytes);
    of = pack_find_section(written, METADATA, 0);
    assert_int_equal(of.bytes, 8 + writer.values.n);
    assert_int_equal(pack_number(written + of.offset, 8), writer.n_values);
    assert_memory_equal(written + of.offset + 8, writer.values.at, writer.values.n);
    free(written);
}

/* ---- Rules that are broken --------------------------------------------------------------- */

typedef struct damage {
    uint32_t type;
    uint64_t at;
    int width;
    uint64_t value;
    moepage_status status;
    const char *words;
} damage;

static void expect_each_refused(const unsigned char *good, uint64_t n_bytes, const damage *list,
                                size_t n)
{
    unsigned char *copy = malloc(n_bytes);
    for (size_t i = 0; i < n; i++) {
        memcpy(copy, good, n_bytes);
        uint64_t from = list[i].type ? pack_find_section(good, list[i].type, 0).offset : 0;
        assert_int_not_equal(pack_number(copy + from + list[i].at, list[i].width), list[i].value);
        pack_set_number(copy + from + list[i].at, list[i].value, list[i].width);
        pack_seal(copy, n_bytes);
        pack_expect_refusal(copy, n_bytes, list[i].status, list[i].words);
    }
    free(copy);
}

static void test_mixed_pack_with_wrong_layouts_is_refused(void **state)
{
    (void)state;
    enum { LAYERS_AT = 128 + TENSORS * 64, OF = LAYERS_AT + 12, SECOND = OF + 12 };
    enum { THIRD = SECOND + LAYOUT };
    static const damage list[] = {
        {SHAPE, 116, 4, 0, MOEPAGE_E_FORMAT, "section SHAPE: the number of layouts is 0|2 to 32"},
        {SHAPE, 116, 4, 1, MOEPAGE_E_FORMAT, "section SHAPE: the number of layouts is 1"},
        {SHAPE, 116, 4, 2, MOEPAGE_E_FORMAT, "section SHAPE: it has|2 layouts"},
        {SHAPE, 116, 4, 4, MOEPAGE_E_FORMAT, "section SHAPE: it has|4 layouts"},
        {SHAPE, 116, 4, 33, MOEPAGE_E_FORMAT, "section SHAPE: the number of layouts is 33"},
        {SHAPE, 116, 4, UINT32_MAX, MOEPAGE_E_FORMAT, "section SHAPE: the number of layouts"},
        {SHAPE, 120, 8, 256, MOEPAGE_E_FORMAT, "section SHAPE: a slot has 256 bytes"},
        {SHAPE, LAYERS_AT, 4, 3, MOEPAGE_E_FORMAT, "section SHAPE: MoE layer 1"},
        {SHAPE, OF, 4, 1, MOEPAGE_E_FORMAT, "section SHAPE: MoE layer 0 has layout 1 of 3"},
        {SHAPE, OF + 4, 4, 0, MOEPAGE_E_FORMAT, "section SHAPE: MoE layer 2 has layout 2"},
        {SHAPE, OF + 4, 4, 2, MOEPAGE_E_FORMAT, "section SHAPE: MoE layer 1 has layout 2"},
        {SHAPE, OF + 8, 4, 1, MOEPAGE_E_FORMAT, "section SHAPE: no layer has layout 2 of 3"},
        {SHAPE, OF + 8, 4, 3, MOEPAGE_E_FORMAT, "section SHAPE: MoE layer 2 has layout 3 of 3"},
        {SHAPE, OF + 8, 4, 256, MOEPAGE_E_FORMAT, "section SHAPE: MoE layer 2 has layout 256"},
        {SHAPE, SECOND, 4, 1, MOEPAGE_E_FORMAT, "section SHAPE: layout 1: block scales"},
        {SHAPE, SECOND + 4, 4, 1, MOEPAGE_E_FORMAT, "section SHAPE: layout 1: block scales"},
        {SHAPE, SECOND + 12, 4, 1, MOEPAGE_E_FORMAT, "section SHAPE: layout 1: reserved is 0x1"},
        {SHAPE, SECOND + 16, 8, 256, MOEPAGE_E_FORMAT, "SHAPE: layout 1: a slot has 256 bytes"},
        {SHAPE, SECOND + 24, 4, 5, MOEPAGE_E_FORMAT, "SHAPE: layout 1: tensor 0 has another role"},
        {SHAPE, SECOND + 28, 4, 99, MOEPAGE_E_FORMAT, "SHAPE: layout 1: tensor 0 has dtype 99"},
        {SHAPE, SECOND + 28, 4, 1, MOEPAGE_E_FORMAT, "SHAPE: layout 1: tensor 0 has 131072 bytes"},
        {SHAPE, SECOND + 40, 8, 255, MOEPAGE_E_FORMAT,
         "SHAPE: layout 1: tensor 0 has another role or shape"},
        {SHAPE, SECOND + 72, 8, 1, MOEPAGE_E_FORMAT, "SHAPE: layout 1: tensor 0 has 1 bytes"},
        {SHAPE, THIRD + 16, 8, 512, MOEPAGE_E_FORMAT, "SHAPE: layout 2: a slot has 512 bytes"},
        {SHAPE, THIRD + 36, 4, 1, MOEPAGE_E_FORMAT, "SHAPE: layout 2: tensor 0 has reserved"},
        {0, 8, 2, 1, MOEPAGE_E_FORMAT, "no section METADATA"},
    };
    uint64_t n;
    make_mixed();
    unsigned char *good = packed(PACK_FORM(DENSE), &n);
    expect_each_refused(good, n, list, sizeof list / sizeof *list);
    free(good);
}

/* A key, u8 of 1; 8 bytes of its length, then "a", its type and its value. */
#define KEY(letter) 1, 0, 0, 0, 0, 0, 0, 0, letter

static void test_mixed_pack_with_wrong_metadata_is_refused(void **state)
{
    (void)state;
    static const struct {
        unsigned char bytes[48];
        uint64_t n;
        moepage_status status;
        const char *words;
    } list[] = {
        {{1}, 4, MOEPAGE_E_FORMAT, "section METADATA: 8 bytes are needed where 4"},
        {{1}, 8, MOEPAGE_E_FORMAT, "section METADATA|1 metadata keys|0 bytes have no room"},
        {{1, 0, 0, 0, 0, 0, 0, 0x80}, 40, MOEPAGE_E_FORMAT, "section METADATA|have no room"},
        {{0, 0, 0, 0, 0, 0, 0, 0, 7}, 9, MOEPAGE_E_FORMAT, "its 0 keys end 1 bytes before"},
        {{1, 0, 0, 0, 0, 0, 0, 0, KEY('a'), 0, 0, 0, 0, 5, 5},
         23,
         MOEPAGE_E_FORMAT,
         "section METADATA: its 1 keys end 1 bytes before"},
        {{1, 0, 0, 0, 0, 0, 0, 0, KEY('a'), 4, 0, 0, 0, 5},
         22,
         MOEPAGE_E_FORMAT,
         "section METADATA: metadata key \"a\": 1 elements of 4 bytes|where 1"},
        {{1, 0, 0, 0, 0, 0, 0, 0, KEY('a'), 7, 0, 0, 0, 5},
         22,
         MOEPAGE_E_FORMAT,
         "section METADATA: metadata key \"a\": a truth value is 5"},
        {{1, 0, 0, 0, 0, 0, 0, 0, KEY('a'), 8, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255},
         29,
         MOEPAGE_E_FORMAT,
         "section METADATA: metadata key \"a\""},
        {{2, 0, 0, 0, 0, 0, 0, 0, KEY('a'), 0, 0, 0, 0, 5, KEY('a'), 0, 0, 0, 0, 5},
         36,
         MOEPAGE_E_FORMAT,
         "section METADATA: metadata key \"a\" is there twice"},
        {{1, 0, 0, 0, 0, 0, 0, 0, KEY('\n'), 0, 0, 0, 0, 5},
         22,
         MOEPAGE_E_FORMAT,
         "section METADATA: metadata key 0 of 1: byte 0 of the name"},
        {{1, 0, 0, 0, 0, 0, 0, 0, KEY('a'), 13, 0, 0, 0, 5},
         22,
         MOEPAGE_E_UNSUPPORTED,
         "section METADATA: metadata key \"a\": its type is 13"},
    };
    const gguf_moe of = blocks_of(GGML_Q4_K);
    uint64_t n;
    gguf_moe_make(&writer, &of);
    unsigned char *good = packed(PACK_FORM(DENSE), &n);
    const pack_section at = pack_find_section(good, METADATA, 0);
    unsigned char *copy = malloc(n);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        memcpy(copy, good, n);
        memset(copy + at.offset, 0, 4096);
        memcpy(copy + at.offset, list[i].bytes, list[i].n);
        for (unsigned char *entry = copy + 128;; entry += 32)
            if (entry[0] == METADATA) {
                pack_set_number(entry + 16, list[i].n, 8);
                break;
            }
        pack_seal(copy, n);
        pack_expect_refusal(copy, n, list[i].status, list[i].words);
    }
    static const damage old[] = {
        {0, 10, 2, 0, MOEPAGE_E_FORMAT, "section table: version 1.0 has no section METADATA"},
        {SHAPE, 116, 4, 2, MOEPAGE_E_FORMAT, "layouts is 2, in format version 1 it must be 0"},
    };
    expect_each_refused(good, n, old, 2);
    free(copy);
    free(good);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_mixed_pack_of_every_block_format_is_the_same_model),
        CASE(test_mixed_pack_of_all_block_formats_in_one_file_is_the_same_model),
        CASE(test_mixed_pack_of_layers_that_mix_types_is_the_same_model),
        CASE(test_mixed_pack_takes_integer_forms_of_floats_alone),
        CASE(test_mixed_pack_codes_the_parts_that_are_floats),
        CASE(test_mixed_pack_of_blocks_is_dense_by_default),
        CASE(test_mixed_pack_of_a_pack_keeps_the_metadata),
        CASE(test_mixed_pack_has_the_oldest_version_that_can_hold_it),
        CASE(test_mixed_pack_has_the_bytes_that_the_format_says),
        CASE(test_mixed_pack_with_wrong_layouts_is_refused),
        CASE(test_mixed_pack_with_wrong_metadata_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
