/* decode_options.h — the flags of cuda_decode. */
#ifndef EXAMPLE_DECODE_OPTIONS_H
#define EXAMPLE_DECODE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "pack/shapes.h"

typedef enum decode_mode { DECODE_SESSION, DECODE_PATH, DECODE_GRAPH } decode_mode;

#define DECODE_MAX_BUDGETS 16

typedef struct decode_options {
    const char *device;
    const char *shape_name, *model;
    const shape *shape; /* NULL with a model */
    uint32_t layers, distinct, batch, steps;
    uint32_t mode, math, prefetch; /* decode_mode; MOEPAGE_MATH_*; 0 or 1 */
    uint64_t seed;
    bool check, help;
    uint32_t budgets[DECODE_MAX_BUDGETS]; /* percent */
    uint32_t n_budgets;
} decode_options;

/* Reads the command line. One line and an exit code on failure. */
int decode_options_read(int argc, char **argv, decode_options *out);
const char *decode_usage(void);

#endif
