/* maps_sketch.h — embeddings in four bits per coordinate.
 *
 * An embedding is rotated by a fixed orthogonal map (signs, Hadamard transforms, twice), which
 * spreads its weight evenly whatever its outliers; short ones are rotated several ways, so that
 * every sketch has at least 1024 coordinates and its errors average out. A coordinate is stored as
 * c in 0..15 for the value 2c - 15, in units of a sixth of the coordinates' root mean square. With
 * gain = |m| / <m, values>, <q, values> * gain / |q| estimates the cosine without bias.
 *
 * The first 256 coordinates are a coarser sketch: a search passes over these only, and compares the
 * best 1024 slots in full. */
#ifndef MP_POLICY_MAPS_SKETCH_H
#define MP_POLICY_MAPS_SKETCH_H

#include "policy/maps.h"

enum {
    MP_SKETCH_LEAST = 1024,
    MP_SKETCH_HEAD = 256,
    MP_SKETCH_GROUP = 64,
    MP_SKETCH_FINALISTS = 1024
};

/* Returns the coordinates of a sketch for embeddings of that size: a multiple
 * of MP_SKETCH_GROUP. */
uint32_t mp_sketch_coords(uint32_t semantic_dim);

/* Rotates an embedding [semantic_dim] into out[mp_sketch_coords]. Returns false if it is zero or
 * not finite. */
bool mp_sketch_turn(const float *embedding, uint32_t semantic_dim, float *out);

/* Derives query->sketch from query->turned. */
void mp_sketch_query(const mp_maps *maps, mp_maps_query *query);

/* Stores a rotated embedding in a slot; NULL: the slot has none. */
void mp_sketch_put(mp_maps *maps, uint32_t slot, const float *turned);

/* Returns the similarity of the query to a slot; 0 if either has no embedding. */
float mp_sketch_score(const mp_maps *maps, const mp_maps_query *query, uint32_t slot);

/* Finds the most similar slot among those written before the query began, or MP_MAPS_NONE. */
uint32_t mp_sketch_find(const mp_maps *maps, mp_maps_query *query, float *score);

static inline uint32_t mp_sketch_tail_bytes(const mp_maps *maps)
{
    return (maps->coords - MP_SKETCH_HEAD) / 2;
}

#endif
