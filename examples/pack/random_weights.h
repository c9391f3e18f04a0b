/* random_weights.h — weights distributed like trained ones, from a counter: any range of any tensor
 * can be made at any time by any thread, always with the same result. */
#ifndef EXAMPLE_RANDOM_WEIGHTS_H
#define EXAMPLE_RANDOM_WEIGHTS_H

#include <stdint.h>

typedef enum weight_shape {
    WEIGHTS_GAUSSIAN,
    WEIGHTS_HEAVY /* Student's t with 4 degrees of freedom: outliers, as in some real layers */
} weight_shape;

/* 65,536 equally likely BF16 values, the quantiles of the distribution. */
typedef struct random_weights {
    uint16_t quantile[65536];
} random_weights;

/* Prepares a distribution of mean 0 and standard deviation `sigma`. */
void random_weights_init(random_weights *out, weight_shape shape, double sigma);

/* Combines several numbers into one that identifies a tensor. */
uint64_t random_key(uint64_t seed, uint32_t a, uint32_t b, uint32_t c);

/* Writes bytes [offset, offset + bytes) of the endless BF16 tensor of that key. */
void random_weights_fill(const random_weights *weights, uint64_t key, uint64_t offset,
                         uint64_t bytes, void *out);

#endif
