/* From text to tokens. */
#include "common/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "common/bpe_parts.h"
#include "common/compose.h"
#include "common/fail.h"
#include "common/letters.h"

#define NONE VOCABULARY_NONE

struct bpe {
    bpe_rules rules;
    token_set tokens;
    merges pairs;
    cuts *cuts;
    char *texts;
};

bpe *bpe_make(const bpe_rules *rules, token_set *tokens, merges *pairs, char *texts)
{
    bpe *t = calloc(1, sizeof *t);
    cuts *made = cuts_make(rules->expressions, rules->n_expressions);
    if (!t || !made) {
        free(t);
        cuts_free(made);
        vocabulary_free(tokens);
        merges_free(pairs);
        free(texts);
        return NULL;
    }
    *t = (bpe){*rules, *tokens, *pairs, made, texts};
    t->pairs.tokens = &t->tokens;
    t->pairs.by_score = rules->by_score;
    return t;
}

void bpe_close(bpe *t)
{
    if (!t)
        return;
    vocabulary_free(&t->tokens);
    merges_free(&t->pairs);
    cuts_free(t->cuts);
    free(t->texts);
    free(t);
}

const unsigned char *bpe_text(const bpe *t, uint32_t token, size_t *n)
{
    return vocabulary_bytes(&t->tokens, token, n);
}

/* ---- A text on its way ------------------------------------------------------------------- */

/* What has been encoded so far, and room for what is being. */
typedef struct output {
    const bpe *t;
    uint32_t *ids;
    size_t n, room;
    char *
        text; /* [text_room] a fragment with its spaces as the vocabulary has them, or a piece's name */
    size_t text_room;
    merge_room work;
    bool failed; /* memory */
} output;

static void add(output *o, uint32_t token)
{
    if (o->n == o->room) {
        const size_t room = 2 * o->room + 64;
        uint32_t *ids = realloc(o->ids, room * sizeof *ids);
        if (!ids) {
            o->failed = true;
            return;
        }
        o->ids = ids;
        o->room = room;
    }
    o->ids[o->n++] = token;
}

/* Adds a merged token, or those of the bytes that none has. */
static void emit(void *self, uint32_t token, const char *bytes, size_t n)
{
    output *o = self;
    if (token != NONE) {
        add(o, token);
        return;
    }
    for (size_t i = 0; i < n; i++)
        add(o, o->t->tokens.of_byte[(unsigned char)bytes[i]]);
}

static char *text_room(output *o, size_t n)
{
    if (n > o->text_room) {
        free(o->text);
        o->text = malloc(n);
        o->text_room = o->text ? n : 0;
        o->failed |= !o->text;
    }
    return o->text;
}

/* Returns the token that a whole piece is, or NONE. */
static uint32_t whole_token(output *o, const char *piece, size_t n)
{
    const token_set *v = &o->t->tokens;
    if (!v->byte_level || n > v->longest)
        return vocabulary_find(v, piece, n);
    char *name = text_room(o, 2 * n);
    return name ? vocabulary_find(v, name, vocabulary_write(piece, n, name)) : NONE;
}

static void encode_piece(output *o, const char *piece, size_t n)
{
    const uint32_t whole = o->t->rules.whole_first ? whole_token(o, piece, n) : NONE;
    if (whole != NONE)
        add(o, whole);
    else if (!merges_apply(&o->t->pairs, &o->work, piece, n, emit, o))
        o->failed = true;
}

static void encode_pieces(output *o, const char *text, size_t n)
{
    size_t *ends, n_ends;
    if (!cuts_apply(o->t->cuts, text, n, &ends, &n_ends)) {
        o->failed = true;
        return;
    }
    for (size_t i = 0, begin = 0; i < n_ends && !o->failed; begin = ends[i++])
        encode_piece(o, text + begin, ends[i] - begin);
    free(ends);
}

/* ---- Spaces ------------------------------------------------------------------------------ */

static bool begins_with_space(const char *text, size_t n)
{
    return text[0] == ' ' || (n >= 3 && !memcmp(text, VOCABULARY_SPACE, 3));
}

static bool wants_space(const bpe_rules *rules, const char *text, size_t n, bool first)
{
    switch (rules->space) {
    case BPE_SPACE: return true;
    case BPE_SPACE_UNLESS: return !begins_with_space(text, n);
    case BPE_SPACE_FIRST: return first && !begins_with_space(text, n);
    default: return false;
    }
}

/* Encodes a text without special tokens. */
static void encode_fragment(output *o, const char *text, size_t n, bool first)
{
    if (o->t->rules.byte_level) {
        encode_pieces(o, text, n);
        return;
    }
    char *spaced = text_room(o, 3 * (n + 1));
    size_t length = 0;
    if (!spaced)
        return;
    const bool space = wants_space(&o->t->rules, text, n, first);
    for (size_t i = 0; i < n + space; i++) {
        const char c = i < space ? ' ' : text[i - space];
        const size_t bytes = c == ' ' ? 3 : 1;
        memcpy(spaced + length, c == ' ' ? VOCABULARY_SPACE : &c, bytes);
        length += bytes;
    }
    encode_pieces(o, spaced, length);
}

static size_t spaces_before(const char *text, size_t begin, size_t end)
{
    while (end > begin) {
        size_t at = end - 1;
        uint32_t c;
        while (at > begin && (text[at] & 0xc0) == 0x80)
            at--;
        if (!letters_read(text + at, end - at, &c) || !(letters_classes(c) & LETTERS_SPACE))
            break;
        end = at;
    }
    return end;
}

static size_t spaces_behind(const char *text, size_t begin, size_t end)
{
    uint32_t c;
    for (size_t n; begin < end; begin += n) {
        n = letters_read(text + begin, end - begin, &c);
        if (!n || !(letters_classes(c) & LETTERS_SPACE))
            break;
    }
    return begin;
}

static void encode_text(output *o, const char *text, size_t n, bool first, bool late);

/* Encodes what is between two special tokens: of the early ones, with the late ones in it. */
static void encode_between(output *o, const char *text, size_t n, bool first, bool late)
{
    if (!n || o->failed)
        return;
    if (late || !o->t->rules.composes) {
        encode_fragment(o, text, n, first);
        return;
    }
    size_t length;
    char *composed = compose(text, n, &length);
    if (composed)
        encode_text(o, composed, length, first, true);
    else
        o->failed = true;
    free(composed);
}

/* Encodes text[0..n), cutting it at special tokens; `first` if nothing was before it. */
static void encode_text(output *o, const char *text, size_t n, bool first, bool late)
{
    const token_set *v = &o->t->tokens;
    size_t begun = 0;
    for (size_t i = 0; i < n && !o->failed;) {
        const uint32_t special = vocabulary_special(v, late, text + i, n - i);
        if (special == NONE) {
            i++;
            continue;
        }
        const vocabulary_token *found = &v->tokens[special];
        const size_t end = found->takes_before ? spaces_before(text, begun, i) : i;
        encode_between(o, text + begun, end - begun, first && begun == 0, late);
        add(o, special);
        i += found->n;
        begun = i = found->takes_behind ? spaces_behind(text, i, n) : i;
    }
    encode_between(o, text + begun, n - begun, first && begun == 0, late);
}

/* ---- The whole --------------------------------------------------------------------------- */

static int check_utf8(const char *text, size_t n)
{
    if (n > UINT32_MAX / 8)
        return fail(RUN_REFUSED, "--prompt: %zu bytes are too many", n);
    const size_t valid = letters_valid(text, n);
    return valid == n ? RUN_OK : fail(RUN_REFUSED, "--prompt: byte %zu is not UTF-8", valid);
}

/* Encodes valid text. */
static void encode_all(output *o, const char *text, size_t n)
{
    const bpe_rules *rules = &o->t->rules;
    for (uint32_t i = 0; i < rules->n_before; i++)
        add(o, rules->before[i]);
    encode_text(o, text, n, true, false);
    for (uint32_t i = 0; i < rules->n_behind; i++)
        add(o, rules->behind[i]);
}

int bpe_encode(const bpe *t, const char *text, uint32_t **out, size_t *n)
{
    const size_t length = strlen(text);
    output o = {.t = t};
    int code = check_utf8(text, length);
    *out = NULL;
    *n = 0;
    if (code)
        return code;
    encode_all(&o, text, length);
    free(o.text);
    merges_free_room(&o.work);
    if (o.failed) {
        free(o.ids);
        return fail_memory();
    }
    *out = o.ids;
    *n = o.n;
    return RUN_OK;
}
