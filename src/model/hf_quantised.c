/* Names and checks that the readers of quantised checkpoints share. */
#include "model/hf_quantised.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "model/shape.h"

#define MAX_NAME 512u
#define MAX_ENDING 32u /* of the names of parts, and of what is computed */

/* ---- keys ---- */

moepage_status mp_hf_refuse_value(const mp_json *json, const char *key, const char *found,
                                  const char *read)
{
    return mp_fail(MOEPAGE_E_UNSUPPORTED, "%s: \"%s\" is \"%.60s\", only %s is read", json->what,
                   key, found, read);
}

moepage_status mp_hf_expect_text(const mp_json *json, const char *key, const char *only)
{
    const char *text;
    moepage_status status = mp_json_get_text_or(json, key, only, &text);
    if (!status && strcmp(text, only) != 0)
        status = mp_hf_refuse_value(json, key, text, only);
    return status;
}

moepage_status mp_hf_read_flag(const mp_json *json, const char *key, bool otherwise, bool *out)
{
    const json_t *value = json_object_get(json->root, key);
    *out = otherwise;
    if (!value || json_is_null(value))
        return MOEPAGE_OK;
    if (!json_is_boolean(value))
        return mp_fail(MOEPAGE_E_FORMAT, "%s: \"%s\" must be true or false", json->what, key);
    *out = json_is_true(value);
    return MOEPAGE_OK;
}

moepage_status mp_hf_expect_none(const mp_json *json, const char *key)
{
    const json_t *value = json_object_get(json->root, key);
    if (!value || json_is_null(value) || (json_is_object(value) && json_object_size(value) == 0))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_UNSUPPORTED, "%s: weights with a \"%s\" are not read", json->what,
                   key);
}

/* ---- names ---- */

mp_hf_stem mp_hf_stem_of(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);
    if (length <= tail || length + MAX_ENDING > MAX_NAME || strcmp(name + length - tail, end) != 0)
        return (mp_hf_stem){name, 0};
    return (mp_hf_stem){name, length - tail};
}

moepage_status mp_hf_find_part(mp_hf_stem stem, const char *end, const mp_checkpoint *checkpoint,
                               bool required, mp_tensor **out)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%.*s%s", (int)stem.length, stem.text, end);
    *out = mp_checkpoint_find(checkpoint, name);
    return required && !*out ? mp_checkpoint_require(checkpoint, name, out) : MOEPAGE_OK;
}

mp_tensor *mp_hf_add_computed(mp_hf_stem stem, const char *end, mp_computed_tensors *to)
{
    char *name = to->names + to->name_bytes;
    mp_tensor *tensor = &to->tensors[to->n];
    *tensor = (mp_tensor){.name = name, .computed = &to->computed[to->n++]};
    to->name_bytes += 1 + (uint64_t)sprintf(name, "%.*s%s", (int)stem.length, stem.text, end);
    return tensor;
}

/* ---- parts ---- */

moepage_status mp_hf_expect_part(const mp_tensor *part, uint32_t dtype, const uint64_t *shape,
                                 uint32_t rank)
{
    bool same = part->type->dtype == dtype && part->rank == rank;
    for (uint32_t d = 0; same && d < rank; d++)
        same = part->shape[d] == shape[d];
    if (same)
        return MOEPAGE_OK;
    return mp_fail(
        MOEPAGE_E_FORMAT,
        "%.120s: tensor \"%.160s\" is %s %s, the other parts of its matrix make it %s %s",
        part->file->file.name, part->name, part->type->name,
        mp_shape_show(part->shape, part->rank).text, mp_dtype_name(dtype),
        mp_shape_show(shape, rank).text);
}

moepage_status mp_hf_refuse_part(const mp_tensor *part, const char *words)
{
    return mp_fail(MOEPAGE_E_UNSUPPORTED, "%.120s: tensor \"%.160s\" is %s %s: %s",
                   part->file->file.name, part->name, part->type->name,
                   mp_shape_show(part->shape, part->rank).text, words);
}

bool mp_hf_is_matrix(const mp_tensor *part)
{
    return part->rank == 2 && part->shape[0] && part->shape[1];
}
