/* exph_data.h — tensors to encode: from what weights look like to what no weights look like. */
#ifndef EXPH_DATA_H
#define EXPH_DATA_H

#include <stdint.h>

#include "codec/exph.h"

enum {
    EXPH_GAUSSIAN,  /* what trained weights look like */
    EXPH_NOISE,     /* every bit at random */
    EXPH_CONSTANT,  /* one exponent */
    EXPH_TWO,       /* two exponents, at odds of 1 to 1 up to 1 to 65535 */
    EXPH_GEOMETRIC, /* exponent k twice as rare as k - 1, all that there are */
    EXPH_LANES,     /* cheap exponents in some lanes, dear ones in others */
    EXPH_BLOCKS,    /* stretches of 1 to 50,000 elements of the above */
    EXPH_KINDS
};

/* A sequence of its own for each seed. */
typedef struct exph_random {
    uint64_t state;
} exph_random;

exph_random exph_random_of(uint64_t seed);
uint64_t exph_next(exph_random *random);
uint64_t exph_below(exph_random *random, uint64_t limit); /* limit 0 gives 0 */

extern const uint32_t exph_dtypes[4]; /* BF16, F16, F8_E4M3, F8_E5M2 */
uint64_t exph_element_bytes(uint32_t dtype);

/* n elements of `dtype` to out. */
void exph_fill(exph_random *random, uint32_t dtype, uint32_t kind, void *out, uint64_t n);

/* Every decoder of this CPU: exph_decoders[0] is "portable". */
extern const mp_exph_decoder *exph_decoders[3];
extern uint32_t n_exph_decoders;

/* A cmocka group setup: fills the above, and names the decoders that cannot run here. */
int exph_decoders_find(void **state);

#endif
