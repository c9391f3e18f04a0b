/* exph_streams.h — legal exponent-Huffman streams that the library's encoder would never make, and
 * damaged ones. Written from docs/format-exph.md alone. */
#ifndef EXPH_STREAMS_H
#define EXPH_STREAMS_H

#include <stdint.h>

#include "exph_data.h"

typedef struct exph_stream {
    uint32_t dtype;
    uint64_t n;
    uint8_t *bytes; /* at the end of a page */
    uint64_t n_bytes;
    uint8_t *elements; /* that it holds */
    uint64_t element_bytes;
} exph_stream;

/* Any complete code with symbols anywhere, any mode for each chunk, lanes of any lengths in any
 * units that a head can say, any bits for their padding. */
exph_stream exph_stream_make(exph_random *random, uint32_t dtype, uint64_t n);
/* One of any dtype, mostly BF16, and of any size, mostly small, often at an edge of a group, tile or
 * chunk. */
exph_stream exph_stream_any(exph_random *random);
void exph_stream_free(exph_stream *stream);

/* Changes a few bytes, most often where they decide what is read, and makes the checksums right. */
void exph_stream_damage(exph_random *random, exph_stream *stream);

#endif
