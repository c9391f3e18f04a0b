/* Reads request files: detects the format and applies the cut. */
#include "common/request_file.h"

#include <stdlib.h>

#include "common/fail.h"
#include "common/request_parts.h"

#define MOST_NS 0x1p63

/* Makes room for one more row and returns it, zeroed except for the NONE fields; NULL when out of
 * memory. */
static request_row *grow(request_list *list)
{
    if (!(list->n & (list->n - 1))) { /* room is a power of two */
        size_t room = list->n ? 2 * (size_t)list->n : 1;
        request_row *grown = realloc(list->requests, room * sizeof *grown);
        if (!grown)
            return NULL;
        list->requests = grown;
    }
    request_row *r = &list->requests[list->n++];
    *r = (request_row){.parent = REQUEST_NONE};
    return r;
}

void request_list_free(request_list *list)
{
    free(list->requests);
    *list = (request_list){0};
}

int request_refuse(const request_line *line, const char *wanted)
{
    return fail(RUN_REFUSED, "%s:%u: expected %s", line->path, line->number, wanted);
}

bool request_takes(request_cut *cut, uint64_t prompt_tokens, uint64_t output_tokens)
{
    uint32_t most = cut->config->max_context;
    if (most && prompt_tokens + output_tokens > most)
        return false;
    return cut->seen++ >= cut->config->skip;
}

bool request_enough(const request_cut *cut, const request_list *list)
{
    return cut->config->most && list->n == cut->config->most;
}

int request_add(const request_line *line, request_cut *cut, uint64_t at_ns, request_list *list,
                request_row **out)
{
    if (!list->n)
        cut->first_ns = cut->last_ns = at_ns;
    if (at_ns < cut->last_ns)
        return request_refuse(line, "requests in the order of their times");
    cut->last_ns = at_ns;
    double arrival_ns = (double)(at_ns - cut->first_ns) * cut->config->time_scale;
    if (arrival_ns >= MOST_NS)
        return request_refuse(line, "a scaled time below 292 years");
    if (!(*out = grow(list)))
        return fail_memory();
    (*out)->arrival_ns = (uint64_t)arrival_ns;
    return RUN_OK;
}

int request_file_read(const char *path, const request_file_config *config, request_list *out)
{
    FILE *in = fopen(path, "re");
    if (!in)
        return fail(RUN_REFUSED, "%s: %m", path);
    request_line line = {.path = path, .number = 1};
    request_list list = {0};
    int code = RUN_OK;
    if (getline(&line.text, &line.room, in) < 0)
        code = ferror(in) ? fail(RUN_REFUSED, "%s: %m", path)
                          : fail(RUN_REFUSED, "%s: no requests in it", path);
    else if (line.text[0] == '{')
        code = request_read_mooncake(in, &line, config, &list);
    else
        code = request_read_azure(in, &line, config, &list);
    if (!code && ferror(in))
        code = fail(RUN_REFUSED, "%s: %m", path);
    if (!code && !list.n)
        code = fail(RUN_REFUSED, "%s: it has no requests to serve", path);
    free(line.text);
    fclose(in);
    if (code)
        request_list_free(&list);
    else
        *out = list;
    return code;
}
