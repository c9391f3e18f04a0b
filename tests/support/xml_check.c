/* Elements on a stack, attributes one by one. */
#include "xml_check.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "testing.h"

#define MOST_DEPTH 64
#define MOST_ATTRIBUTES 32

typedef struct name {
    const char *at;
    size_t length;
} name;

typedef struct checking {
    const char *text, *at;
    name open[MOST_DEPTH];
    size_t depth, elements;
} checking;

static void refuse(const checking *c, const char *what)
{
    fail_msg("%s at byte %zu: %.60s", what, (size_t)(c->at - c->text), c->at);
}

static void expect(checking *c, char wanted)
{
    if (*c->at != wanted)
        refuse(c, "another character expected");
    c->at++;
}

static name take_name(checking *c)
{
    name n = {.at = c->at};
    if (!isalpha((unsigned char)*c->at))
        refuse(c, "no name");
    while (isalnum((unsigned char)*c->at) || *c->at == '-' || *c->at == ':')
        c->at++;
    n.length = (size_t)(c->at - n.at);
    return n;
}

static bool same(const name *a, const name *b)
{
    return a->length == b->length && !memcmp(a->at, b->at, a->length);
}

static void take_entity(checking *c)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strncmp(c->at, known[i], strlen(known[i]))) {
            c->at += strlen(known[i]);
            return;
        }
    refuse(c, "an entity that is not known");
}

static void take_text(checking *c, char end)
{
    while (*c->at && *c->at != end) {
        unsigned char now = (unsigned char)*c->at;
        if (now == '<' || (now < 0x20 && now != '\n') || now == 0x7f)
            refuse(c, "a character that must be escaped");
        if (now == '&')
            take_entity(c);
        else
            c->at++;
    }
}

static void take_attributes(checking *c)
{
    name names[MOST_ATTRIBUTES];
    size_t n = 0;
    while (*c->at == ' ') {
        c->at++;
        assert_true(n < MOST_ATTRIBUTES);
        names[n] = take_name(c);
        for (size_t i = 0; i < n; i++)
            if (same(&names[i], &names[n]))
                refuse(c, "an attribute twice");
        n++;
        expect(c, '=');
        expect(c, '"');
        take_text(c, '"');
        expect(c, '"');
    }
}

static void take_element(checking *c)
{
    expect(c, '<');
    bool ends = *c->at == '/';
    c->at += ends;
    name n = take_name(c);
    if (ends) {
        if (!c->depth || !same(&c->open[c->depth - 1], &n))
            refuse(c, "an end without its start");
        c->depth--;
    } else {
        if (!c->depth && c->elements)
            refuse(c, "a second root");
        c->elements++;
        take_attributes(c);
        if (*c->at == '/') {
            c->at++;
        } else {
            assert_true(c->depth < MOST_DEPTH);
            c->open[c->depth++] = n;
        }
    }
    expect(c, '>');
}

void xml_check(const char *text)
{
    static const char type[] = "<!DOCTYPE html>\n";
    checking c = {.text = text, .at = text};
    if (!strncmp(text, type, sizeof type - 1))
        c.at += sizeof type - 1;
    while (*c.at) {
        if (*c.at == '<')
            take_element(&c);
        else if (!c.depth && !isspace((unsigned char)*c.at))
            refuse(&c, "text outside");
        else
            take_text(&c, '<');
    }
    if (c.depth || !c.elements)
        refuse(&c, "not all elements have ended");
}
