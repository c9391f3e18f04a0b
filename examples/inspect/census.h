/* census.h — the distribution of exponents in a model's experts, and the compression it allows. */
#ifndef EXAMPLE_CENSUS_H
#define EXAMPLE_CENSUS_H

#include <stdbool.h>

#include "moepage.h"

/* The layout of a floating-point type; exponent_bits is 0 for any other type. */
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
    double own_bits; /* sum over weights of the entropy of their tensor */
} exponent_census;

#define CENSUS_DTYPES 16 /* more than the last MOEPAGE_DTYPE_* */
#define CENSUS_DAMAGED 8 /* damaged experts to report by name */

typedef struct census {
    /* which experts: `sampled` of `population`, evenly spread */
    uint32_t first_layer, n_layers;
    uint64_t population;
    uint64_t sampled;
    uint64_t damaged;                     /* of the sampled; excluded from all figures below */
    exponent_census types[CENSUS_DTYPES]; /* by MOEPAGE_DTYPE_* */
    uint64_t raw_bytes;                   /* of the sampled experts' tensors */
    uint64_t coded_bytes; /* of these as EXPH, or raw if that is smaller; 0 = not measured */
    struct census_expert {
        uint32_t layer, expert;
    } first_damaged[CENSUS_DAMAGED];
} census;

/* Reads up to `most` experts of the layers given by first_layer and n_layers, and encodes them too
 * unless all experts are read and `stored` says that the model holds them encoded. Unreadable
 * experts are counted, and the first of them named on standard error. One line and an exit code on
 * any other failure. */
int census_take(const moepage_model *model, const char *path, uint64_t most, bool stored,
                census *out);

/* Returns the entropy per exponent: of one code per tensor, weighted by size; and of one code for
 * all. */
double census_entropy(const exponent_census *c);
double census_pooled_entropy(const exponent_census *c);

/* Returns the smallest fraction of a type's bytes that a code per tensor can reach: sign and
 * mantissa verbatim, exponents at their entropy. 1 for types without an exponent. */
double census_floor(const exponent_census *c, uint32_t dtype);

#endif
