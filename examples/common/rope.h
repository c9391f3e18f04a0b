/* rope.h — rotary position embedding: pairs (i, i + head_dim/2) of a head rotated by an angle
 * proportional to the position. */
#ifndef EXAMPLE_ROPE_H
#define EXAMPLE_ROPE_H

#include <jansson.h>
#include <stdint.h>

typedef struct rope {
    uint32_t head_dim;
    uint32_t max_positions;   /* limit of the frequencies below; UINT32_MAX = no limit */
    float amplitude;          /* multiplies sine and cosine (YaRN, LongRoPE's mscale) */
    float *inverse_frequency; /* [head_dim / 2] */
} rope;

/* Reads rope_parameters, or rope_theta with rope_scaling, from a config.json. Scalings: none,
 * linear, YaRN, and LongRoPE up to the length of its short factors. RUN_REFUSED with a line otherwise. */
int rope_read(const json_t *config, uint32_t head_dim, double default_theta, rope *out);
void rope_free(rope *r);

/* Computes the sines and cosines [head_dim / 2] of one position. */
void rope_angles(const rope *r, uint64_t position, float *cosines, float *sines);

/* Rotates one head in place. */
void rope_turn(uint32_t head_dim, const float *cosines, const float *sines, float *head);

#endif
