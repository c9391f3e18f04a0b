/* Checks the labels that a host puts into every sample: the text format must allow them, and none
 * may change the meaning of a sample. */
#include <string.h>

#include "base/status.h"
#include "metrics/metrics.h"

#define MOST_BYTES 256u

/* Label names that the metrics use themselves. */
static const char *const taken[] = {
    "arena",     "cublas",  "gpu",      "bus_form", "cause",   "cold_engine", "high_form",
    "slot_form", "kernels", "low_form", "measured", "mode",    "name",        "of",
    "outcome",   "side",    "split",    "tier",     "version", "when",
};

/* One name="value" pair of the labels; the lengths exclude the quotes. */
typedef struct pair {
    const char *name;
    size_t name_bytes;
    const char *end; /* behind the closing quote */
} pair;

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Returns the length of the UTF-8 character at `at`, or 0 if it is malformed: over-long forms,
 * surrogates and code points beyond U+10FFFF are malformed. */
static size_t character_bytes(const unsigned char *at)
{
    if (at[0] < 0x80)
        return 1;
    size_t n = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool lowest = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool beyond = (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf4 && at[1] > 0x8f);
    return lowest || beyond ? 0 : n;
}

/* Steps over one character of a value, or a whole escape; returns NULL if there is neither. */
static const char *next_in_value(const char *at)
{
    if (*at == '\\')
        return at[1] && strchr("\\\"n", at[1]) ? at + 2 : NULL;
    size_t n = *at && *at != '\n' ? character_bytes((const unsigned char *)at) : 0;
    return n ? at + n : NULL;
}

static moepage_status fail_at(const char *labels, const char *at, const char *what)
{
    return mp_fail(MOEPAGE_E_ARGUMENT,
                   "labels: %s at byte %zu; write name=\"value\" pairs with commas between them",
                   what, (size_t)(at - labels));
}

static moepage_status read_pair(const char *labels, const char *at, pair *out)
{
    *out = (pair){.name = at};
    if (!is_letter(*at))
        return fail_at(labels, at, "a label's name is missing");
    while (is_letter(*at) || (*at >= '0' && *at <= '9'))
        at++;
    out->name_bytes = (size_t)(at - out->name);
    if (at[0] != '=' || at[1] != '"')
        return fail_at(labels, at, "=\" is missing");
    for (at += 2; *at != '"';) {
        const char *next = next_in_value(at);
        if (!next)
            return fail_at(labels, at,
                           "a value has a byte that is neither UTF-8 text nor one of the escapes "
                           "\\\\, \\\" and \\n");
        at = next;
    }
    out->end = at + 1;
    return MOEPAGE_OK;
}

static bool is_named(const pair *p, const char *name)
{
    return strlen(name) == p->name_bytes && !memcmp(p->name, name, p->name_bytes);
}

static moepage_status check_name(const char *labels, const pair *p)
{
    int bytes = (int)p->name_bytes;
    if (p->name_bytes >= 2 && p->name[0] == '_' && p->name[1] == '_')
        return mp_fail(MOEPAGE_E_ARGUMENT, "labels: %.*s begins with __, which Prometheus reserves",
                       bytes, p->name);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (is_named(p, taken[i]))
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "labels: metrics have a label \"%s\" of their own: choose another name",
                           taken[i]);
    pair other = {.end = labels};
    for (const char *at = labels; at < p->name; at = other.end + 1) {
        (void)read_pair(labels, at, &other); /* cannot fail: this pair was read before */
        if (other.name_bytes == p->name_bytes && !memcmp(other.name, p->name, p->name_bytes))
            return mp_fail(MOEPAGE_E_ARGUMENT, "labels: %.*s occurs twice", bytes, p->name);
    }
    return MOEPAGE_OK;
}

moepage_status mp_metrics_check_labels(const char *labels)
{
    moepage_status status = MOEPAGE_OK;
    if (!labels || !*labels)
        return MOEPAGE_OK;
    if (strnlen(labels, MOST_BYTES + 1) > MOST_BYTES)
        return mp_fail(MOEPAGE_E_ARGUMENT, "labels are longer than %u bytes", MOST_BYTES);
    for (const char *at = labels; !status;) {
        pair p;
        status = read_pair(labels, at, &p);
        if (!status)
            status = check_name(labels, &p);
        if (status || !*p.end)
            return status;
        if (*p.end != ',')
            return fail_at(labels, p.end, "a comma is missing");
        at = p.end + 1;
    }
    return status;
}
