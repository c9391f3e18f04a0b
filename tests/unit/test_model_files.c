/* Which files of a directory are the checkpoint, and what an index may say. */
#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

static moe_maker maker;

static int make(void **state)
{
    (void)state;
    moe_maker_init(&maker);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    moe_maker_free(&maker);
    return 0;
}

/* Spreads the tensors over two files, every second one in the other. */
static void write_two_files(const char *first, const char *second)
{
    static maker_shard half[2];
    half[0].n_tensors = half[1].n_tensors = 0;
    for (uint32_t i = 0; i < maker.shard.n_tensors; i++)
        half[i % 2].tensors[half[i % 2].n_tensors++] = maker.shard.tensors[i];
    maker_write_text(maker.dir, "config.json", maker.config);
    maker_write_shard(&half[0], maker.dir, first);
    maker_write_shard(&half[1], maker.dir, second);
}

static void write_index(const char *first, const char *second, const char *extra)
{
    char text[16384];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"metadata\": {}, \"weight_map\": {%s", extra);
    for (uint32_t i = 0; i < maker.shard.n_tensors; i++)
        n +=
            (size_t)snprintf(text + n, sizeof text - n, "%s\"%s\": \"%s\"", i || *extra ? ", " : "",
                             maker.shard.tensors[i].name, i % 2 ? second : first);
    snprintf(text + n, sizeof text - n, "}}");
    maker_write_text(maker.dir, "model.safetensors.index.json", text);
}

static void test_model_open_reads_indexed_files_and_only_those(void **state)
{
    (void)state;
    write_two_files("part-a.safetensors", "part-b.safetensors");
    write_index("part-a.safetensors", "part-b.safetensors", "");
    maker_write_text(maker.dir, "unrelated.safetensors", "not one");
    moe_expect_whole(&maker);
}

static void test_model_open_reads_all_files_where_there_is_no_index(void **state)
{
    (void)state;
    write_two_files("z.safetensors", "a.safetensors");
    maker_write_text(maker.dir, "notes.txt", "not one");
    moe_expect_whole(&maker);
    maker_write_text(maker.dir, "b.safetensors", "broken");
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "b.safetensors|too few");
}

static void test_model_open_prefers_the_single_file(void **state)
{
    (void)state;
    moe_maker_write(&maker);
    maker_write_text(maker.dir, "model.safetensors.index.json", "broken");
    maker_write_text(maker.dir, "consolidated.safetensors", "broken");
    moe_expect_whole(&maker);
}

static void test_model_open_refuses_a_directory_without_its_files(void **state)
{
    (void)state;
    moe_expect_refusal(&maker, MOEPAGE_E_NOT_FOUND, "config.json|No such file");
    maker_write_text(maker.dir, "config.json", maker.config);
    moe_expect_refusal(&maker, MOEPAGE_E_NOT_FOUND, "no .safetensors file");
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open("tests/no/such/model", NULL, &model), MOEPAGE_E_NOT_FOUND);
    expect_sentence("tests/no/such/model|config.json");
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", maker.dir);
    assert_int_equal(moepage_model_open(path, NULL, &model), MOEPAGE_E_FORMAT);
    expect_sentence("config.json|a .moepack has|name the directory");
    assert_null(model);
}

static void test_model_open_refuses_a_tensor_in_two_files(void **state)
{
    (void)state;
    maker_write_text(maker.dir, "config.json", maker.config);
    maker_write_shard(&maker.shard, maker.dir, "a.safetensors");
    while (maker.shard.n_tensors > 1)
        maker_remove(&maker.shard, maker.shard.tensors[0].name);
    maker_write_shard(&maker.shard, maker.dir, "b.safetensors");
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT,
                       "\"model.norm.weight\"|two files|a.safetensors|b.safetensors");
}

static void test_model_open_refuses_a_bad_index(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        moepage_status status;
        const char *words;
    } bad[] = {
        {"", MOEPAGE_E_FORMAT, "not valid JSON"},
        {"[]", MOEPAGE_E_FORMAT, "not an object"},
        {"{}", MOEPAGE_E_FORMAT, "weight_map"},
        {"{\"weight_map\": []}", MOEPAGE_E_FORMAT, "weight_map"},
        {"{\"weight_map\": {}}", MOEPAGE_E_FORMAT, "weight_map"},
        {"{\"weight_map\": {\"t\": 3}}", MOEPAGE_E_FORMAT, "\"t\"|not a string"},
        {"{\"weight_map\": {\"t\": \"a.safetensors\", \"t\": \"b.safetensors\"}}", MOEPAGE_E_FORMAT,
         "duplicate"},
        {"{\"weight_map\": {\"t\": \"../a.safetensors\"}}", MOEPAGE_E_FORMAT,
         "\"t\"|\"../a.safetensors\"|plain name"},
        {"{\"weight_map\": {\"t\": \"/etc/a.safetensors\"}}", MOEPAGE_E_FORMAT, "plain name"},
        {"{\"weight_map\": {\"t\": \"sub/a.safetensors\"}}", MOEPAGE_E_FORMAT, "plain name"},
        {"{\"weight_map\": {\"t\": \"..\"}}", MOEPAGE_E_FORMAT, "plain name"},
        {"{\"weight_map\": {\"t\": \"\"}}", MOEPAGE_E_FORMAT, "plain name"},
        {"{\"weight_map\": {\"t\": \".safetensors\"}}", MOEPAGE_E_FORMAT, "plain name"},
        {"{\"weight_map\": {\"t\": \"pytorch_model.bin\"}}", MOEPAGE_E_FORMAT, "plain name"},
        {"{\"weight_map\": {\"t\": \"gone.safetensors\"}}", MOEPAGE_E_NOT_FOUND,
         "gone.safetensors|missing file"},
    };
    maker_write_text(maker.dir, "config.json", maker.config);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        maker_write_text(maker.dir, "model.safetensors.index.json", bad[i].text);
        moe_expect_refusal(&maker, bad[i].status, bad[i].words);
        expect_sentence("model.safetensors.index.json");
    }
}

static void test_model_open_refuses_files_that_break_the_indexs_word(void **state)
{
    (void)state;
    write_two_files("a.safetensors", "b.safetensors");
    write_index("a.safetensors", "b.safetensors", "\"ghost\": \"a.safetensors\"");
    moe_expect_refusal(&maker, MOEPAGE_E_NOT_FOUND, "index.json|\"ghost\"|in no file");
    write_index("b.safetensors", "a.safetensors", "");
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "index.json|is placed in|it is in");
    write_index("a.safetensors", "c.safetensors", "");
    moe_expect_refusal(&maker, MOEPAGE_E_NOT_FOUND, "index.json|c.safetensors|missing file");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_model_open_reads_indexed_files_and_only_those),
        CASE(test_model_open_reads_all_files_where_there_is_no_index),
        CASE(test_model_open_prefers_the_single_file),
        CASE(test_model_open_refuses_a_directory_without_its_files),
        CASE(test_model_open_refuses_a_tensor_in_two_files),
        CASE(test_model_open_refuses_a_bad_index),
        CASE(test_model_open_refuses_files_that_break_the_indexs_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
