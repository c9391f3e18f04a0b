/* census.h — what the exponents of a model's experts look like, and what that is worth. */
#ifndef EXAMPLE_CENSUS_H
#define EXAMPLE_CENSUS_H

#include <stdbool.h>

#include "moepage.h"

/* How a floating-point type is made up; exponent_bits 0 for any other. */
typedef struct float_kind {
    const char *name; /* of every type */
    uint32_t bits;
    uint32_t exponent_bits;
    uint32_t exponent_shift;
    int32_t exponent_bias;
} float_kind;

float_kind float_kind_of(uint32_t dtype);

/* Exponents of all sampled tensors of one type. */
typedef struct exponent_census {
    uint64_t count[256];
    uint64_t weights;
    double own_bits; /* sum over weights of the entropy of the tensor that they are in */
} exponent_census;

#define CENSUS_DTYPES 16 /* more than the last MOEPAGE_DTYPE_* */
#define CENSUS_DAMAGED 8 /* experts that are named */

typedef struct census {
    /* which experts: `sampled` of `population`, evenly spread */
    uint32_t first_layer, n_layers;
    uint64_t population;
    uint64_t sampled;
    uint64_t damaged;                     /* of the sampled ones: they count for nothing below */
    exponent_census types[CENSUS_DTYPES]; /* by MOEPAGE_DTYPE_* */
    uint64_t raw_bytes;                   /* of the sampled experts' tensors */
    uint64_t coded_bytes; /* the same by moepage_exph_encode, or raw where it does not pay; 0 = not
                             measured */
    struct census_expert {
        uint32_t layer, expert;
    } first_damaged[CENSUS_DAMAGED];
} census;

/* Reads up to `most` experts of the layers given by first_layer and n_layers, and encodes them too
 * unless they are all experts and `stored` says that the model holds them encoded. Those that cannot
 * be read are named on standard error, the first of them, and counted. One line and an exit code on
 * any other failure. */
int census_take(const moepage_model *model, const char *path, uint64_t most, bool stored,
                census *out);

/* Entropy per exponent: of the code that each tensor had for itself, weighted by size; and of one
 * code for all. */
double census_entropy(const exponent_census *c);
double census_pooled_entropy(const exponent_census *c);

/* The least share of a type's bytes that a code per tensor can reach: sign and mantissa as they are,
 * exponents at their entropy. 1 for types without an exponent. */
double census_floor(const exponent_census *c, uint32_t dtype);

#endif
