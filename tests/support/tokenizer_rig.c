/* Tokenizers in files. */
#include "tokenizer_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "gguf_moe.h"

#define DATA "tests/data/tokenizer/"

char tok_dir[64];
gguf_writer tok_writer;
static moepage_model *model;
bpe *tok_tokenizer;
bpe_reason tok_why;
json_t *tok_loose, *tok_spaced; /* as tokenizer.json has them */

json_t *tok_load(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, DATA "%s", name);
    json_t *value = json_load_file(path, 0, NULL);
    assert_non_null(value);
    return value;
}

static void close_all(void)
{
    bpe_close(tok_tokenizer);
    tok_tokenizer = NULL;
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    model = NULL;
}

int tok_make(void **state)
{
    (void)state;
    const gguf_moe usual = gguf_moe_usual();
    maker_dir_create(tok_dir);
    gguf_init(&tok_writer);
    gguf_moe_make(&tok_writer, &usual);
    tok_loose = tok_load("loose.json");
    tok_spaced = tok_load("spaced.json");
    return 0;
}

int tok_unmake(void **state)
{
    (void)state;
    close_all();
    json_decref(tok_loose);
    json_decref(tok_spaced);
    maker_dir_remove(tok_dir);
    gguf_free(&tok_writer);
    return 0;
}

/* ---- Files ------------------------------------------------------------------------------- */

/* Begins metadata anew, without a tokenizer. */
void tok_begin_values(void)
{
    const gguf_moe usual = gguf_moe_usual();
    gguf_clear_values(&tok_writer);
    gguf_moe_values(&tok_writer, &usual, "tokens");
}

int tok_open_gguf(void)
{
    char path[96];
    close_all();
    gguf_write(&tok_writer, tok_dir, "m.gguf");
    snprintf(path, sizeof path, "%s/m.gguf", tok_dir);
    if (moepage_model_open(path, NULL, &model))
        fail_msg("%s", moepage_last_error());
    return bpe_open(model, &tok_tokenizer, &tok_why);
}

int tok_open_json_text(const char *text)
{
    char path[96];
    close_all();
    maker_write_text(tok_dir, "tokenizer.json", text);
    snprintf(path, sizeof path, "%s/tokenizer.json", tok_dir);
    return bpe_open_file(path, &tok_tokenizer, &tok_why);
}

int tok_open_json(const json_t *file)
{
    char *text = json_dumps(file, 0);
    assert_non_null(text);
    int code = tok_open_json_text(text);
    free(text);
    return code;
}

void tok_add_numbers(const char *key, uint32_t type, const json_t *of, size_t n)
{
    gguf_array(&tok_writer, key, type, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(of, i);
        const float real = (float)json_number_value(value);
        uint32_t bits;
        memcpy(&bits, &real, sizeof bits);
        gguf_append_uint(&tok_writer.values,
                         type == W_F32 ? bits : (uint32_t)json_integer_value(value), 4);
    }
}

/* Tokens of `loose` in order, with their kinds. */
static void add_loose_tokens(void)
{
    const json_t *vocab = json_object_get(json_object_get(tok_loose, "model"), "vocab");
    json_t *added = json_object_get(tok_loose, "added_tokens"), *id, *token;
    static const char *texts[2000];
    size_t n = json_object_size(vocab), i;
    const char *text;
    json_t *kinds = json_array();
    json_object_foreach((json_t *)vocab, text, id) texts[json_integer_value(id)] = text;
    json_array_foreach(added, i, token)
    {
        const size_t at = (size_t)json_integer_value(json_object_get(token, "id"));
        texts[at] = json_string_value(json_object_get(token, "content"));
        n = at >= n ? at + 1 : n;
    }
    for (i = 0; i < n; i++)
        json_array_append_new(kinds, json_integer(1));
    json_array_foreach(added, i, token)
        json_array_set_new(kinds, (size_t)json_integer_value(json_object_get(token, "id")),
                           json_integer(json_is_true(json_object_get(token, "special")) ? 3 : 4));
    gguf_array(&tok_writer, "tokenizer.ggml.tokens", W_TEXT, n);
    for (i = 0; i < n; i++)
        gguf_append_text(&tok_writer.values, texts[i]);
    tok_add_numbers("tokenizer.ggml.token_type", W_I32, kinds, n);
    json_decref(kinds);
}

static void add_loose_merges(void)
{
    const json_t *merges = json_object_get(json_object_get(tok_loose, "model"), "merges");
    gguf_array(&tok_writer, "tokenizer.ggml.merges", W_TEXT, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *pair = json_array_get(merges, i);
        char text[256];
        snprintf(text, sizeof text, "%s %s", json_string_value(json_array_get(pair, 0)),
                 json_string_value(json_array_get(pair, 1)));
        gguf_append_text(&tok_writer.values, text);
    }
}

/* Metadata with the tokenizer merged by ranks, and that name of its cuts. */
void tok_make_loose(const char *pre)
{
    tok_begin_values();
    gguf_text(&tok_writer, "tokenizer.ggml.model", "gpt2");
    gguf_text(&tok_writer, "tokenizer.ggml.pre", pre);
    add_loose_tokens();
    add_loose_merges();
}

/* Metadata with the tokenizer merged by scores. */
void tok_make_scored(void)
{
    json_t *pieces = tok_load("pieces.json"), *scores = json_array(), *kinds = json_array();
    const size_t n = json_array_size(pieces);
    tok_begin_values();
    gguf_text(&tok_writer, "tokenizer.ggml.model", "llama");
    gguf_array(&tok_writer, "tokenizer.ggml.tokens", W_TEXT, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *piece = json_array_get(pieces, i);
        gguf_append_text(&tok_writer.values, json_string_value(json_array_get(piece, 0)));
        json_array_append(scores, json_array_get(piece, 1));
        json_array_append(kinds, json_array_get(piece, 2));
    }
    tok_add_numbers("tokenizer.ggml.scores", W_F32, scores, n);
    tok_add_numbers("tokenizer.ggml.token_type", W_I32, kinds, n);
    json_decref(scores);
    json_decref(kinds);
    json_decref(pieces);
}

/* ---- Texts ------------------------------------------------------------------------------- */

size_t tok_encode(const char *text, uint32_t **ids)
{
    size_t n;
    assert_non_null(tok_tokenizer);
    assert_int_equal(bpe_encode(tok_tokenizer, text, ids, &n), 0);
    return n;
}

void tok_expect_ids(const char *text, const uint32_t *right, size_t n_right)
{
    uint32_t *ids;
    const size_t n = tok_encode(text, &ids);
    bool same = n == n_right;
    for (size_t i = 0; i < n && same; i++)
        same = ids[i] == right[i];
    for (size_t i = 0; i < n && !same; i++)
        print_message("# %u\n", ids[i]);
    if (!same)
        fail_msg("other tokens for '%s'", text);
    free(ids);
}

/* A text's tokens, turned back. */
static char *there_and_back(const char *text, size_t *length)
{
    uint32_t *ids;
    const size_t n = tok_encode(text, &ids);
    char *back = malloc(3 * strlen(text) + 16);
    *length = 0;
    assert_non_null(back);
    for (size_t i = 0, bytes; i < n; i++) {
        const unsigned char *part = bpe_text(tok_tokenizer, ids[i], &bytes);
        if (bytes)
            memcpy(back + *length, part, bytes);
        *length += bytes;
    }
    free(ids);
    return back;
}

void tok_expect_back(const char *text, const char *right)
{
    size_t length;
    char *back = there_and_back(text, &length);
    assert_int_equal(length, strlen(right));
    assert_memory_equal(back, right, length);
    free(back);
}
