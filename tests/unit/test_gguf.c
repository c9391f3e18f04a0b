/* GGUF files: a good one yields all its values and tensors, every bad one is refused by name, and no
 * bytes at all lead out of the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "gguf_sound.h"
#include "gguf_writer.h"
#include "gguf_wrong.h"
#include "moe_maker.h"
#include "testing.h"

static char dir[64];
static gguf_writer writer;

static int make(void **state)
{
    (void)state;
    maker_dir_create(dir);
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

static moepage_status open_named(const char *name, mp_gguf **out)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *out = NULL;
    return mp_gguf_open(path, out);
}

static mp_gguf *expect_open(const char *name)
{
    mp_gguf *gguf;
    if (open_named(name, &gguf))
        fail_msg("refused: %s", moepage_last_error());
    const char *wrong = gguf_unsound(gguf);
    if (wrong)
        fail_msg("%s", wrong);
    return gguf;
}

static mp_gguf *write_and_open(void)
{
    gguf_write(&writer, dir, "a.gguf");
    return expect_open("a.gguf");
}

static void expect_refusal(const char *name, moepage_status status, const char *words)
{
    mp_gguf *gguf;
    moepage_status found = open_named(name, &gguf);
    if (found != status)
        fail_msg("status %d, not %d, for words %s: %s", found, status, words,
                 found ? moepage_last_error() : "accepted");
    expect_sentence(words);
    assert_null(gguf);
}

#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__})

/* ---- Tensors ---- */

/* The file's bytes where the tensor was found. */
static void expect_bytes(const mp_gguf_tensor *found, const void *bytes, uint64_t n)
{
    unsigned char *read;
    assert_true(n <= found->bytes);
    assert_int_equal(mp_model_file_load(&found->file->file, found->offset, n, &read), MOEPAGE_OK);
    assert_memory_equal(read, bytes, n);
    free(read);
}

static void expect_tensor(const mp_gguf *gguf, const gguf_made *made)
{
    const mp_gguf_tensor *found = mp_gguf_find(gguf, made->name);
    assert_non_null(found);
    assert_string_equal(found->name, made->name);
    assert_int_equal(found->rank, made->rank);
    assert_memory_equal(found->shape, made->shape, made->rank * sizeof *made->shape);
    assert_int_equal(found->ggml_type, made->type);
    assert_int_equal(found->bytes, made->bytes);
    expect_bytes(found, made->data, made->bytes);
    assert_false(found->routed);
}

static void expect_tensors(const mp_gguf *gguf)
{
    assert_int_equal(gguf->n_tensors, writer.n_tensors);
    for (uint32_t i = 0; i < writer.n_tensors; i++)
        expect_tensor(gguf, &writer.tensors[i]);
}

static void test_gguf_finds_every_tensor_where_the_file_has_it(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, dtype;
    } types[] = {
        {GGML_F32, MOEPAGE_DTYPE_F32},   {GGML_F16, MOEPAGE_DTYPE_F16},
        {GGML_BF16, MOEPAGE_DTYPE_BF16}, {GGML_I8, MOEPAGE_DTYPE_I8},
        {GGML_I32, MOEPAGE_DTYPE_I32},   {GGML_I64, MOEPAGE_DTYPE_I64},
        {GGML_I16, MOEPAGE_DTYPE_NONE},  {GGML_F64, MOEPAGE_DTYPE_NONE},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        gguf_tensor(&writer, types[i].type, 2, SHAPE(5, 3), "z%zu.weight", 90 - i);
    for (uint32_t version = 2; version <= 3; version++) {
        writer.version = version;
        mp_gguf *gguf = write_and_open();
        expect_tensors(gguf);
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            const mp_gguf_tensor *found = mp_gguf_find(gguf, writer.tensors[i].name);
            assert_int_equal(found->dtype, types[i].dtype);
            assert_true(found->sized);
        }
        assert_null(mp_gguf_find(gguf, "z90"));
        mp_gguf_close(gguf);
    }
}

static void test_gguf_sizes_tensors_of_blocks(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, dtype, block;
    } types[] = {
        {GGML_Q4_0, MOEPAGE_DTYPE_Q4_0, 32},     {GGML_Q4_1, MOEPAGE_DTYPE_Q4_1, 32},
        {GGML_Q5_0, MOEPAGE_DTYPE_Q5_0, 32},     {GGML_Q5_1, MOEPAGE_DTYPE_Q5_1, 32},
        {GGML_Q8_0, MOEPAGE_DTYPE_Q8_0, 32},     {GGML_Q2_K, MOEPAGE_DTYPE_Q2_K, 256},
        {GGML_Q3_K, MOEPAGE_DTYPE_Q3_K, 256},    {GGML_Q4_K, MOEPAGE_DTYPE_Q4_K, 256},
        {GGML_Q5_K, MOEPAGE_DTYPE_Q5_K, 256},    {GGML_Q6_K, MOEPAGE_DTYPE_Q6_K, 256},
        {GGML_IQ4_NL, MOEPAGE_DTYPE_IQ4_NL, 32}, {GGML_IQ4_XS, MOEPAGE_DTYPE_IQ4_XS, 256},
        {GGML_MXFP4, MOEPAGE_DTYPE_MXFP4, 32},   {GGML_NVFP4, MOEPAGE_DTYPE_NVFP4, 64},
    };
    const size_t n = sizeof types / sizeof *types;
    for (size_t i = 0; i < n; i++)
        gguf_tensor(&writer, types[i].type, 3, SHAPE(2 * types[i].block, 3, 2), "t%zu", i);
    mp_gguf *gguf = write_and_open();
    expect_tensors(gguf);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(mp_gguf_find(gguf, writer.tensors[i].name)->dtype, types[i].dtype);
    mp_gguf_close(gguf);
    for (size_t i = 0; i < n; i++) {
        writer.tensors[i].shape[0]--;
        gguf_write(&writer, dir, "a.gguf");
        char words[64];
        snprintf(words, sizeof words, "\"t%zu\"|is %u|%u weights", i, 2 * types[i].block - 1,
                 types[i].block);
        expect_refusal("a.gguf", MOEPAGE_E_FORMAT, words);
        writer.tensors[i].shape[0]++;
    }
}

static void test_gguf_takes_scalars_empty_tensors_and_four_dimensions(void **state)
{
    (void)state;
    gguf_tensor(&writer, GGML_F32, 0, NULL, "scalar");
    gguf_tensor(&writer, GGML_F32, 2, SHAPE(0, 7), "empty");
    gguf_tensor(&writer, GGML_F16, 4, SHAPE(2, 3, 1, 5), "deep");
    gguf_tensor(&writer, GGML_F32, 3, SHAPE(4, 1, 0), "empty.last");
    mp_gguf *gguf = write_and_open();
    expect_tensors(gguf);
    assert_int_equal(mp_gguf_find(gguf, "scalar")->bytes, 4);
    assert_int_equal(mp_gguf_find(gguf, "empty")->bytes, 0);
    assert_int_equal(mp_gguf_find(gguf, "deep")->bytes, 60);
    mp_gguf_close(gguf);
}

static void test_gguf_takes_a_file_of_neither_values_nor_tensors(void **state)
{
    (void)state;
    mp_gguf *gguf = write_and_open();
    assert_int_equal(gguf->n_tensors, 0);
    assert_int_equal(mp_gguf_metadata_of(gguf)->n_values, 0);
    assert_null(mp_gguf_find(gguf, "a"));
    assert_null(mp_gguf_metadata_find(mp_gguf_metadata_of(gguf), "a"));
    mp_gguf_close(gguf);
}

static void test_gguf_honours_the_alignment(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {8, 16, 64, 4096};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        gguf_free(&writer);
        writer.alignment = alignments[i];
        gguf_u32(&writer, "general.alignment", alignments[i]);
        gguf_tensor(&writer, GGML_I8, 1, SHAPE(3), "a");
        gguf_tensor(&writer, GGML_F32, 1, SHAPE(3), "b");
        mp_gguf *gguf = write_and_open();
        expect_tensors(gguf);
        assert_int_equal(mp_gguf_find(gguf, "b")->offset - mp_gguf_find(gguf, "a")->offset,
                         alignments[i]);
        mp_gguf_close(gguf);
    }
}

/* A tensor of an unknown type reaches to the next one: nothing of it is lost. */
static void test_gguf_lists_a_tensor_of_unknown_type(void **state)
{
    (void)state;
    gguf_tensor(&writer, GGML_UNKNOWN, 2, SHAPE(10, 4), "first");
    gguf_tensor(&writer, GGML_F32, 1, SHAPE(2), "second");
    gguf_tensor(&writer, GGML_UNKNOWN, 1, SHAPE(5), "third");
    mp_gguf *gguf = write_and_open();
    const mp_gguf_tensor *first = mp_gguf_find(gguf, "first");
    assert_false(first->sized);
    assert_int_equal(first->dtype, MOEPAGE_DTYPE_NONE);
    assert_int_equal(first->bytes, 64);
    expect_bytes(first, writer.tensors[0].data, 40);
    expect_tensor(gguf, &writer.tensors[1]);
    assert_int_equal(mp_gguf_find(gguf, "third")->bytes, 5);
    mp_gguf_close(gguf);
}

/* ---- Values ---- */

static const mp_gguf_value *value_of(const mp_gguf *gguf, const char *key)
{
    const mp_gguf_value *value = mp_gguf_metadata_find(mp_gguf_metadata_of(gguf), key);
    assert_non_null(value);
    assert_string_equal(value->key, key);
    return value;
}

static void test_gguf_reads_integers_of_every_width(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, bytes;
        uint64_t bits;
        int64_t number;
        bool is_int;
    } integers[] = {
        {W_U8, 1, 0xfe, 254, true},
        {W_I8, 1, 0xfe, -2, true},
        {W_U16, 2, 0xfffe, 65534, true},
        {W_I16, 2, 0xfffe, -2, true},
        {W_U32, 4, 0xfffffffe, 4294967294, true},
        {W_I32, 4, 0xfffffffe, -2, true},
        {W_U64, 8, UINT64_MAX - 1, 0, false},
        {W_U64, 8, 0x8000000000000000, 0, false},
        {W_U64, 8, 7, 7, true},
        {W_I64, 8, UINT64_MAX - 1, -2, true},
        {W_I64, 8, 0x7fffffffffffffff, INT64_MAX, true},
    };
    const size_t n = sizeof integers / sizeof *integers;
    char key[16];
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "k%zu", i);
        gguf_key(&writer, key, integers[i].type);
        gguf_append_uint(&writer.values, integers[i].bits, integers[i].bytes);
    }
    mp_gguf *gguf = write_and_open();
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "k%zu", i);
        const mp_gguf_value *value = value_of(gguf, key);
        int64_t number = 0;
        assert_int_equal(value->type, integers[i].type);
        assert_int_equal(mp_gguf_value_int(value, 0, &number), integers[i].is_int);
        assert_true(number == integers[i].number);
    }
    mp_gguf_close(gguf);
}

static void test_gguf_reads_reals_truths_and_texts(void **state)
{
    (void)state;
    gguf_f32(&writer, "real", -1.5f);
    gguf_key(&writer, "double", W_F64);
    gguf_append_uint(&writer.values, 0x3ff8000000000000, 8);
    gguf_bool(&writer, "yes", true);
    gguf_bool(&writer, "no", false);
    gguf_text(&writer, "text", "qwen3moe");
    gguf_text(&writer, "nothing", "");
    mp_gguf *gguf = write_and_open();
    double real = 0;
    bool truth = false;
    int64_t number;
    assert_true(mp_gguf_value_real(value_of(gguf, "real"), 0, &real) && real == -1.5);
    assert_true(mp_gguf_value_real(value_of(gguf, "double"), 0, &real) && real == 1.5);
    assert_true(mp_gguf_value_bool(value_of(gguf, "yes"), 0, &truth) && truth);
    assert_true(mp_gguf_value_bool(value_of(gguf, "no"), 0, &truth) && !truth);
    assert_false(mp_gguf_value_int(value_of(gguf, "yes"), 0, &number));
    assert_false(mp_gguf_value_int(value_of(gguf, "real"), 0, &number));
    assert_false(mp_gguf_value_real(value_of(gguf, "text"), 0, &real));
    mp_gguf_text text;
    const mp_gguf_metadata *metadata = mp_gguf_metadata_of(gguf);
    assert_int_equal(mp_gguf_get_text(metadata, "text", &text), MOEPAGE_OK);
    assert_int_equal(text.n_bytes, 8);
    assert_memory_equal(text.bytes, "qwen3moe", 8);
    assert_int_equal(mp_gguf_get_text(metadata, "nothing", &text), MOEPAGE_OK);
    assert_int_equal(text.n_bytes, 0);
    assert_int_equal(mp_gguf_get_text(metadata, "real", &text), MOEPAGE_E_FORMAT);
    expect_sentence("\"real\"|of type 6|a text");
    assert_int_equal(mp_gguf_get_text(metadata, "txt", &text), MOEPAGE_E_FORMAT);
    expect_sentence("\"txt\"|missing");
    mp_gguf_close(gguf);
}

static void test_gguf_reads_arrays_in_the_file(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<s>", "", "\xc4\xa0the", "a\nb"};
    gguf_array(&writer, "tokens", W_TEXT, 4);
    for (size_t i = 0; i < 4; i++)
        gguf_append_text(&writer.values, tokens[i]);
    gguf_array(&writer, "numbers", W_I16, 3);
    for (uint64_t i = 0; i < 3; i++)
        gguf_append_uint(&writer.values, (uint64_t) - (int64_t)i, 2);
    gguf_array(&writer, "none", W_F64, 0);
    gguf_array(&writer, "no.texts", W_TEXT, 0);
    mp_gguf *gguf = write_and_open();
    const mp_gguf_value *value = value_of(gguf, "tokens");
    const unsigned char *at = NULL;
    mp_gguf_text text;
    assert_int_equal(value->type, MP_GGUF_ARRAY);
    assert_int_equal(value->element, MP_GGUF_TEXT);
    assert_int_equal(value->n, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_true(mp_gguf_value_text(value, &at, &text));
        assert_int_equal(text.n_bytes, strlen(tokens[i]));
        assert_memory_equal(text.bytes, tokens[i], text.n_bytes);
    }
    assert_false(mp_gguf_value_text(value, &at, &text));
    value = value_of(gguf, "numbers");
    assert_int_equal(value->n, 3);
    for (int64_t i = 0, number; i < 3; i++)
        assert_true(mp_gguf_value_int(value, (uint64_t)i, &number) && number == -i);
    assert_int_equal(value_of(gguf, "none")->n, 0);
    at = NULL;
    assert_false(mp_gguf_value_text(value_of(gguf, "no.texts"), &at, &text));
    mp_gguf_close(gguf);
}

static void test_gguf_gives_integers_by_key_within_bounds(void **state)
{
    (void)state;
    gguf_u32(&writer, "n", 12);
    gguf_key(&writer, "minus", W_I32);
    gguf_append_uint(&writer.values, (uint64_t)-5, 4);
    gguf_key(&writer, "large", W_U64);
    gguf_append_uint(&writer.values, UINT64_C(1) << 40, 8);
    gguf_text(&writer, "text", "12");
    gguf_array(&writer, "array", W_U32, 1);
    gguf_append_uint(&writer.values, 12, 4);
    mp_gguf *gguf = write_and_open();
    const mp_gguf_metadata *metadata = mp_gguf_metadata_of(gguf);
    uint32_t n = 0;
    assert_int_equal(mp_gguf_get_uint(metadata, "n", 1, 12, &n), MOEPAGE_OK);
    assert_int_equal(n, 12);
    assert_int_equal(mp_gguf_get_uint_or(metadata, "n", 1, 12, 3, &n), MOEPAGE_OK);
    assert_int_equal(n, 12);
    assert_int_equal(mp_gguf_get_uint_or(metadata, "absent", 1, 12, 3, &n), MOEPAGE_OK);
    assert_int_equal(n, 3);
    static const struct {
        const char *key, *words;
    } bad[] = {
        {"n", "\"n\" is 12|1 to 11"},
        {"absent", "\"absent\" is missing"},
        {"minus", "\"minus\" is -5|1 to 11"},
        {"large", "\"large\" is 1099511627776|1 to 11"},
        {"text", "\"text\" is of type 8|an integer"},
        {"array", "\"array\" is of type 9|an integer"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(mp_gguf_get_uint(metadata, bad[i].key, 1, 11, &n), MOEPAGE_E_FORMAT);
        expect_sentence(bad[i].words);
    }
    mp_gguf_close(gguf);
}

/* ---- Refusals ---- */

static void test_gguf_refuses_all_but_regular_files(void **state)
{
    (void)state;
    char path[128];
    expect_refusal("absent.gguf", MOEPAGE_E_NOT_FOUND, "absent.gguf|No such file");
    snprintf(path, sizeof path, "%s/dir.gguf", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refusal("dir.gguf", MOEPAGE_E_FORMAT, "dir.gguf|regular");
    maker_write(dir, "empty.gguf", "", 0);
    expect_refusal("empty.gguf", MOEPAGE_E_FORMAT, "empty.gguf is empty");
    maker_write_text(dir, "text.gguf", "{\"model_type\": \"qwen3_moe\"}");
    expect_refusal("text.gguf", MOEPAGE_E_FORMAT, "text.gguf|does not start with \"GGUF\"");
}

static void test_gguf_refuses_other_versions_and_byte_orders(void **state)
{
    (void)state;
    static const struct {
        uint32_t version;
        const char *words;
    } bad[] = {
        {0, "bad.gguf|version 0|2 and 3"},
        {1, "bad.gguf|version 1|2 and 3"},
        {4, "bad.gguf|version 4|2 and 3"},
        {0x03000000, "bad.gguf|version 3 in big-endian"},
        {0xffffffff, "bad.gguf|version 4294967295|2 and 3"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        writer.version = bad[i].version;
        gguf_write(&writer, dir, "bad.gguf");
        expect_refusal("bad.gguf", MOEPAGE_E_UNSUPPORTED, bad[i].words);
    }
}

static void test_gguf_refuses_every_malformed_header_by_name(void **state)
{
    (void)state;
    for (const gguf_wrong *wrong = gguf_wrongs; wrong->name; wrong++) {
        gguf_free(&writer);
        wrong->make(&writer);
        gguf_write(&writer, dir, "bad.gguf");
        expect_refusal("bad.gguf", wrong->status, wrong->words);
        expect_sentence("bad.gguf");
    }
}

/* ---- Parts of a split model ---- */

static gguf_writer parts[3];

static void say_part(gguf_writer *w, uint32_t no, uint32_t count, uint32_t tensors)
{
    gguf_u16(w, "split.no", (uint16_t)no);
    gguf_u16(w, "split.count", (uint16_t)count);
    gguf_key(w, "split.tensors.count", W_I32);
    gguf_append_uint(&w->values, tensors, 4);
}

/* Three parts: metadata alone, two tensors, one tensor. */
static int make_parts(void **state)
{
    make(state);
    for (uint32_t i = 0; i < 3; i++)
        gguf_init(&parts[i]);
    gguf_text(&parts[0], "general.architecture", "qwen3moe");
    for (uint32_t i = 0; i < 3; i++)
        say_part(&parts[i], i, 3, 3);
    gguf_tensor(&parts[1], GGML_F32, 1, SHAPE(8), "b");
    gguf_tensor(&parts[1], GGML_F16, 1, SHAPE(3), "a");
    gguf_tensor(&parts[2], GGML_BF16, 1, SHAPE(40), "c");
    return 0;
}

static int unmake_parts(void **state)
{
    for (uint32_t i = 0; i < 3; i++)
        gguf_free(&parts[i]);
    return unmake(state);
}

static void write_parts(void)
{
    gguf_write(&parts[0], dir, "m-00001-of-00003.gguf");
    gguf_write(&parts[1], dir, "m-00002-of-00003.gguf");
    gguf_write(&parts[2], dir, "m-00003-of-00003.gguf");
}

#define FIRST "m-00001-of-00003.gguf"

static void test_gguf_opens_all_parts_of_a_split_model(void **state)
{
    (void)state;
    write_parts();
    mp_gguf *gguf = expect_open(FIRST);
    assert_int_equal(gguf->n_files, 3);
    assert_int_equal(gguf->n_tensors, 3);
    assert_non_null(value_of(gguf, "general.architecture"));
    expect_tensor(gguf, &parts[1].tensors[0]);
    expect_tensor(gguf, &parts[1].tensors[1]);
    expect_tensor(gguf, &parts[2].tensors[0]);
    assert_string_equal(mp_gguf_find(gguf, "c")->file->file.name, "m-00003-of-00003.gguf");
    mp_gguf_close(gguf);
}

static void test_gguf_refuses_parts_that_do_not_form_a_model(void **state)
{
    (void)state;
    static const struct {
        uint32_t part, no, count, tensors;
        const char *words;
    } bad[] = {
        {1, 2, 3, 3, "m-00002-of-00003.gguf|part 3 by its metadata|part 2 by its name"},
        {1, 1, 4, 3, "m-00002-of-00003.gguf|4 parts and 3 tensors|3 parts and 3 tensors"},
        {2, 2, 3, 4, "m-00003-of-00003.gguf|3 parts and 4 tensors|3 parts and 3 tensors"},
        {2, 0, 0, 3, "m-00003-of-00003.gguf|0 parts"},
        {0, 0, 2, 3, "m-00001-of-00003.gguf|-00001-of-00002.gguf"},
        {0, 3, 3, 3, "m-00001-of-00003.gguf|split.no|is 3|0 to 2"},
        {0, 0, 3, 4, "m-00002-of-00003.gguf|3 tensors|4 tensors"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (uint32_t p = 0; p < 3; p++) {
            gguf_clear_values(&parts[p]);
            const bool it = p == bad[i].part;
            say_part(&parts[p], it ? bad[i].no : p, it ? bad[i].count : 3, it ? bad[i].tensors : 3);
        }
        write_parts();
        expect_refusal(FIRST, MOEPAGE_E_FORMAT, bad[i].words);
    }
}

static void test_gguf_names_a_part_that_is_missing_or_damaged(void **state)
{
    (void)state;
    gguf_write(&parts[0], dir, "m-00001-of-00003.gguf");
    gguf_write(&parts[1], dir, "m-00002-of-00003.gguf");
    expect_refusal(FIRST, MOEPAGE_E_NOT_FOUND, "part 3 of 3 is missing|m-00003-of-00003.gguf");
    maker_write_text(dir, "m-00003-of-00003.gguf", "GGUF");
    expect_refusal(FIRST, MOEPAGE_E_FORMAT, "m-00003-of-00003.gguf|truncated");
}

static void test_gguf_is_opened_by_its_first_part(void **state)
{
    (void)state;
    write_parts();
    expect_refusal("m-00002-of-00003.gguf", MOEPAGE_E_UNSUPPORTED,
                   "m-00002-of-00003.gguf|part 2 of 3|open the first, m-00001-of-00003.gguf");
    gguf_write(&parts[0], dir, "renamed.gguf");
    expect_refusal("renamed.gguf", MOEPAGE_E_FORMAT, "renamed.gguf|part 1 of 3|-00001-of-00003");
    gguf_write(&parts[0], dir, "-00001-of-00003.gguf");
    expect_refusal("-00001-of-00003.gguf", MOEPAGE_E_NOT_FOUND, "part 2 of 3");
}

static void test_gguf_counts_tensors_over_all_parts(void **state)
{
    (void)state;
    gguf_remove(&parts[1], "a");
    write_parts();
    expect_refusal(FIRST, MOEPAGE_E_FORMAT, FIRST "|3 tensors by its metadata|3 parts have 2");
    gguf_tensor(&parts[1], GGML_F32, 1, SHAPE(8), "c");
    write_parts();
    expect_refusal(FIRST, MOEPAGE_E_FORMAT,
                   "\"c\"|two files|m-00002-of-00003.gguf|m-00003-of-00003.gguf");
}

/* A merged model may keep the keys, with a count of 0. */
static void test_gguf_takes_a_merged_model_for_whole(void **state)
{
    (void)state;
    for (uint32_t count = 0; count < 2; count++) {
        gguf_free(&writer);
        say_part(&writer, 0, count, 7);
        gguf_tensor(&writer, GGML_F32, 1, SHAPE(8), "a");
        mp_gguf *gguf = write_and_open();
        expect_tensors(gguf);
        mp_gguf_close(gguf);
    }
}

/* ---- Any bytes ---- */

/* Something of everything, in few bytes. */
static unsigned char *make_small(size_t *n_bytes)
{
    gguf_text(&writer, "general.architecture", "x");
    gguf_u32(&writer, "general.alignment", 32);
    gguf_array(&writer, "texts", W_TEXT, 2);
    gguf_append_text(&writer.values, "a");
    gguf_append_text(&writer.values, "");
    gguf_array(&writer, "truths", W_BOOL, 2);
    gguf_append_uint(&writer.values, 0x0100, 2);
    gguf_array(&writer, "reals", W_F64, 1);
    gguf_append_uint(&writer.values, 0x3ff8000000000000, 8);
    gguf_u16(&writer, "split.count", 0);
    gguf_tensor(&writer, GGML_F32, 2, SHAPE(2, 5), "aa");
    gguf_tensor(&writer, GGML_Q8_0, 2, SHAPE(32, 2), "ab");
    gguf_tensor(&writer, GGML_UNKNOWN, 1, SHAPE(7), "b");
    gguf_tensor(&writer, GGML_I8, 1, SHAPE(3), "ac");
    return gguf_whole(&writer, n_bytes);
}

/* Opens the bytes; says whether they were accepted. */
static bool try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    mp_gguf *gguf;
    char path[128];
    /* A new file: some file systems write at once if an old one is replaced. */
    snprintf(path, sizeof path, "%s/any.gguf", dir);
    unlink(path);
    maker_write(dir, "any.gguf", bytes, n_bytes);
    moepage_status status = open_named("any.gguf", &gguf);
    if (status) {
        if (status != MOEPAGE_E_FORMAT && status != MOEPAGE_E_UNSUPPORTED &&
            status != MOEPAGE_E_NOT_FOUND)
            fail_msg("status %d: %s", status, moepage_last_error());
        expect_sentence("any.gguf");
        return false;
    }
    const char *wrong = gguf_unsound(gguf);
    mp_gguf_close(gguf);
    if (wrong)
        fail_msg("%s", wrong);
    return true;
}

static void test_gguf_refuses_every_truncation(void **state)
{
    (void)state;
    size_t n_whole;
    unsigned char *whole = make_small(&n_whole);
    assert_true(try_bytes(whole, n_whole));
    for (size_t n = 0; n < n_whole; n++)
        if (try_bytes(whole, n))
            fail_msg("accepted when cut to %zu of %zu bytes", n, n_whole);
    free(whole);
}

static void test_gguf_survives_every_change_of_a_byte(void **state)
{
    (void)state;
    const unsigned step = getenv("MP_TEST_LONG") ? 1 : 85; /* or three values for each byte */
    size_t n_whole, accepted = 0, tried = 0;
    unsigned char *whole = make_small(&n_whole);
    for (size_t i = 0; i < n_whole; i++) {
        const unsigned char was = whole[i];
        for (unsigned change = step; change < 256; change += step, tried++) {
            whole[i] = was ^ (unsigned char)change;
            accepted += try_bytes(whole, n_whole);
        }
        whole[i] = was;
    }
    assert_in_range(accepted, 1, tried * 9 / 10);
    free(whole);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Several fields at once become numbers at the edges of their ranges. */
static void test_gguf_survives_random_numbers_in_its_header(void **state)
{
    (void)state;
    uint64_t seed = 0x67677566, n_rounds = getenv("MP_TEST_LONG") ? 100000 : 1000;
    size_t n_whole;
    unsigned char *whole = make_small(&n_whole), *edited = malloc(n_whole);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < n_rounds; round++) {
        memcpy(edited, whole, n_whole);
        for (uint64_t edits = 1 + next_random(&seed) % 3; edits; edits--) {
            static const uint64_t likely[] = {0, 1, 2, 8, 31, 32, 33, 255, 4096};
            uint64_t number = likely[next_random(&seed) % (sizeof likely / sizeof *likely)];
            number <<= next_random(&seed) % 2 * (next_random(&seed) % 64);
            number -= next_random(&seed) % 2;
            size_t width = next_random(&seed) % 2 ? 4 : 8;
            size_t at = next_random(&seed) % (n_whole - width);
            for (size_t i = 0; i < width; i++)
                edited[at + i] = (unsigned char)(number >> 8 * i);
        }
        try_bytes(edited, n_whole);
    }
    free(edited);
    free(whole);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
#define PARTS_CASE(f) cmocka_unit_test_setup_teardown(f, make_parts, unmake_parts)
    const struct CMUnitTest tests[] = {
        CASE(test_gguf_finds_every_tensor_where_the_file_has_it),
        CASE(test_gguf_sizes_tensors_of_blocks),
        CASE(test_gguf_takes_scalars_empty_tensors_and_four_dimensions),
        CASE(test_gguf_takes_a_file_of_neither_values_nor_tensors),
        CASE(test_gguf_honours_the_alignment),
        CASE(test_gguf_lists_a_tensor_of_unknown_type),
        CASE(test_gguf_reads_integers_of_every_width),
        CASE(test_gguf_reads_reals_truths_and_texts),
        CASE(test_gguf_reads_arrays_in_the_file),
        CASE(test_gguf_gives_integers_by_key_within_bounds),
        CASE(test_gguf_refuses_all_but_regular_files),
        CASE(test_gguf_refuses_other_versions_and_byte_orders),
        CASE(test_gguf_refuses_every_malformed_header_by_name),
        PARTS_CASE(test_gguf_opens_all_parts_of_a_split_model),
        PARTS_CASE(test_gguf_refuses_parts_that_do_not_form_a_model),
        PARTS_CASE(test_gguf_names_a_part_that_is_missing_or_damaged),
        PARTS_CASE(test_gguf_is_opened_by_its_first_part),
        PARTS_CASE(test_gguf_counts_tensors_over_all_parts),
        CASE(test_gguf_takes_a_merged_model_for_whole),
        CASE(test_gguf_refuses_every_truncation),
        CASE(test_gguf_survives_every_change_of_a_byte),
        CASE(test_gguf_survives_random_numbers_in_its_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
