/* calibration.h — what the experts of a model are given when it reads texts: the inputs and routes of
 * every MoE layer, recorded once. */
#ifndef EXAMPLE_CALIBRATION_H
#define EXAMPLE_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/options.h"
#include "moepage.h"

typedef struct calibration_config {
    options run; /* the model, and how it runs */
    const char *const *files;
    uint32_t n_files;
    bool token_ids;               /* the files hold 32-bit token ids */
    uint32_t window;              /* tokens, each window read from an empty context */
    uint64_t tokens;              /* most of all files, a window of each in turn; 0 = all */
    moepage_progress_fn progress; /* told the bytes recorded; other than 0 ends the run */
    void *progress_user;
} calibration_config;

/* A choice of one token: an expert, and the weight that its output gets. */
typedef struct choice {
    int32_t expert;
    float weight;
} choice;

typedef struct calibration {
    int fd; /* unlinked: [moe_layers][n_tokens][hidden] floats */
    uint32_t moe_layers, experts, hidden, top_k;
    uint64_t n_tokens;
    uint64_t recorded; /* so far */
    choice *choices;   /* [moe_layers][n_tokens][top_k] */
} calibration;

/* Runs the model over the texts. The inputs go to a file in $TMPDIR that has no name, 4 bytes for each of
 * moe_layers * n_tokens * hidden. One line and an exit code on failure; RUN_FAILED alone if the caller's
 * progress ends it. *out is always safe to close. */
int calibration_open(const calibration_config *config, calibration *out);
void calibration_close(calibration *c);

/* Returns the token's choices in an MoE layer, [top_k]. */
static inline const choice *calibration_choices(const calibration *c, uint32_t layer,
                                                uint64_t token)
{
    return c->choices + ((uint64_t)layer * c->n_tokens + token) * c->top_k;
}

/* Reads the layer's input of a token, [hidden]; returns false on failure. Any thread. */
bool calibration_read(const calibration *c, uint32_t layer, uint64_t token, float *out);

#endif
