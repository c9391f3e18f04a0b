/* Clustered routing. The spreads are such that a router of 128 experts gives its first choice about a
 * fifth and its first eight about two thirds. */
#include "map_maker.h"

#include <math.h>
#include <stdlib.h>

static uint64_t random_bits(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t bits = *state;
    bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
    return bits ^ bits >> 31;
}

/* About normal: four uniform parts. */
static float normal(uint64_t *state)
{
    const uint64_t bits = random_bits(state);
    const uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) +
                         (uint32_t)(bits >> 32 & 0xffff) + (uint32_t)(bits >> 48);
    return ((float)sum / 65536 - 2) * 1.7320508f;
}

static void softmax(float *values, uint32_t n)
{
    float most = values[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        most = fmaxf(most, values[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += values[i] = expf(values[i] - most);
    for (uint32_t i = 0; i < n; i++)
        values[i] /= sum;
}

void map_world_make(map_world *world)
{
    const uint64_t n = (uint64_t)world->layers * world->experts;
    uint64_t state = world->seed;
    world->centres = malloc(world->clusters * n * sizeof *world->centres);
    world->meanings = malloc((uint64_t)world->clusters * world->dim * sizeof *world->meanings + 1);
    if (!world->centres || !world->meanings)
        abort();
    for (uint64_t i = 0; i < world->clusters * n; i++)
        world->centres[i] = 1.4f * normal(&state);
    for (uint64_t i = 0; i < (uint64_t)world->clusters * world->dim; i++)
        world->meanings[i] = normal(&state) * (i % world->dim % 97 == 5 ? 12 : 1); /* outliers */
}

void map_world_free(map_world *world)
{
    free(world->centres);
    free(world->meanings);
}

void map_world_sample(const map_world *world, uint64_t index, float *map, float *embedding)
{
    const uint64_t n = (uint64_t)world->layers * world->experts;
    uint64_t state = world->seed ^ (index + 1) * UINT64_C(0xd6e8feb86659fd93);
    const uint64_t cluster = random_bits(&state) % world->clusters;
    const float spread = 0.2f + (float)(random_bits(&state) % 1024) / 1024;
    for (uint64_t i = 0; i < n; i++)
        map[i] = world->centres[cluster * n + i] + spread * normal(&state);
    for (uint32_t layer = 0; layer < world->layers; layer++)
        softmax(map + (uint64_t)layer * world->experts, world->experts);
    for (uint32_t i = 0; embedding && i < world->dim; i++)
        embedding[i] = world->meanings[cluster * world->dim + i] + spread * normal(&state);
}

double map_cosine(const float *a, const float *b, uint64_t n)
{
    double dot = 0, aa = 0, bb = 0;
    for (uint64_t i = 0; i < n; i++) {
        dot += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return aa > 0 && bb > 0 ? dot / sqrt(aa * bb) : 0;
}
