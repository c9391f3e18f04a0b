/* The table of GGUF's types of tensors. Block formats are the codec's. */
#include "model/ggml_type.h"

#include <stddef.h>

#include "codec/blocks.h"

/* Types whose elements stand alone. */
static const struct {
    uint32_t number;
    mp_ggml_type type;
} plain[] = {
    {0, {1, 4, MOEPAGE_DTYPE_F32}},   {1, {1, 2, MOEPAGE_DTYPE_F16}},
    {24, {1, 1, MOEPAGE_DTYPE_I8}},   {25, {1, 2, MOEPAGE_DTYPE_NONE}}, /* I16 */
    {26, {1, 4, MOEPAGE_DTYPE_I32}},  {27, {1, 8, MOEPAGE_DTYPE_I64}},
    {28, {1, 8, MOEPAGE_DTYPE_NONE}}, /* F64 */
    {30, {1, 2, MOEPAGE_DTYPE_BF16}},
};

bool mp_ggml_type_find(uint32_t number, mp_ggml_type *out)
{
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (plain[i].number == number) {
            *out = plain[i].type;
            return true;
        }
    const mp_block_format *blocks = mp_block_format_of_ggml(number);
    if (blocks)
        *out = (mp_ggml_type){blocks->weights, blocks->bytes, blocks->dtype};
    return blocks;
}
