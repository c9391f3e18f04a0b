/* Completes a checkpoint's directory with the matrices of NVFP4, and the scales of FP8, whose parts it stores. */
#include "model/hf_fp4.h"

#include <string.h>

#include "model/hf_quantised.h"
#include "model/shape.h"

#define WEIGHT ".weight"
#define SCALE_INV ".weight_scale_inv"
#define GROUP 16u

/* Endings of the parts' names, and of what is computed from them; of FP8 there is no factor. */
typedef struct part_names {
    const char *weights, *scales, *factor;
    const char *unused; /* of activations, which are not quantised here */
    const char *computed;
} part_names;

static const part_names names_of[] = {
    [MP_FP4_MODELOPT] = {WEIGHT, ".weight_scale", ".weight_scale_2", ".input_scale", WEIGHT},
    [MP_FP4_PACKED] = {".weight_packed", ".weight_scale", ".weight_global_scale",
                       ".input_global_scale", WEIGHT},
};

/* Of ModelOpt's experts that are stacked in one tensor, which is no module's weight. */
static const part_names names_of_stack = {"", "_weight_scale", "_weight_scale_2", "_input_scale",
                                          ""};

/* A matrix of the checkpoint, or a stack of them, found and then checked part by part. */
typedef struct found {
    mp_fp4_layout layout;
    const part_names *names;
    mp_hf_stem stem; /* of no length: it is none of these */
    bool is_fp8;
    mp_tensor *weights, *scales;
    mp_tensor *factor; /* of NVFP4 */
    mp_tensor *unused; /* or NULL */
    uint64_t stacked;  /* matrices; 0 = it is no stack */
    uint64_t rows, columns;
} found;

static moepage_status find_parts(found *f, const mp_checkpoint *checkpoint)
{
    const part_names *names = f->names;
    moepage_status status = mp_hf_find_part(f->stem, names->scales, checkpoint, true, &f->scales);
    if (!status && !f->is_fp8)
        status = mp_hf_find_part(f->stem, names->factor, checkpoint, true, &f->factor);
    if (!status)
        status = mp_hf_find_part(f->stem, names->unused, checkpoint, false, &f->unused);
    return status;
}

static bool is_number(const mp_tensor *part)
{
    return part->rank == 0 || (part->rank == 1 && part->shape[0] == 1);
}

/* Fails unless a part is one F32 number. */
static moepage_status expect_number(const mp_tensor *part)
{
    if (part->type->dtype == MOEPAGE_DTYPE_F32 && is_number(part))
        return MOEPAGE_OK;
    return mp_hf_refuse_part(part, "one number of F32 for a matrix is read");
}

/* Fails unless a stack's factors are one for each of its matrices, or one for all. */
static moepage_status expect_factors(const found *f)
{
    const mp_tensor *part = f->factor;
    const bool each =
        part->rank > 0 && part->shape[0] == f->stacked && part->bytes == f->stacked * sizeof(float);
    if (part->type->dtype == MOEPAGE_DTYPE_F32 && (each || is_number(part)))
        return MOEPAGE_OK;
    return mp_hf_refuse_part(part, "one number of F32 for each expert or for all is read");
}

/* Reads the shape of the weights. Returns false if they are no matrices. */
static bool read_shape(found *f)
{
    const mp_tensor *weights = f->weights;
    const bool is_stack = f->names == &names_of_stack;
    const uint64_t *shape = weights->shape + is_stack;
    if (weights->rank != 2u + is_stack)
        return false;
    f->stacked = is_stack ? weights->shape[0] : 0;
    f->rows = shape[0];
    f->columns = shape[1] * 2;
    return f->rows && f->columns;
}

static moepage_status check_fp4(found *f)
{
    if (f->weights->type->dtype != MOEPAGE_DTYPE_U8 || !read_shape(f))
        return mp_hf_refuse_part(f->weights,
                                 f->stacked
                                     ? "matrices of NVFP4 have rows and columns"
                                     : "weights of NVFP4 are read from U8 in two dimensions");
    if (!mp_fp4_block(f->columns))
        return mp_hf_refuse_part(f->weights,
                                 "rows of NVFP4 are read that have a multiple of 64 weights");
    const uint64_t scales[] = {f->stacked, f->rows, f->columns / GROUP};
    const uint32_t skip = f->stacked ? 0 : 1;
    moepage_status status =
        mp_hf_expect_part(f->scales, MOEPAGE_DTYPE_F8_E4M3, scales + skip, 3 - skip);
    if (status)
        return status;
    return f->stacked ? expect_factors(f) : expect_number(f->factor);
}

/* Returns the names of a tensor and of the parts that go with it. */
static const part_names *names_with(mp_fp4_layout layout, const mp_tensor *tensor)
{
    const bool is_stack = layout == MP_FP4_MODELOPT && tensor->rank == 3 && tensor->shape[0] &&
                          tensor->type->dtype == MOEPAGE_DTYPE_U8 &&
                          !mp_hf_stem_of(tensor->name, WEIGHT).length;
    return is_stack ? &names_of_stack : &names_of[layout];
}

/* Finds and checks the matrix of which a tensor is the weights. */
static moepage_status find_matrix(mp_fp4_layout layout, const mp_checkpoint *checkpoint,
                                  mp_tensor *weights, found *out)
{
    const uint32_t dtype = weights->type->dtype;
    *out = (found){.layout = layout, .names = names_with(layout, weights), .weights = weights};
    out->is_fp8 = layout == MP_FP4_MODELOPT && dtype == MOEPAGE_DTYPE_F8_E4M3;
    if (layout == MP_FP4_PACKED || dtype == MOEPAGE_DTYPE_U8 || out->is_fp8)
        out->stem = mp_hf_stem_of(weights->name, out->names->weights);
    if (!out->stem.length)
        return MOEPAGE_OK;
    moepage_status status = find_parts(out, checkpoint);
    if (status)
        return status;
    return out->is_fp8 ? expect_number(out->scales) : check_fp4(out);
}

/* ---- what is computed ---- */

/* The part as so many rows. */
static mp_repack_source source_of(const mp_tensor *part, uint64_t rows)
{
    return (mp_repack_source){rows, part->bytes / rows};
}

/* The matrix in blocks. */
static void describe_matrix(const found *f, mp_computed *out, mp_tensor *tensor)
{
    static const mp_stored_dtype types[] = {
        {"NVFP4G64_F32", 0, MOEPAGE_DTYPE_NVFP4G64_F32},
        {"NVFP4G128_F32", 0, MOEPAGE_DTYPE_NVFP4G128_F32},
        {"NVFP4G256_F32", 0, MOEPAGE_DTYPE_NVFP4G256_F32},
    };
    const mp_tensor *parts[] = {f->weights, f->scales, f->factor};
    const uint64_t rows = f->stacked ? f->stacked * f->rows : f->rows;
    tensor->type = &types[mp_fp4_block(f->columns) / 128];
    tensor->rank = f->weights->rank;
    memcpy(tensor->shape, f->weights->shape, sizeof tensor->shape);
    tensor->shape[tensor->rank - 1] = f->columns;
    out->how = (mp_repack){.kind = mp_repack_nvfp4(f->layout == MP_FP4_PACKED),
                           .rows = rows,
                           .n_sources = 3,
                           .sources = {source_of(f->weights, rows), source_of(f->scales, rows),
                                       source_of(f->factor, f->factor->bytes / sizeof(float))}};
    /* a file has rows of half as many bytes */
    mp_shape_bytes(tensor->type->dtype, 1, &f->columns, &out->how.row_bytes);
    for (uint32_t s = 0; s < 3; s++)
        out->stored[s] = (mp_file_span){&parts[s]->file->file, parts[s]->offset};
}

/* The scale of an FP8 matrix, as that of its only block. */
static void describe_scale(const found *f, mp_computed *out, mp_tensor *tensor)
{
    tensor->type = f->scales->type;
    tensor->rank = 2;
    tensor->shape[0] = tensor->shape[1] = 1;
    out->how = (mp_repack){.kind = &mp_repack_reordered,
                           .rows = 1,
                           .row_bytes = f->scales->bytes,
                           .n_sources = 1,
                           .sources = {source_of(f->scales, 1)}};
    out->stored[0] = (mp_file_span){&f->scales->file->file, f->scales->offset};
}

static void add_matrix(const found *f, mp_computed_tensors *to)
{
    mp_tensor *parts[] = {f->is_fp8 ? NULL : f->weights, f->scales, f->factor, f->unused};
    mp_computed *computed = &to->computed[to->n];
    mp_tensor *tensor = mp_hf_add_computed(f->stem, f->is_fp8 ? SCALE_INV : f->names->computed, to);
    tensor->file = f->weights->file;
    (f->is_fp8 ? describe_scale : describe_matrix)(f, computed, tensor);
    tensor->bytes = computed->how.rows * computed->how.row_bytes;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
        if (parts[p])
            parts[p]->is_part = 1;
}

/* ---- the directory ---- */

/* Sets aside the scales of a cache of keys and values in eight bits, which caches here are not. */
static void skip_cache_scales(mp_checkpoint *checkpoint)
{
    for (uint64_t i = 0; i < checkpoint->n_tensors; i++) {
        mp_tensor *tensor = checkpoint->tensors[i];
        if (is_number(tensor) && (mp_hf_stem_of(tensor->name, ".k_scale").length ||
                                  mp_hf_stem_of(tensor->name, ".v_scale").length))
            tensor->is_part = 1;
    }
}

moepage_status mp_hf_fp4_complete(mp_fp4_layout layout, mp_checkpoint *checkpoint)
{
    uint64_t n = 0, name_bytes = 0;
    found f;
    if (layout == MP_FP4_NONE)
        return MOEPAGE_OK;
    for (uint64_t i = 0; i < checkpoint->n_tensors; i++) {
        moepage_status status = find_matrix(layout, checkpoint, checkpoint->tensors[i], &f);
        if (status)
            return status;
        n += f.stem.length > 0;
        name_bytes += f.stem.length ? f.stem.length + sizeof SCALE_INV : 0;
    }
    skip_cache_scales(checkpoint);
    if (!n)
        return MOEPAGE_OK;
    moepage_status status = mp_computed_alloc(n, name_bytes, &checkpoint->computed);
    for (uint64_t i = 0; i < checkpoint->n_tensors && !status; i++) {
        status = find_matrix(layout, checkpoint, checkpoint->tensors[i], &f);
        if (!status && f.stem.length)
            add_matrix(&f, &checkpoint->computed);
    }
    return status ? status : mp_checkpoint_add_computed(checkpoint);
}
