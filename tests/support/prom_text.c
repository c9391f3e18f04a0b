/* Reading the text that Prometheus scrapes. */
#include "prom_text.h"

#include <stdlib.h>
#include <string.h>

#include "testing.h"

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
static const char digits[] = "0123456789";

/* The line under way, for sentences. */
typedef struct reader {
    const char *line;
    size_t bytes;
} reader;

#define WANT(r, condition, what)                                          \
    do {                                                                  \
        if (!(condition))                                                 \
            fail_msg("%s: \"%.*s\"", (what), (int)(r)->bytes, (r)->line); \
    } while (0)

static size_t span_name(const char *at, bool colons)
{
    size_t n = 0;
    while (at[n] &&
           (strchr(letters, at[n]) || (n && strchr(digits, at[n])) || (colons && at[n] == ':')))
        n++;
    return n;
}

/* Past the labels in braces. */
static const char *skip_labels(const reader *r, const char *at)
{
    WANT(r, *at == '{', "no labels");
    do {
        at++;
        size_t n = span_name(at, false);
        WANT(r, n > 0, "a label has no name");
        WANT(r, at[n] == '=' && at[n + 1] == '"', "a label has no value");
        for (at += n + 2; *at != '"'; at++) {
            WANT(r, at < r->line + r->bytes, "a label's value does not end");
            if (*at == '\\')
                WANT(r, *++at == '\\' || *at == '"' || *at == 'n', "an escape that is none");
        }
        at++;
    } while (*at == ',');
    WANT(r, *at == '}', "labels do not end");
    return at + 1;
}

void prom_each_label(const char *key, void (*see)(void *user, const char *name, size_t bytes),
                     void *user)
{
    const char *at = strchr(key, '{');
    while (at && *at != '}') {
        size_t n = span_name(++at, false);
        see(user, at, n);
        for (at += n + 2; *at != '"'; at++)
            at += *at == '\\';
        at++;
    }
}

static void copy(const reader *r, char *to, size_t room, const char *from, size_t n)
{
    WANT(r, n < room, "longer than this reader can take");
    memcpy(to, from, n);
    to[n] = '\0';
}

/* "# HELP name text" opens a family, "# TYPE name type" follows. Returns whether it was HELP. */
static bool read_comment(const reader *r, prom_text *out, bool typed)
{
    const char *at = r->line + 7;
    bool help = !strncmp(r->line, "# HELP ", 7);
    WANT(r, help || !strncmp(r->line, "# TYPE ", 7), "neither HELP nor TYPE");
    size_t n = span_name(at, true);
    WANT(r, n > 0 && at[n] == ' ', "no name");
    if (help) {
        WANT(r, typed, "a HELP follows a HELP");
        WANT(r, n + 8 < r->bytes, "no help");
        WANT(r, out->n_families < PROM_MOST, "too many families");
        prom_family *family = &out->families[out->n_families++];
        copy(r, family->name, sizeof family->name, at, n);
        for (prom_family *other = out->families; other < family; other++)
            WANT(r, strcmp(other->name, family->name), "a family is there twice");
        return true;
    }
    prom_family *family = &out->families[out->n_families - 1];
    WANT(r, !typed && out->n_families > 0, "a TYPE without its HELP");
    WANT(r, strlen(family->name) == n && !memcmp(family->name, at, n), "TYPE of another family");
    const char *type = at + n + 1;
    size_t type_bytes = (size_t)(r->line + r->bytes - type);
    family->counter = type_bytes == 7 && !memcmp(type, "counter", 7);
    WANT(r, family->counter || (type_bytes == 5 && !memcmp(type, "gauge", 5)), "no known type");
    bool total = n > 6 && !memcmp(at + n - 6, "_total", 6);
    WANT(r, total == family->counter, "counters, and only they, end in _total");
    return false;
}

static void read_sample(const reader *r, prom_text *out)
{
    WANT(r, out->n_families > 0 && out->n_samples < PROM_MOST, "a sample without a family");
    prom_sample *sample = &out->samples[out->n_samples++];
    const prom_family *family = &out->families[out->n_families - 1];
    size_t n = span_name(r->line, true);
    copy(r, sample->name, sizeof sample->name, r->line, n);
    sample->family = out->n_families - 1;
    WANT(r, !strcmp(sample->name, family->name), "a sample of another family");
    const char *end = r->line[n] == '{' ? skip_labels(r, r->line + n) : r->line + n;
    copy(r, sample->key, sizeof sample->key, r->line, (size_t)(end - r->line));
    for (prom_sample *other = out->samples; other < sample; other++)
        WANT(r, strcmp(other->key, sample->key), "a sample is there twice");
    WANT(r, *end == ' ', "no value");
    copy(r, sample->value, sizeof sample->value, end + 1, (size_t)(r->line + r->bytes - end - 1));
    const char *value = sample->value + (sample->value[0] == '-');
    size_t whole = strspn(value, digits), part = 0;
    if (value[whole] == '.')
        part = 1 + strspn(value + whole + 1, digits);
    WANT(r, whole > 0 && part != 1 && !value[whole + part], "a value that is no number");
    WANT(r, value == sample->value || !family->counter, "a negative counter");
}

void prom_read(const char *text, prom_text *out)
{
    bool typed = true; /* the last family has its type */
    memset(out, 0, sizeof *out);
    while (*text) {
        const char *end = strchr(text, '\n');
        reader r = {.line = text, .bytes = end ? (size_t)(end - text) : strlen(text)};
        WANT(&r, end, "the last line does not end");
        if (*text == '#') {
            typed = !read_comment(&r, out, typed);
        } else {
            WANT(&r, typed, "a sample before its TYPE");
            read_sample(&r, out);
        }
        text = end + 1;
    }
    for (uint32_t i = 0; i < out->n_families; i++) {
        bool any = false;
        for (uint32_t s = 0; s < out->n_samples; s++)
            any |= out->samples[s].family == i;
        if (!any)
            fail_msg("%s has no sample", out->families[i].name);
    }
}

static const prom_sample *find(const prom_text *text, const char *key)
{
    for (uint32_t i = 0; i < text->n_samples; i++)
        if (!strcmp(text->samples[i].key, key))
            return &text->samples[i];
    return NULL;
}

bool prom_has(const prom_text *text, const char *key)
{
    return find(text, key) != NULL;
}

const char *prom_value(const prom_text *text, const char *key)
{
    const prom_sample *sample = find(text, key);
    if (!sample)
        fail_msg("there is no sample %s", key);
    return sample->value;
}

uint64_t prom_count(const prom_text *text, const char *key)
{
    return strtoull(prom_value(text, key), NULL, 10);
}
