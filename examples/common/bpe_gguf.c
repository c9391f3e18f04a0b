/* The tokenizer in a GGUF file's metadata. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bpe_parts.h"
#include "common/fail.h"

#define NONE VOCABULARY_NONE
#define TOKENS "metadata: tokenizer.ggml.tokens"

enum { MOST_ELEMENTS = 1 << 28 };

/* A tokenizer as far as it has been read. */
typedef struct reader {
    const moepage_model *model;
    bpe_rules rules;
    int code;    /* of values of another type */
    bool begins; /* BOS is added unless the file denies it */
    token_set tokens;
    merges pairs;
} reader;

/* ---- Values ------------------------------------------------------------------------------ */

static bool has_value(const reader *r, const char *key)
{
    uint64_t n;
    return !moepage_model_get_metadata(r->model, key, 0, NULL, 0, &n);
}

/* Reads a whole array of values of one type; *n is 0 if it is not there. */
static int read_array(const reader *r, const char *key, uint32_t type, moepage_metadata **out,
                      uint64_t *n)
{
    *n = 0;
    *out = NULL;
    if (moepage_model_get_metadata(r->model, key, 0, NULL, 0, n) || !*n)
        return RUN_OK;
    if (*n > MOST_ELEMENTS)
        return fail(RUN_REFUSED, "metadata: %s has too many elements", key);
    *out = calloc(*n, sizeof **out);
    if (!*out)
        return fail_memory();
    if (moepage_model_get_metadata(r->model, key, 0, *out, *n, n))
        return fail_library(RUN_REFUSED, "metadata");
    return (*out)->is_array && (*out)->type == type
               ? RUN_OK
               : fail(RUN_REFUSED, "metadata: %s is of another type than it must be", key);
}

/* Returns true if there is a value under the key; it is then of that type, or the reading fails. */
static bool read_value(reader *r, const char *key, uint32_t type, moepage_metadata *out)
{
    uint64_t n;
    *out = (moepage_metadata){0};
    if (moepage_model_get_metadata(r->model, key, 0, out, 1, &n))
        return false;
    const bool right = n && !out->is_array && out->type == type;
    if (!right && !r->code)
        r->code = fail(RUN_REFUSED, "metadata: %s is of another type than it must be", key);
    return right;
}

static bool reads(const moepage_metadata *value, const char *text)
{
    return value->text_bytes == strlen(text) && !memcmp(value->text, text, value->text_bytes);
}

/* ---- Parts ------------------------------------------------------------------------------- */

/* An array of one number for each token; *out is NULL if the file has none. */
static int read_numbers(const reader *r, const char *key, uint32_t type, uint64_t n_tokens,
                        moepage_metadata **out)
{
    uint64_t n;
    int code = read_array(r, key, type, out, &n);
    if (!code && n && n != n_tokens)
        code = fail(RUN_REFUSED, "metadata: %s has %" PRIu64 " elements for %" PRIu64 " tokens",
                    key, n, n_tokens);
    return code;
}

static int make_tokens(const reader *r, const moepage_metadata *texts, uint64_t n,
                       vocabulary_token *out)
{
    moepage_metadata *kinds = NULL, *scores = NULL;
    int code = read_numbers(r, "tokenizer.ggml.token_type", MOEPAGE_METADATA_INTEGER, n, &kinds);
    if (!code && r->rules.by_score)
        code = read_numbers(r, "tokenizer.ggml.scores", MOEPAGE_METADATA_REAL, n, &scores);
    if (!code && r->rules.by_score && !scores)
        code = fail(RUN_REFUSED, "metadata: tokenizer.ggml.scores is missing");
    for (uint64_t i = 0; i < n && !code; i++) {
        const int64_t kind = kinds ? kinds[i].integer : TOKEN_NORMAL;
        out[i] = (vocabulary_token){.text = texts[i].text,
                                    .n = texts[i].text_bytes,
                                    .score = scores ? (float)scores[i].real : 0,
                                    .kind = kind > 0 && kind <= TOKEN_BYTE ? (uint8_t)kind
                                                                           : TOKEN_NORMAL};
        if (!isfinite(out[i].score))
            code =
                fail(RUN_REFUSED, "metadata: tokenizer.ggml.scores: %" PRIu64 " is not finite", i);
    }
    free(kinds);
    free(scores);
    return code;
}

static int read_tokens(reader *r)
{
    uint64_t n;
    moepage_metadata *texts;
    int code = read_array(r, "tokenizer.ggml.tokens", MOEPAGE_METADATA_TEXT, &texts, &n);
    vocabulary_token *tokens = code ? NULL : calloc(n + 1, sizeof *tokens);
    if (!code && !tokens)
        code = fail_memory();
    if (!code)
        code = make_tokens(r, texts, n, tokens);
    free(texts);
    if (code)
        free(tokens);
    else
        code = vocabulary_make(&r->tokens, tokens, (uint32_t)n, r->rules.byte_level, TOKENS);
    return code;
}

/* Adds the merge "left right": a space is the only byte that no token is written with. */
static int add_merge(reader *r, const moepage_metadata *text, uint32_t rank)
{
    const char *space = memchr(text->text, ' ', text->text_bytes);
    if (!space)
        return fail(RUN_REFUSED, "metadata: tokenizer.ggml.merges: %u is no pair of texts", rank);
    const size_t left = (size_t)(space - text->text);
    if (!merges_add(&r->pairs, text->text, left, space + 1, text->text_bytes - left - 1, rank))
        return fail(RUN_REFUSED, "metadata: tokenizer.ggml.merges: %u is not of tokens", rank);
    return RUN_OK;
}

static int read_merges(reader *r)
{
    static const char key[] = "tokenizer.ggml.merges";
    uint64_t n = 0;
    moepage_metadata *texts = NULL;
    int code = RUN_OK;
    if (!r->rules.by_score)
        code = has_value(r, key) ? read_array(r, key, MOEPAGE_METADATA_TEXT, &texts, &n)
                                 : fail(RUN_REFUSED, "metadata: %s is missing", key);
    if (!code && !merges_make(&r->pairs, &r->tokens, (uint32_t)n))
        code = fail_memory();
    for (uint64_t i = 0; i < n && !code; i++)
        code = add_merge(r, &texts[i], (uint32_t)i);
    free(texts);
    return code;
}

/* Appends the token of that key to those around a text, if the file says so or, where it says nothing, by
 * default. */
static int read_around(reader *r, const char *flag, const char *key, bool by_default, uint32_t *ids,
                       uint32_t *n)
{
    moepage_metadata value;
    if (read_value(r, flag, MOEPAGE_METADATA_TRUTH, &value))
        by_default = value.integer;
    if (r->code || !by_default)
        return r->code;
    if (!read_value(r, key, MOEPAGE_METADATA_INTEGER, &value))
        return r->code ? r->code : fail(RUN_REFUSED, "metadata: %s is missing", key);
    if (value.integer < 0 || value.integer >= r->tokens.n)
        return fail(RUN_REFUSED, "metadata: %s is %" PRId64 ", and there are %" PRIu32 " tokens",
                    key, value.integer, r->tokens.n);
    ids[(*n)++] = (uint32_t)value.integer;
    return RUN_OK;
}

static int read_ends(reader *r)
{
    bpe_rules *rules = &r->rules;
    int code = read_around(r, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id",
                           r->begins, rules->before, &rules->n_before);
    if (!code)
        code = read_around(r, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false,
                           rules->behind, &rules->n_behind);
    return code;
}

/* ---- Kinds ------------------------------------------------------------------------------- */

static void explain(bpe_reason *why, const char *key, const moepage_metadata *value)
{
    if (value->text)
        snprintf(why->text, sizeof why->text, "%s \"%.*s\" is not known here", key,
                 value->text_bytes < 100 ? (int)value->text_bytes : 100, value->text);
    else
        snprintf(why->text, sizeof why->text, "%s is missing", key);
}

/* Sets the rules of byte-pair encoding, which are those of the pre-tokenizer that the file names. Returns
 * false with a reason if that is not known. */
static bool set_byte_pairs(reader *r, bpe_reason *why)
{
    moepage_metadata name;
    const cuts_kind *kind = NULL;
    if (read_value(r, "tokenizer.ggml.pre", MOEPAGE_METADATA_TEXT, &name))
        kind = cuts_find_kind(name.text, name.text_bytes);
    if (!kind) {
        explain(why, "tokenizer.ggml.pre", &name);
        return false;
    }
    r->begins = kind->begins;
    r->rules.byte_level = true;
    r->rules.whole_first = kind->whole_first;
    while (r->rules.n_expressions < CUTS_MOST && kind->expressions[r->rules.n_expressions]) {
        r->rules.expressions[r->rules.n_expressions] = kind->expressions[r->rules.n_expressions];
        r->rules.n_expressions++;
    }
    return true;
}

static void set_scores(reader *r)
{
    moepage_metadata value;
    r->begins = true;
    r->rules.by_score = true;
    r->rules.space = BPE_SPACE;
    if (read_value(r, "tokenizer.ggml.add_space_prefix", MOEPAGE_METADATA_TRUTH, &value) &&
        !value.integer)
        r->rules.space = BPE_AS_IT_IS;
}

static bool set_rules(reader *r, bpe_reason *why)
{
    moepage_metadata model;
    read_value(r, "tokenizer.ggml.model", MOEPAGE_METADATA_TEXT, &model);
    if (model.text && reads(&model, "gpt2"))
        return set_byte_pairs(r, why);
    if (model.text && reads(&model, "llama")) {
        set_scores(r);
        return true;
    }
    explain(why, "tokenizer.ggml.model", &model);
    return false;
}

int bpe_open(const moepage_model *model, bpe **out, bpe_reason *why)
{
    reader r = {.model = model};
    *out = NULL;
    *why = (bpe_reason){""};
    if (!set_rules(&r, why))
        return r.code;
    int code = r.code;
    if (!code)
        code = read_tokens(&r);
    if (!code)
        code = read_merges(&r);
    if (!code)
        code = read_ends(&r);
    if (code) {
        vocabulary_free(&r.tokens);
        merges_free(&r.pairs);
        return code;
    }
    *out = bpe_make(&r.rules, &r.tokens, &r.pairs, NULL);
    return *out ? RUN_OK : fail_memory();
}
