/* request_parts.h — common parts of the readers of request files. */
#ifndef EXAMPLE_REQUEST_PARTS_H
#define EXAMPLE_REQUEST_PARTS_H

#include <stdio.h>

#include "common/request_file.h"

/* A line of a file. */
typedef struct request_line {
    const char *path;
    uint32_t number; /* from 1 */
    char *text;
    size_t room;
} request_line;

/* Prints "<path>:<line>: expected <wanted>"; returns RUN_REFUSED. */
int request_refuse(const request_line *line, const char *wanted);

/* The state of the cut: which lengths are left out, the number of requests seen, and the arrival
 * times of those taken. */
typedef struct request_cut {
    const request_file_config *config;
    uint32_t seen;
    uint64_t first_ns, last_ns; /* on the file's clock */
} request_cut;
bool request_takes(request_cut *cut, uint64_t prompt_tokens, uint64_t output_tokens);
bool request_enough(const request_cut *cut, const request_list *list);

/* Adds a request that arrived at `at_ns` on the file's clock, still without parent and lengths.
 * RUN_REFUSED if an earlier line has a later time, or if the scaled arrival time is not
 * representable. */
int request_add(const request_line *line, request_cut *cut, uint64_t at_ns, request_list *list,
                request_row **out);

int request_read_azure(FILE *in, request_line *line, const request_file_config *config,
                       request_list *out);
int request_read_mooncake(FILE *in, request_line *line, const request_file_config *config,
                          request_list *out);

#endif
