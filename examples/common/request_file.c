/* Files of requests: which format, and what is left out of them. */
#include "common/request_file.h"

#include <stdlib.h>

#include "common/fail.h"
#include "common/request_parts.h"

request_row *request_add(request_list *list)
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

int request_file_read(const char *path, const request_file_config *config, request_list *out)
{
    FILE *in = fopen(path, "re");
    if (!in)
        return fail(RUN_REFUSED, "%s: %m", path);
    request_line line = {.path = path, .number = 1};
    request_list list = {0};
    int code = RUN_OK;
    if (getline(&line.text, &line.room, in) < 0)
        code = fail(RUN_REFUSED, "%s: no requests in it", path);
    else if (line.text[0] == '{')
        code = request_read_mooncake(in, &line, config, &list);
    else
        code = request_read_azure(in, &line, config, &list);
    if (!code && ferror(in))
        code = fail(RUN_REFUSED, "%s: %m", path);
    if (!code && !list.n)
        code = fail(RUN_REFUSED, "%s: no requests in it that would be served", path);
    free(line.text);
    fclose(in);
    if (code)
        request_list_free(&list);
    else
        *out = list;
    return code;
}
