/* seal.h — makes the checksums of files right, whatever else the files say: a mutation then reaches
 * what the checksums guard. Written from docs/format-exph.md and docs/format-moepack.md; nothing is
 * believed, what does not fit is left alone. */
#ifndef SEAL_H
#define SEAL_H

#include <stddef.h>
#include <stdint.h>

/* A stream of n elements. */
void seal_exph(uint8_t *stream, size_t n_bytes, uint64_t n);

/* What seal_pack leaves as it is. */
enum {
    SEAL_LEAVE_SIZE = 1,     /* of the file, in the header */
    SEAL_LEAVE_STREAMS = 2,  /* inside images */
    SEAL_LEAVE_RECORDS = 4,  /* images and dense tensors */
    SEAL_LEAVE_SECTIONS = 8, /* the table's checksums of them */
    SEAL_LEAVE_TABLE = 16,
    SEAL_LEAVE_HEADER = 32
};

void seal_pack(uint8_t *file, size_t n_bytes, unsigned leave);

#endif
