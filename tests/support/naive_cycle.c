/* One key after the other, everything worked out anew. */
#include "naive_cycle.h"

#include <math.h>
#include <string.h>

static const float rates[5] = {0.3f, 0.1f, 0.03f, 0.01f, 0.003f};

static uint32_t layer_of(const naive_cycle *c, uint32_t key)
{
    return key / c->experts;
}

static float beta(const naive_cycle *c, uint32_t l)
{
    if (c->resident == 0)
        return 0.5f;
    float loss = 0.44f * c->now.share[l] * (float)c->keys / (float)c->resident;
    return fmaxf(0.5f, fminf(0.95f, 1 - loss));
}

/* Term i of what a basis says of a key. */
static float term(const naive_cycle *c, const naive_basis *basis, uint32_t key, uint32_t i)
{
    float share = basis->share[layer_of(c, key)], since = basis->since[key];
    if (i < 5)
        return 2 * (basis->average[key][i] - share) / (basis->average[key][i] + share);
    return i == 5 ? 1 / (1 + since * share) : i == 6 ? 1 / (1 + since * share * 0.1f) : 1;
}

/* Of expert e of a layer, from an expert of the set so many layers back. */
static float *weight_from(naive_cycle *c, uint32_t l, uint32_t e, uint32_t back, uint32_t then)
{
    uint32_t row = (l * c->reach + back) * c->rows + then % 256;
    return &c->of_sets[row * c->experts + e];
}

static float foretell(naive_cycle *c, uint32_t key)
{
    uint32_t l = layer_of(c, key);
    float sum = c->own[key];
    for (uint32_t i = 0; i < 8; i++)
        sum += c->weight[l][i] * term(c, &c->now, key, i);
    for (uint32_t back = 0; back < c->reach; back++) {
        const naive_set *set = &c->now.sets[l][back];
        float value = 1 / sqrtf((float)set->n);
        for (uint32_t i = 0; i < set->n; i++)
            sum += value * *weight_from(c, l, key % c->experts, back, set->experts[i]);
    }
    float x = fmaxf(-30, fminf(30, sum)), power = 1;
    for (int i = 0; i < 8; i++)
        power = i ? power * power : (1 - x / 256) * (1 - x / 256);
    return 1 / (1 + power);
}

static void look(naive_cycle *c, uint32_t l, const bool *used, uint32_t n)
{
    float rate = c->visits[l] < 300 ? 1.0f / (float)(1 + c->visits[l]) : 1.0f / 300;
    float *share = &c->now.share[l];
    *share += rate * ((float)n / (float)c->experts - *share);
    for (uint32_t e = 0; e < c->experts; e++) {
        uint32_t key = l * c->experts + e;
        for (uint32_t i = 0; i < 5; i++) {
            float *average = &c->now.average[key][i];
            float before = c->visits[l] ? *average : *share;
            *average = before + rates[i] * ((used[e] ? 1.0f : 0.0f) - before);
        }
        c->now.since[key] = used[e] ? 0 : fminf(1000, c->now.since[key] + 1);
    }
    for (uint32_t back = 0; back < c->reach; back++)
        c->now.sets[l][back] = c->last[(l + c->layers - back) % c->layers];
}

/* The layer's weights move by how far `foretold` was from what is known now. */
static void learn(naive_cycle *c, uint32_t l, const naive_basis *then, const float *foretold,
                  const bool *used)
{
    float gradient[8] = {0};
    float step = 0.1f / sqrtf((float)c->reach);
    for (uint32_t e = 0; e < c->experts; e++) {
        uint32_t key = l * c->experts + e;
        float error = (used[e] ? 1 : beta(c, l) * c->estimate[key]) - foretold[key];
        c->own[key] += 0.002f * error;
        for (uint32_t i = 0; i < 8; i++)
            gradient[i] += error * term(c, then, key, i);
        for (uint32_t back = 0; back < c->reach; back++) {
            const naive_set *set = &then->sets[l][back];
            float value = 1 / sqrtf((float)set->n);
            for (uint32_t i = 0; i < set->n; i++)
                *weight_from(c, l, e, back, set->experts[i]) += step * value * error;
        }
    }
    for (uint32_t i = 0; i < 8; i++)
        c->weight[l][i] += 0.06f / (float)c->experts * gradient[i];
}

void naive_cycle_route(naive_cycle *c, const uint32_t *set, uint32_t n)
{
    static naive_basis then;
    static float foretold[NAIVE_CYCLE_KEYS];
    bool used[NAIVE_CYCLE_KEYS] = {false};
    uint32_t l = layer_of(c, set[0]);
    then = c->now;
    memcpy(foretold, c->estimate, sizeof foretold);
    c->last[l].n = n < NAIVE_CYCLE_SET ? n : NAIVE_CYCLE_SET;
    for (uint32_t i = 0; i < n; i++) {
        used[set[i] % c->experts] = true;
        if (i < NAIVE_CYCLE_SET)
            c->last[l].experts[i] = set[i] % c->experts;
    }
    look(c, l, used, n);
    for (uint32_t e = 0; e < c->experts; e++)
        c->estimate[l * c->experts + e] = foretell(c, l * c->experts + e);
    if (c->visits[l]++ > 0)
        learn(c, l, &then, foretold, used);
    c->at = l;
}

/* What an eviction of the key loses. */
static float worth(const naive_cycle *c, uint32_t key)
{
    uint32_t ahead = (layer_of(c, key) + c->layers - c->at - 1) % c->layers + 1;
    return c->estimate[key] *
           (1 - (1 - beta(c, layer_of(c, key))) / (float)c->layers * (float)ahead);
}

/* A layer's key is the one with the least estimate; of the layers', that with the least worth. */
uint32_t naive_cycle_victim(const naive_cycle *c, const bool *may_go)
{
    uint32_t best = c->keys;
    for (uint32_t l = 0; l < c->layers; l++) {
        uint32_t of_layer = c->keys;
        for (uint32_t key = l * c->experts; key < (l + 1) * c->experts; key++)
            if (may_go[key] && (of_layer == c->keys || c->estimate[key] < c->estimate[of_layer]))
                of_layer = key;
        if (of_layer < c->keys && (best == c->keys || worth(c, of_layer) < worth(c, best)))
            best = of_layer;
    }
    return best;
}

void naive_cycle_open(naive_cycle *c, uint32_t keys, uint32_t experts)
{
    memset(c, 0, sizeof *c);
    c->keys = keys;
    c->experts = experts;
    c->layers = keys / experts;
    c->rows = experts < 256 ? experts : 256;
    c->reach = 768 / experts > 1 ? 768 / experts : 1;
    if (c->reach > c->layers)
        c->reach = c->layers;
    c->at = c->layers - 1;
    for (uint32_t key = 0; key < keys; key++) {
        c->estimate[key] = 0.5f;
        c->now.since[key] = 1000;
    }
    for (uint32_t l = 0; l < c->layers; l++)
        for (uint32_t i = 0; i < 5; i++)
            c->weight[l][i] = 0.2f;
}
