/* Blocks of E2M1 numbers, from nibbles and scales that are stored apart.
 *
 * Stored, a byte has two weights that follow each other, the first in its low half. In a block, the low
 * halves of a group's bytes are its first weights, the high halves its last. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "model/repack.h"

typedef uint8_t bytes16 __attribute__((vector_size(16)));

/* ---- MXFP4 ---- */

#define MX_NIBBLES 16u /* bytes of a group of 32 */
#define MX_BLOCK 17u   /* with its scale before them */

static uint64_t mx_groups(const mp_repack *how)
{
    return how->sources[0].row_bytes / MX_NIBBLES;
}

static uint64_t mx_room(const mp_repack *how, uint64_t n)
{
    return mp_repack_most_reach(how, n) * mx_groups(how) * MX_BLOCK;
}

/* Weights 0 to 15 in order, a byte each, then 16 to 31: those go above these. */
static void mx_pack(const unsigned char *nibbles, unsigned char *out)
{
    bytes16 in;
    memcpy(&in, nibbles, sizeof in);
    const bytes16 first = in & 15, second = in >> 4;
    const bytes16 low =
        MP_SHUFFLED(bytes16, first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const bytes16 high = MP_SHUFFLED(bytes16, first, second, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                     13, 29, 14, 30, 15, 31);
    in = low | high << 4;
    memcpy(out, &in, sizeof in);
}

static moepage_status mx_fill(const mp_repack *how, const mp_file_span *stored,
                              const mp_repack_rows *rows, unsigned char *room, unsigned char *out)
{
    const uint64_t groups = mx_groups(how), n = mp_repack_reach(rows);
    unsigned char *scales = room + n * groups * MX_NIBBLES;
    const mp_repack_range of_nibbles = {rows->first, n, 0, groups * MX_NIBBLES};
    const mp_repack_range of_scales = {rows->first, n, 0, groups};
    moepage_status status = mp_repack_window(how, stored, 0, &of_nibbles, room);
    if (!status)
        status = mp_repack_window(how, stored, 1, &of_scales, scales);
    for (uint64_t r = 0; r < rows->n && !status; r++)
        for (uint64_t g = 0; g < groups; g++, out += MX_BLOCK) {
            const uint64_t at = r * rows->step * groups + g;
            out[0] = scales[at];
            mx_pack(room + at * MX_NIBBLES, out + 1);
        }
    return status;
}

const mp_repack_kind mp_repack_mxfp4 = {mx_room, mx_fill};

/* ---- NVFP4 ---- */

#define NV_GROUP 16u
#define NV_FACTOR 4u      /* bytes */
#define NV_MOST 0x7eu     /* the greatest E4M3 number: those above are a NaN and negative ones */
#define NV_REACH 0x1p100f /* factors from its inverse on keep all scales normal floats */

enum { NV_WEIGHTS, NV_SCALES, NV_OF_MATRIX };

typedef struct nv_kind {
    mp_repack_kind kind; /* of this */
    bool divided;
} nv_kind;

uint32_t mp_fp4_block(uint64_t columns)
{
    for (uint32_t block = 256; block >= 64; block /= 2)
        if (columns && columns % block == 0)
            return block;
    return 0;
}

static uint64_t nv_room(const mp_repack *how, uint64_t n)
{
    return n * (how->sources[NV_WEIGHTS].row_bytes + how->sources[NV_SCALES].row_bytes);
}

/* Fails unless the factor of a matrix is one that a quantiser makes. */
static moepage_status nv_check_factor(const mp_file_span *span, float factor, bool divided)
{
    if ((factor >= 1 / NV_REACH && factor <= NV_REACH) ||
        (factor == 0 && !signbit(factor) && !divided))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "%.200s: the scale of a matrix of NVFP4 is %g, it must be 2^-100 to 2^100",
                   span->file->name, (double)factor);
}

/* Reads number `i` of a source of factors, as a block has it: negative where it divides. */
static moepage_status nv_factor(const mp_repack *how, const mp_file_span *stored, uint32_t s,
                                uint64_t i, bool divided, float *out)
{
    const mp_repack_range one = {i, 1, 0, NV_FACTOR};
    moepage_status status = mp_repack_window(how, stored, s, &one, out);
    if (!status)
        status = nv_check_factor(&stored[s], *out, divided);
    *out = divided ? -*out : *out;
    return status;
}

static moepage_status nv_check(const mp_file_span *stored, const unsigned char *scales, uint64_t n)
{
    bool bad = false;
    for (uint64_t i = 0; i < n; i++)
        bad |= scales[i] > NV_MOST;
    if (!bad)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT, "%.200s: a scale of NVFP4 weights is negative or a NaN",
                   stored[NV_SCALES].file->name);
}

/* Two groups: of each eight bytes the first four have weights 0 to 7, the others those that go above them. */
static void nv_pack(const unsigned char *nibbles, unsigned char *out)
{
    bytes16 in;
    memcpy(&in, nibbles, sizeof in);
    const bytes16 first = in & 15, second = in >> 4;
    const bytes16 low = MP_SHUFFLED(bytes16, first, second, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9,
                                    25, 10, 26, 11, 27);
    const bytes16 high = MP_SHUFFLED(bytes16, first, second, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13,
                                     29, 14, 30, 15, 31);
    in = low | high << 4;
    memcpy(out, &in, sizeof in);
}

/* One row of blocks. */
static void nv_put(uint32_t block, uint64_t n_blocks, float factor, const unsigned char *nibbles,
                   const unsigned char *scales, unsigned char *out)
{
    const uint32_t n_scales = block / NV_GROUP;
    for (uint64_t b = 0; b < n_blocks; b++, scales += n_scales) {
        memcpy(out, &factor, NV_FACTOR);
        memcpy(out + NV_FACTOR, scales, n_scales);
        out += NV_FACTOR + n_scales;
        for (uint32_t i = 0; i < block; i += 2 * NV_GROUP, nibbles += NV_GROUP, out += NV_GROUP)
            nv_pack(nibbles, out);
    }
}

static moepage_status nv_fill(const mp_repack *how, const mp_file_span *stored,
                              const mp_repack_rows *rows, unsigned char *room, unsigned char *out)
{
    const uint64_t nibbles = how->sources[NV_WEIGHTS].row_bytes;
    const uint64_t groups = how->sources[NV_SCALES].row_bytes;
    const uint64_t rows_a_factor = how->rows / how->sources[NV_OF_MATRIX].rows;
    const uint32_t block = mp_fp4_block(2 * nibbles);
    const bool divided = ((const nv_kind *)how->kind)->divided;
    unsigned char *scales = room + rows->n * nibbles;
    const mp_repack_range of_nibbles = {rows->first, rows->n, 0, nibbles};
    const mp_repack_range of_scales = {rows->first, rows->n, 0, groups};
    float factor = 0;
    moepage_status status = mp_repack_window(how, stored, NV_WEIGHTS, &of_nibbles, room);
    if (!status)
        status = mp_repack_window(how, stored, NV_SCALES, &of_scales, scales);
    if (!status)
        status = nv_check(stored, scales, rows->n * groups);
    for (uint64_t r = 0; r < rows->n && !status; r++) {
        const uint64_t row = rows->first + r;
        if (r == 0 || row % rows_a_factor == 0)
            status = nv_factor(how, stored, NV_OF_MATRIX, row / rows_a_factor, divided, &factor);
        if (!status)
            nv_put(block, 2 * nibbles / block, factor, room + r * nibbles, scales + r * groups,
                   out + r * how->row_bytes);
    }
    return status;
}

const mp_repack_kind *mp_repack_nvfp4(bool divided)
{
    static const nv_kind kinds[] = {{{nv_room, nv_fill}, false}, {{nv_room, nv_fill}, true}};
    return &kinds[divided].kind;
}

/* ---- NVFP4 from blocks ---- */

#define NB_WEIGHTS 64u
#define NB_SCALES (NB_WEIGHTS / NV_GROUP)
#define NB_BYTES (NB_SCALES + NB_WEIGHTS / 2)

enum { NB_BLOCKS, NB_FACTORS };

static uint64_t nb_room(const mp_repack *how, uint64_t n)
{
    return n * how->sources[NB_BLOCKS].row_bytes;
}

/* A row of `n` blocks, of which `each` become one. */
static void nb_put(const unsigned char *in, uint64_t n, uint32_t each, float factor,
                   unsigned char *out)
{
    for (uint64_t b = 0; b < n; b += each) {
        unsigned char *scales = out + NV_FACTOR, *nibbles = scales + each * NB_SCALES;
        memcpy(out, &factor, NV_FACTOR);
        for (uint32_t i = 0; i < each; i++, in += NB_BYTES) {
            memcpy(scales + i * NB_SCALES, in, NB_SCALES);
            memcpy(nibbles + i * (NB_WEIGHTS / 2), in + NB_SCALES, NB_WEIGHTS / 2);
        }
        out = nibbles + each * (NB_WEIGHTS / 2);
    }
}

static moepage_status nb_fill(const mp_repack *how, const mp_file_span *stored,
                              const mp_repack_rows *rows, unsigned char *room, unsigned char *out)
{
    const uint64_t row_bytes = how->sources[NB_BLOCKS].row_bytes, n = row_bytes / NB_BYTES;
    const uint64_t rows_a_factor = how->rows / how->sources[NB_FACTORS].rows;
    const uint32_t each = mp_fp4_block(n * NB_WEIGHTS) / NB_WEIGHTS;
    const mp_repack_range range = {rows->first, rows->n, 0, row_bytes};
    float factor = 0;
    moepage_status status = mp_repack_window(how, stored, NB_BLOCKS, &range, room);
    for (uint64_t r = 0; r < rows->n && !status; r++) {
        const uint64_t row = rows->first + r;
        if (r == 0 || row % rows_a_factor == 0)
            status = nv_factor(how, stored, NB_FACTORS, row / rows_a_factor, false, &factor);
        if (!status)
            nb_put(room + r * row_bytes, n, each, factor, out + r * how->row_bytes);
    }
    return status;
}

const mp_repack_kind mp_repack_nvfp4_blocks = {nb_room, nb_fill};
