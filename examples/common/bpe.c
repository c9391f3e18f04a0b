/* Byte-pair encoding. */
#include "common/bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/pieces.h"

#define NONE UINT32_MAX

/* The format's numbers for kinds of tokens. */
enum { KIND_NORMAL = 1, KIND_CONTROL = 3, KIND_OWN = 4 };

typedef struct text_part {
    const char *at;
    size_t n;
} text_part;

/* Two tokens that become one. */
typedef struct merge {
    uint32_t left, right, whole;
    uint32_t rank; /* lower ones are merged first; NONE = an empty place */
} merge;

struct bpe {
    moepage_metadata *tokens; /* [n_tokens] */
    uint32_t n_tokens;
    uint32_t *by_text; /* [places] tokens by the hash of their text; NONE = empty */
    uint32_t places;   /* a power of two */
    merge *merges;     /* [merge_places] by the hash of their halves */
    uint32_t merge_places;
    uint32_t of_byte[256];
    uint32_t *special; /* [n_special] tokens that are looked for in a text, the longest first */
    uint32_t n_special;
    unsigned char *bytes; /* all tokens' texts, back to back */
    size_t *starts;       /* [n_tokens + 1] in `bytes` */
};

/* ---- Characters for bytes ---------------------------------------------------------------- */

/* Returns the character that stands for a byte: itself if it is printable in Latin-1, else one of
 * those from 256 on, in order. */
static uint32_t character_of(uint32_t byte)
{
    uint32_t others = 0;
    for (uint32_t b = 0; b <= byte; b++) {
        bool plain = (b > 32 && b < 127) || (b > 160 && b != 173);
        if (b == byte && plain)
            return b;
        others += !plain;
    }
    return 255 + others;
}

static size_t put_character(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* ---- Tables ------------------------------------------------------------------------------ */

static uint32_t hash_bytes(const char *bytes, size_t n)
{
    uint32_t hash = 0x811c9dc5;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x01000193u;
    return hash ^ hash >> 15;
}

/* Returns the place of a text in by_text: its token's, or an empty one. */
static uint32_t *place_of(const bpe *t, text_part text)
{
    uint32_t at = hash_bytes(text.at, text.n) & (t->places - 1);
    while (t->by_text[at] != NONE) {
        const moepage_metadata *found = &t->tokens[t->by_text[at]];
        if (found->text_bytes == text.n && !memcmp(found->text, text.at, text.n))
            break;
        at = (at + 1) & (t->places - 1);
    }
    return &t->by_text[at];
}

/* Returns the place of a pair in `merges`: its own, or an empty one. */
static merge *merge_of(const bpe *t, uint32_t left, uint32_t right)
{
    uint32_t at = (left * 0x9e3779b1u ^ right * 0x85ebca6bu) & (t->merge_places - 1);
    while (t->merges[at].rank != NONE &&
           (t->merges[at].left != left || t->merges[at].right != right))
        at = (at + 1) & (t->merge_places - 1);
    return &t->merges[at];
}

/* Returns a power of two that leaves half of the places empty. */
static uint32_t room_for(uint64_t n)
{
    uint32_t places = 16;
    while (places < 2 * n)
        places *= 2;
    return places;
}

/* ---- Reading the file -------------------------------------------------------------------- */

/* Reads a whole array of values of one type; *n is 0 if it is not there. */
static int read_array(const moepage_model *model, const char *key, uint32_t type,
                      moepage_metadata **out, uint64_t *n)
{
    *n = 0;
    *out = NULL;
    if (moepage_model_get_metadata(model, key, 0, NULL, 0, n) || !*n)
        return RUN_OK;
    if (*n > 1 << 28)
        return fail(RUN_REFUSED, "metadata: %s has too many elements", key);
    *out = calloc(*n, sizeof **out);
    if (!*out)
        return fail_memory();
    if (moepage_model_get_metadata(model, key, 0, *out, *n, n))
        return fail_library(RUN_REFUSED, "metadata");
    return (*out)->is_array && (*out)->type == type
               ? RUN_OK
               : fail(RUN_REFUSED, "metadata: %s is of another type than it must be", key);
}

static int read_tokens(const moepage_model *model, bpe *t)
{
    uint64_t n;
    int code = read_array(model, "tokenizer.ggml.tokens", MOEPAGE_METADATA_TEXT, &t->tokens, &n);
    if (code)
        return code;
    t->n_tokens = (uint32_t)n;
    t->places = room_for(n);
    t->by_text = malloc(t->places * sizeof *t->by_text);
    if (!t->by_text)
        return fail_memory();
    memset(t->by_text, 0xff, t->places * sizeof *t->by_text);
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        uint32_t *place = place_of(t, (text_part){t->tokens[i].text, t->tokens[i].text_bytes});
        if (*place == NONE)
            *place = i;
    }
    for (uint32_t b = 0; b < 256; b++) {
        char text[2];
        t->of_byte[b] = *place_of(t, (text_part){text, put_character(character_of(b), text)});
        if (t->of_byte[b] == NONE)
            return fail(RUN_REFUSED, "metadata: tokenizer.ggml.tokens has no token for byte %u", b);
    }
    return RUN_OK;
}

/* Adds one merge, "left right"; a space is the only byte that no token is written with. */
static int add_merge(bpe *t, const moepage_metadata *text, uint32_t rank)
{
    char whole[1024];
    const char *space = memchr(text->text, ' ', text->text_bytes);
    const size_t left = space ? (size_t)(space - text->text) : 0;
    if (!space || text->text_bytes > sizeof whole)
        return fail(RUN_REFUSED, "metadata: tokenizer.ggml.merges: %u is no pair of texts", rank);
    const size_t right = text->text_bytes - left - 1;
    memcpy(whole, text->text, left);
    memcpy(whole + left, space + 1, right);
    const uint32_t a = *place_of(t, (text_part){whole, left});
    const uint32_t b = *place_of(t, (text_part){whole + left, right});
    const uint32_t both = *place_of(t, (text_part){whole, left + right});
    if (a == NONE || b == NONE || both == NONE)
        return fail(RUN_REFUSED, "metadata: tokenizer.ggml.merges: %u is not of tokens", rank);
    merge *place = merge_of(t, a, b);
    if (place->rank == NONE)
        *place = (merge){a, b, both, rank};
    return RUN_OK;
}

static int read_merges(const moepage_model *model, bpe *t)
{
    uint64_t n;
    moepage_metadata *texts;
    int code = read_array(model, "tokenizer.ggml.merges", MOEPAGE_METADATA_TEXT, &texts, &n);
    t->merge_places = room_for(n);
    t->merges = malloc(t->merge_places * sizeof *t->merges);
    if (!code && !t->merges)
        code = fail_memory();
    if (t->merges)
        memset(t->merges, 0xff, t->merge_places * sizeof *t->merges);
    for (uint64_t i = 0; i < n && !code; i++)
        code = add_merge(t, &texts[i], (uint32_t)i);
    free(texts);
    return code;
}

static int longer_first(const void *a, const void *b, void *arg)
{
    const bpe *t = arg;
    const uint64_t x = t->tokens[*(const uint32_t *)a].text_bytes;
    const uint64_t y = t->tokens[*(const uint32_t *)b].text_bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Appends the bytes that a token's characters stand for; a character that stands for none is kept. */
static void add_text(bpe *t, uint32_t token, bool as_it_is, const uint16_t *byte_of)
{
    const moepage_metadata *text = &t->tokens[token];
    unsigned char *out = t->bytes + t->starts[token];
    for (size_t i = 0, length; i < text->text_bytes; i += length) {
        uint32_t c = 0;
        length = pieces_character(text->text + i, text->text_bytes - i, &c);
        bool coded = !as_it_is && length && c < 512 && byte_of[c];
        if (!length)
            length = 1;
        if (coded)
            *out++ = (unsigned char)(byte_of[c] - 1);
        for (size_t k = 0; k < length && !coded; k++)
            *out++ = (unsigned char)text->text[i + k];
    }
    t->starts[token + 1] = (size_t)(out - t->bytes);
}

/* Turns all tokens into bytes, and lists those that are looked for by name. */
static int read_kinds(const moepage_model *model, bpe *t)
{
    uint64_t n;
    size_t room = 1;
    moepage_metadata *kinds;
    uint16_t byte_of[512] = {0}; /* and one more; 0 = none */
    int code = read_array(model, "tokenizer.ggml.token_type", MOEPAGE_METADATA_INTEGER, &kinds, &n);
    for (uint32_t b = 0; b < 256; b++)
        byte_of[character_of(b)] = (uint16_t)(b + 1);
    for (uint32_t i = 0; i < t->n_tokens; i++)
        room += t->tokens[i].text_bytes;
    t->bytes = malloc(room);
    t->starts = calloc((size_t)t->n_tokens + 1, sizeof *t->starts);
    t->special = calloc(t->n_tokens, sizeof *t->special);
    if (!code && (!t->bytes || !t->starts || !t->special))
        code = fail_memory();
    for (uint32_t i = 0; i < t->n_tokens && !code; i++) {
        const int64_t kind = i < n ? kinds[i].integer : KIND_NORMAL;
        if ((kind == KIND_CONTROL || kind == KIND_OWN) && t->tokens[i].text_bytes)
            t->special[t->n_special++] = i;
        if (kind == KIND_CONTROL)
            t->starts[i + 1] = t->starts[i];
        else
            add_text(t, i, kind == KIND_OWN, byte_of);
    }
    free(kinds);
    if (t->n_special)
        qsort_r(t->special, t->n_special, sizeof *t->special, longer_first, t);
    return code;
}

static bool says(const moepage_model *model, const char *key, const char *text)
{
    moepage_metadata found = {0};
    uint64_t n;
    return !moepage_model_get_metadata(model, key, 0, &found, 1, &n) && n &&
           found.type == MOEPAGE_METADATA_TEXT && found.text_bytes == strlen(text) &&
           !memcmp(found.text, text, found.text_bytes);
}

int bpe_open(const moepage_model *model, bpe **out)
{
    *out = NULL;
    if (!says(model, "tokenizer.ggml.model", "gpt2") || !says(model, "tokenizer.ggml.pre", "qwen2"))
        return RUN_OK;
    bpe *t = calloc(1, sizeof *t);
    if (!t)
        return fail_memory();
    int code = read_tokens(model, t);
    if (!code)
        code = read_merges(model, t);
    if (!code)
        code = read_kinds(model, t);
    if (code)
        bpe_close(t);
    else
        *out = t;
    return code;
}

void bpe_close(bpe *t)
{
    if (!t)
        return;
    void *owned[] = {t->tokens, t->by_text, t->merges, t->special, t->bytes, t->starts};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(t);
}

/* ---- Text to tokens ---------------------------------------------------------------------- */

/* Merges neighbours until no pair is left that may be; the lowest rank first, of equal ones the first
 * in the text. Returns how many tokens remain. */
static size_t merge_all(const bpe *t, uint32_t *tokens, size_t n)
{
    for (;;) {
        const merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const merge *found = merge_of(t, tokens[i], tokens[i + 1]);
            if (found->rank != NONE && (!best || found->rank < best->rank)) {
                best = found;
                at = i;
            }
        }
        if (!best)
            return n;
        tokens[at] = best->whole;
        memmove(tokens + at + 1, tokens + at + 2, (n - at - 2) * sizeof *tokens);
        n--;
    }
}

/* Returns the special token that begins here, or NONE. */
static uint32_t special_at(const bpe *t, const char *text, size_t n)
{
    for (uint32_t i = 0; i < t->n_special; i++) {
        const moepage_metadata *name = &t->tokens[t->special[i]];
        if (name->text_bytes <= n && !memcmp(name->text, text, name->text_bytes))
            return t->special[i];
    }
    return NONE;
}

/* Encodes text without special tokens; returns how many tokens it has. */
static size_t encode_plain(const bpe *t, const char *text, size_t n, uint32_t *out)
{
    size_t written = 0;
    while (n) {
        const size_t piece = pieces_first(text, n);
        for (size_t i = 0; i < piece; i++)
            out[written + i] = t->of_byte[(unsigned char)text[i]];
        written += merge_all(t, out + written, piece);
        text += piece;
        n -= piece;
    }
    return written;
}

static int check_utf8(const char *text, size_t n)
{
    uint32_t c;
    for (size_t i = 0, length; i < n; i += length)
        if (!(length = pieces_character(text + i, n - i, &c)))
            return fail(RUN_REFUSED, "--prompt: byte %zu is not UTF-8", i);
    return RUN_OK;
}

int bpe_encode(const bpe *t, const char *text, uint32_t *out, size_t *n)
{
    const size_t length = strlen(text);
    size_t begun = 0;
    int code = check_utf8(text, length);
    *n = 0;
    for (size_t i = 0; i < length && !code;) {
        const uint32_t special = special_at(t, text + i, length - i);
        if (special == NONE) {
            i++;
            continue;
        }
        *n += encode_plain(t, text + begun, i - begun, out + *n);
        out[(*n)++] = special;
        begun = i += t->tokens[special].text_bytes;
    }
    if (!code)
        *n += encode_plain(t, text + begun, length - begun, out + *n);
    return code;
}

const unsigned char *bpe_text(const bpe *t, uint32_t token, size_t *n)
{
    *n = token < t->n_tokens ? t->starts[token + 1] - t->starts[token] : 0;
    return *n ? t->bytes + t->starts[token] : NULL;
}
