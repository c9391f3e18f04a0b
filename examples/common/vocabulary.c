/* Tables of tokens. */
#include "common/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/letters.h"

#define NONE VOCABULARY_NONE

/* ---- Characters for bytes ---------------------------------------------------------------- */

/* Returns the character that stands for a byte: itself if it is printable in Latin-1, else one of
 * those from 256 on, in order. */
static uint32_t character_of(uint32_t byte)
{
    if (byte <= 32)
        return 256 + byte;
    if (byte >= 127 && byte <= 160)
        return 256 + 33 + byte - 127;
    return byte == 173 ? 256 + 33 + 34 : byte;
}

size_t vocabulary_write(const char *bytes, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n; i++)
        length += letters_write(character_of((unsigned char)bytes[i]), out + length);
    return length;
}

/* Returns the byte that <0x0A> names, or -1 for another text. */
static int named_byte(const vocabulary_token *t)
{
    static const char digits[] = "0123456789ABCDEF";
    if (t->n != 6 || memcmp(t->text, "<0x", 3) || t->text[5] != '>')
        return -1;
    const char *high = memchr(digits, t->text[3], 16), *low = memchr(digits, t->text[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* ---- Tokens by their texts --------------------------------------------------------------- */

static uint32_t hash_more(uint32_t hash, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x01000193u;
    return hash;
}

/* Returns the place of a text, given in two parts, in by_text: its token's, or an empty one. */
static uint32_t *place_of(const token_set *v, const char *left, size_t n_left, const char *right,
                          size_t n_right)
{
    const uint32_t hash = hash_more(hash_more(0x811c9dc5, left, n_left), right, n_right);
    uint32_t at = (hash ^ hash >> 15) & (v->places - 1);
    while (v->by_text[at] != NONE) {
        const vocabulary_token *found = &v->tokens[v->by_text[at]];
        if (found->n == n_left + n_right && !memcmp(found->text, left, n_left) &&
            !memcmp(found->text + n_left, right, n_right))
            break;
        at = (at + 1) & (v->places - 1);
    }
    return &v->by_text[at];
}

uint32_t vocabulary_find_both(const token_set *v, const char *left, size_t n_left,
                              const char *right, size_t n_right)
{
    if (!n_left || !n_right || n_left > v->longest || n_right > v->longest - n_left)
        return NONE;
    return *place_of(v, left, n_left, right, n_right);
}

uint32_t vocabulary_find(const token_set *v, const char *text, size_t n)
{
    return n && n <= v->longest ? *place_of(v, text, n, text, 0) : NONE;
}

static int index_texts(token_set *v)
{
    v->places = 16;
    while (v->places < 2 * (uint64_t)v->n)
        v->places *= 2;
    v->by_text = malloc(v->places * sizeof *v->by_text);
    if (!v->by_text)
        return fail_memory();
    memset(v->by_text, 0xff, v->places * sizeof *v->by_text);
    for (uint32_t i = 0; i < v->n; i++) {
        const vocabulary_token *t = &v->tokens[i];
        if (!t->n)
            continue;
        uint32_t *place = place_of(v, t->text, t->n, t->text, 0);
        if (*place == NONE)
            *place = i;
        v->longest = t->n > v->longest ? t->n : v->longest;
    }
    return RUN_OK;
}

static int find_bytes(token_set *v, const char *where)
{
    for (uint32_t b = 0; b < 256; b++) {
        char text[8];
        size_t n = 6;
        if (v->byte_level)
            n = letters_write(character_of(b), text);
        else
            snprintf(text, sizeof text, "<0x%02X>", b);
        v->of_byte[b] = vocabulary_find(v, text, n);
        const bool never = b == 0xc0 || b == 0xc1 || b > 0xf4; /* in UTF-8 */
        if (v->of_byte[b] == NONE && !never)
            return fail(RUN_REFUSED, "%s has no token for byte %u", where, b);
    }
    return RUN_OK;
}

/* ---- Special tokens ---------------------------------------------------------------------- */

/* A name that is no UTF-8 is in no text, although it may be in the middle of a text's character. */
static bool is_special(const vocabulary_token *t)
{
    return (t->kind == TOKEN_CONTROL || t->kind == TOKEN_OWN || t->kind == TOKEN_UNKNOWN) && t->n &&
           letters_valid(t->text, t->n) == t->n;
}

/* By their bytes, the shorter of two that begin alike first; equal ones by their ids. */
static int by_text(const void *a, const void *b, void *arg)
{
    const token_set *v = arg;
    const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    const vocabulary_token *x = &v->tokens[i], *y = &v->tokens[k];
    const int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    if (order)
        return order;
    return x->n != y->n ? (x->n < y->n ? -1 : 1) : (i < k ? -1 : i > k);
}

static int index_special(token_set *v, bool late)
{
    token_names *names = &v->special[late];
    names->ids = calloc((size_t)v->n + 1, sizeof *names->ids);
    if (!names->ids)
        return fail_memory();
    for (uint32_t i = 0; i < v->n; i++)
        if (is_special(&v->tokens[i]) && v->tokens[i].late == late)
            names->ids[names->n++] = i;
    qsort_r(names->ids, names->n, sizeof *names->ids, by_text, v);
    uint32_t at = 0;
    for (uint32_t b = 0; b <= 256; b++) {
        while (at < names->n && (unsigned char)v->tokens[names->ids[at]].text[0] < b)
            at++;
        names->from[b] = at;
    }
    return RUN_OK;
}

/* Returns the first place in ids[first, last), whose texts are alike before `at`, of a text with this byte
 * or a greater one there; texts that end there come first. */
static uint32_t first_with(const token_set *v, const uint32_t *ids, uint32_t first, uint32_t last,
                           size_t at, int byte)
{
    while (first < last) {
        const uint32_t middle = first + (last - first) / 2;
        const vocabulary_token *t = &v->tokens[ids[middle]];
        if (t->n <= at || (unsigned char)t->text[at] < byte)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

uint32_t vocabulary_special(const token_set *v, bool late, const char *text, size_t n)
{
    const unsigned char *bytes = (const unsigned char *)text;
    const token_names *names = &v->special[late];
    uint32_t first = names->from[bytes[0]], last = names->from[bytes[0] + 1];
    uint32_t found = NONE;
    for (size_t at = 1; first < last; at++) {
        if (v->tokens[names->ids[first]].n == at)
            found = names->ids[first];
        if (at == n)
            break;
        last = first_with(v, names->ids, first, last, at, bytes[at] + 1);
        first = first_with(v, names->ids, first, last, at, bytes[at]);
    }
    return found;
}

/* ---- Back to bytes ----------------------------------------------------------------------- */

/* Writes the bytes that a byte-level text stands for; a character that stands for none is kept. */
static unsigned char *write_coded(const vocabulary_token *t, const uint16_t *byte_of,
                                  unsigned char *out)
{
    for (size_t i = 0, length; i < t->n; i += length) {
        uint32_t c = 0;
        length = letters_read(t->text + i, t->n - i, &c);
        const bool coded = length && c < 512 && byte_of[c];
        length += !length;
        if (coded)
            *out++ = (unsigned char)(byte_of[c] - 1);
        for (size_t k = 0; k < length && !coded; k++)
            *out++ = (unsigned char)t->text[i + k];
    }
    return out;
}

/* Writes a text with its spaces. */
static unsigned char *write_spaced(const vocabulary_token *t, unsigned char *out)
{
    static const char space[] = VOCABULARY_SPACE;
    for (size_t i = 0; i < t->n;) {
        const bool is_space = t->n - i >= 3 && !memcmp(t->text + i, space, 3);
        *out++ = is_space ? ' ' : (unsigned char)t->text[i];
        i += is_space ? 3 : 1;
    }
    return out;
}

static unsigned char *write_token(const token_set *v, const vocabulary_token *t,
                                  const uint16_t *byte_of, unsigned char *out)
{
    if (t->kind == TOKEN_CONTROL || t->kind == TOKEN_UNKNOWN)
        return out;
    if (t->kind == TOKEN_OWN && t->n) {
        memcpy(out, t->text, t->n);
        return out + t->n;
    }
    if (v->byte_level)
        return write_coded(t, byte_of, out);
    const int byte = named_byte(t);
    if (t->kind != TOKEN_BYTE || byte < 0)
        return write_spaced(t, out);
    *out = (unsigned char)byte;
    return out + 1;
}

static int write_all(token_set *v)
{
    uint16_t byte_of[512] = {0}; /* and one more; 0 = none */
    size_t room = 1;
    for (uint32_t b = 0; b < 256; b++)
        byte_of[character_of(b)] = (uint16_t)(b + 1);
    for (uint32_t i = 0; i < v->n; i++)
        room += v->tokens[i].n;
    v->bytes = malloc(room);
    v->starts = calloc((size_t)v->n + 1, sizeof *v->starts);
    if (!v->bytes || !v->starts)
        return fail_memory();
    unsigned char *out = v->bytes;
    for (uint32_t i = 0; i < v->n; i++) {
        out = write_token(v, &v->tokens[i], byte_of, out);
        v->starts[i + 1] = (size_t)(out - v->bytes);
    }
    return RUN_OK;
}

const unsigned char *vocabulary_bytes(const token_set *v, uint32_t token, size_t *n)
{
    *n = token < v->n ? v->starts[token + 1] - v->starts[token] : 0;
    return *n ? v->bytes + v->starts[token] : NULL;
}

/* ---- Lifetime ---------------------------------------------------------------------------- */

int vocabulary_make(token_set *v, vocabulary_token *tokens, uint32_t n, bool byte_level,
                    const char *where)
{
    *v = (token_set){.tokens = tokens, .n = n, .byte_level = byte_level};
    int code = index_texts(v);
    if (!code)
        code = find_bytes(v, where);
    if (!code)
        code = index_special(v, false);
    if (!code)
        code = index_special(v, true);
    if (!code)
        code = write_all(v);
    if (code)
        vocabulary_free(v);
    return code;
}

void vocabulary_free(token_set *v)
{
    free(v->tokens);
    free(v->by_text);
    free(v->special[0].ids);
    free(v->special[1].ids);
    free(v->bytes);
    free(v->starts);
    *v = (token_set){0};
}
