/* Rows and their fields. */
#include "sim/csv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/flags.h"

int sim_csv_refuse(const sim_csv *csv, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fail(RUN_REFUSED, "%s, line %" PRIu64 ": %s", csv->path, csv->line, text);
}

/* Takes the field that begins at `from`, unquoted in place; returns the text after its comma, or
 * NULL after the last field. *bad: an unterminated quote, or text behind one. */
static char *take_field(char *from, char **field, bool *bad)
{
    if (*from != '"') {
        *field = from;
        char *comma = strchr(from, ',');
        if (comma)
            *comma++ = '\0';
        return comma;
    }
    char *to = from, *at = from + 1;
    *field = from;
    for (; *at && (*at != '"' || at[1] == '"'); at++) {
        at += *at == '"';
        *to++ = *at;
    }
    *bad = *at != '"' || (at[1] && at[1] != ',');
    char *rest = !*bad && at[1] == ',' ? at + 2 : NULL;
    *to = '\0';
    return rest;
}

static int split(sim_csv *csv)
{
    bool bad = false;
    char *rest = csv->text;
    csv->columns = 0;
    while (rest) {
        if (csv->columns == SIM_CSV_COLUMNS)
            return sim_csv_refuse(csv, "more than %d fields", SIM_CSV_COLUMNS);
        rest = take_field(rest, &csv->fields[csv->columns++], &bad);
        if (bad)
            return sim_csv_refuse(csv, "field %" PRIu32 " has a stray double quote", csv->columns);
    }
    return RUN_OK;
}

/* Reads the next non-empty line without its end; *more is false after the last. */
static int read_line(sim_csv *csv, bool *more)
{
    ssize_t length;
    do {
        errno = 0;
        length = getline(&csv->text, &csv->room, csv->file);
        if (length < 0) {
            *more = false;
            return errno ? fail(RUN_REFUSED, "%s: %s", csv->path, strerror(errno)) : RUN_OK;
        }
        csv->line++;
        if (memchr(csv->text, '\0', (size_t)length))
            return sim_csv_refuse(csv, "a NUL byte: this is not a text file");
        while (length > 0 && (csv->text[length - 1] == '\n' || csv->text[length - 1] == '\r'))
            csv->text[--length] = '\0';
    } while (length == 0);
    *more = true;
    return RUN_OK;
}

int sim_csv_open(sim_csv *csv, const char *path, const char *const *names, uint32_t n,
                 uint32_t required, uint32_t *at)
{
    bool more = false;
    *csv = (sim_csv){.path = path, .file = fopen(path, "re")};
    if (!csv->file)
        return fail(RUN_REFUSED, "%s: %s", path, strerror(errno));
    int code = read_line(csv, &more);
    if (code)
        return code;
    if (!more)
        return fail(RUN_REFUSED, "%s: the file is empty", path);
    code = split(csv);
    for (uint32_t i = 0; i < n && !code; i++) {
        at[i] = UINT32_MAX;
        for (uint32_t c = 0; c < csv->columns; c++)
            if (!strcmp(csv->fields[c], names[i]))
                at[i] = c;
        if (i < required && at[i] == UINT32_MAX)
            code = sim_csv_refuse(csv, "the header has no column \"%s\"", names[i]);
    }
    return code;
}

int sim_csv_next(sim_csv *csv, bool *more)
{
    uint32_t columns = csv->columns;
    int code = read_line(csv, more);
    if (code || !*more)
        return code;
    code = split(csv);
    if (!code && csv->columns != columns)
        code = sim_csv_refuse(csv, "%" PRIu32 " fields, the header has %" PRIu32, csv->columns,
                              columns);
    return code;
}

int sim_csv_number(const sim_csv *csv, uint32_t column, uint64_t most, uint64_t *out)
{
    const char *rest = csv->fields[column];
    if (flag_take_number(&rest, out) && !*rest && *out <= most)
        return RUN_OK;
    return sim_csv_refuse(csv,
                          "field %" PRIu32 " is \"%.40s\", a number up to %" PRIu64 " is expected",
                          column + 1, csv->fields[column], most);
}

void sim_csv_close(sim_csv *csv)
{
    free(csv->text);
    if (csv->file)
        fclose(csv->file);
    *csv = (sim_csv){0};
}
