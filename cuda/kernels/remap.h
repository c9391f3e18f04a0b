/* remap.h — batch-level remapping of routed experts (LYNX section 3, appendix A).
 *
 * Four steps, each a kernel, because each needs the previous step's results for the whole batch;
 * for a small batch, one kernel of one block does all four. moepage_cuda.h specifies the result.
 *
 *   bin     per token: bins of its own top k, and which of them comes first
 *   score   per expert: base^bin summed over the batch, token after token
 *   prune   per token: the top k by logit and score together are kept, for all
 *   apply   the best `keep` of what is kept; per token: the top k among them, and weights */
#ifndef MP_KERNELS_REMAP_H
#define MP_KERNELS_REMAP_H

#include "topk.h"

#define MP_REMAP_THREADS 128       /* of a step */
#define MP_REMAP_BATCH_THREADS 512 /* of all steps at once */
#define MP_REMAP_MAX_EXPERTS 1024u
#define MP_REMAP_MAX_BIN 63u
#define MP_REMAP_FIRST 0x80u /* of a bin: the token's first choice */
#define MP_REMAP_NONE 0xffu  /* the token has not routed to the expert */

typedef struct mp_gpu_remap_args {
    mp_topk_gate gate;
    const uint8_t *preferred; /* [experts], or NULL */
    int32_t *ids;
    float *weights;
    uint8_t *bins;  /* [n_tokens][experts] */
    float *score;   /* [experts] */
    uint8_t *first; /* [experts] 1: some token's first choice */
    uint8_t *kept;  /* [experts] 1: among some token's top k by logit and score */
    uint32_t n_tokens;
    uint32_t keep; /* 0 = all */
    float alpha;
    float bonus;
    uint32_t beta; /* at most MP_REMAP_MAX_BIN */
    uint32_t reserved;
    float power[MP_REMAP_MAX_BIN + 1]; /* base^-i */
} mp_gpu_remap_args;

typedef struct mp_gpu_remap_shared {
    float score[MP_REMAP_MAX_EXPERTS];
    uint8_t state[MP_REMAP_MAX_EXPERTS]; /* 2: a first choice; 1: else kept by prune */
    uint8_t keep[MP_REMAP_MAX_EXPERTS];
    float power[MP_REMAP_MAX_BIN + 1];
} mp_gpu_remap_shared;

/* ---- Bin ---- */

/* -max(-beta, ceil(alpha (z - z_max))). NaN: the last bin. */
MP_GPU uint32_t mp_remap_bin(const mp_gpu_remap_args *args, float logit, float largest)
{
    const float gap = mp_scalar_mul(args->alpha, mp_scalar_add(largest, -logit));
    if (logit == largest) /* infinite ones too */
        return 0;
    return gap < (float)args->beta ? (uint32_t)gap : args->beta;
}

MP_GPU void mp_remap_bin_token(MP_LANES_PARAMETERS(mp_topk_thread), const mp_gpu_remap_args *args,
                               uint64_t token)
{
    const uint32_t experts = args->gate.experts;
    MP_EACH_LANE(mp_topk_thread)
        own->top = 0;
        MP_SCALAR_LOOP
        for (uint32_t expert = lane; expert < experts; expert += MP_LANES) {
            const uint32_t key = mp_topk_key(mp_topk_logit(&args->gate, token, expert));
            own->top = key > own->top ? key : own->top;
        }
    MP_EACH_LANE_END
    MP_LANES_MAX(top);
    MP_EACH_LANE(mp_topk_thread)
        own->best_id = lane == 0 ? own->id : 0xffffffffu;
    MP_EACH_LANE_END
    MP_LANES_MIN(best_id);
    MP_EACH_LANE(mp_topk_thread)
        MP_SCALAR_LOOP
        for (uint32_t i = 0; i * MP_LANES + lane < experts; i++) {
            const uint32_t expert = i * MP_LANES + lane;
            uint32_t bin = MP_REMAP_NONE;
            if (own->taken >> i & 1)
                bin = mp_remap_bin(args, mp_topk_logit(&args->gate, token, expert),
                                   mp_topk_value(own->top)) |
                      (expert == own->best_id ? MP_REMAP_FIRST : 0);
            args->bins[token * experts + expert] = (uint8_t)bin;
        }
    MP_EACH_LANE_END
}

MP_GPU void mp_gpu_remap_bin_block(MP_BLOCK_PARAMETERS(mp_gpu_remap_args, mp_gpu_remap_shared,
                                                       mp_topk_thread))
{
    (void)shared;
    MP_WARPS(mp_topk_thread)
        MP_SCALAR_LOOP
        for (uint32_t token = block * n_warps + warp; token < args->n_tokens;
             token += n_blocks * n_warps) {
            mp_topk_keys(MP_LANES_PASS, &args->gate, token);
            mp_topk_choose(MP_LANES_PASS, args->gate.experts, args->gate.top_k);
            mp_remap_bin_token(MP_LANES_PASS, args, token);
        }
    MP_WARPS_END
}

/* ---- Score ---- */

MP_GPU void mp_remap_score_expert(const mp_gpu_remap_args *args, const float *power,
                                  uint32_t expert)
{
    const uint32_t experts = args->gate.experts;
    const uint8_t *bins = args->bins + expert;
    uint32_t first = 0;
    float sum = 0;
    for (uint32_t token = 0; token < args->n_tokens; token++) {
        const uint32_t bin = bins[(uint64_t)token * experts];
        if (bin == MP_REMAP_NONE)
            continue;
        sum = mp_scalar_add(sum, power[bin & MP_REMAP_MAX_BIN]);
        first |= bin & MP_REMAP_FIRST;
    }
    if (args->preferred && args->preferred[expert])
        sum = mp_scalar_add(sum, args->bonus);
    args->score[expert] = sum;
    args->first[expert] = first ? 1 : 0;
    args->kept[expert] = 0;
}

MP_GPU void mp_gpu_remap_score_block(MP_BLOCK_PARAMETERS(mp_gpu_remap_args, mp_gpu_remap_shared,
                                                         mp_topk_thread))
{
    MP_PHASE
        if (thread <= MP_REMAP_MAX_BIN)
            shared->power[thread] = args->power[thread];
    MP_PHASE_END
    MP_PHASE
        for (uint32_t expert = block * MP_BLOCK_THREADS + thread; expert < args->gate.experts;
             expert += n_blocks * MP_BLOCK_THREADS)
            mp_remap_score_expert(args, shared->power, expert);
    MP_PHASE_END
}

/* ---- Prune ---- */

MP_GPU void mp_remap_prune_token(MP_LANES_PARAMETERS(mp_topk_thread), const mp_gpu_remap_args *args,
                                 uint64_t token)
{
    const mp_topk_gate *gate = &args->gate;
    MP_EACH_LANE(mp_topk_thread)
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_TOPK_EACH; i++) {
            const uint32_t expert = i * MP_LANES + lane;
            if (i * MP_LANES >= gate->experts)
                break;
            own->key[i] = 0;
            if (expert < gate->experts)
                own->key[i] = mp_topk_key(
                    mp_scalar_add(mp_topk_choice(gate, token, expert), args->score[expert]));
        }
    MP_EACH_LANE_END
    mp_topk_choose(MP_LANES_PASS, gate->experts, gate->top_k);
    MP_EACH_LANE(mp_topk_thread)
        if (own->id < gate->experts)
            args->kept[own->id] = 1;
    MP_EACH_LANE_END
}

MP_GPU void mp_gpu_remap_prune_block(MP_BLOCK_PARAMETERS(mp_gpu_remap_args, mp_gpu_remap_shared,
                                                         mp_topk_thread))
{
    (void)shared;
    MP_WARPS(mp_topk_thread)
        MP_SCALAR_LOOP
        for (uint32_t token = block * n_warps + warp; token < args->n_tokens;
             token += n_blocks * n_warps)
            mp_remap_prune_token(MP_LANES_PASS, args, token);
    MP_WARPS_END
}

/* ---- Apply ---- */

MP_GPU uint32_t mp_remap_prefers(const mp_gpu_remap_args *args, uint32_t expert)
{
    return args->preferred && args->preferred[expert] ? 1 : 0;
}

/* Returns true if the expert is among the `keep` that the batch may use. First choices go before all
 * others. */
MP_GPU uint32_t mp_remap_within(const mp_gpu_remap_args *args, const mp_gpu_remap_shared *shared,
                                uint32_t expert)
{
    const float score = shared->score[expert];
    const uint32_t prefers = mp_remap_prefers(args, expert);
    uint32_t before = 0;
    MP_SCALAR_LOOP
    for (uint32_t other = 0; other < args->gate.experts; other++) {
        const uint32_t state = shared->state[other];
        if (state == 2) {
            before++;
        } else if (state == 1 && shared->score[other] >= score) {
            const uint32_t its = mp_remap_prefers(args, other);
            before +=
                shared->score[other] > score || its > prefers || (its == prefers && other < expert);
        }
    }
    return before < args->keep;
}

MP_GPU void mp_remap_apply_token(MP_LANES_PARAMETERS(mp_topk_thread), const mp_gpu_remap_args *args,
                                 const uint8_t *keep, uint64_t token)
{
    mp_topk_keys(MP_LANES_PASS, &args->gate, token);
    MP_EACH_LANE(mp_topk_thread)
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_TOPK_EACH; i++) {
            const uint32_t expert = i * MP_LANES + lane;
            if (i * MP_LANES >= args->gate.experts)
                break;
            if (expert < args->gate.experts && !keep[expert])
                own->key[i] = 0;
        }
    MP_EACH_LANE_END
    mp_topk_choose(MP_LANES_PASS, args->gate.experts, args->gate.top_k);
    mp_topk_write(MP_LANES_PASS, &args->gate, token, args->ids, args->weights);
}

MP_GPU void mp_gpu_remap_apply_block(MP_BLOCK_PARAMETERS(mp_gpu_remap_args, mp_gpu_remap_shared,
                                                         mp_topk_thread))
{
    MP_PHASE
        for (uint32_t e = thread; e < args->gate.experts; e += MP_BLOCK_THREADS) {
            shared->score[e] = args->score[e];
            shared->state[e] = args->first[e] ? 2 : args->kept[e];
        }
    MP_PHASE_END
    MP_PHASE
        for (uint32_t e = thread; e < args->gate.experts; e += MP_BLOCK_THREADS) {
            const uint32_t state = shared->state[e];
            shared->keep[e] =
                state == 2 || (state == 1 && (!args->keep || mp_remap_within(args, shared, e)));
        }
    MP_PHASE_END
    MP_WARPS(mp_topk_thread)
        MP_SCALAR_LOOP
        for (uint32_t token = block * n_warps + warp; token < args->n_tokens;
             token += n_blocks * n_warps)
            mp_remap_apply_token(MP_LANES_PASS, args, shared->keep, token);
    MP_WARPS_END
}

/* ---- All ---- */

/* Runs in one block, whatever the grid. */
MP_GPU void mp_gpu_remap_block(MP_BLOCK_PARAMETERS(mp_gpu_remap_args, mp_gpu_remap_shared,
                                                   mp_topk_thread))
{
    if (block)
        return;
    (void)n_blocks;
    mp_gpu_remap_bin_block(MP_BLOCK_PASS(0, 1));
    mp_gpu_remap_score_block(MP_BLOCK_PASS(0, 1));
    mp_gpu_remap_prune_block(MP_BLOCK_PASS(0, 1));
    mp_gpu_remap_apply_block(MP_BLOCK_PASS(0, 1));
}

#define MP_REMAP_ENTRIES(X)                                                        \
    X(remap, mp_gpu_remap_args, mp_gpu_remap_shared, mp_topk_thread, 512, 1)       \
    X(remap_bin, mp_gpu_remap_args, mp_gpu_remap_shared, mp_topk_thread, 128, 4)   \
    X(remap_score, mp_gpu_remap_args, mp_gpu_remap_shared, mp_topk_thread, 128, 4) \
    X(remap_prune, mp_gpu_remap_args, mp_gpu_remap_shared, mp_topk_thread, 128, 4) \
    X(remap_apply, mp_gpu_remap_args, mp_gpu_remap_shared, mp_topk_thread, 128, 4)

#endif
