/* Tokenizers that contradict themselves, ask for what is not known, or are odd without being wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer_rig.h"

/* ---- What is refused --------------------------------------------------------------------- */

static void add_texts(const char *key, const char *const *texts, size_t n)
{
    gguf_array(&tok_writer, key, W_TEXT, n);
    for (size_t i = 0; i < n; i++)
        gguf_append_text(&tok_writer.values, texts[i]);
}

enum { MOST_ODD = 8 };

/* Begins a byte-level tokenizer: a token for each byte, then these. */
static void add_bytes_and(const char *const *odd, size_t n_odd)
{
    static char texts[256][4];
    const char *list[256 + MOST_ODD];
    for (uint32_t b = 0, others = 0; b < 256; b++) {
        const bool plain = (b > 32 && b < 127) || (b > 160 && b != 173);
        const uint32_t c = plain ? b : 256 + others++;
        if (c < 128)
            snprintf(texts[b], 4, "%c", (char)c);
        else
            snprintf(texts[b], 4, "%c%c", (char)(0xc0 | c >> 6), (char)(0x80 | (c & 63)));
        list[b] = texts[b];
    }
    assert_true(n_odd <= MOST_ODD);
    for (size_t i = 0; i < n_odd; i++)
        list[256 + i] = odd[i];
    tok_begin_values();
    gguf_text(&tok_writer, "tokenizer.ggml.model", "gpt2");
    gguf_text(&tok_writer, "tokenizer.ggml.pre", "gpt-2");
    add_texts("tokenizer.ggml.tokens", list, 256 + n_odd);
}

static void expect_refused_gguf(void)
{
    assert_int_equal(tok_open_gguf(), 2);
    assert_null(tok_tokenizer);
}

static void test_tokenizer_refusals_of_metadata_that_contradict_themselves(void **state)
{
    (void)state;
    static const char *const ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"};
    static const char *const flags[] = {"tokenizer.ggml.add_bos_token",
                                        "tokenizer.ggml.add_eos_token"};
    for (int i = 0; i < 2; i++) {
        tok_make_loose("qwen2");
        gguf_bool(&tok_writer, flags[i], true);
        expect_refused_gguf(); /* no id */
        gguf_u32(&tok_writer, ids[i], 5000);
        expect_refused_gguf();
        tok_make_loose("qwen2");
        gguf_text(&tok_writer, flags[i], "true");
        expect_refused_gguf();
    }
    for (int scored = 0; scored < 2; scored++) {
        tok_begin_values();
        gguf_text(&tok_writer, "tokenizer.ggml.model", scored ? "llama" : "gpt2");
        gguf_text(&tok_writer, "tokenizer.ggml.pre", "qwen2");
        add_texts("tokenizer.ggml.tokens", NULL, 0);
        add_texts("tokenizer.ggml.merges", NULL, 0);
        expect_refused_gguf();
    }
    tok_begin_values();
    gguf_u32(&tok_writer, "tokenizer.ggml.model", 3);
    expect_refused_gguf();
    add_bytes_and(NULL, 0);
    expect_refused_gguf(); /* no merges */
    add_texts("tokenizer.ggml.merges", NULL, 0);
    assert_int_equal(tok_open_gguf(), 0);
}

static void test_tokenizer_refusals_of_scores_that_order_nothing(void **state)
{
    (void)state;
    json_t *none = json_array();
    tok_make_scored();
    const size_t n = tok_writer.values.n;
    gguf_u32(&tok_writer, "tokenizer.ggml.bos_token_id", 1);
    assert_int_equal(tok_open_gguf(), 0);
    tok_begin_values();
    gguf_text(&tok_writer, "tokenizer.ggml.model", "llama");
    add_texts("tokenizer.ggml.tokens", (const char *const[]){"a", "b"}, 2);
    expect_refused_gguf();
    tok_add_numbers("tokenizer.ggml.scores", W_F32, none, 3);
    expect_refused_gguf();
    static const uint32_t bad[] = {0x7fc00000, 0x7f800000, 0xff800000}; /* NaN and infinities */
    for (size_t i = 0; i < TOK_COUNT(bad); i++) {
        tok_make_scored();
        assert_int_equal(tok_writer.values.n, n);
        unsigned char *at = tok_writer.values.at, *found = NULL;
        const char *key = "tokenizer.ggml.scores";
        for (size_t k = 0; k + strlen(key) < n && !found; k++)
            found = memcmp(at + k, key, strlen(key)) ? NULL : at + k + strlen(key);
        assert_non_null(found);
        memcpy(found + 16 + 4 * 300, &bad[i], 4); /* behind type, elements' type and number */
        expect_refused_gguf();
    }
    json_decref(none);
}

/* Tokens that are twice there, are not UTF-8 or of no known kind, and merges in circles. */
static void test_tokenizer_refusals_handle_odd_tokens(void **state)
{
    (void)state;
    static const char *const odd[] = {"a", "b", "ab", "ba", "aba", "\xff\xfe\xc4", "", "ab"};
    static const char *const merges[] = {"a b", "b a", "ab a", "a ba", "a b"};
    enum { N = 256 + TOK_COUNT(odd) };
    add_bytes_and(odd, TOK_COUNT(odd));
    gguf_array(&tok_writer, "tokenizer.ggml.token_type", W_I32, N);
    for (size_t i = 0; i < N; i++)
        gguf_append_uint(&tok_writer.values, i == 'x' ? 77u : i == 'y' ? -3u : 1u, 4);
    add_texts("tokenizer.ggml.merges", merges, TOK_COUNT(merges));
    assert_int_equal(tok_open_gguf(), 0);
    tok_expect_ids("ababx", TOK_IDS(258, 258, 'x'));
    tok_expect_ids("babab", TOK_IDS('b', 258, 258));
    size_t n;
    assert_memory_equal(bpe_text(tok_tokenizer, 261, &n), "\xff\xfe\xc4", 3);
    assert_int_equal(n, 3);
    assert_null(bpe_text(tok_tokenizer, 262, &n));
}

/* Names of special tokens that are parts of characters, none of which may be cut out of one. */
static void test_tokenizer_refusals_keep_characters_whole(void **state)
{
    (void)state;
    static const char *const odd[] = {"\xc3", "\xa9", "\xe8\xaa", "\xaa\x9e<", "<\xc3", "\xc3\xa9"};
    static const uint8_t kinds[] = {3, 4, 2, 3, 4, 3};
    enum { N = 256 + TOK_COUNT(odd) };
    for (int whole = 0; whole < 2; whole++) {
        add_bytes_and(odd, TOK_COUNT(odd));
        gguf_array(&tok_writer, "tokenizer.ggml.token_type", W_I32, N);
        for (size_t i = 0; i < N; i++)
            gguf_append_uint(&tok_writer.values,
                             i < 256 || (i == N - 1 && !whole) ? 1u : kinds[i - 256], 4);
        add_texts("tokenizer.ggml.merges", NULL, 0);
        assert_int_equal(tok_open_gguf(), 0);
        tok_expect_ids("\xe8\xaa\x9e<", TOK_IDS(0xe8, 0xaa, 0x9e, '<'));
        if (whole)
            tok_expect_ids("<\xc3\xa9", TOK_IDS('<', N - 1));
        else
            tok_expect_ids("<\xc3\xa9", TOK_IDS('<', 0xc3, 0xa9));
    }
}

static void expect_reason(const char *part)
{
    assert_int_equal(tok_open_json(tok_loose), 0);
    assert_null(tok_tokenizer);
    if (!strstr(tok_why.text, part))
        fail_msg("'%s' lacks '%s'", tok_why.text, part);
}

/* What a tokenizer.json may ask for that is not computed here, by name. */
static void test_tokenizer_refusals_say_what_of_a_file_is_not_known(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"normalizer", "{'type':'NFKC'}", "NFKC"},
        {"normalizer", "{'type':'Sequence','normalizers':[{'type':'NFC'},{'type':'Lowercase'}]}",
         "Lowercase"},
        {"normalizer", "{'type':'Prepend','prepend':'_'}", "Prepend"},
        {"pre_tokenizer", "{'type':'Whitespace'}", "Whitespace"},
        {"pre_tokenizer", "{'type':'ByteLevel'}", "puts a space"},
        {"pre_tokenizer",
         "{'type':'Split','pattern':{'Regex':'[a-z]+'},'behavior':'Isolated','invert':false}",
         "[a-z]+"},
        {"pre_tokenizer",
         "{'type':'Split','pattern':{'String':' '},'behavior':'Isolated','invert':false}",
         "a text"},
        {"pre_tokenizer",
         "{'type':'Split','pattern':{'Regex':'[\\r\\n]'},'behavior':'Removed','invert':false}",
         "does not keep"},
        {"pre_tokenizer", "null", "no bytes"},
        {"post_processor", "{'type':'BertProcessing'}", "BertProcessing"},
        {"model", "{'type':'Unigram'}", "Unigram"},
        {"model", "{'type':'BPE','dropout':0.1}", "at random"},
        {"model", "{'type':'BPE','end_of_word_suffix':'</w>'}", "end_of_word_suffix"},
    };
    for (size_t i = 0; i < TOK_COUNT(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "%s", cases[i][1]);
        for (char *c = text; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        json_t *part = json_loads(text, JSON_DECODE_ANY, NULL);
        json_t *saved = json_incref(json_object_get(tok_loose, cases[i][0]));
        assert_non_null(part);
        json_object_set_new(tok_loose, cases[i][0], part);
        expect_reason(cases[i][2]);
        json_object_set_new(tok_loose, cases[i][0], saved);
    }
    json_t *tool = json_array_get(json_object_get(tok_loose, "added_tokens"), 3);
    json_object_set_new(tool, "single_word", json_true());
    expect_reason("whole words");
}

static void test_tokenizer_refusals_of_files_that_contradict_themselves(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "{",
        "[]x",
        "{\"model\":1}",
        "{\"a\":1,\"a\":2}",
        "{\"model\":{\"byte_fallback\":true},\"normalizer\":{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}}",
    };
    for (size_t i = 0; i < TOK_COUNT(texts); i++) {
        const int code = tok_open_json_text(texts[i]);
        assert_true(code == 2 || (!code && tok_why.text[0]));
        assert_null(tok_tokenizer);
    }
    json_t *vocab = json_object_get(json_object_get(tok_loose, "model"), "vocab");
    static const json_int_t ids[] = {-1, 1 << 22, INT64_MAX, 77};
    for (size_t i = 0; i < TOK_COUNT(ids); i++) {
        json_object_set_new(vocab, "odd", json_integer(ids[i]));
        assert_int_equal(tok_open_json(tok_loose), 2);
    }
    json_object_set_new(vocab, "odd", json_string("5"));
    assert_int_equal(tok_open_json(tok_loose), 2);
    json_object_del(vocab, "odd");
    static const char *const merges[] = {"a", "a ", " a", "a zzz", "zz z", "a b c"};
    json_t *list = json_object_get(json_object_get(tok_loose, "model"), "merges");
    for (size_t i = 0; i < TOK_COUNT(merges); i++) {
        json_array_append_new(list, json_string(merges[i]));
        assert_int_equal(tok_open_json(tok_loose), 2);
        json_array_remove(list, json_array_size(list) - 1);
    }
    json_array_append_new(list, json_integer(7));
    assert_int_equal(tok_open_json(tok_loose), 2);
    json_array_remove(list, json_array_size(list) - 1);
    json_incref(list);
    json_object_set_new(json_object_get(tok_loose, "model"), "merges", json_null());
    assert_int_equal(tok_open_json(tok_loose), 2);
    json_object_set_new(json_object_get(tok_loose, "model"), "merges", list);
    json_array_append_new(json_object_get(tok_loose, "added_tokens"), json_pack("{s:i}", "id", 7));
    assert_int_equal(tok_open_json(tok_loose), 2);
    json_object_set_new(json_object_get(tok_spaced, "post_processor"), "special_tokens",
                        json_object());
    assert_int_equal(tok_open_json(tok_spaced), 2);
}

static void test_tokenizer_refusals_are_none_without_a_file(void **state)
{
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/tokenizer.json", tok_dir);
    assert_int_equal(bpe_open_file(path, &tok_tokenizer, &tok_why), 0);
    assert_null(tok_tokenizer);
    assert_string_equal(tok_why.text, "");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, tok_make, tok_unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_tokenizer_refusals_of_metadata_that_contradict_themselves),
        CASE(test_tokenizer_refusals_of_scores_that_order_nothing),
        CASE(test_tokenizer_refusals_handle_odd_tokens),
        CASE(test_tokenizer_refusals_keep_characters_whole),
        CASE(test_tokenizer_refusals_say_what_of_a_file_is_not_known),
        CASE(test_tokenizer_refusals_of_files_that_contradict_themselves),
        CASE(test_tokenizer_refusals_are_none_without_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
