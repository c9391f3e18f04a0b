/* coders.h — what the codec benchmark compares: ways to make 16-bit weights smaller and to get them
 * back. */
#ifndef EXAMPLE_CODERS_H
#define EXAMPLE_CODERS_H

#include <stdbool.h>

#include "bench/weights.h"

typedef struct coder coder;
struct coder {
    const char *name;
    /* Encodes a tensor to out (coder_room bytes); returns the size, 0 on failure. NULL: the one
     * before it in the list has encoded what this one decodes. `scratch` holds one tensor. */
    uint64_t (*encode)(const coder *self, const bench_tensor *in, void *scratch, void *out);
    /* Gets the tensor back; false on failure. */
    bool (*decode)(const coder *self, const bench_tensor *of, const void *in, uint64_t bytes,
                   void *scratch, void *out);
    const char *decoder; /* of exph */
    int level;           /* of zstd */
    bool planes;         /* low and high bytes apart, as two streams */
};

/* All that this build has; memcpy first. */
extern const coder coders[];
extern const uint32_t n_coders;

/* Memory that any coder's output of `elements` weights fits in. */
uint64_t coder_room(uint64_t elements);

#endif
