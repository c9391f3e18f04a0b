/* repack.h — pieces of a slot that are computed from stored tensors: another order of the same numbers,
 * exactly, and never another value.
 *
 * A piece is a matrix of rows, and so is each stored tensor, of bytes. A kind is the rule by which rows
 * of the piece follow from the stored ones: a function that fills some rows, of which it reads what it
 * needs with mp_repack_window. It is asked for many rows at once, as many as the scratch for its reads,
 * a room, has space for: so no stored tensor is read per row. Rooms are of one size, which the shapes
 * determine and the largest row bounds; there are as many as threads that read at a time.
 *
 *   a range of a piece ──▶ runs of whole rows ──▶ kind->fill ──▶ windows of stored tensors
 *
 * Shapes are checked when a model is opened: a kind finds in `sources` what it was declared with, and
 * windows within those are within the file. */
#ifndef MP_MODEL_REPACK_H
#define MP_MODEL_REPACK_H

#include <stdbool.h>
#include <stdint.h>

#include "model/file.h"
#include "moepage.h"

#define MP_REPACK_SOURCES 5

typedef struct mp_repack mp_repack;

/* Rows first, first + step, ... of the stored order. */
typedef struct mp_repack_rows {
    uint64_t first, step, n;
} mp_repack_rows;

typedef struct mp_repack_kind {
    /* Returns the scratch that filling n rows needs, which grows with n. */
    uint64_t (*room)(const mp_repack *how, uint64_t n);
    /* Writes the rows to `out`, back to back. IO; FORMAT, with a sentence that names the file, for a stored
     * value that the slot cannot hold. Any thread; `room` is the caller's alone, at a multiple of 16. */
    moepage_status (*fill)(const mp_repack *how, const mp_file_span *stored,
                           const mp_repack_rows *rows, unsigned char *room, unsigned char *out);
} mp_repack_kind;

/* A stored tensor of one expert, as rows of bytes. */
typedef struct mp_repack_source {
    uint64_t rows, row_bytes;
} mp_repack_source;

/* How one piece is computed. */
struct mp_repack {
    const mp_repack_kind *kind;
    uint64_t rows, row_bytes; /* of the piece */
    bool interleaved; /* stored rows 0, 2, 4, ... come first in the piece, then 1, 3, 5, ... */
    uint32_t n_sources;
    mp_repack_source sources[MP_REPACK_SOURCES];
};

/* Scratch of a fill: any number of threads take one each. */
typedef struct mp_repack_rooms mp_repack_rooms;

/* Returns the bytes of scratch that reading this piece needs. */
uint64_t mp_repack_room(const mp_repack *how);

/* Creates rooms of `bytes` each; memory is taken when a thread needs one, and kept. NO_MEMORY. */
moepage_status mp_repack_rooms_create(uint64_t bytes, mp_repack_rooms **out);
void mp_repack_rooms_free(mp_repack_rooms *rooms);

/* Computes bytes [offset, offset + bytes) of a piece. `stored` is where its sources are. Blocks; any
 * thread. IO, FORMAT, NO_MEMORY. */
moepage_status mp_repack_read(const mp_repack *how, const mp_file_span *stored,
                              mp_repack_rooms *rooms, uint64_t offset, uint64_t bytes, void *out);

/* Says why a piece cannot be computed, or OK: computes all of it for that. */
moepage_status mp_repack_check(const mp_repack *how, const mp_file_span *stored,
                               mp_repack_rooms *rooms);

/* Returns how one of n matrices is computed that follow each other in the piece: from an nth of each source's rows,
 * and from all of a source whose rows do not divide by n. */
mp_repack mp_repack_one_of(const mp_repack *how, uint32_t n);

/* Returns true if both pieces are computed alike, each from its own sources. */
bool mp_repack_is_same(const mp_repack *a, const mp_repack *b);

/* A tensor that is computed as one piece, and where its sources are. */
typedef struct mp_computed {
    mp_repack how;
    mp_file_span stored[MP_REPACK_SOURCES];
} mp_computed;

/* Computes a range of it, with scratch that is freed again. IO, FORMAT, NO_MEMORY. */
moepage_status mp_computed_read(const mp_computed *tensor, uint64_t offset, uint64_t bytes,
                                void *out);

/* ---- For kinds ---- */

/* A vector of elements of two others, by number. */
#if defined(__clang__)
#define MP_SHUFFLED(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MP_SHUFFLED(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

/* Some rows of a source, and of each the bytes [at, at + bytes). */
typedef struct mp_repack_range {
    uint64_t first, n;
    uint64_t at, bytes;
} mp_repack_range;

/* Reads a window of source `s`, its rows back to back. IO. */
moepage_status mp_repack_window(const mp_repack *how, const mp_file_span *stored, uint32_t s,
                                const mp_repack_range *range, void *out);

/* Returns how many stored rows lie from the first to the last of these. */
static inline uint64_t mp_repack_reach(const mp_repack_rows *rows)
{
    return (rows->n - 1) * rows->step + 1;
}

/* The same for n rows of a piece, at most. */
static inline uint64_t mp_repack_most_reach(const mp_repack *how, uint64_t n)
{
    return how->interleaved ? 2 * n : n;
}

/* ---- Kinds ---- */

/* Rows as they are stored, of one source, in another order. */
extern const mp_repack_kind mp_repack_reordered;

/* Columns of one source of elements, each a row of the piece: a source has as many rows as a row of the
 * piece has elements, of 1, 2, 4 or 8 bytes. */
extern const mp_repack_kind mp_repack_transposed;

/* MXFP4 blocks of 32 from the nibbles [rows, groups * 16] and the scales [rows, groups]: two weights that
 * follow each other share a byte, the first in its low half. */
extern const mp_repack_kind mp_repack_mxfp4;

/* Blocks of NVFP4G from the nibbles [rows, K/2], stored likewise, the scales [rows, K/16] and the factors, F32
 * numbers, each for as many rows, by which scales are multiplied, or divided. FORMAT, besides what a file can fail
 * with: a factor or a scale that is no number a quantiser makes. */
const mp_repack_kind *mp_repack_nvfp4(bool divided);

/* The same from blocks of NVFP4 [rows, K/64] and factors. */
extern const mp_repack_kind mp_repack_nvfp4_blocks;

/* Returns the longest block of NVFP4G that divides a row of so many weights; 0 if none does. */
uint32_t mp_fp4_block(uint64_t columns);

#endif
