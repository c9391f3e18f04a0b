/* request_file.h — requests as files of them say: when they came and how long they were. */
#ifndef EXAMPLE_REQUEST_FILE_H
#define EXAMPLE_REQUEST_FILE_H

#include <stdbool.h>
#include <stdint.h>

#define REQUEST_NONE UINT32_MAX

typedef struct request_row {
    uint64_t arrival_ns;    /* since the first one's */
    uint32_t prompt_tokens; /* >= 1 */
    uint32_t output_tokens; /* >= 1 */
    uint32_t parent;        /* one before it whose tokens its prompt begins with, or REQUEST_NONE */
    uint32_t prefix_tokens; /* how many: < prompt_tokens */
    bool turn;              /* has all whole blocks of the parent's prompt: goes on from it */
} request_row;

/* In the order of their times. */
typedef struct request_list {
    request_row *requests;
    uint32_t n;
    bool prefixes; /* the file knows of prefixes */
} request_list;

typedef struct request_file_config {
    uint32_t skip;        /* requests of the file left out at its start */
    uint32_t most;        /* requests taken then; 0 = all */
    uint32_t max_context; /* those of more tokens, prompt and output, are left out; 0 = none are */
    double time_scale;    /* of arrivals: 0 = all at once */
} request_file_config;

/* Reads Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), whose requests know nothing of each
 * other, or Mooncake's JSON lines, where the longest common prefix of hash_ids, each a block of 512
 * tokens, says what a request shares with which earlier one. RUN_REFUSED after a line on stderr that
 * names file and line. */
int request_file_read(const char *path, const request_file_config *config, request_list *out);
void request_list_free(request_list *list);

#endif
