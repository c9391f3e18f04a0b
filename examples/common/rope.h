/* rope.h — rotary position embedding: pairs of a head's elements rotated by an angle proportional to
 * the position. */
#ifndef EXAMPLE_ROPE_H
#define EXAMPLE_ROPE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct rope {
    uint32_t dims;          /* elements that are rotated, even */
    bool interleaved;       /* pairs are (2i, 2i + 1), not (i, i + dims/2) */
    uint32_t max_positions; /* limit of the frequencies below; UINT32_MAX = no limit */
    float amplitude;        /* multiplies sine and cosine (YaRN, LongRoPE's mscale) */
    float score_factor;     /* DeepSeek's mscale_all_dim, squared: multiplies attention's scores */
    float *inverse_frequency; /* [dims / 2] */
} rope;

/* An architecture's own part. */
typedef struct rope_traits {
    double theta;     /* default */
    double partial;   /* default share of a head that is rotated; 0 = always the whole */
    bool interleaved; /* default */
} rope_traits;

/* Reads rope_parameters, or rope_theta with rope_scaling, from a config.json. Scalings: none,
 * linear, YaRN, and LongRoPE up to the length of its short factors. RUN_REFUSED with a line otherwise. */
int rope_read(const json_t *config, uint32_t head_dim, const rope_traits *traits, rope *out);
void rope_free(rope *r);

/* Computes the sines and cosines [dims / 2] of one position. */
void rope_angles(const rope *r, uint64_t position, float *cosines, float *sines);

/* Rotates `dims` elements in place. */
void rope_turn(const rope *r, const float *cosines, const float *sines, float *x);

#endif
