/* request_parts.h — what the readers of request files share. */
#ifndef EXAMPLE_REQUEST_PARTS_H
#define EXAMPLE_REQUEST_PARTS_H

#include <stdio.h>

#include "common/request_file.h"

/* Makes room for one more and returns it, zeroed but for what is none; NULL when out of memory. */
request_row *request_add(request_list *list);

/* A line of a file. */
typedef struct request_line {
    const char *path;
    uint32_t number; /* from 1 */
    char *text;
    size_t room;
} request_line;

/* "<path>:<line>: expected <wanted>", RUN_REFUSED. */
int request_refuse(const request_line *line, const char *wanted);

/* Whether a request of these lengths is to be left out, and how many have been seen. */
typedef struct request_cut {
    const request_file_config *config;
    uint32_t seen;
} request_cut;
bool request_takes(request_cut *cut, uint64_t prompt_tokens, uint64_t output_tokens);
bool request_enough(const request_cut *cut, const request_list *list);

int request_read_azure(FILE *in, request_line *line, const request_file_config *config,
                       request_list *out);
int request_read_mooncake(FILE *in, request_line *line, const request_file_config *config,
                          request_list *out);

#endif
