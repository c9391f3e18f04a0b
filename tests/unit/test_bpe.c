/* The tokenizer of GGUF files: the reference's tokens for the reference's texts
 * (tests/data/tokenizer), texts given back, and files that contradict themselves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "checkpoint_maker.h"
#include "common/bpe.h"
#include "gguf_moe.h"
#include "testing.h"

#define DATA "tests/data/tokenizer"

enum { MAX_TOKENS = 1000 };

static char dir[64];
static gguf_writer writer;
static moepage_model *model;
static bpe *tokenizer;
static bpe_reason why;

/* The lines of a file, NUL-terminated in place; *text is to be freed. */
static int read_lines(const char *name, char **text, char **lines)
{
    size_t n_bytes;
    int n = 0;
    *text = (char *)maker_read(DATA, name, &n_bytes);
    for (char *at = *text, *end; (size_t)(at - *text) < n_bytes; at = end + 1) {
        end = memchr(at, '\n', n_bytes - (size_t)(at - *text));
        assert_non_null(end);
        assert_in_range(n, 0, MAX_TOKENS - 1);
        *end = 0;
        lines[n++] = at;
    }
    assert_true(n > 0);
    return n;
}

static void add_texts(const char *key, char **lines, int n)
{
    gguf_array(&writer, key, W_TEXT, (uint64_t)n);
    for (int i = 0; i < n; i++)
        gguf_append_text(&writer.values, lines[i]);
}

/* Metadata with the reference's tokenizer. */
static void make_tokenizer(const char *pre)
{
    static char *lines[MAX_TOKENS];
    static uint32_t kinds[MAX_TOKENS];
    char *text;
    int n = read_lines("tokens.txt", &text, lines);
    for (int i = 0; i < n; i++) { /* "kind text" */
        kinds[i] = lines[i][0] == 'c' ? 3 : lines[i][0] == 'o' ? 4 : 1;
        lines[i] = strchr(lines[i], ' ') + 1;
    }
    gguf_text(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_text(&writer, "tokenizer.ggml.pre", pre);
    add_texts("tokenizer.ggml.tokens", lines, n);
    gguf_array(&writer, "tokenizer.ggml.token_type", W_I32, (uint64_t)n);
    for (int i = 0; i < n; i++)
        gguf_append_uint(&writer.values, kinds[i], 4);
    free(text);
    n = read_lines("merges.txt", &text, lines);
    add_texts("tokenizer.ggml.merges", lines, n);
    free(text);
}

static int open_model(void)
{
    gguf_write(&writer, dir, "m.gguf");
    char path[96];
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    if (moepage_model_open(path, NULL, &model))
        fail_msg("%s", moepage_last_error());
    return bpe_open(model, &tokenizer, &why);
}

static int make(void **state)
{
    (void)state;
    const gguf_moe usual = gguf_moe_usual();
    maker_dir_create(dir);
    gguf_init(&writer);
    gguf_moe_make(&writer, &usual);
    gguf_clear_values(&writer);
    gguf_moe_values(&writer, &usual, "tokens");
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    bpe_close(tokenizer);
    tokenizer = NULL;
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    model = NULL;
    maker_dir_remove(dir);
    gguf_free(&writer);
    return 0;
}

static void expect_tokens(const json_t *test)
{
    const char *text = json_string_value(json_object_get(test, "text"));
    const json_t *ids = json_object_get(test, "ids");
    uint32_t *found;
    size_t n;
    assert_int_equal(bpe_encode(tokenizer, text, &found, &n), 0);
    bool same = n == json_array_size(ids);
    for (size_t i = 0; i < n && same; i++)
        same = json_integer_value(json_array_get(ids, i)) == found[i];
    if (!same) {
        char *encoded = json_dumps(test, JSON_ENSURE_ASCII);
        for (size_t i = 0; i < n; i++)
            print_message("# %u\n", found[i]);
        fail_msg("other tokens than %s", encoded);
    }
    free(found);
}

static void test_bpe_gives_the_references_tokens(void **state)
{
    (void)state;
    make_tokenizer("qwen2");
    assert_int_equal(open_model(), 0);
    json_error_t error;
    json_t *cases = json_load_file(DATA "/cases.json", 0, &error);
    assert_true(json_array_size(cases) > 300);
    for (size_t i = 0; i < json_array_size(cases); i++)
        expect_tokens(json_array_get(cases, i));
    json_decref(cases);
}

static void test_bpe_gives_texts_back_without_control_tokens(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"int main(void)\n{\n}\t\r\n", "int main(void)\n{\n}\t\r\n"},
        {"\xe6\x97\xa5\xe6\x9c\xac \xc3\xa9\x01\x7f\xc2\xad\xf0\x9f\x99\x82",
         "\xe6\x97\xa5\xe6\x9c\xac \xc3\xa9\x01\x7f\xc2\xad\xf0\x9f\x99\x82"},
        {"a<|im_start|>b<tool>c<|im_end|>", "ab<tool>c"},
    };
    make_tokenizer("qwen2");
    assert_int_equal(open_model(), 0);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        uint32_t *tokens;
        char back[64] = "";
        size_t n, length = 0, bytes;
        assert_int_equal(bpe_encode(tokenizer, texts[i][0], &tokens, &n), 0);
        for (size_t k = 0; k < n; k++) {
            const unsigned char *text = bpe_text(tokenizer, tokens[k], &bytes);
            assert_true(length + bytes < sizeof back);
            if (bytes)
                memcpy(back + length, text, bytes);
            length += bytes;
        }
        free(tokens);
        assert_int_equal(length, strlen(texts[i][1]));
        assert_memory_equal(back, texts[i][1], length);
    }
    size_t bytes;
    assert_null(bpe_text(tokenizer, UINT32_MAX, &bytes));
    assert_int_equal(bytes, 0);
}

static void test_bpe_refuses_text_that_is_not_utf8(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "\x80", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"};
    make_tokenizer("qwen2");
    assert_int_equal(open_model(), 0);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        uint32_t *tokens;
        size_t n;
        assert_int_equal(bpe_encode(tokenizer, texts[i], &tokens, &n), 2);
        assert_null(tokens);
    }
}

static void test_bpe_leaves_other_tokenizers_alone(void **state)
{
    (void)state;
    make_tokenizer("an-unknown-one");
    assert_int_equal(open_model(), 0);
    assert_null(tokenizer);
    assert_string_equal(why.text, "tokenizer.ggml.pre \"an-unknown-one\" is not known here");
}

static void test_bpe_refuses_tokens_without_all_bytes(void **state)
{
    (void)state;
    gguf_text(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_text(&writer, "tokenizer.ggml.pre", "qwen2");
    add_texts("tokenizer.ggml.tokens", (char *[]){(char[]){"a"}, (char[]){"b"}}, 2);
    assert_int_equal(open_model(), 2);
    assert_null(tokenizer);
}

static void test_bpe_refuses_merges_of_no_tokens(void **state)
{
    (void)state;
    static const char *const pairs[] = {"z qqq", "zqqq", " ", ""};
    make_tokenizer("qwen2");
    const size_t n = writer.values.n;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        writer.values.n = n;
        /* The last merge becomes another. */
        size_t last = n;
        while (writer.values.at[last - 1] || writer.values.at[last - 2])
            last--;
        writer.values.n = last - 8;
        gguf_append_text(&writer.values, pairs[i]);
        assert_int_equal(open_model(), 2);
        assert_null(tokenizer);
        if (i + 1 < sizeof pairs / sizeof *pairs)
            assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        gguf_clear_values(&writer);
        const gguf_moe usual = gguf_moe_usual();
        gguf_moe_values(&writer, &usual, "tokens");
        make_tokenizer("qwen2");
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_bpe_gives_the_references_tokens),
        CASE(test_bpe_gives_texts_back_without_control_tokens),
        CASE(test_bpe_refuses_text_that_is_not_utf8),
        CASE(test_bpe_leaves_other_tokenizers_alone),
        CASE(test_bpe_refuses_tokens_without_all_bytes),
        CASE(test_bpe_refuses_merges_of_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
