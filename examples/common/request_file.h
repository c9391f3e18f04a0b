/* request_file.h — requests from a file: arrival times and lengths. */
#ifndef EXAMPLE_REQUEST_FILE_H
#define EXAMPLE_REQUEST_FILE_H

#include <stdbool.h>
#include <stdint.h>

#define REQUEST_NONE UINT32_MAX

typedef struct request_row {
    uint64_t arrival_ns;    /* since the first request */
    uint32_t prompt_tokens; /* >= 1 */
    uint32_t output_tokens; /* >= 1 */
    uint32_t parent;        /* an earlier request whose tokens begin this prompt, or REQUEST_NONE */
    uint32_t prefix_tokens; /* number of those tokens: < prompt_tokens */
    bool turn;              /* has all whole blocks of the parent's prompt: continues it */
} request_row;

/* Requests in order of arrival. */
typedef struct request_list {
    request_row *requests;
    uint32_t n;
    bool prefixes; /* the file contains prefixes */
} request_list;

typedef struct request_file_config {
    uint32_t skip;        /* requests of the file left out at its start */
    uint32_t most;        /* requests taken after those; 0 = all */
    uint32_t max_context; /* longer requests (prompt and output) are left out; 0 = no limit */
    double time_scale;    /* factor on arrival times: 0 = all at once */
} request_file_config;

/* Reads Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), whose requests are independent, or
 * Mooncake's JSON lines, in which the longest common prefix of hash_ids, each a block of 512
 * tokens, determines what a request shares with which earlier one. RUN_REFUSED after a line on
 * stderr that names file and line. */
int request_file_read(const char *path, const request_file_config *config, request_list *out);
void request_list_free(request_list *list);

#endif
