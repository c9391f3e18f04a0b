/* pack_options.h — the command line of moepage-pack as a struct. */
#ifndef EXAMPLE_PACK_OPTIONS_H
#define EXAMPLE_PACK_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/options.h"
#include "pack/random_weights.h"
#include "pack/shapes.h"

#define PACK_MAX_TEXTS 64

typedef struct pack_options {
    const char *words[2]; /* [MODEL_DIR] OUT */
    uint32_t n_words;
    const char *model; /* NULL with --synthetic */
    const char *out;
    uint32_t forms;      /* a set of 1u << MOEPAGE_FORM_*; 0 = not given */
    uint32_t dtypes;     /* a set of 1u << MOEPAGE_DTYPE_* that experts must have */
    uint32_t cold_level; /* 0 = dense images plain */
    uint32_t group_size; /* 0 without an integer form */
    uint32_t threads;    /* 0 = one per online CPU */
    bool scale_search;
    const char *texts[PACK_MAX_TEXTS]; /* of --calibrate */
    uint32_t n_texts;
    char *text_names; /* behind `texts` */
    uint64_t calibrate_tokens;
    uint32_t calibrate_window;
    bool token_ids;
    options run; /* how the model reads them */
    bool verify;
    bool json;
    const shape *shape; /* NULL without --synthetic */
    uint32_t layers;    /* 0 = all */
    uint64_t seed;
    uint32_t weights; /* weight_shape */
    /* flags that require another option, or NULL */
    const char *for_integers, *for_synthetic, *for_calibration;
    bool list_shapes;
    bool help;
} pack_options;

/* Reads the command line; on failure prints one line and returns RUN_REFUSED. */
int pack_options_parse(int argc, char **argv, pack_options *out);

void pack_options_free(pack_options *opts);

const char *pack_options_usage(void);

#endif
