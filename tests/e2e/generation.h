/* generation.h — one run of moepage-generate, and the reference it is compared with. */
#ifndef GENERATION_H
#define GENERATION_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/* A prompt and what follows it. Logits have one row for each position, the prompt's first. */
typedef struct reference_prompt {
    uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t *greedy; /* [n_greedy] the tokens that greedy decoding adds */
    double *margin;   /* [n_greedy] best logit minus second best where the token was chosen */
    uint32_t n_greedy;
    uint32_t rows;       /* rows of `logits`; there may be fewer than generated positions */
    const float *logits; /* [rows][vocabulary] */
} reference_prompt;

typedef struct reference {
    reference_prompt *prompts;
    uint32_t n_prompts;
    uint32_t vocabulary;
    double max_abs_logit;
    double bf16_max_abs_diff; /* what evaluation in BF16 cost the reference's own maker */
    double bf16_mean_abs_diff;
    float *logits;
} reference;

/* From a directory of tests/data/hf: expected.json and logits.f32. */
void reference_load_hf(const char *dir, reference *out);
/* From examples/models/tiny-qwen3moe. */
void reference_load_tiny(reference *out);
void reference_free(reference *ref);

/* What a run printed and wrote. */
typedef struct generation {
    json_t *json;
    const json_t *outputs; /* of json */
    const json_t *stats;
    float *logits;   /* prompt by prompt, prompt + generated - 1 rows each */
    size_t n_logits; /* values */
} generation;

/* Which prompts of a reference to run, and how much of them. */
typedef struct generation_part {
    uint32_t first, n;   /* prompts */
    uint32_t n_tokens;   /* at most, of each prompt */
    uint32_t max_tokens; /* to generate */
} generation_part;

/* Runs the model on those prompts; `flags` is NULL-terminated. The run must succeed, print nothing
 * to standard error and write as many logits as it should. */
void generation_run(const char *model, const reference *ref, const generation_part *part,
                    const char *const *flags, generation *out);
void generation_free(generation *g);

/* Fails, naming `what`, unless both have the same tokens, the same text and the same logits, bit
 * by bit. */
void generation_assert_same(const generation *a, const generation *b, const char *what);

/* A counter of "stats". */
uint64_t generation_stat(const generation *g, const char *key);
/* Generated token `i` of output `prompt`. */
uint32_t generation_token(const generation *g, uint32_t prompt, uint32_t i);

#endif
