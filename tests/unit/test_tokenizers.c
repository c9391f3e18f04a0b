/* Tokenizers of every kind, from GGUF files and from tokenizer.json: the references' tokens for the
 * references' texts (tests/data/tokenizer), texts given back, and what is put around them. */
#include <stdlib.h>
#include <string.h>

#include "common/cuts.h"
#include "tokenizer_rig.h"

/* Expects the ids of `right` for each of `texts`. */
static void expect_cases(const json_t *texts, const json_t *right)
{
    assert_true(json_array_size(texts) > 100);
    assert_int_equal(json_array_size(texts), json_array_size(right));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *list = json_array_get(right, i);
        uint32_t ids[256];
        assert_in_range(json_array_size(list), 0, TOK_COUNT(ids));
        for (size_t k = 0; k < json_array_size(list); k++)
            ids[k] = (uint32_t)json_integer_value(json_array_get(list, k));
        tok_expect_ids(json_string_value(json_array_get(texts, i)), ids, json_array_size(list));
    }
}

/* Two texts have the same tokens, with these tokenizers open one after the other. */
static void expect_alike(const char *text, const char *other)
{
    uint32_t *ids;
    const size_t n = tok_encode(other, &ids);
    tok_expect_ids(text, ids, n);
    free(ids);
}

/* ---- The references' tokens -------------------------------------------------------------- */

static void test_tokenizers_of_every_kind_give_the_references_tokens(void **state)
{
    (void)state;
    json_t *kinds = tok_load("kinds.json");
    assert_true(json_array_size(kinds) > 10);
    for (size_t i = 1; i < json_array_size(kinds); i++) {
        const json_t *kind = json_array_get(kinds, i);
        tok_make_loose(json_string_value(json_object_get(kind, "pre")));
        gguf_bool(&tok_writer, "tokenizer.ggml.add_bos_token", false);
        assert_int_equal(tok_open_gguf(), 0);
        expect_cases(json_array_get(kinds, 0), json_object_get(kind, "ids"));
        json_object_set(tok_loose, "pre_tokenizer", json_object_get(kind, "pre_tokenizer"));
        json_object_set(json_object_get(tok_loose, "model"), "ignore_merges",
                        json_object_get(kind, "whole_first"));
        assert_int_equal(tok_open_json(tok_loose), 0);
        expect_cases(json_array_get(kinds, 0), json_object_get(kind, "ids"));
    }
    json_decref(kinds);
}

static void test_tokenizers_by_scores_give_the_references_tokens(void **state)
{
    (void)state;
    json_t *cases = tok_load("spaced-cases.json");
    tok_make_scored();
    gguf_bool(&tok_writer, "tokenizer.ggml.add_bos_token", false);
    assert_int_equal(tok_open_gguf(), 0);
    expect_cases(json_array_get(cases, 0), json_array_get(cases, 1));
    assert_int_equal(tok_open_json(tok_spaced), 0);
    expect_cases(json_array_get(cases, 0), json_array_get(cases, 2));
    json_decref(cases);
}

static void test_tokenizers_know_kinds_by_all_their_names(void **state)
{
    (void)state;
    static const char *const alike[][2] = {{"gpt-4o", "o200k"},       {"gpt-4o", "llama4"},
                                           {"gpt-2", "olmo"},         {"glm4", "glm5"},
                                           {"llama-bpe", "llama-v3"}, {"dbrx", "chatglm-bpe"}};
    static const char *const unknown[] = {"", "gpt", "qwen2 qwen35", " ", "QWEN2", "gpt-4o "};
    for (size_t i = 0; i < TOK_COUNT(alike); i++) {
        assert_non_null(cuts_find_kind(alike[i][0], strlen(alike[i][0])));
        assert_ptr_equal(cuts_find_kind(alike[i][0], strlen(alike[i][0])),
                         cuts_find_kind(alike[i][1], strlen(alike[i][1])));
    }
    for (size_t i = 0; i < TOK_COUNT(unknown); i++)
        assert_null(cuts_find_kind(unknown[i], strlen(unknown[i])));
}

/* ---- Back to text ------------------------------------------------------------------------ */

static void test_tokenizers_give_every_text_back(void **state)
{
    (void)state;
    json_t *kinds = tok_load("kinds.json");
    const json_t *texts = json_array_get(kinds, 0);
    for (int scored = 0; scored < 2; scored++) {
        if (scored)
            tok_make_scored();
        else
            tok_make_loose("gpt-4o");
        gguf_bool(&tok_writer, "tokenizer.ggml.add_space_prefix", false);
        gguf_u32(&tok_writer, "tokenizer.ggml.bos_token_id", 1);
        assert_int_equal(tok_open_gguf(), 0);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const char *text = json_string_value(json_array_get(texts, i));
            if (!strstr(text, "<|") && !strstr(text, "<s>"))
                tok_expect_back(text, text);
        }
    }
    tok_expect_back("a<|im_end|>b<s>c<tool>", "abc<tool>");
    json_decref(kinds);
}

/* Texts that a loop in a loop would take minutes for. */
static void test_tokenizers_take_long_texts(void **state)
{
    (void)state;
    static const char *const parts[] = {"a",      "A", " ", "\n", "'", "<|", "12", " \xe8\xaa\x9e",
                                        "a \n b!"};
    enum { LONG = 1 << 16 };
    char *text = malloc(LONG + 16);
    assert_non_null(text);
    for (size_t i = 0; i < 2 * TOK_COUNT(parts); i++) {
        const char *part = parts[i / 2];
        size_t n = 0;
        for (; n < LONG; n += strlen(part))
            memcpy(text + n, part, strlen(part) + 1);
        if (i % 2) {
            tok_make_scored();
            gguf_bool(&tok_writer, "tokenizer.ggml.add_space_prefix", false);
            gguf_bool(&tok_writer, "tokenizer.ggml.add_bos_token", false);
        } else {
            tok_make_loose(i % 4 ? "deepseek-v3" : "deepseek-llm");
        }
        assert_int_equal(tok_open_gguf(), 0);
        tok_expect_back(text, text);
    }
    free(text);
}

/* ---- Around a text, and before it -------------------------------------------------------- */

typedef struct around_case {
    const char *pre; /* NULL: by scores */
    int bos, eos;    /* -1: the file says nothing */
    bool before, behind;
} around_case;

static void test_tokenizers_put_tokens_around_a_text_as_the_file_says(void **state)
{
    (void)state;
    static const around_case cases[] = {
        {"qwen2", -1, -1, false, false},  {"llama-bpe", -1, -1, true, false},
        {"tekken", -1, -1, true, false},  {NULL, -1, -1, true, false},
        {"llama-bpe", 0, 1, false, true}, {"qwen2", 1, 1, true, true},
        {NULL, 0, 1, false, true},
    };
    for (size_t i = 0; i < TOK_COUNT(cases); i++) {
        const around_case *c = &cases[i];
        if (c->pre)
            tok_make_loose(c->pre);
        else
            tok_make_scored();
        gguf_u32(&tok_writer, "tokenizer.ggml.bos_token_id", 1);
        gguf_u32(&tok_writer, "tokenizer.ggml.eos_token_id", 2);
        if (c->bos >= 0)
            gguf_bool(&tok_writer, "tokenizer.ggml.add_bos_token", c->bos);
        if (c->eos >= 0)
            gguf_bool(&tok_writer, "tokenizer.ggml.add_eos_token", c->eos);
        assert_int_equal(tok_open_gguf(), 0);
        uint32_t right[2];
        size_t n = 0;
        if (c->before)
            right[n++] = 1;
        if (c->behind)
            right[n++] = 2;
        tok_expect_ids("", right, n);
        uint32_t *ids;
        const size_t all = tok_encode("x", &ids);
        assert_true(all > n);
        assert_true((ids[0] == 1) == c->before && (ids[all - 1] == 2) == c->behind);
        free(ids);
    }
}

static void test_tokenizers_put_a_space_before_a_text_as_the_file_says(void **state)
{
    (void)state;
    const char *space = "\xe2\x96\x81";
    json_t *metaspace = json_pack("{s:s,s:s,s:s,s:b}", "type", "Metaspace", "replacement", space,
                                  "prepend_scheme", "always", "split", 0);
    tok_make_scored();
    gguf_bool(&tok_writer, "tokenizer.ggml.add_bos_token", false);
    assert_int_equal(tok_open_gguf(), 0);
    tok_expect_back("x<tool>y", " x<tool> y");
    tok_expect_back(" x", "  x");
    json_object_set_new(tok_spaced, "normalizer", json_null());
    json_object_set(tok_spaced, "pre_tokenizer", metaspace);
    assert_int_equal(tok_open_json(tok_spaced), 0);
    tok_expect_back("x<tool>y<tool> z", " x<tool> y<tool> z");
    json_object_set_new(metaspace, "prepend_scheme", json_string("first"));
    assert_int_equal(tok_open_json(tok_spaced), 0);
    tok_expect_back("x<tool>y", " x<tool>y");
    tok_expect_back(" x", " x");
    json_object_set_new(metaspace, "prepend_scheme", json_string("never"));
    assert_int_equal(tok_open_json(tok_spaced), 0);
    tok_expect_back("x<tool>y", "x<tool>y");
    json_decref(metaspace);
}

static void test_tokenizers_compose_text_where_the_file_says(void **state)
{
    (void)state;
    /* a, ring and acute; Hangul; marks out of order; one that only its own form changes. */
    static const char *const alike[][2] = {{"a\xcc\x8a\xcc\x81", "\xc7\xbb"},
                                           {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"},
                                           {"q\xcc\x81\xcc\xa3", "q\xcc\xa3\xcc\x81"},
                                           {"\xe2\x84\xa6", "\xce\xa9"},
                                           {"\xe0\xad\x87\xe0\xac\xbe", "\xe0\xad\x8b"}};
    assert_int_equal(tok_open_json(tok_loose), 0);
    tok_expect_back(alike[0][0], alike[0][0]);
    json_object_set_new(tok_loose, "normalizer", json_pack("{s:s}", "type", "NFC"));
    assert_int_equal(tok_open_json(tok_loose), 0);
    for (size_t i = 0; i < TOK_COUNT(alike); i++) {
        expect_alike(alike[i][0], alike[i][1]);
        tok_expect_back(alike[i][0], alike[i][1]);
    }
    /* A name is found before its '>' composes with what follows it. */
    tok_expect_back("<tool>\xcc\xb8", "<tool>\xcc\xb8");
    tok_expect_back("x>\xcc\xb8", "x\xe2\x89\xaf");
    json_t *tool = json_array_get(json_object_get(tok_loose, "added_tokens"), 3);
    assert_string_equal(json_string_value(json_object_get(tool, "content")), "<tool>");
    json_object_set_new(tool, "normalized", json_true());
    assert_int_equal(tok_open_json(tok_loose), 0);
    tok_expect_back("<tool>\xcc\xb8", "<tool\xe2\x89\xaf");
    expect_alike("<tool>", "<tool>");
}

static void test_tokenizers_take_spaces_beside_names_that_say_so(void **state)
{
    (void)state;
    json_t *tool = json_array_get(json_object_get(tok_loose, "added_tokens"), 3);
    json_object_set_new(tool, "rstrip", json_true());
    assert_int_equal(tok_open_json(tok_loose), 0);
    tok_expect_back("a \n<tool> \xe3\x80\x80\tb", "a \n<tool>b");
    json_object_set_new(tool, "lstrip", json_true());
    assert_int_equal(tok_open_json(tok_loose), 0);
    tok_expect_back(" <tool> <tool> b", "<tool><tool>b");
    tok_expect_back("a\xc2\xa0 <tool>", "a<tool>");
}

static void test_tokenizers_find_the_longest_name(void **state)
{
    (void)state;
    static const char *const names[] = {"<a", "<a>", "<a>b", "<a>c", "<"};
    json_t *added = json_object_get(tok_loose, "added_tokens");
    for (size_t i = 0; i < TOK_COUNT(names); i++)
        json_array_append_new(added, json_pack("{s:i,s:s,s:b}", "id", (int)(1500 + i), "content",
                                               names[i], "special", i < 4));
    json_object_del(json_object_get(json_object_get(tok_loose, "model"), "vocab"), "<");
    json_object_set_new(json_object_get(json_object_get(tok_loose, "model"), "vocab"), "<",
                        json_integer(1504));
    json_object_set_new(json_object_get(tok_loose, "model"), "merges", json_array());
    assert_int_equal(tok_open_json(tok_loose), 0);
    tok_expect_ids("<a>c<a><a<<a>b", TOK_IDS(1503, 1501, 1500, 1504, 1502));
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, tok_make, tok_unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_tokenizers_of_every_kind_give_the_references_tokens),
        CASE(test_tokenizers_by_scores_give_the_references_tokens),
        CASE(test_tokenizers_know_kinds_by_all_their_names),
        CASE(test_tokenizers_give_every_text_back),
        CASE(test_tokenizers_take_long_texts),
        CASE(test_tokenizers_put_tokens_around_a_text_as_the_file_says),
        CASE(test_tokenizers_put_a_space_before_a_text_as_the_file_says),
        CASE(test_tokenizers_compose_text_where_the_file_says),
        CASE(test_tokenizers_take_spaces_beside_names_that_say_so),
        CASE(test_tokenizers_find_the_longest_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
