/* coders.h — the coders that the codec benchmark compares: they compress 16-bit weights and restore
 * them. */
#ifndef EXAMPLE_CODERS_H
#define EXAMPLE_CODERS_H

#include <stdbool.h>

#include "bench/weights.h"

typedef struct coder coder;
struct coder {
    const char *name;
    /* Encodes a tensor to out (coder_room bytes); returns the size, 0 on failure. NULL: decodes the
     * output of the preceding coder in the list. `scratch` holds one tensor. */
    uint64_t (*encode)(const coder *self, const bench_tensor *in, void *scratch, void *out);
    /* Restores the tensor; returns false on failure. */
    bool (*decode)(const coder *self, const bench_tensor *of, const void *in, uint64_t bytes,
                   void *scratch, void *out);
    const char *decoder; /* of exph */
    int level;           /* of zstd */
    bool planes;         /* low and high bytes as two separate streams */
};

/* All coders of this build; memcpy first. */
extern const coder coders[];
extern const uint32_t n_coders;

/* Returns the memory that any coder's output of `elements` weights fits into. */
uint64_t coder_room(uint64_t elements);

#endif
