/* The tokenizer of a checkpoint: tokenizer.json, as Hugging Face's tokenizers writes it.
 *
 * What is read is byte-pair encoding, of bytes or of characters with single bytes for those that no token
 * has; what a part of the file says that is not computed here is a reason against the whole. */
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bpe_parts.h"
#include "common/fail.h"

#define NONE VOCABULARY_NONE

/* Ids are places in an array. */
enum { MOST_TOKENS = 1 << 22 };

/* A tokenizer as far as it has been read. */
typedef struct reader {
    const char *path;
    bpe_reason *why;
    bpe_rules rules;
    bool spaces;            /* written as U+2581 */
    vocabulary_token *list; /* [n] */
    uint32_t n;
    char *texts;
    token_set tokens;
    merges pairs;
} reader;

/* ---- Reasons ----------------------------------------------------------------------------- */

/* Says what is not computed here, the first time. Returns false. */
static bool __attribute__((format(printf, 2, 3))) cannot(reader *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!r->why->text[0])
        vsnprintf(r->why->text, sizeof r->why->text, format, args);
    va_end(args);
    return false;
}

static const char *type_of(const json_t *node)
{
    const char *type = json_string_value(json_object_get(node, "type"));
    return type ? type : "of no type";
}

static bool is_type(const json_t *node, const char *type)
{
    return !strcmp(type_of(node), type);
}

static bool is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

static bool truth(const json_t *node, const char *key, bool by_default)
{
    const json_t *value = json_object_get(node, key);
    return is_absent(value) ? by_default : json_is_true(value);
}

static bool reads(const json_t *node, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(node, key));
    return value && !strcmp(value, text);
}

/* ---- Before merging ---------------------------------------------------------------------- */

static bool read_normalizer(reader *r, const json_t *node)
{
    size_t i;
    const json_t *part;
    if (is_absent(node))
        return true;
    if (is_type(node, "NFC")) {
        r->rules.composes = true;
        return true;
    }
    if (is_type(node, "Prepend") && reads(node, "prepend", VOCABULARY_SPACE)) {
        r->rules.space = BPE_SPACE;
        return true;
    }
    if (is_type(node, "Replace") && reads(json_object_get(node, "pattern"), "String", " ") &&
        reads(node, "content", VOCABULARY_SPACE)) {
        r->spaces = true;
        return true;
    }
    if (!is_type(node, "Sequence"))
        return cannot(r, "its normalizer %.60s is not known here", type_of(node));
    json_array_foreach(json_object_get(node, "normalizers"), i,
                       part) if (!read_normalizer(r, part)) return false;
    return true;
}

static bool add_cuts(reader *r, const char *expression)
{
    if (r->rules.byte_level)
        return cannot(r, "its pre-tokenizer cuts after it has named bytes");
    if (r->rules.n_expressions == CUTS_MOST)
        return cannot(r, "its pre-tokenizer has more than %d expressions", CUTS_MOST);
    r->rules.expressions[r->rules.n_expressions++] = expression;
    return true;
}

static bool read_split(reader *r, const json_t *node)
{
    const char *text =
        json_string_value(json_object_get(json_object_get(node, "pattern"), "Regex"));
    const char *known = text ? cuts_find_expression(text) : NULL;
    if (!reads(node, "behavior", "Isolated") || truth(node, "invert", false))
        return cannot(r, "its pre-tokenizer does not keep all that it splits");
    if (!known)
        return cannot(r, "its pre-tokenizer splits by an expression that is not known here: %.90s",
                      text ? text : "a text");
    return add_cuts(r, known);
}

static bool read_byte_level(reader *r, const json_t *node)
{
    if (truth(node, "add_prefix_space", true))
        return cannot(r, "its pre-tokenizer puts a space before a text");
    if (truth(node, "use_regex", true) && !add_cuts(r, cuts_byte_level))
        return false;
    r->rules.byte_level = true;
    return true;
}

static bool read_metaspace(reader *r, const json_t *node)
{
    if (!reads(node, "replacement", VOCABULARY_SPACE) || truth(node, "split", true))
        return cannot(r, "its pre-tokenizer Metaspace is not known here in this form");
    r->spaces = true;
    if (reads(node, "prepend_scheme", "always"))
        r->rules.space = BPE_SPACE_UNLESS;
    else if (reads(node, "prepend_scheme", "first"))
        r->rules.space = BPE_SPACE_FIRST;
    else if (!reads(node, "prepend_scheme", "never"))
        return cannot(r, "its pre-tokenizer Metaspace has no prepend_scheme");
    return true;
}

static bool read_pre_tokenizer(reader *r, const json_t *node)
{
    size_t i;
    const json_t *part;
    if (is_absent(node))
        return true;
    if (is_type(node, "Split"))
        return read_split(r, node);
    if (is_type(node, "Digits"))
        return add_cuts(r,
                        truth(node, "individual_digits", false) ? cuts_numbers : cuts_number_runs);
    if (is_type(node, "ByteLevel"))
        return read_byte_level(r, node);
    if (is_type(node, "Metaspace"))
        return read_metaspace(r, node);
    if (!is_type(node, "Sequence"))
        return cannot(r, "its pre-tokenizer %.60s is not known here", type_of(node));
    json_array_foreach(json_object_get(node, "pretokenizers"), i,
                       part) if (!read_pre_tokenizer(r, part)) return false;
    return true;
}

static bool read_model(reader *r, const json_t *model)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");
    if (!is_absent(type) && !is_type(model, "BPE"))
        return cannot(r, "its model %.60s is not known here", type_of(model));
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
        if (!is_absent(json_object_get(model, empty[i])) && !reads(model, empty[i], ""))
            return cannot(r, "its model has a %s", empty[i]);
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return cannot(r, "its model leaves merges out at random");
    r->rules.whole_first = truth(model, "ignore_merges", false);
    if (!r->rules.byte_level && !truth(model, "byte_fallback", false))
        return cannot(r, "its model has no bytes for characters without a token");
    if (r->rules.byte_level == r->spaces)
        return cannot(r, "its spaces are written %s", r->spaces ? "twice" : "as they are");
    if (r->rules.byte_level && r->rules.space)
        return cannot(r, "its normalizer puts a space before a text");
    return true;
}

/* ---- Tokens ------------------------------------------------------------------------------ */

/* Returns the id, or NONE with a line for none that a token may have. */
static uint32_t read_id(const reader *r, const json_t *value, const char *text)
{
    const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id >= 0 && id < MOST_TOKENS)
        return (uint32_t)id;
    fail(RUN_REFUSED, "%s: the id of token \"%.60s\" is no number below %d", r->path, text,
         MOST_TOKENS);
    return NONE;
}

/* Finds the number of tokens and the bytes of their texts. */
static int measure(reader *r, const json_t *vocab, const json_t *added, size_t *bytes)
{
    const char *text;
    json_t *value;
    size_t i;
    *bytes = 1;
    json_object_foreach((json_t *)vocab, text, value)
    {
        const uint32_t id = read_id(r, value, text);
        if (id == NONE)
            return RUN_REFUSED;
        r->n = id >= r->n ? id + 1 : r->n;
        *bytes += strlen(text);
    }
    json_array_foreach(added, i, value)
    {
        const json_t *content = json_object_get(value, "content");
        text = json_string_value(content);
        const uint32_t id = read_id(r, json_object_get(value, "id"), text ? text : "");
        if (id == NONE)
            return RUN_REFUSED;
        if (!text)
            return fail(RUN_REFUSED, "%s: added token %" PRIu32 " has no content", r->path, id);
        r->n = id >= r->n ? id + 1 : r->n;
        *bytes += strlen(text);
    }
    return RUN_OK;
}

/* Gives a token its text, of which a copy goes to *at. */
static int put_text(reader *r, uint32_t id, const char *text, char **at)
{
    vocabulary_token *t = &r->list[id];
    const size_t n = strlen(text);
    if (t->n && (t->n != n || memcmp(t->text, text, n)))
        return fail(RUN_REFUSED, "%s: token %" PRIu32 " is \"%.60s\" and \"%.*s\"", r->path, id,
                    text, t->n < 60 ? (int)t->n : 60, t->text);
    memcpy(*at, text, n);
    *t = (vocabulary_token){.text = *at, .n = n, .kind = TOKEN_NORMAL};
    *at += n;
    return RUN_OK;
}

static bool names_byte(const vocabulary_token *t)
{
    return t->n == 6 && !memcmp(t->text, "<0x", 3) && t->text[5] == '>';
}

/* Adds a token that is looked for in a text. */
static int put_added(reader *r, const json_t *value, const json_t *vocab, char **at)
{
    const char *text = json_string_value(json_object_get(value, "content"));
    const uint32_t id = (uint32_t)json_integer_value(json_object_get(value, "id"));
    const json_t *other = json_object_get(vocab, text);
    if (other && json_integer_value(other) != id)
        return fail(RUN_REFUSED, "%s: token \"%.60s\" has two ids", r->path, text);
    int code = put_text(r, id, text, at);
    if (code)
        return code;
    vocabulary_token *t = &r->list[id];
    t->kind = truth(value, "special", false) ? TOKEN_CONTROL : TOKEN_OWN;
    t->takes_before = truth(value, "lstrip", false);
    t->takes_behind = truth(value, "rstrip", false);
    t->late = r->rules.composes && truth(value, "normalized", !truth(value, "special", false));
    if (truth(value, "single_word", false))
        cannot(r, "its token \"%.60s\" is looked for among whole words", text);
    if (r->rules.space && !r->rules.byte_level && truth(value, "normalized", false))
        cannot(r, "its token \"%.60s\" is looked for in normalized text", text);
    return RUN_OK;
}

static int read_tokens(reader *r, const json_t *vocab, const json_t *added)
{
    const char *text;
    json_t *value;
    size_t bytes, i;
    int code = measure(r, vocab, added, &bytes);
    if (code)
        return code;
    r->list = calloc((size_t)r->n + 1, sizeof *r->list);
    char *at = r->texts = malloc(bytes);
    if (!r->list || !at)
        return fail_memory();
    json_object_foreach((json_t *)vocab, text, value)
    {
        const uint32_t id = (uint32_t)json_integer_value(value);
        code = put_text(r, id, text, &at);
        if (code)
            return code;
        if (!r->rules.byte_level && names_byte(&r->list[id]))
            r->list[id].kind = TOKEN_BYTE;
    }
    json_array_foreach(added, i, value) if ((code = put_added(r, value, vocab, &at))) return code;
    vocabulary_token *list = r->list;
    r->list = NULL;
    return vocabulary_make(&r->tokens, list, r->n, r->rules.byte_level, r->path);
}

/* ---- Merges ------------------------------------------------------------------------------ */

/* Adds the merge "left right", or ["left", "right"]. */
static int add_merge(reader *r, const json_t *pair, size_t rank)
{
    const char *left = json_string_value(pair), *right;
    const char *space = left ? strchr(left, ' ') : NULL;
    size_t n_left;
    if (space) {
        n_left = (size_t)(space - left);
        right = space + 1;
    } else {
        left = json_string_value(json_array_get(pair, 0));
        right = json_string_value(json_array_get(pair, 1));
        n_left = left ? strlen(left) : 0;
    }
    if (!left || !right ||
        !merges_add(&r->pairs, left, n_left, right, strlen(right), (uint32_t)rank))
        return fail(RUN_REFUSED, "%s: merge %zu is not of tokens", r->path, rank);
    return RUN_OK;
}

static int read_merges(reader *r, const json_t *list)
{
    size_t i;
    const json_t *pair;
    int code = RUN_OK;
    if (!json_is_array(list))
        return fail(RUN_REFUSED, "%s: its model has no list of merges", r->path);
    if (!merges_make(&r->pairs, &r->tokens, (uint32_t)json_array_size(list)))
        return fail_memory();
    json_array_foreach(list, i, pair) if ((code = add_merge(r, pair, i))) break;
    return code;
}

/* ---- Around a text ----------------------------------------------------------------------- */

static int add_around(reader *r, const json_t *ids, uint32_t *to, uint32_t *n)
{
    size_t i;
    const json_t *value;
    json_array_foreach(ids, i, value)
    {
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= r->tokens.n)
            return fail(RUN_REFUSED, "%s: post_processor adds a token that is not there", r->path);
        if (*n < BPE_MOST_AROUND)
            to[(*n)++] = (uint32_t)id;
        else
            cannot(r, "its post_processor adds more than %d tokens", BPE_MOST_AROUND);
    }
    return RUN_OK;
}

/* The text itself is "Sequence"; what is before it in the list is put before it. */
static int read_template(reader *r, const json_t *node)
{
    size_t i;
    const json_t *part;
    const json_t *specials = json_object_get(node, "special_tokens");
    bpe_rules *rules = &r->rules;
    bool behind = false;
    int code = RUN_OK;
    json_array_foreach(json_object_get(node, "single"), i, part)
    {
        const json_t *name = json_object_get(json_object_get(part, "SpecialToken"), "id");
        const json_t *special = json_object_get(specials, name ? json_string_value(name) : "");
        const json_t *ids = json_object_get(special, "ids");
        if (json_object_get(part, "Sequence"))
            behind = true;
        else if (!json_is_array(ids))
            code = fail(RUN_REFUSED, "%s: post_processor adds a token without ids", r->path);
        else
            code = add_around(r, ids, behind ? rules->behind : rules->before,
                              behind ? &rules->n_behind : &rules->n_before);
        if (code)
            break;
    }
    return code;
}

static int read_post_processor(reader *r, const json_t *node)
{
    size_t i;
    const json_t *part;
    int code = RUN_OK;
    if (is_absent(node) || is_type(node, "ByteLevel"))
        return RUN_OK;
    if (is_type(node, "TemplateProcessing"))
        return read_template(r, node);
    if (!is_type(node, "Sequence")) {
        cannot(r, "its post_processor %.60s is not known here", type_of(node));
        return RUN_OK;
    }
    json_array_foreach(json_object_get(node, "processors"), i,
                       part) if ((code = read_post_processor(r, part))) break;
    return code;
}

/* ---- The whole --------------------------------------------------------------------------- */

static int read_all(reader *r, const json_t *file)
{
    const json_t *model = json_object_get(file, "model");
    if (!read_normalizer(r, json_object_get(file, "normalizer")) ||
        !read_pre_tokenizer(r, json_object_get(file, "pre_tokenizer")) || !read_model(r, model))
        return RUN_OK;
    int code =
        read_tokens(r, json_object_get(model, "vocab"), json_object_get(file, "added_tokens"));
    if (!code)
        code = read_merges(r, json_object_get(model, "merges"));
    if (!code)
        code = read_post_processor(r, json_object_get(file, "post_processor"));
    return code;
}

int bpe_open_file(const char *path, bpe **out, bpe_reason *why)
{
    reader r = {.path = path, .why = why};
    json_error_t error;
    *out = NULL;
    *why = (bpe_reason){""};
    if (access(path, F_OK))
        return RUN_OK;
    json_t *file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!file)
        return fail(RUN_REFUSED, "%s:%d: %s", path, error.line, error.text);
    int code = read_all(&r, file);
    json_decref(file);
    free(r.list);
    if (code || why->text[0]) {
        vocabulary_free(&r.tokens);
        merges_free(&r.pairs);
        free(r.texts);
        return code;
    }
    *out = bpe_make(&r.rules, &r.tokens, &r.pairs, r.texts);
    return *out ? RUN_OK : fail_memory();
}
