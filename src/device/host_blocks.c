/* Blocks for the portable set: the format's own decoder, which the vector sets must equal. */
#include "codec/blocks.h"
#include "device/host_kernel_set.h"

static void decode(const mp_blocks *in, float *out)
{
    const mp_block_format *format = mp_block_format_of(in->dtype);
    mp_block_decode(format, in->blocks, in->n / format->weights, out);
}

const mp_block_set mp_blocks_portable = {
    .as_f32 = {decode, decode, decode, decode, decode, decode, decode, decode,
               decode, decode, decode, decode, decode, decode, decode, decode,
               decode, decode, decode, decode, decode, decode, decode},
};
