/* Elements in another order: rows dealt out, and columns that become rows. */
#include <string.h>

#include "model/repack.h"

/* ---- reordered ---- */

static uint64_t reordered_room(const mp_repack *how, uint64_t n)
{
    return mp_repack_most_reach(how, n) * how->row_bytes;
}

static moepage_status fill_reordered(const mp_repack *how, const mp_file_span *stored,
                                     const mp_repack_rows *rows, unsigned char *room,
                                     unsigned char *out)
{
    const mp_repack_range all = {rows->first, mp_repack_reach(rows), 0, how->row_bytes};
    moepage_status status = mp_repack_window(how, stored, 0, &all, room);
    for (uint64_t r = 0; r < rows->n && !status; r++)
        memcpy(out + r * how->row_bytes, room + r * rows->step * how->row_bytes, how->row_bytes);
    return status;
}

const mp_repack_kind mp_repack_reordered = {reordered_room, fill_reordered};

/* ---- transposed ---- */

/* Source rows that are read at a time: their columns become runs of a cache line in the piece's rows. */
#define DEPTH 64u

static uint64_t element_bytes(const mp_repack *how)
{
    return how->row_bytes / how->sources[0].rows;
}

static uint64_t transposed_room(const mp_repack *how, uint64_t n)
{
    return DEPTH * mp_repack_most_reach(how, n) * element_bytes(how);
}

typedef struct grid {
    const unsigned char *from; /* [rows][width] */
    uint64_t rows, width;      /* width in elements */
    unsigned char *to;  /* row r of the piece from its element of the first of these rows on */
    uint64_t to_stride; /* bytes */
    uint64_t n, step;   /* columns 0, step, ... */
} grid;

#define TURN(type)                                                                              \
    static void turn_##type(const grid *of)                                                     \
    {                                                                                           \
        for (uint64_t c = 0; c < of->n; c++)                                                    \
            for (uint64_t r = 0; r < of->rows; r++)                                             \
                memcpy(of->to + c * of->to_stride + r * sizeof(type),                           \
                       of->from + (r * of->width + c * of->step) * sizeof(type), sizeof(type)); \
    }
TURN(uint8_t)
TURN(uint16_t)
TURN(uint32_t)
TURN(uint64_t)
#undef TURN

static void turn(const grid *of, uint64_t each)
{
    switch (each) {
    case 1: turn_uint8_t(of); break;
    case 2: turn_uint16_t(of); break;
    case 4: turn_uint32_t(of); break;
    default: turn_uint64_t(of); break;
    }
}

static moepage_status fill_transposed(const mp_repack *how, const mp_file_span *stored,
                                      const mp_repack_rows *rows, unsigned char *room,
                                      unsigned char *out)
{
    const uint64_t depth = how->sources[0].rows, each = element_bytes(how);
    const uint64_t width = mp_repack_reach(rows);
    moepage_status status = MOEPAGE_OK;
    for (uint64_t first = 0; first < depth && !status; first += DEPTH) {
        const uint64_t n = depth - first < DEPTH ? depth - first : DEPTH;
        const mp_repack_range range = {first, n, rows->first * each, width * each};
        const grid of = {room, n, width, out + first * each, how->row_bytes, rows->n, rows->step};
        status = mp_repack_window(how, stored, 0, &range, room);
        if (status)
            return status;
        turn(&of, each);
    }
    return status;
}

const mp_repack_kind mp_repack_transposed = {transposed_room, fill_transposed};
