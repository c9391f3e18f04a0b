/* Completes a checkpoint's directory with the matrices whose parts it stores. */
#include "model/hf_w4.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/hf_quantised.h"
#include "model/repack_w4.h"
#include "model/shape.h"

#define WEIGHT ".weight"

/* Endings of the parts' names, in the order of MP_W4_*; and of one that only states a shape. */
typedef struct part_names {
    const char *ends[MP_W4_SOURCES];
    const char *shape;
} part_names;

static const part_names names_of[] = {
    [MP_W4_GPTQ_V1] = {{".qweight", ".scales", ".qzeros", ".g_idx"}, NULL},
    [MP_W4_GPTQ_V2] = {{".qweight", ".scales", ".qzeros", ".g_idx"}, NULL},
    [MP_W4_AWQ] = {{".qweight", ".scales", ".qzeros", NULL}, NULL},
    [MP_W4_PACKED] = {{".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx"},
                      ".weight_shape"},
};

/* A matrix of the checkpoint, found and then checked part by part. */
typedef struct found {
    const mp_hf_w4 *config;
    const part_names *names;
    mp_hf_stem stem;
    mp_tensor *parts[MP_W4_SOURCES];
    mp_tensor *shape;
    uint64_t rows, columns, groups;
    bool is_reordered; /* columns of a group do not follow each other */
} found;

/* ---- parts ---- */

static moepage_status find_parts(found *f, const mp_checkpoint *checkpoint)
{
    const bool packs = f->config->layout == MP_W4_PACKED;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t s = 0; s < MP_W4_SOURCES && !status; s++) {
        const bool required = s < MP_W4_ZEROS || (s == MP_W4_ZEROS && !packs) ||
                              (s == MP_W4_GROUPS && f->config->reordered && !f->config->in_order);
        if (f->names->ends[s])
            status =
                mp_hf_find_part(f->stem, f->names->ends[s], checkpoint, required, &f->parts[s]);
    }
    if (!status && f->names->shape)
        status = mp_hf_find_part(f->stem, f->names->shape, checkpoint, true, &f->shape);
    if (status || !packs)
        return status;
    const bool zeros = f->parts[MP_W4_ZEROS] != NULL;
    if (zeros ? f->config->asymmetric : f->config->symmetric)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "matrix \"%.*s\" has %s zero-points, by config.json all matrices are %s",
                   (int)f->stem.length, f->stem.text, zeros ? "stored" : "no stored",
                   zeros ? "symmetric" : "asymmetric");
}

/* ---- shapes ---- */

/* The number of rows and columns, from the words and the scales. */
static moepage_status measure(found *f)
{
    const mp_tensor *weights = f->parts[MP_W4_WEIGHTS], *scales = f->parts[MP_W4_SCALES];
    const bool packs = f->config->layout == MP_W4_PACKED;
    if (!mp_hf_is_matrix(weights) || weights->type->dtype != MOEPAGE_DTYPE_I32)
        return mp_hf_refuse_part(weights,
                                 "weights of 4 bits are read from words of I32 in two dimensions");
    if (!mp_hf_is_matrix(scales) ||
        (scales->type->dtype != MOEPAGE_DTYPE_F16 && scales->type->dtype != MOEPAGE_DTYPE_BF16))
        return mp_hf_refuse_part(
            scales, "scales of 4-bit weights are read as F16 and BF16 in two dimensions");
    const bool rows_first = packs, across = f->config->layout == MP_W4_AWQ;
    f->rows = rows_first ? weights->shape[0] : weights->shape[1] * (across ? 8 : 1);
    f->columns = rows_first ? weights->shape[1] * 8 : weights->shape[0] * (across ? 1 : 8);
    f->groups = scales->shape[packs];
    return mp_hf_expect_part(scales, scales->type->dtype,
                             packs ? (uint64_t[]){f->rows, f->groups}
                                   : (uint64_t[]){f->groups, f->rows},
                             2);
}

/* The shape that is stored as numbers must be that of the words: no other width of integers is. */
static moepage_status check_stated_shape(const found *f)
{
    unsigned char bytes[16];
    uint64_t stated[2] = {0};
    const bool narrow = f->shape->type->dtype == MOEPAGE_DTYPE_I32;
    const uint32_t each = narrow ? 4 : 8;
    moepage_status status =
        mp_hf_expect_part(f->shape, narrow ? MOEPAGE_DTYPE_I32 : MOEPAGE_DTYPE_I64, (uint64_t[]){2},
                          1);
    if (!status)
        status = mp_model_file_read(&f->shape->file->file, f->shape->offset, 2ull * each, bytes);
    if (status)
        return status;
    for (uint32_t d = 0; d < 2; d++)
        memcpy(&stated[d], bytes + d * each, each);
    if (stated[0] == f->rows && stated[1] == f->columns)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "%.120s: tensor \"%.160s\" says [%llu, %llu], the words are of 4-bit weights "
                   "[%llu, %llu]",
                   f->shape->file->file.name, f->shape->name, (unsigned long long)stated[0],
                   (unsigned long long)stated[1], (unsigned long long)f->rows,
                   (unsigned long long)f->columns);
}

static moepage_status check_group(const found *f)
{
    const mp_tensor *scales = f->parts[MP_W4_SCALES];
    const uint64_t group = f->columns / f->groups;
    const uint64_t wanted = f->config->group ? f->config->group : f->columns;
    if (f->columns % f->groups || !mp_w4_block(group))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.120s: tensor \"%.160s\" has %llu scales for rows of %llu weights: groups "
                       "of a multiple of 32 are read",
                       scales->file->file.name, scales->name, (unsigned long long)f->groups,
                       (unsigned long long)f->columns);
    if (f->config->layout != MP_W4_PACKED && group != wanted)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.120s: tensor \"%.160s\" has a scale for each %llu of 4-bit weights, by "
                       "config.json for each %llu",
                       scales->file->file.name, scales->name, (unsigned long long)group,
                       (unsigned long long)wanted);
    return MOEPAGE_OK;
}

static moepage_status check_zeros(const found *f)
{
    const mp_tensor *zeros = f->parts[MP_W4_ZEROS];
    if (!zeros)
        return MOEPAGE_OK;
    if (f->config->layout == MP_W4_PACKED)
        return mp_hf_expect_part(zeros, MOEPAGE_DTYPE_I32,
                                 (uint64_t[]){(f->rows + 7) / 8, f->groups}, 2);
    if (f->rows % 8)
        return mp_hf_refuse_part(zeros, "the rows of its matrix are no multiple of 8");
    return mp_hf_expect_part(zeros, MOEPAGE_DTYPE_I32, (uint64_t[]){f->groups, f->rows / 8}, 2);
}

/* Reads the groups of columns, if config.json says that they may be out of order, and finds whether they
 * are. */
static moepage_status check_order(found *f)
{
    const mp_tensor *part = f->parts[MP_W4_GROUPS];
    unsigned char *bytes;
    if (!part)
        return MOEPAGE_OK;
    moepage_status status = mp_hf_expect_part(part, MOEPAGE_DTYPE_I32, &f->columns, 1);
    if (status || !f->config->reordered)
        return status;
    status = mp_model_file_load(&part->file->file, part->offset, part->bytes, &bytes);
    if (status)
        return status;
    for (uint64_t k = 0; k < f->columns; k++) {
        uint32_t group;
        memcpy(&group, bytes + k * sizeof group, sizeof group);
        f->is_reordered |= group != k / (f->columns / f->groups);
    }
    mp_free(bytes);
    return MOEPAGE_OK;
}

static moepage_status check_parts(found *f)
{
    moepage_status status = measure(f);
    if (!status && f->shape)
        status = check_stated_shape(f);
    if (!status)
        status = check_group(f);
    if (!status)
        status = check_zeros(f);
    return status ? status : check_order(f);
}

/* ---- the matrix ---- */

/* Blocks; or values, which may be of any order. */
static const mp_stored_dtype *type_of(const found *f, bool values)
{
    static const mp_stored_dtype types[] = {
        {"W4G32_F16", 0, MOEPAGE_DTYPE_W4G32_F16},   {"W4G64_F16", 0, MOEPAGE_DTYPE_W4G64_F16},
        {"W4G128_F16", 0, MOEPAGE_DTYPE_W4G128_F16}, {"W4G32_BF16", 0, MOEPAGE_DTYPE_W4G32_BF16},
        {"W4G64_BF16", 0, MOEPAGE_DTYPE_W4G64_BF16}, {"W4G128_BF16", 0, MOEPAGE_DTYPE_W4G128_BF16},
    };
    const mp_stored_dtype *scales = f->parts[MP_W4_SCALES]->type;
    const bool bf16 = scales->dtype == MOEPAGE_DTYPE_BF16;
    return values ? scales : &types[mp_w4_block(f->columns / f->groups) / 64 + 3 * bf16];
}

/* Describes how the matrix is computed. */
static void describe(const found *f, bool values, mp_computed *out)
{
    const uint32_t dtype = type_of(f, values)->dtype;
    const mp_w4_layout layout = f->config->layout;
    uint64_t row_bytes = 0;
    mp_shape_bytes(dtype, 1, &f->columns, &row_bytes); /* a file has rows of half as many bytes */
    out->how = (mp_repack){.kind = values ? mp_repack_w4_values(layout, dtype == MOEPAGE_DTYPE_BF16)
                                          : mp_repack_w4(layout),
                           .rows = f->rows,
                           .row_bytes = row_bytes,
                           .n_sources = MP_W4_SOURCES};
    for (uint32_t s = 0; s < MP_W4_SOURCES; s++) {
        const mp_tensor *part = f->parts[s];
        out->stored[s] = (mp_file_span){&f->parts[MP_W4_WEIGHTS]->file->file, 0};
        if (!part)
            continue;
        out->stored[s] = (mp_file_span){&part->file->file, part->offset};
        out->how.sources[s] = (mp_repack_source){part->rank == 2 ? part->shape[0] : 1, 0};
        out->how.sources[s].row_bytes = part->bytes / out->how.sources[s].rows;
    }
}

static void mark_parts(const found *f)
{
    for (uint32_t s = 0; s < MP_W4_SOURCES; s++)
        if (f->parts[s])
            f->parts[s]->is_part = 1;
    if (f->shape)
        f->shape->is_part = 1;
}

/* Finds and checks the matrix of which `words` are the weights; a stem of no length is of another tensor. */
static moepage_status find_matrix(const mp_hf_w4 *config, const mp_checkpoint *checkpoint,
                                  const mp_tensor *words, found *out)
{
    *out = (found){.config = config, .names = &names_of[config->layout]};
    out->stem = mp_hf_stem_of(words->name, out->names->ends[MP_W4_WEIGHTS]);
    if (!out->stem.length)
        return MOEPAGE_OK;
    moepage_status status = find_parts(out, checkpoint);
    return status ? status : check_parts(out);
}

static void add_matrix(const found *f, bool any_reordered, mp_computed_tensors *to)
{
    const bool values = any_reordered && f->parts[MP_W4_GROUPS];
    mp_computed *computed = &to->computed[to->n];
    mp_tensor *tensor = mp_hf_add_computed(f->stem, WEIGHT, to);
    describe(f, values, computed);
    mark_parts(f);
    tensor->type = type_of(f, values);
    tensor->file = f->parts[MP_W4_WEIGHTS]->file;
    tensor->bytes = computed->how.rows * computed->how.row_bytes;
    tensor->rank = 2;
    tensor->shape[0] = f->rows;
    tensor->shape[1] = f->columns;
}

/* ---- the directory ---- */

moepage_status mp_hf_w4_complete(const mp_hf_w4 *config, mp_checkpoint *checkpoint)
{
    uint64_t n = 0, name_bytes = 0;
    bool any_reordered = false;
    found f;
    for (uint64_t i = 0; config->given && i < checkpoint->n_tensors; i++) {
        moepage_status status = find_matrix(config, checkpoint, checkpoint->tensors[i], &f);
        if (status)
            return status;
        n += f.stem.length > 0;
        name_bytes += f.stem.length ? f.stem.length + sizeof WEIGHT : 0;
        any_reordered |= f.is_reordered;
    }
    if (!n)
        return MOEPAGE_OK;
    moepage_status status = mp_computed_alloc(n, name_bytes, &checkpoint->computed);
    for (uint64_t i = 0; i < checkpoint->n_tensors && !status; i++) {
        status = find_matrix(config, checkpoint, checkpoint->tensors[i], &f);
        if (!status && f.stem.length)
            add_matrix(&f, any_reordered, &checkpoint->computed);
    }
    return status ? status : mp_checkpoint_add_computed(checkpoint);
}
