/* Decomposes, orders marks and composes, as the Unicode standard defines it (chapter 3.11; Hangul 3.12). */
#include "common/compose.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/compose_table.h"
#include "common/letters.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Every character before it stays, whatever follows, and composes with nothing before it. */
enum { FIRST_MARK = 0x300 };

/* Hangul syllables are numbered by their letters. */
enum {
    SYLLABLES = 0xac00,
    LEADS = 0x1100,
    VOWELS = 0x1161,
    TAILS = 0x11a7, /* none */
    N_LEADS = 19,
    N_VOWELS = 21,
    N_TAILS = 28,
    N_SYLLABLES = N_LEADS * N_VOWELS * N_TAILS
};

typedef struct part {
    uint32_t c;
    uint32_t class;
    size_t at; /* marks of one class stay in order */
} part;

/* A text that has been decomposed. */
typedef struct parts {
    part *at;
    size_t n, room;
    bool failed;
} parts;

/* ---- Tables ------------------------------------------------------------------------------ */

static uint32_t class_of(uint32_t c)
{
    size_t first = 0, last = COUNT(compose_classes);
    while (last - first > 1) {
        const size_t middle = first + (last - first) / 2;
        if (compose_classes[middle] >> 8 <= c)
            first = middle;
        else
            last = middle;
    }
    return compose_classes[first] & 255;
}

static int by_first(const void *key, const void *entry)
{
    const uint32_t a = *(const uint32_t *)key, b = *(const uint32_t *)entry;
    return a < b ? -1 : a > b;
}

/* Returns the character that two become, or 0. */
static uint32_t composed(uint32_t a, uint32_t b)
{
    if (a - LEADS < N_LEADS && b - VOWELS < N_VOWELS)
        return SYLLABLES + ((a - LEADS) * N_VOWELS + b - VOWELS) * N_TAILS;
    if (a - SYLLABLES < N_SYLLABLES && (a - SYLLABLES) % N_TAILS == 0 && b > TAILS &&
        b < TAILS + N_TAILS)
        return a + b - TAILS;
    size_t first = 0, last = COUNT(compose_order);
    while (first < last) {
        const size_t middle = first + (last - first) / 2;
        const uint32_t *pair = compose_pairs[compose_order[middle]];
        if (pair[1] == a && pair[2] == b)
            return pair[0];
        if (pair[1] < a || (pair[1] == a && pair[2] < b))
            first = middle + 1;
        else
            last = middle;
    }
    return 0;
}

/* ---- Decomposing ------------------------------------------------------------------------- */

static void append(parts *to, uint32_t c)
{
    if (to->n == to->room) {
        const size_t room = 2 * to->room + 64;
        part *at = realloc(to->at, room * sizeof *at);
        if (!at) {
            to->failed = true;
            return;
        }
        to->at = at;
        to->room = room;
    }
    to->at[to->n] = (part){c, class_of(c), to->n};
    to->n++;
}

static void decompose(parts *to, uint32_t c)
{
    const uint32_t syllable = c - SYLLABLES;
    if (c < FIRST_MARK / 4) {
        append(to, c);
        return;
    }
    if (syllable < N_SYLLABLES) {
        append(to, LEADS + syllable / (N_VOWELS * N_TAILS));
        append(to, VOWELS + syllable / N_TAILS % N_VOWELS);
        if (syllable % N_TAILS)
            append(to, TAILS + syllable % N_TAILS);
        return;
    }
    const uint32_t *found =
        bsearch(&c, compose_singles, COUNT(compose_singles), sizeof *compose_singles, by_first);
    if (found) {
        decompose(to, found[1]);
        return;
    }
    found = bsearch(&c, compose_pairs, COUNT(compose_pairs), sizeof *compose_pairs, by_first);
    if (!found) {
        append(to, c);
        return;
    }
    decompose(to, found[1]);
    decompose(to, found[2]);
}

static int by_class(const void *a, const void *b)
{
    const part *x = a, *y = b;
    if (x->class != y->class)
        return x->class < y->class ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static void order_marks(parts *p)
{
    for (size_t i = 0, end; i < p->n; i = end) {
        for (end = i + 1; p->at[i].class && end < p->n && p->at[end].class;)
            end++;
        if (end - i > 1)
            qsort(p->at + i, end - i, sizeof *p->at, by_class);
    }
}

/* ---- Composing --------------------------------------------------------------------------- */

/* Takes into a character of class 0 what follows and is not kept from it by a part of its own class, or a
 * higher one, that stays between them. */
static void compose_parts(parts *p)
{
    size_t kept = 0, base = SIZE_MAX;
    uint32_t between = 0; /* the class of the last part that stayed behind the base */
    for (size_t i = 0; i < p->n; i++) {
        const part now = p->at[i];
        const bool beside = base != SIZE_MAX && kept == base + 1;
        const bool open = base != SIZE_MAX && (beside || between < now.class);
        const uint32_t both = open ? composed(p->at[base].c, now.c) : 0;
        if (both) {
            p->at[base].c = both;
            continue;
        }
        if (!now.class)
            base = kept;
        between = now.class;
        p->at[kept++] = now;
    }
    p->n = kept;
}

static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= 0xcc) /* U+0300 and behind */
            return false;
    return true;
}

char *compose(const char *text, size_t n, size_t *length)
{
    parts p = {0};
    const bool plain = is_plain(text, n);
    uint32_t c = 0;
    for (size_t i = 0; i < n && !plain; decompose(&p, c))
        i += letters_read(text + i, n - i, &c);
    char *out = p.failed ? NULL : malloc((plain ? n : 4 * p.n) + 1);
    *length = 0;
    if (out && plain)
        memcpy(out, text, *length = n);
    if (out && !plain) {
        order_marks(&p);
        compose_parts(&p);
        for (size_t i = 0; i < p.n; i++)
            *length += letters_write(p.at[i].c, out + *length);
    }
    free(p.at);
    return out;
}
