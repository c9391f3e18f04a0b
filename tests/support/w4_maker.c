/* Layouts of 4-bit weights, number by number. */
#include "w4_maker.h"

#include <stdio.h>
#include <string.h>

#include "base/floats.h"
#include "testing.h"

/* ---- numbers ---- */

uint32_t w4_integer(const char *name, uint64_t row, uint64_t column)
{
    return quantised_number(name, 1, row, column) % 16;
}

/* GPTQ's first version cannot have 0. */
uint32_t w4_zero(const w4_case *of, const char *name, uint64_t row, uint64_t group)
{
    return of->symmetric ? 8 : 1 + quantised_number(name, 2, row, group) % 15;
}

/* 2^-6 to 2^-4 and a mantissa. */
uint16_t w4_scale(const w4_case *of, const char *name, uint64_t row, uint64_t group)
{
    const uint32_t h = quantised_number(name, 3, row, group);
    return (uint16_t)(of->bf16 ? (121 + h % 3) << 7 | h / 4 % 128
                               : (9 + h % 3) << 10 | h / 4 % 1024);
}

static uint64_t group_of(const w4_case *of, uint64_t columns)
{
    return of->group ? of->group : columns;
}

/* The group of a column. */
static uint64_t group_at(const w4_case *of, uint64_t columns, uint64_t column)
{
    return (of->reordered ? column * 7 % columns : column) / group_of(of, columns);
}

/* ---- parts ---- */

/* Number i of a word, from its lowest bits on. */
static void put(maker_tensor *tensor, uint64_t word, uint32_t i, uint32_t number)
{
    assert_true(word * 4 < tensor->bytes && i < 8 && number < 16);
    unsigned char *byte = tensor->data + 4 * word + i / 2;
    *byte = (unsigned char)(i % 2 ? (*byte & 15) | number << 4 : (*byte & 240) | number);
}

static uint32_t awq_place(uint64_t i)
{
    static const uint32_t order[] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t place = 0;
    while (order[place] != i % 8)
        place++;
    return place;
}

static maker_tensor *add(maker_shard *shard, const char *dtype, const char *name, const char *end,
                         uint64_t a, uint64_t b)
{
    const uint64_t shape[] = {a, b};
    maker_tensor *tensor = maker_add(shard, dtype, b ? 2 : 1, shape, "%s%s", name, end);
    memset(tensor->data, 0, tensor->bytes);
    return tensor;
}

static void add_weights(maker_shard *shard, const w4_case *of, const char *name, uint64_t n,
                        uint64_t k)
{
    maker_tensor *words = of->method == W4_PACKED
                              ? add(shard, "I32", name, ".weight_packed", n, k / 8)
                          : of->method == W4_AWQ ? add(shard, "I32", name, ".qweight", k, n / 8)
                                                 : add(shard, "I32", name, ".qweight", k / 8, n);
    for (uint64_t r = 0; r < n; r++)
        for (uint64_t c = 0; c < k; c++) {
            const uint32_t number = w4_integer(name, r, c);
            if (of->method == W4_PACKED)
                put(words, r * (k / 8) + c / 8, c % 8, number);
            else if (of->method == W4_AWQ)
                put(words, c * (n / 8) + r / 8, awq_place(r), number);
            else
                put(words, c / 8 * n + r, c % 8, number);
        }
}

static void add_scales(maker_shard *shard, const w4_case *of, const char *name, uint64_t n,
                       uint64_t groups)
{
    const char *type = of->bf16 ? "BF16" : "F16";
    const bool packed = of->method == W4_PACKED;
    maker_tensor *scales = packed ? add(shard, type, name, ".weight_scale", n, groups)
                                  : add(shard, type, name, ".scales", groups, n);
    for (uint64_t r = 0; r < n; r++)
        for (uint64_t g = 0; g < groups; g++) {
            const uint16_t scale = w4_scale(of, name, r, g);
            memcpy(scales->data + 2 * (packed ? r * groups + g : g * n + r), &scale, 2);
        }
}

static void add_zeros(maker_shard *shard, const w4_case *of, const char *name, uint64_t n,
                      uint64_t groups)
{
    const bool packed = of->method == W4_PACKED;
    if (packed && of->symmetric)
        return;
    maker_tensor *zeros = packed
                              ? add(shard, "I32", name, ".weight_zero_point", (n + 7) / 8, groups)
                              : add(shard, "I32", name, ".qzeros", groups, n / 8);
    for (uint64_t r = 0; r < n; r++)
        for (uint64_t g = 0; g < groups; g++) {
            const uint32_t zero = w4_zero(of, name, r, g);
            if (packed)
                put(zeros, r / 8 * groups + g, r % 8, zero);
            else if (of->method == W4_AWQ)
                put(zeros, g * (n / 8) + r / 8, awq_place(r), zero);
            else
                put(zeros, g * (n / 8) + r / 8, r % 8, zero - (of->method == W4_GPTQ));
        }
}

static void add_groups(maker_shard *shard, const w4_case *of, const char *name, uint64_t k)
{
    if (of->method == W4_AWQ || of->unlisted)
        return;
    maker_tensor *groups =
        add(shard, "I32", name, of->method == W4_PACKED ? ".weight_g_idx" : ".g_idx", k, 0);
    for (uint64_t c = 0; c < k; c++) {
        const uint32_t group = (uint32_t)group_at(of, k, c);
        memcpy(groups->data + 4 * c, &group, 4);
    }
}

void w4_add_matrix(maker_shard *shard, const void *as, const char *name, uint64_t rows,
                   uint64_t columns)
{
    const w4_case *of = as;
    const uint64_t groups = columns / group_of(of, columns);
    add_weights(shard, of, name, rows, columns);
    add_scales(shard, of, name, rows, groups);
    add_zeros(shard, of, name, rows, groups);
    add_groups(shard, of, name, columns);
    if (of->method == W4_PACKED) {
        const int64_t shape[] = {(int64_t)rows, (int64_t)columns};
        memcpy(add(shard, "I64", name, ".weight_shape", 2, 0)->data, shape, sizeof shape);
    }
}

/* ---- the checkpoint ---- */

static void describe(const w4_case *of, char *out, size_t room)
{
    char group[16] = "-1";
    if (of->group)
        snprintf(group, sizeof group, "%u", of->group);
    if (of->method == W4_PACKED)
        snprintf(
            out, room,
            "\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
            "\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", "
            "\"symmetric\": %s, \"strategy\": \"%s\", \"group_size\": %s, \"actorder\": %s}}}",
            of->symmetric ? "true" : "false", of->group ? "group" : "channel", group,
            of->reordered ? "\"group\"" : "null");
    else if (of->method == W4_AWQ)
        snprintf(
            out, room,
            "\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": %s, \"version\": \"gemm\", "
            "\"zero_point\": true",
            group);
    else
        snprintf(out, room,
                 "\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": %s, \"desc_act\": %s, "
                 "\"checkpoint_format\": \"%s\"",
                 group, of->reordered ? "true" : "false",
                 of->method == W4_GPTQ ? "gptq" : "gptq_v2");
}

void w4_maker_init_sized(moe_maker *maker, const w4_case *of, const quantised_sizes *sizes)
{
    char quantisation[512];
    describe(of, quantisation, sizeof quantisation);
    quantised_init(maker, sizes, quantisation, w4_add_matrix, of);
}

void w4_maker_init(moe_maker *maker, const w4_case *of)
{
    const quantised_sizes sizes = {W4_LAYERS, W4_EXPERTS, W4_HIDDEN, W4_INTERMEDIATE};
    w4_maker_init_sized(maker, of, &sizes);
}

/* ---- what must be read ---- */

/* The longest block that divides a group. */
static uint64_t block_of(const w4_case *of, uint64_t columns)
{
    uint64_t block = 128;
    while (group_of(of, columns) % block)
        block /= 2;
    return block;
}

uint32_t w4_dtype(const w4_case *of, uint64_t columns)
{
    switch (block_of(of, columns)) {
    case 32: return of->bf16 ? MOEPAGE_DTYPE_W4G32_BF16 : MOEPAGE_DTYPE_W4G32_F16;
    case 64: return of->bf16 ? MOEPAGE_DTYPE_W4G64_BF16 : MOEPAGE_DTYPE_W4G64_F16;
    default: return of->bf16 ? MOEPAGE_DTYPE_W4G128_BF16 : MOEPAGE_DTYPE_W4G128_F16;
    }
}

uint64_t w4_blocks(const w4_case *of, const char *name, uint64_t rows, uint64_t columns,
                   unsigned char *out)
{
    const uint64_t block = block_of(of, columns);
    unsigned char *at = out;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c += block) {
            const uint64_t g = c / group_of(of, columns);
            const uint16_t scale = w4_scale(of, name, r, g);
            memcpy(at, &scale, 2);
            at[2] = (unsigned char)w4_zero(of, name, r, g);
            at[3] = 0;
            at += 4;
            for (uint64_t i = 0; i < block; i += 32)
                for (uint64_t j = 0; j < 16; j++)
                    *at++ = (unsigned char)(w4_integer(name, r, c + i + j) |
                                            w4_integer(name, r, c + i + j + 16) << 4);
        }
    return (uint64_t)(at - out);
}

uint64_t w4_values(const w4_case *of, const char *name, uint64_t rows, uint64_t columns,
                   unsigned char *out)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++, out += 2) {
            const uint64_t g = group_at(of, columns, c);
            const uint16_t scale = w4_scale(of, name, r, g);
            const int integer = (int)w4_integer(name, r, c) - (int)w4_zero(of, name, r, g);
            const uint16_t value = of->bf16 ? mp_to_bf16(mp_from_bf16(scale) * (float)integer)
                                            : mp_to_f16(mp_from_f16(scale) * (float)integer);
            memcpy(out, &value, sizeof value);
        }
    return rows * columns * 2;
}
