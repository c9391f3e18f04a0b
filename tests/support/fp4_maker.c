/* Layouts of NVFP4 weights, number by number. */
#include "fp4_maker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "testing.h"

#define KIND(method, modelopt, packed) ((method) == FP4_PACKED ? (packed) : (modelopt))

/* ---- numbers ---- */

static uint32_t nibble(const char *name, uint64_t row, uint64_t column)
{
    return quantised_number(name, 1, row, column) % 16;
}

/* An E4M3 number that is neither negative nor a NaN. */
static unsigned char scale(const char *name, uint64_t row, uint64_t group)
{
    return (unsigned char)(quantised_number(name, 2, row, group) % 127);
}

float fp4_factor(fp4_method method, const char *name)
{
    return ldexpf(1 + (float)(quantised_number(name, 3, 0, 0) % 8388608) / 8388608,
                  KIND(method, -14, 12));
}

/* ---- parts ---- */

static maker_tensor *add(maker_shard *shard, const char *dtype, const char *name, const char *end,
                         uint64_t a, uint64_t b)
{
    const uint64_t shape[] = {a, b};
    return maker_add(shard, dtype, b ? 2 : a ? 1 : 0, shape, "%s%s", name, end);
}

static void add_number(maker_shard *shard, const char *name, const char *end, uint64_t n,
                       float number)
{
    memcpy(add(shard, "F32", name, end, n, 0)->data, &number, sizeof number);
}

static void add_nibbles(maker_shard *shard, fp4_method method, const char *name, uint64_t rows,
                        uint64_t columns)
{
    maker_tensor *bytes =
        add(shard, "U8", name, KIND(method, ".weight", ".weight_packed"), rows, columns / 2);
    maker_tensor *scales = add(shard, "F8_E4M3", name, ".weight_scale", rows, columns / 16);
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t c = 0; c < columns; c += 2)
            bytes->data[(r * columns + c) / 2] =
                (unsigned char)(nibble(name, r, c) | nibble(name, r, c + 1) << 4);
        for (uint64_t g = 0; g < columns / 16; g++)
            scales->data[r * (columns / 16) + g] = scale(name, r, g);
    }
}

void fp4_add_matrix(maker_shard *shard, fp4_method method, const char *name, uint64_t rows,
                    uint64_t columns)
{
    const float factor = fp4_factor(method, name);
    if (method == FP4_FP8) {
        add(shard, "F8_E4M3", name, ".weight", rows, columns);
        add_number(shard, name, ".weight_scale", 0, factor);
    } else {
        add_nibbles(shard, method, name, rows, columns);
        add_number(shard, name, KIND(method, ".weight_scale_2", ".weight_global_scale"),
                   KIND(method, 0, 1), factor);
    }
    add_number(shard, name, KIND(method, ".input_scale", ".input_global_scale"), 1, 1);
}

/* ---- the checkpoint ---- */

static void add_by_method(maker_shard *shard, const void *of, const char *name, uint64_t rows,
                          uint64_t columns)
{
    fp4_add_matrix(shard, ((const fp4_case *)of)->method, name, rows, columns);
}

void fp4_maker_init(moe_maker *maker, const fp4_case *of)
{
    static const char *const quantisation[] = {
        "\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"group_size\": 16",
        "\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\", "
        "\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"float\", "
        "\"symmetric\": true, \"strategy\": \"tensor_group\", \"group_size\": 16}}}",
        "\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"",
    };
    const quantised_sizes sizes = {of->layers ? of->layers : FP4_LAYERS, FP4_EXPERTS, of->hidden,
                                   of->intermediate};
    char name[128];
    quantised_init(maker, &sizes, quantisation[of->method], add_by_method, of);
    for (uint32_t l = 0; l < sizes.layers; l++) {
        snprintf(name, sizeof name, "model.layers.%u.self_attn.k_proj", l);
        add_number(&maker->shard, name, ".k_scale", 0, 1);
    }
}

/* ---- experts in stacks ---- */

static const char *const stack_names[] = {"gate_up_proj", "down_proj"};

bool fp4_stacks_share(uint32_t layer)
{
    return layer % 2;
}

void fp4_stacks_name(uint32_t layer, uint32_t expert, uint32_t stack, char *out)
{
    snprintf(out, 128, "model.layers.%u.mlp.experts.%u.%s", layer, expert, stack_names[stack]);
}

static void add_unstacked(maker_shard *shard, const void *of, const char *name, uint64_t rows,
                          uint64_t columns)
{
    (void)of;
    if (!strstr(name, ".experts."))
        fp4_add_matrix(shard, FP4_MODELOPT, name, rows, columns);
}

/* Copies a part of an expert's matrix to its place in a stack; or, if there is one for all, the first one's. */
static void put_part(maker_shard *shard, const maker_tensor *part, const char *name,
                     uint32_t expert, uint32_t experts, bool for_all)
{
    const uint64_t shape[] = {experts, part->shape[0], part->shape[1]};
    if (for_all && expert > 0)
        return;
    maker_tensor *stack =
        expert > 0 ? maker_find(shard, name)
                   : maker_add(shard, part->dtype, for_all ? 0 : part->rank + 1, shape, "%s", name);
    memcpy(stack->data + expert * part->bytes, part->data, part->bytes);
}

static void add_stack(maker_shard *shard, const quantised_sizes *sizes, uint32_t layer,
                      uint32_t stack)
{
    static const char *const parts[] = {"", "weight_scale", "weight_scale_2", "input_scale"};
    static maker_shard one;
    const uint64_t rows = stack ? sizes->hidden : 2ull * sizes->intermediate;
    for (uint32_t e = 0; e < sizes->experts; e++) {
        char of[128], from[160], to[160];
        fp4_stacks_name(layer, e, stack, of);
        fp4_add_matrix(&one, FP4_MODELOPT, of, rows, stack ? sizes->intermediate : sizes->hidden);
        for (uint32_t p = 0; p < 4; p++) {
            snprintf(from, sizeof from, "%s.%s", of, p ? parts[p] : "weight");
            snprintf(to, sizeof to, "model.layers.%u.mlp.experts.%s%s%s", layer, stack_names[stack],
                     p ? "_" : "", parts[p]);
            put_part(shard, maker_find(&one, from), to, e, sizes->experts,
                     p == 3 || (p == 2 && fp4_stacks_share(layer)));
        }
        maker_shard_free(&one);
    }
}

void fp4_stacks_init(moe_maker *maker, const quantised_sizes *sizes)
{
    quantised_init(maker, sizes,
                   "\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", "
                   "\"group_size\": 16",
                   add_unstacked, NULL);
    for (uint32_t l = 0; l < sizes->layers; l++)
        for (uint32_t stack = 0; stack < 2; stack++)
            add_stack(&maker->shard, sizes, l, stack);
}

/* ---- what must be read ---- */

static uint64_t block_of(uint64_t columns)
{
    return columns % 256 == 0 ? 256 : columns % 128 == 0 ? 128 : 64;
}

uint32_t fp4_dtype(uint64_t columns)
{
    switch (block_of(columns)) {
    case 64: return MOEPAGE_DTYPE_NVFP4G64_F32;
    case 128: return MOEPAGE_DTYPE_NVFP4G128_F32;
    default: return MOEPAGE_DTYPE_NVFP4G256_F32;
    }
}

uint64_t fp4_blocks(fp4_method method, const char *name, uint64_t rows, uint64_t columns,
                    unsigned char *out)
{
    const float factor = fp4_factor(method, name), signed_one = KIND(method, factor, -factor);
    const uint64_t block = block_of(columns);
    unsigned char *at = out;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c += block) {
            memcpy(at, &signed_one, 4);
            at += 4;
            for (uint64_t i = 0; i < block; i += 16)
                *at++ = scale(name, r, (c + i) / 16);
            for (uint64_t i = 0; i < block; i += 16)
                for (uint64_t j = 0; j < 8; j++)
                    *at++ = (unsigned char)(nibble(name, r, c + i + j) |
                                            nibble(name, r, c + i + j + 8) << 4);
        }
    return (uint64_t)(at - out);
}
