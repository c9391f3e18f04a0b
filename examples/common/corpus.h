/* corpus.h — the texts of an evaluation: one domain per file, cut into windows, each read from an
 * empty context. */
#ifndef EXAMPLE_CORPUS_H
#define EXAMPLE_CORPUS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct domain {
    char name[64];    /* of the file, without directory and extension */
    uint32_t *tokens; /* [n_windows * window] */
    uint32_t n_windows;
    uint64_t left_over; /* tokens after the last whole window */
} domain;

typedef struct corpus {
    domain *domains;
    uint32_t n_domains;
    uint32_t window; /* tokens */
    bool bytes;      /* a token is a byte; else files hold little-endian 32-bit token ids */
} corpus;

typedef struct corpus_config {
    const char *const *files;
    uint32_t n_files;
    uint32_t window;
    uint32_t windows; /* of each file, from its start; 0 = all */
    bool bytes;
    uint32_t vocabulary;
} corpus_config;

/* Opens the texts. One line and RUN_REFUSED for a file that cannot be read, is too short or has
 * tokens outside this vocabulary. *out is always safe to close. */
int corpus_open(const corpus_config *config, corpus *out);
void corpus_close(corpus *c);

static inline const uint32_t *corpus_window(const corpus *c, uint32_t d, uint32_t window)
{
    return c->domains[d].tokens + (uint64_t)window * c->window;
}

#endif
