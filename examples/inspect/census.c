/* Counts exponents. */
#include "inspect/census.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

/* Blocks are bytes here: they have no exponents that could be counted. */
static const char *block_name(uint32_t dtype)
{
    static const char *const names[] = {
        "q4_0",       "q4_1",        "q5_0",         "q5_1",          "q8_0",         "q2_k",
        "q3_k",       "q4_k",        "q5_k",         "q6_k",          "iq4_nl",       "iq4_xs",
        "mxfp4",      "nvfp4",       "w4g32_f16",    "w4g64_f16",     "w4g128_f16",   "w4g32_bf16",
        "w4g64_bf16", "w4g128_bf16", "nvfp4g64_f32", "nvfp4g128_f32", "nvfp4g256_f32"};
    return dtype >= MOEPAGE_DTYPE_Q4_0 && dtype <= MOEPAGE_DTYPE_NVFP4G256_F32
               ? names[dtype - MOEPAGE_DTYPE_Q4_0]
               : "unknown";
}

float_kind float_kind_of(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_F32: return (float_kind){"f32", 32, 8, 23, 127};
    case MOEPAGE_DTYPE_F16: return (float_kind){"f16", 16, 5, 10, 15};
    case MOEPAGE_DTYPE_BF16: return (float_kind){"bf16", 16, 8, 7, 127};
    case MOEPAGE_DTYPE_F8_E4M3: return (float_kind){"f8_e4m3", 8, 4, 3, 7};
    case MOEPAGE_DTYPE_F8_E5M2: return (float_kind){"f8_e5m2", 8, 5, 2, 15};
    case MOEPAGE_DTYPE_F8_E8M0: return (float_kind){.name = "f8_e8m0", .bits = 8};
    case MOEPAGE_DTYPE_U8: return (float_kind){.name = "u8", .bits = 8};
    case MOEPAGE_DTYPE_I8: return (float_kind){.name = "i8", .bits = 8};
    case MOEPAGE_DTYPE_I32: return (float_kind){.name = "i32", .bits = 32};
    case MOEPAGE_DTYPE_I64: return (float_kind){.name = "i64", .bits = 64};
    default: return (float_kind){.name = block_name(dtype), .bits = 8};
    }
}

/* ---- Entropy ----------------------------------------------------------------------------- */

static double entropy(const uint64_t count[256], uint64_t n)
{
    double sum = 0;
    for (int i = 0; i < 256; i++)
        if (count[i]) {
            double p = (double)count[i] / (double)n;
            sum -= p * log2(p);
        }
    return sum;
}

double census_entropy(const exponent_census *c)
{
    return c->weights ? c->own_bits / (double)c->weights : 0;
}

double census_pooled_entropy(const exponent_census *c)
{
    return c->weights ? entropy(c->count, c->weights) : 0;
}

double census_floor(const exponent_census *c, uint32_t dtype)
{
    float_kind kind = float_kind_of(dtype);
    if (!kind.exponent_bits || !c->weights)
        return 1;
    return (kind.bits - kind.exponent_bits + census_entropy(c)) / kind.bits;
}

/* ---- Counting ---------------------------------------------------------------------------- */

/* Elements are little-endian; several tables, so that increments for equal neighbours do not wait
 * for each other. */
static void count_exponents(const unsigned char *bytes, uint64_t n, float_kind kind,
                            uint64_t count[256])
{
    enum { TABLES = 4 };
    uint64_t tables[TABLES][256] = {{0}};
    uint32_t size = kind.bits / 8, mask = (1u << kind.exponent_bits) - 1;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        memcpy(&bits, bytes + i * size, size);
        tables[i % TABLES][bits >> kind.exponent_shift & mask]++;
    }
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t e = 0; e < 256; e++)
            count[e] += tables[t][e];
}

static void add_tensor(exponent_census *c, const unsigned char *bytes, uint64_t n, float_kind kind)
{
    uint64_t count[256] = {0};
    count_exponents(bytes, n, kind, count);
    c->own_bits += entropy(count, n) * (double)n;
    c->weights += n;
    for (uint32_t e = 0; e < 256; e++)
        c->count[e] += count[e];
}

/* Memory for one expert, and for one tensor's stream. */
typedef struct rooms {
    unsigned char *slot;
    uint64_t slot_bytes;
    unsigned char *stream;
    uint64_t stream_bytes;
} rooms;

static int add_coded(const moepage_expert_tensor *t, const unsigned char *bytes, const rooms *r,
                     uint64_t *coded)
{
    uint64_t n = t->bytes * 8 / float_kind_of(t->dtype).bits, stream = t->bytes;
    if (moepage_exph_bound(t->dtype, n) &&
        moepage_exph_encode(t->dtype, bytes, n, r->stream, r->stream_bytes, &stream))
        return fail_library(RUN_FAILED, "encoding");
    *coded += stream < t->bytes ? stream : t->bytes;
    return RUN_OK;
}

static void add_damaged(const char *path, uint32_t layer, uint32_t expert, census *out)
{
    if (out->damaged < CENSUS_DAMAGED) {
        out->first_damaged[out->damaged] = (struct census_expert){layer, expert};
        fail_file(RUN_FAILED, path);
    }
    out->damaged++;
}

static int add_expert(const moepage_model *model, const char *path, uint32_t layer, uint32_t expert,
                      uint32_t n_tensors, const rooms *r, census *out)
{
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    moepage_status status = moepage_model_read_expert(model, layer, expert, r->slot, r->slot_bytes);
    if (status == MOEPAGE_E_FORMAT || status == MOEPAGE_E_IO) {
        add_damaged(path, layer, expert, out);
        return RUN_OK;
    }
    if (!status)
        status = moepage_model_get_layer_tensors(model, layer, tensors, MOEPAGE_MAX_EXPERT_TENSORS);
    if (status)
        return fail_file(RUN_FAILED, path);
    int code = RUN_OK;
    for (uint32_t i = 0; i < n_tensors && !code; i++) {
        const moepage_expert_tensor *t = &tensors[i];
        float_kind kind = float_kind_of(t->dtype);
        if (kind.exponent_bits)
            add_tensor(&out->types[t->dtype], r->slot + t->offset, t->bytes * 8 / kind.bits, kind);
        out->raw_bytes += t->bytes;
        if (r->stream)
            code = add_coded(t, r->slot + t->offset, r, &out->coded_bytes);
    }
    return code;
}

/* Makes the room for a stream as large as any tensor of any layer needs. */
static int find_stream_bytes(const moepage_model *model, const moepage_model_info *info, rooms *out)
{
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    for (uint32_t layer = 0; layer < info->moe_layers; layer++) {
        if (moepage_model_get_layer_tensors(model, layer, tensors, MOEPAGE_MAX_EXPERT_TENSORS))
            return fail_library(RUN_FAILED, "model");
        for (uint32_t i = 0; i < info->expert_tensors; i++) {
            uint64_t n = tensors[i].bytes * 8 / float_kind_of(tensors[i].dtype).bits;
            uint64_t bound = moepage_exph_bound(tensors[i].dtype, n);
            out->stream_bytes = bound > out->stream_bytes ? bound : out->stream_bytes;
        }
    }
    return RUN_OK;
}

static int open_rooms(const moepage_model *model, const moepage_model_info *info, bool encode,
                      rooms *out)
{
    out->slot_bytes = info->slot_bytes;
    out->slot = malloc(info->slot_bytes);
    if (encode) {
        int code = find_stream_bytes(model, info, out);
        if (code)
            return code;
        out->stream = malloc(out->stream_bytes + 1);
    }
    return out->slot && (out->stream || !encode) ? RUN_OK : fail_memory();
}

int census_take(const moepage_model *model, const char *path, uint64_t most, bool stored,
                census *out)
{
    moepage_model_info info = {.struct_size = sizeof info};
    rooms r = {0};
    if (moepage_model_get_info(model, &info))
        return fail_library(RUN_FAILED, "model");
    out->population = (uint64_t)out->n_layers * info.experts;
    out->sampled = most < out->population ? most : out->population;
    bool all = out->sampled == (uint64_t)info.moe_layers * info.experts;
    int code = open_rooms(model, &info, !stored || !all, &r);
    for (uint64_t i = 0; i < out->sampled && !code; i++) {
        uint64_t at = i * out->population / out->sampled;
        code = add_expert(model, path, out->first_layer + (uint32_t)(at / info.experts),
                          (uint32_t)(at % info.experts), info.expert_tensors, &r, out);
    }
    free(r.slot);
    free(r.stream);
    return code;
}
