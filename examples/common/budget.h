/* budget.h — turns --budget into sizes: the device's expert slots and KV blocks. */
#ifndef EXAMPLE_BUDGET_H
#define EXAMPLE_BUDGET_H

#include "common/config.h"
#include "common/options.h"

#define KV_BLOCK_TOKENS 16

struct host;

typedef struct budget {
    uint64_t slots;              /* experts resident at once; 0 = the percentage of --budget */
    uint32_t compressed_experts; /* per layer, in device memory as EXPH images */
    uint64_t kv_blocks;
    uint64_t kv_bytes;      /* of all blocks */
    uint32_t step_tokens;   /* most tokens in one step */
    uint64_t max_positions; /* longest sequence */
} budget;

/* Sizes a run whose prompts have prompt_tokens[i] tokens. The KV of sequence i takes whole blocks
 * for prompt_tokens[i] + max_tokens - 1 tokens: the last token is never fed. With a percentage the
 * KV comes on top of the slots; with bytes the KV is taken first and the slots get the rest. One
 * line and RUN_REFUSED when bytes leave no slot. Of the host, the model alone is open. */
int budget_plan(const options *opts, const struct host *h, const model_config *config,
                const uint32_t *prompt_tokens, uint32_t n_prompts, budget *out);

#endif
