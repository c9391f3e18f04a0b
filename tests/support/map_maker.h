/* map_maker.h — routing as routers produce it, for tests and measurements of expert maps: peaked
 * softmax distributions around clusters, some samples closer to theirs than others, with embeddings
 * to match; and their similarities in double precision, straight from the equations. */
#ifndef MAP_MAKER_H
#define MAP_MAKER_H

#include <stdint.h>

typedef struct map_world {
    uint32_t layers, experts, dim, clusters;
    uint64_t seed;
    float *centres;  /* [clusters][layers][experts] logits */
    float *meanings; /* [clusters][dim] */
} map_world;

void map_world_make(map_world *world);
void map_world_free(map_world *world);

/* Sample `index`: its map [layers][experts], and its embedding [dim] unless NULL. */
void map_world_sample(const map_world *world, uint64_t index, float *map, float *embedding);

/* Cosine similarity; 0 where one is zero. */
double map_cosine(const float *a, const float *b, uint64_t n);

#endif
