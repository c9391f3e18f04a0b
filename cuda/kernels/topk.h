/* topk.h — from router logits to routing: a warp per token, its experts in registers.
 *
 * The order of experts is total: larger first, NaN last of all, equal ones by lower id. Everything
 * is FP32 in an order that depends on the number of experts alone, so that a GPU and the CPU agree
 * to the bit: sums over experts are 32 sums over ids l, l + 32 ..., ascending, then added in pairs
 * 16, 8, 4, 2 and 1 apart; sums over a token's choices are those of 32 numbers, zeros after the
 * last. */
#ifndef MP_KERNELS_TOPK_H
#define MP_KERNELS_TOPK_H

#include "lanes.h"
#include "scalar.h"

#define MP_TOPK_THREADS 128
#define MP_TOPK_EACH 32u /* experts of a lane, at most */

/* Values of MOEPAGE_CUDA_GATE_*. */
enum {
    MP_TOPK_SOFTMAX_ALL = 0,
    MP_TOPK_SOFTMAX_ALL_NORM = 1,
    MP_TOPK_SOFTMAX_TOP = 2,
    MP_TOPK_SIGMOID_NORM = 3
};

/* A router: what its logits mean. */
typedef struct mp_topk_gate {
    const void *logits; /* [n_tokens][experts] */
    const float *bias;  /* [experts], or NULL */
    uint32_t kind;
    uint32_t dtype;
    uint32_t experts;
    uint32_t top_k;
    float scale;
    uint32_t reserved;
} mp_topk_gate;

typedef struct mp_gpu_topk_args {
    mp_topk_gate gate;
    int32_t *ids;
    float *weights;
    uint32_t n_tokens;
    uint32_t reserved;
} mp_gpu_topk_args;

typedef struct mp_gpu_topk_shared {
    uint32_t none;
} mp_gpu_topk_shared;

/* Experts lane, lane + 32 ... belong to a lane; choice j of the token to lane j. */
typedef struct mp_topk_thread {
    uint32_t key[MP_TOPK_EACH]; /* 0 = not to be chosen */
    uint32_t taken;             /* bit i: key[i]'s expert has been chosen */
    uint32_t best;              /* the largest key that is left, and its id; */
    uint32_t best_id;
    uint32_t top; /* then of all lanes */
    uint32_t top_id;
    uint32_t first; /* key of the token's first choice */
    uint32_t id;    /* the choice of this lane; UINT32_MAX = none */
    float sum;
    float part;
} mp_topk_thread;

/* ---- Keys ---- */

/* Larger numbers have larger keys, a NaN has the smallest, 1. Minus zero is zero. */
MP_GPU uint32_t mp_topk_key(float value)
{
    const uint32_t bits = mp_scalar_bits(mp_scalar_add(value, 0.0f));
    if (value != value)
        return 1;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

MP_GPU float mp_topk_value(uint32_t key)
{
    if (key == 1)
        return mp_scalar_of_bits(0x7fc00000u);
    return mp_scalar_of_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}

MP_GPU float mp_topk_logit(const mp_topk_gate *gate, uint64_t token, uint32_t expert)
{
    return mp_scalar_load(gate->dtype, gate->logits, token * gate->experts + expert);
}

/* The number by which an expert is chosen. Sigmoids without a bias have the order
 * of their logits. */
MP_GPU float mp_topk_choice(const mp_topk_gate *gate, uint64_t token, uint32_t expert)
{
    const float logit = mp_topk_logit(gate, token, expert);
    if (gate->kind != MP_TOPK_SIGMOID_NORM || !gate->bias)
        return logit;
    return mp_scalar_add(mp_scalar_sigmoid(logit), gate->bias[expert]);
}

/* ---- Choosing ---- */

/* A lane's best among those that are left. */
MP_GPU void mp_topk_look(uint32_t experts, uint32_t lane, mp_topk_thread *own)
{
    own->best = 0;
    own->best_id = 0xffffffffu;
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < MP_TOPK_EACH; i++) {
        if (i * MP_LANES >= experts)
            break;
        if (own->key[i] > own->best && !(own->taken >> i & 1)) {
            own->best = own->key[i];
            own->best_id = i * MP_LANES + lane;
        }
    }
}

/* Fills in the choices from the keys. */
MP_GPU void mp_topk_choose(MP_LANES_PARAMETERS(mp_topk_thread), uint32_t experts, uint32_t top_k)
{
    MP_EACH_LANE(mp_topk_thread)
        own->taken = 0;
        own->id = 0xffffffffu;
        own->first = 0;
        mp_topk_look(experts, lane, own);
    MP_EACH_LANE_END
    MP_SCALAR_LOOP
    for (uint32_t k = 0; k < top_k; k++) {
        MP_EACH_LANE(mp_topk_thread)
            own->top = own->best;
        MP_EACH_LANE_END
        MP_LANES_MAX(top);
        MP_EACH_LANE(mp_topk_thread)
            own->top_id = own->best == own->top ? own->best_id : 0xffffffffu;
        MP_EACH_LANE_END
        MP_LANES_MIN(top_id);
        MP_EACH_LANE(mp_topk_thread)
            if (k == 0)
                own->first = own->top;
            if (k == lane)
                own->id = own->top_id;
            if (own->top && own->top_id % MP_LANES == lane) {
                own->taken |= 1u << own->top_id / MP_LANES;
                mp_topk_look(experts, lane, own);
            }
        MP_EACH_LANE_END
    }
}

/* The keys of a token's experts. */
MP_GPU void mp_topk_keys(MP_LANES_PARAMETERS(mp_topk_thread), const mp_topk_gate *gate,
                         uint64_t token)
{
    MP_EACH_LANE(mp_topk_thread)
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_TOPK_EACH; i++) {
            const uint32_t expert = i * MP_LANES + lane;
            if (i * MP_LANES >= gate->experts)
                break;
            own->key[i] = 0;
            if (expert < gate->experts)
                own->key[i] = mp_topk_key(mp_topk_choice(gate, token, expert));
        }
    MP_EACH_LANE_END
}

/* ---- Weighing ---- */

/* Softmax terms are e^(z - z_max), by plain arithmetic where z is infinite or NaN. */
MP_GPU float mp_topk_term(float logit, uint32_t first)
{
    return mp_scalar_exp(mp_scalar_add(logit, -mp_topk_value(first)));
}

/* own->sum = what the terms are divided by; own->part = this lane's choice's term. */
MP_GPU void mp_topk_terms(MP_LANES_PARAMETERS(mp_topk_thread), const mp_topk_gate *gate,
                          uint64_t token)
{
    MP_EACH_LANE(mp_topk_thread)
        own->part = 0;
        if (own->id < gate->experts) {
            const float logit = mp_topk_logit(gate, token, own->id);
            own->part = gate->kind == MP_TOPK_SIGMOID_NORM ? mp_scalar_sigmoid(logit)
                                                           : mp_topk_term(logit, own->first);
        }
        own->sum = own->part;
        if (gate->kind == MP_TOPK_SOFTMAX_ALL) {
            own->sum = 0;
            MP_SCALAR_UNROLL
            for (uint32_t i = 0; i < MP_TOPK_EACH; i++) {
                if (i * MP_LANES >= gate->experts)
                    break;
                if (own->key[i])
                    own->sum = mp_scalar_add(own->sum,
                                             mp_topk_term(mp_topk_value(own->key[i]), own->first));
            }
        }
    MP_EACH_LANE_END
    MP_LANES_SUM(sum);
}

/* Writes the choices and their weights. A sum of sigmoids may be 0: the tiny number added to it
 * prevents a division by 0, and vanishes in every other sum. */
MP_GPU void mp_topk_write(MP_LANES_PARAMETERS(mp_topk_thread), const mp_topk_gate *gate,
                          uint64_t token, int32_t *ids, float *weights)
{
    mp_topk_terms(MP_LANES_PASS, gate, token);
    MP_EACH_LANE(mp_topk_thread)
        if (lane < gate->top_k) {
            const float sum =
                gate->kind == MP_TOPK_SIGMOID_NORM ? mp_scalar_add(own->sum, 1e-20f) : own->sum;
            ids[token * gate->top_k + lane] = (int32_t)own->id;
            weights[token * gate->top_k + lane] =
                mp_scalar_mul(mp_scalar_div(own->part, sum), gate->scale);
        }
    MP_EACH_LANE_END
}

MP_GPU void mp_gpu_topk_block(MP_BLOCK_PARAMETERS(mp_gpu_topk_args, mp_gpu_topk_shared,
                                                  mp_topk_thread))
{
    (void)shared;
    MP_WARPS(mp_topk_thread)
        const uint64_t stride = (uint64_t)n_blocks * n_warps;
        MP_SCALAR_LOOP
        for (uint64_t token = (uint64_t)block * n_warps + warp; token < args->n_tokens;
             token += stride) {
            mp_topk_keys(MP_LANES_PASS, &args->gate, token);
            mp_topk_choose(MP_LANES_PASS, args->gate.experts, args->gate.top_k);
            mp_topk_write(MP_LANES_PASS, &args->gate, token, args->ids, args->weights);
        }
    MP_WARPS_END
}

#define MP_TOPK_ENTRIES(X) \
    X(topk, mp_gpu_topk_args, mp_gpu_topk_shared, mp_topk_thread, MP_TOPK_THREADS, 4)

#endif
