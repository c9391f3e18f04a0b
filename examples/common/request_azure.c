/* Azure's LLM inference traces: TIMESTAMP,ContextTokens,GeneratedTokens. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/fail.h"
#include "common/flags.h"
#include "common/request_parts.h"

#define HEADER "TIMESTAMP,ContextTokens,GeneratedTokens"

/* Reads the digits of a fraction of a second, in ns. */
static bool read_fraction(const char **text, uint64_t *ns)
{
    *ns = 0;
    if (**text != '.')
        return true;
    uint64_t unit = 100000000;
    const char *at = *text + 1;
    for (; *at >= '0' && *at <= '9'; at++, unit /= 10)
        *ns += (uint64_t)(*at - '0') * unit;
    bool any = at > *text + 1;
    *text = at;
    return any;
}

/* Reads "2023-11-16 18:17:03.9799600" as ns since 1970. */
static bool read_time(const char **text, uint64_t *ns)
{
    struct tm when = {0};
    const char *rest = strptime(*text, "%Y-%m-%d %H:%M:%S", &when);
    if (!rest)
        return false;
    time_t seconds = timegm(&when);
    *text = rest;
    if (seconds < 0 || (uint64_t)seconds >= UINT64_MAX / 1000000000u || !read_fraction(text, ns))
        return false;
    *ns += (uint64_t)seconds * 1000000000u;
    return true;
}

static bool read_tokens(const char **text, uint64_t *tokens)
{
    if (**text != ',')
        return false;
    (*text)++;
    return flag_take_number(text, tokens) && *tokens <= UINT32_MAX / 4;
}

/* Raises 0 tokens to 1: every request has a prompt and an answer. */
static uint32_t at_least_one(uint64_t tokens)
{
    return tokens ? (uint32_t)tokens : 1;
}

static int read_row(const request_line *line, request_cut *cut, request_list *list)
{
    const char *at = line->text;
    uint64_t when, prompt, output;
    if (!read_time(&at, &when) || !read_tokens(&at, &prompt) || !read_tokens(&at, &output) ||
        at[strspn(at, "\r\n")])
        return request_refuse(line, "a time, context tokens and generated tokens");
    if (!request_takes(cut, prompt, output))
        return RUN_OK;
    request_row *r;
    int code = request_add(line, cut, when, list, &r);
    if (code)
        return code;
    r->prompt_tokens = at_least_one(prompt);
    r->output_tokens = at_least_one(output);
    return RUN_OK;
}

int request_read_azure(FILE *in, request_line *line, const request_file_config *config,
                       request_list *out)
{
    const size_t length = strlen(HEADER);
    if (strncmp(line->text, HEADER, length) ||
        line->text[length + strspn(line->text + length, "\r\n")])
        return request_refuse(line, "the header " HEADER ", or Mooncake's JSON lines");
    request_cut cut = {.config = config};
    int code = RUN_OK;
    while (!code && !request_enough(&cut, out) && getline(&line->text, &line->room, in) >= 0) {
        line->number++;
        code = read_row(line, &cut, out);
    }
    return code;
}
