/* Merging with a heap: each pair of neighbours that may be joined is in it once; a pair of which a half
 * has been joined otherwise meanwhile is passed over as it comes up. */
#include "common/merges.h"

#include <stdlib.h>
#include <string.h>

#include "common/letters.h"

#define NONE VOCABULARY_NONE

/* ---- The table --------------------------------------------------------------------------- */

/* Returns the place of a pair: its own, or an empty one. */
static merge *merge_of(const merges *m, uint32_t left, uint32_t right)
{
    const uint64_t hash = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    uint32_t at = (uint32_t)(hash >> 32) & (m->places - 1);
    while (m->table[at].whole != NONE && (m->table[at].left != left || m->table[at].right != right))
        at = (at + 1) & (m->places - 1);
    return &m->table[at];
}

bool merges_make(merges *m, const token_set *tokens, uint32_t n)
{
    *m = (merges){.tokens = tokens, .places = 16};
    while (m->places < 2 * (uint64_t)n)
        m->places *= 2;
    m->table = malloc(m->places * sizeof *m->table);
    if (m->table)
        memset(m->table, 0xff, m->places * sizeof *m->table);
    return m->table != NULL;
}

void merges_free(merges *m)
{
    free(m->table);
    *m = (merges){0};
}

bool merges_add(merges *m, const char *left, size_t n_left, const char *right, size_t n_right,
                uint32_t rank)
{
    const token_set *v = m->tokens;
    const merge added = {vocabulary_find(v, left, n_left), vocabulary_find(v, right, n_right),
                         vocabulary_find_both(v, left, n_left, right, n_right), rank};
    if (added.left == NONE || added.right == NONE || added.whole == NONE)
        return false;
    merge *place = merge_of(m, added.left, added.right);
    if (place->whole == NONE)
        *place = added;
    return true;
}

/* ---- The heap ---------------------------------------------------------------------------- */

static bool comes_first(const candidate *a, const candidate *b)
{
    return a->order < b->order || (a->order == b->order && a->left < b->left);
}

static void push(merge_room *room, candidate added)
{
    size_t at = room->n++;
    for (size_t up; at && comes_first(&added, &room->heap[up = (at - 1) / 2]); at = up)
        room->heap[at] = room->heap[up];
    room->heap[at] = added;
}

static candidate pop(merge_room *room)
{
    const candidate first = room->heap[0], moved = room->heap[--room->n];
    size_t at = 0;
    for (size_t down; (down = 2 * at + 1) < room->n; at = down) {
        if (down + 1 < room->n && comes_first(&room->heap[down + 1], &room->heap[down]))
            down++;
        if (!comes_first(&room->heap[down], &moved))
            break;
        room->heap[at] = room->heap[down];
    }
    room->heap[at] = moved;
    return first;
}

/* ---- Merging ----------------------------------------------------------------------------- */

/* The work on one piece. */
typedef struct work {
    const merges *m;
    merge_room *room;
    const char *piece;
} work;

/* Returns the token of a text that is merged by scores; control tokens and bytes are never met so. */
static uint32_t scored_token(const token_set *v, const char *text, size_t n)
{
    const uint32_t found = vocabulary_find(v, text, n);
    return found != NONE &&
                   (v->tokens[found].kind == TOKEN_NORMAL || v->tokens[found].kind == TOKEN_OWN)
               ? found
               : NONE;
}

static void consider(const work *w, uint32_t left, uint32_t right)
{
    const symbol *s = w->room->symbols;
    if (left == NONE || right == NONE)
        return;
    candidate c = {.left = left, .right = right, .n = s[left].n + s[right].n};
    if (w->m->by_score) {
        c.whole = scored_token(w->m->tokens, w->piece + s[left].at, c.n);
        if (c.whole == NONE)
            return;
        c.order = -(double)w->m->tokens->tokens[c.whole].score;
    } else {
        if (s[left].token == NONE || s[right].token == NONE)
            return;
        const merge *found = merge_of(w->m, s[left].token, s[right].token);
        if (found->whole == NONE)
            return;
        c.whole = found->whole;
        c.order = found->rank;
    }
    push(w->room, c);
}

/* Returns how many symbols the piece begins as: bytes, or characters. */
static uint32_t split(const work *w, size_t n)
{
    const token_set *v = w->m->tokens;
    uint32_t count = 0, c;
    for (size_t i = 0, length; i < n; i += length, count++) {
        const char *at = w->piece + i;
        length = v->byte_level ? 1 : letters_read(at, n - i, &c);
        const uint32_t token = v->byte_level    ? v->of_byte[(unsigned char)*at]
                               : w->m->by_score ? scored_token(v, at, length)
                                                : vocabulary_find(v, at, length);
        w->room->symbols[count] =
            (symbol){token, (uint32_t)i, (uint32_t)length, count ? count - 1 : NONE,
                     i + length < n ? count + 1 : NONE};
    }
    return count;
}

static void join(const work *w, const candidate *c)
{
    symbol *s = w->room->symbols;
    symbol *left = &s[c->left], *right = &s[c->right];
    left->token = c->whole;
    left->n = c->n;
    left->behind = right->behind;
    right->n = 0;
    if (left->behind != NONE)
        s[left->behind].before = c->left;
    consider(w, left->before, c->left);
    consider(w, c->left, left->behind);
}

/* A heap never has more than two pairs for each symbol: a merge takes one and adds two. */
static bool make_room(merge_room *room, size_t n)
{
    if (n <= room->places)
        return true;
    merges_free_room(room);
    room->symbols = malloc(n * sizeof *room->symbols);
    room->heap = malloc(2 * n * sizeof *room->heap);
    room->places = n;
    if (!room->symbols || !room->heap)
        merges_free_room(room);
    return room->places != 0;
}

bool merges_apply(const merges *m, merge_room *room, const char *piece, size_t n, merges_emit *emit,
                  void *self)
{
    const work w = {m, room, piece};
    if (!make_room(room, n))
        return false;
    const uint32_t count = split(&w, n);
    for (uint32_t i = 0; i + 1 < count; i++)
        consider(&w, i, i + 1);
    while (room->n) {
        const candidate c = pop(room);
        const symbol *left = &room->symbols[c.left], *right = &room->symbols[c.right];
        if (left->n && right->n && left->n + right->n == c.n)
            join(&w, &c);
    }
    for (uint32_t i = 0; i != NONE; i = room->symbols[i].behind)
        emit(self, room->symbols[i].token, piece + room->symbols[i].at, room->symbols[i].n);
    return true;
}

void merges_free_room(merge_room *room)
{
    free(room->symbols);
    free(room->heap);
    *room = (merge_room){0};
}
