/* Blocks of E2M1 numbers, from nibbles and scales that are stored apart.
 *
 * Stored, a byte has two weights that follow each other, the first in its low half. In a block, the low
 * halves of a group's bytes are its first weights, the high halves its last. */
#include <string.h>

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
