/* Runs the expressions: a matcher that tries alternatives in order and repeats greedily, one character
 * at a time, and takes back what was repeated too often.
 *
 *   expression   branch | branch
 *   branch       item item ...
 *   item         a class of characters, repeated; "not followed by" a class; the piece's end; or a group,
 *                once or not at all, which is a branch's last item
 *
 * A class is a character, an escape or [...]. Depth is that of the expression, never of the text. */
#include "common/cuts.h"

#include <stdlib.h>
#include <string.h>

#include "common/letters.h"

#define NONE UINT32_MAX
#define NO_MATCH SIZE_MAX

typedef struct range {
    uint32_t first, last;
} range;

typedef struct set {
    uint32_t classes;
    bool others;       /* the characters that are not in it */
    uint32_t first, n; /* in ranges */
} set;

enum { ONE_OF, NOT_NEXT, AT_END, GROUP };

typedef struct item {
    uint32_t kind;
    uint32_t what; /* a set, or a group's first branch */
    size_t least, most;
    uint32_t next; /* of the branch, or NONE */
} item;

typedef struct branch {
    uint32_t first; /* item, or NONE */
    uint32_t other; /* the alternative's branch, or NONE */
} branch;

/* Arrays have room for as many as expressions have bytes. */
struct cuts {
    uint32_t n;
    uint32_t starts[CUTS_MOST]; /* branches */
    range *ranges;
    set *sets;
    item *items;
    branch *branches;
    uint32_t n_ranges, n_sets, n_items, n_branches;
};

/* ---- Reading expressions ----------------------------------------------------------------- */

typedef struct reader {
    cuts *c;
    const char *at, *end;
    bool any_case;
} reader;

static uint32_t read_branches(reader *r);

static bool next_is(const reader *r, const char *text)
{
    const size_t n = strlen(text);
    return (size_t)(r->end - r->at) >= n && !memcmp(r->at, text, n);
}

static bool take(reader *r, const char *text)
{
    const bool there = next_is(r, text);
    r->at += there ? strlen(text) : 0;
    return there;
}

static void add_range(cuts *c, set *to, uint32_t first, uint32_t last)
{
    c->ranges[c->n_ranges++] = (range){first, last};
    to->n++;
}

/* Reads \p{X}, \s, \S or an escaped character, of which it returns the code point; 0 for classes. */
static uint32_t read_escape(reader *r, set *to)
{
    static const struct {
        const char *name;
        uint32_t classes;
    } names[] = {{"p{L}", LETTERS_ALL},    {"p{N}", LETTERS_NUMBER}, {"p{M}", LETTERS_MARK},
                 {"p{P}", LETTERS_SIGN},   {"p{S}", LETTERS_SYMBOL}, {"p{Lu}", LETTERS_UPPER},
                 {"p{Ll}", LETTERS_LOWER}, {"p{Lt}", LETTERS_TITLE}, {"p{Lm}", LETTERS_MODIFIER},
                 {"p{Lo}", LETTERS_OTHER}, {"s", LETTERS_SPACE}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!take(r, names[i].name))
            continue;
        to->classes |= names[i].classes;
        return 0;
    }
    if (take(r, "S")) {
        to->classes |= LETTERS_SPACE;
        to->others = true;
        return 0;
    }
    const char c = *r->at++;
    return c == 'r' ? '\r' : c == 'n' ? '\n' : (uint32_t)c;
}

/* Reads one character, or an escape; 0 for classes. */
static uint32_t read_one(reader *r, set *to)
{
    uint32_t c = 0;
    if (take(r, "\\"))
        return read_escape(r, to);
    r->at += letters_read(r->at, (size_t)(r->end - r->at), &c);
    return c;
}

/* Adds a letter in the cases that fold to it; one letter alone has a third. */
static void add_cases(cuts *c, set *to, uint32_t letter)
{
    add_range(c, to, letter, letter);
    if (letter >= 'a' && letter <= 'z')
        add_range(c, to, letter - 32, letter - 32);
    if (letter == 's')
        add_range(c, to, 0x17f, 0x17f);
}

static uint32_t read_set(reader *r)
{
    cuts *c = r->c;
    set *to = &c->sets[c->n_sets++];
    *to = (set){.first = c->n_ranges};
    if (!take(r, "[")) {
        const uint32_t one = read_one(r, to);
        if (one && r->any_case)
            add_cases(c, to, one);
        else if (one)
            add_range(c, to, one, one);
        return c->n_sets - 1;
    }
    to->others = take(r, "^");
    while (!take(r, "]")) {
        const uint32_t first = read_one(r, to);
        const bool more = first && next_is(r, "-") && !next_is(r, "-]");
        r->at += more;
        const uint32_t last = more ? read_one(r, to) : first;
        if (first)
            add_range(c, to, first, last);
    }
    return c->n_sets - 1;
}

static void read_repeats(reader *r, item *of)
{
    of->least = of->most = 1;
    if (take(r, "?")) {
        of->least = 0;
    } else if (take(r, "*")) {
        of->least = 0;
        of->most = SIZE_MAX;
    } else if (take(r, "+")) {
        of->most = SIZE_MAX;
    } else if (take(r, "{1,3}")) {
        of->most = 3;
    }
}

static uint32_t read_item(reader *r)
{
    const uint32_t index = r->c->n_items++;
    item *out = &r->c->items[index];
    *out = (item){.kind = ONE_OF, .next = NONE};
    if (take(r, "(?!")) {
        out->kind = NOT_NEXT;
        out->what = read_set(r);
        take(r, ")");
    } else if (take(r, "$")) {
        out->kind = AT_END;
    } else if (take(r, "(?i:")) {
        out->kind = GROUP;
        r->any_case = true;
        out->what = read_branches(r);
        r->any_case = false;
        take(r, ")");
        read_repeats(r, out);
    } else {
        out->what = read_set(r);
        read_repeats(r, out);
    }
    return index;
}

/* Returns the first of the branches up to the end, or to the group's. */
static uint32_t read_branches(reader *r)
{
    cuts *c = r->c;
    const uint32_t index = c->n_branches++;
    uint32_t *link = &c->branches[index].first;
    while (r->at < r->end && !next_is(r, "|") && !next_is(r, ")")) {
        *link = read_item(r);
        link = &c->items[*link].next;
    }
    *link = NONE;
    c->branches[index].other = take(r, "|") ? read_branches(r) : NONE;
    return index;
}

cuts *cuts_make(const char *const *expressions, uint32_t n)
{
    size_t room = 1;
    for (uint32_t i = 0; i < n; i++)
        room += 2 * strlen(expressions[i]);
    cuts *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->n = n;
    c->ranges = calloc(room, sizeof *c->ranges);
    c->sets = calloc(room, sizeof *c->sets);
    c->items = calloc(room, sizeof *c->items);
    c->branches = calloc(room, sizeof *c->branches);
    if (!c->ranges || !c->sets || !c->items || !c->branches) {
        cuts_free(c);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        reader r = {c, expressions[i], expressions[i] + strlen(expressions[i]), false};
        c->starts[i] = read_branches(&r);
    }
    return c;
}

void cuts_free(cuts *c)
{
    if (!c)
        return;
    free(c->ranges);
    free(c->sets);
    free(c->items);
    free(c->branches);
    free(c);
}

/* ---- Matching ---------------------------------------------------------------------------- */

/* A text's characters, and the piece that is being cut. */
typedef struct subject {
    const cuts *c;
    const uint32_t *characters;
    const uint16_t *classes;
    size_t n; /* the piece's end */
} subject;

static bool has(const subject *s, uint32_t index, size_t at)
{
    const set *in = &s->c->sets[index];
    if (s->classes[at] & in->classes)
        return !in->others;
    const uint32_t c = s->characters[at];
    for (uint32_t i = in->first; i < in->first + in->n; i++)
        if (c >= s->c->ranges[i].first && c <= s->c->ranges[i].last)
            return !in->others;
    return in->others;
}

static size_t match_branches(const subject *s, uint32_t index, size_t at);

/* Returns where a branch's items from this one on end if they match here, or NO_MATCH. */
static size_t match_items(const subject *s, uint32_t index, size_t at)
{
    if (index == NONE)
        return at;
    const item *of = &s->c->items[index];
    if (of->kind == NOT_NEXT)
        return at < s->n && has(s, of->what, at) ? NO_MATCH : match_items(s, of->next, at);
    if (of->kind == AT_END)
        return at == s->n ? match_items(s, of->next, at) : NO_MATCH;
    if (of->kind == GROUP) {
        const size_t end = match_branches(s, of->what, at);
        return end == NO_MATCH && !of->least ? at : end;
    }
    size_t times = 0;
    while (times < of->most && at + times < s->n && has(s, of->what, at + times))
        times++;
    for (;; times--) {
        if (times < of->least)
            return NO_MATCH;
        const size_t end = match_items(s, of->next, at + times);
        if (end != NO_MATCH || !times)
            return end;
    }
}

static size_t match_branches(const subject *s, uint32_t index, size_t at)
{
    size_t end = NO_MATCH;
    for (; index != NONE && end == NO_MATCH; index = s->c->branches[index].other)
        end = match_items(s, s->c->branches[index].first, at);
    return end;
}

/* Returns where to look next after an expression that matches nothing here. One that begins with a run
 * matches nowhere in the run either: what would follow has been tried at all its ends. */
static size_t step(const subject *s, uint32_t index, size_t at)
{
    const branch *only = &s->c->branches[index];
    const item *first = &s->c->items[only->first];
    const bool run = only->other == NONE && first->kind == ONE_OF && first->most == SIZE_MAX;
    for (at++; run && at < s->n && has(s, first->what, at - 1) && has(s, first->what, at);)
        at++;
    return at;
}

/* Marks where matches begin and end within the characters [from, s->n). */
static void cut_piece(const subject *s, uint32_t index, size_t from, unsigned char *begins)
{
    for (size_t at = from; at < s->n;) {
        const size_t end = match_branches(s, index, at);
        if (end == NO_MATCH || end == at) {
            at = step(s, index, at);
            continue;
        }
        begins[at] = begins[end] = 1;
        at = end;
    }
}

static void cut_all(const cuts *c, const uint32_t *characters, const uint16_t *classes, size_t n,
                    unsigned char *begins)
{
    for (uint32_t i = 0; i < c->n; i++) {
        for (size_t from = 0, end; from < n; from = end) {
            for (end = from + 1; !begins[end];)
                end++;
            const subject s = {c, characters, classes, end};
            cut_piece(&s, c->starts[i], from, begins);
        }
    }
}

/* Returns how many characters there are. */
static size_t read_characters(const char *text, size_t n, uint32_t *characters, uint16_t *classes)
{
    size_t count = 0;
    for (size_t i = 0; i < n; count++) {
        i += letters_read(text + i, n - i, &characters[count]);
        classes[count] = (uint16_t)letters_classes(characters[count]);
    }
    return count;
}

bool cuts_apply(const cuts *c, const char *text, size_t n, size_t **ends, size_t *n_ends)
{
    uint32_t *characters = malloc((n + 1) * sizeof *characters);
    uint16_t *classes = malloc((n + 1) * sizeof *classes);
    unsigned char *begins = calloc(n + 1, 1);
    *ends = malloc((n + 1) * sizeof **ends);
    *n_ends = 0;
    const bool room = characters && classes && begins && *ends;
    if (room) {
        const size_t count = read_characters(text, n, characters, classes);
        char unused[4];
        begins[count] = 1;
        cut_all(c, characters, classes, count, begins);
        for (size_t i = 0, at = 0; i < count; i++) {
            at += letters_write(characters[i], unused);
            if (begins[i + 1])
                (*ends)[(*n_ends)++] = at;
        }
    } else {
        free(*ends);
        *ends = NULL;
    }
    free(characters);
    free(classes);
    free(begins);
    return room;
}
