/* Reads command lines by table. */
#include "common/flags.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

void *flag_field(const flag *self, void *out)
{
    return (char *)out + self->offset;
}

int flag_refuse(const flag *self, const char *text, const char *wanted)
{
    return fail(RUN_REFUSED, "%s %s: expected %s", self->name, *text ? text : "''", wanted);
}

/* ---- Values ------------------------------------------------------------------------------ */

bool flag_take_number(const char **text, uint64_t *out)
{
    if (!isdigit((unsigned char)**text))
        return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(*text, &end, 10);
    *text = end;
    *out = value;
    return errno == 0;
}

bool flag_take_real(const char **text, double *out)
{
    char *end;
    if (!isdigit((unsigned char)**text) && **text != '.')
        return false;
    *out = strtod(*text, &end);
    bool read = end != *text && isfinite(*out);
    *text = end;
    return read;
}

bool flag_is_bytes(const char *text, uint64_t *out)
{
    if (!flag_take_number(&text, out))
        return false;
    static const char suffixes[] = "KMG";
    unsigned shift = 0;
    const char *suffix = *text ? strchr(suffixes, *text) : NULL;
    if (suffix) {
        shift = 10u * (unsigned)(suffix - suffixes + 1);
        text++;
    }
    if (*text != '\0' || *out > UINT64_MAX >> shift)
        return false;
    *out <<= shift;
    return true;
}

/* ---- Fields ------------------------------------------------------------------------------ */

int flag_text(const flag *self, const char *text, void *out)
{
    if (!*text)
        return flag_refuse(self, text, "a value");
    *(const char **)flag_field(self, out) = text;
    return RUN_OK;
}

static int read_number(const flag *self, const char *text, uint64_t *out)
{
    const char *rest = text;
    if (flag_take_number(&rest, out) && *rest == '\0' && *out >= self->least && *out <= self->most)
        return RUN_OK;
    return fail(RUN_REFUSED, "%s %s: expected a whole number from %llu to %llu", self->name,
                *text ? text : "''", (unsigned long long)self->least,
                (unsigned long long)self->most);
}

int flag_u32(const flag *self, const char *text, void *out)
{
    uint64_t value = 0;
    int code = read_number(self, text, &value);
    if (!code)
        *(uint32_t *)flag_field(self, out) = (uint32_t)value;
    return code;
}

int flag_u64(const flag *self, const char *text, void *out)
{
    uint64_t value = 0;
    int code = read_number(self, text, &value);
    if (!code)
        *(uint64_t *)flag_field(self, out) = value;
    return code;
}

int flag_bytes(const flag *self, const char *text, void *out)
{
    uint64_t value;
    if (!flag_is_bytes(text, &value))
        return flag_refuse(self, text, "a number of bytes (digits, perhaps K, M or G)");
    *(uint64_t *)flag_field(self, out) = value;
    return RUN_OK;
}

int flag_choice(const flag *self, const char *text, void *out)
{
    char wanted[128];
    size_t used = 0;
    for (uint32_t i = 0; i < FLAG_CHOICES && self->choice[i]; i++) {
        if (!strcmp(text, self->choice[i])) {
            *(uint32_t *)flag_field(self, out) = i;
            return RUN_OK;
        }
        if (used < sizeof wanted)
            used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s%s", i ? " or " : "",
                                     self->choice[i]);
    }
    return flag_refuse(self, text, wanted);
}

static int read_real(const flag *self, const char *text, void *out, bool positive, double most,
                     const char *wanted)
{
    double *value = flag_field(self, out);
    const char *rest = text;
    if (!flag_take_real(&rest, value) || *rest || (positive && *value <= 0) || *value > most)
        return flag_refuse(self, text, wanted);
    return RUN_OK;
}

int flag_real(const flag *self, const char *text, void *out)
{
    return read_real(self, text, out, false, INFINITY, "a number, 0 or more");
}

int flag_positive(const flag *self, const char *text, void *out)
{
    return read_real(self, text, out, true, INFINITY, "a number above 0");
}

int flag_share(const flag *self, const char *text, void *out)
{
    return read_real(self, text, out, true, 1, "a number above 0 and up to 1");
}

int flag_ms(const flag *self, const char *text, void *out)
{
    const char *rest = text;
    double ms;
    if (!flag_take_real(&rest, &ms) || *rest || ms < 1e-6 || ms > 1e9)
        return flag_refuse(self, text, "milliseconds, above 0 and up to 1e9");
    *(uint64_t *)flag_field(self, out) = (uint64_t)(ms * 1e6);
    return RUN_OK;
}

/* ---- The command line -------------------------------------------------------------------- */

/* Finds a flag by its name in a table that ends after n rows or with a row of zeros. *out becomes the
 * struct that holds the flag's field. */
static const flag *find_flag(const flag *flags, size_t n_flags, const char *word, size_t length,
                             void **out)
{
    for (size_t i = 0; i < n_flags && (flags[i].name || flags[i].part); i++) {
        void *inner = flag_field(&flags[i], *out);
        const flag *found =
            flags[i].part ? find_flag(flags[i].part, SIZE_MAX, word, length, &inner) : NULL;
        if (found) {
            *out = inner;
            return found;
        }
        if (flags[i].name && strlen(flags[i].name) == length &&
            !memcmp(flags[i].name, word, length))
            return &flags[i];
    }
    return NULL;
}

/* Reads the flag at argv[*at] and its value, and leaves *at on the last word used. */
static int read_flag(const flag *found, int argc, char **argv, int *at, void *out)
{
    const char *equals = strchr(argv[*at], '=');
    if (found->note)
        *(const char **)((char *)out + found->note) = found->name;
    if (!found->read) {
        if (equals)
            return fail(RUN_REFUSED, "%s takes no value", found->name);
        *(bool *)flag_field(found, out) = true;
        return RUN_OK;
    }
    if (equals)
        return found->read(found, equals + 1, out);
    if (++*at == argc)
        return fail(RUN_REFUSED, "%s needs a value", found->name);
    return found->read(found, argv[*at], out);
}

int flags_read(const flag *flags, size_t n_flags, int argc, char **argv,
               int (*word)(const char *text, void *out), void *out)
{
    int code = RUN_OK;
    for (int at = 1; at < argc && !code; at++) {
        const char *text = argv[at], *equals = strchr(text, '=');
        size_t length = equals ? (size_t)(equals - text) : strlen(text);
        void *of = out;
        const flag *found = find_flag(flags, n_flags, text, length, &of);
        if (found)
            code = read_flag(found, argc, argv, &at, of);
        else if (word && text[0] != '-')
            code = word(text, out);
        else
            code = fail(RUN_REFUSED, "%s '%s': see --help",
                        text[0] == '-' ? "unknown flag" : "unexpected argument", text);
    }
    return code;
}
