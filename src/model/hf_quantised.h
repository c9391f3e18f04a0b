/* hf_quantised.h — what the readers of quantised checkpoints share: checks of quantization_config's keys, and
 * the tensors that are parts of a matrix: their names, checks of them, and what is computed from them. */
#ifndef MP_MODEL_HF_QUANTISED_H
#define MP_MODEL_HF_QUANTISED_H

#include <stdbool.h>

#include "base/json.h"
#include "model/checkpoint.h"

/* ---- Keys ---- */

/* Refuses what was found under a key; `read` names what is read there. Returns UNSUPPORTED. */
moepage_status mp_hf_refuse_value(const mp_json *json, const char *key, const char *found,
                                  const char *read);

/* Fails unless a text, if there is one, is `only`. */
moepage_status mp_hf_expect_text(const mp_json *json, const char *key, const char *only);

/* Fails if the object has a member that changes what the weights mean. */
moepage_status mp_hf_expect_none(const mp_json *json, const char *key);

/* Reads true or false; `otherwise` if the key is absent or null. */
moepage_status mp_hf_read_flag(const mp_json *json, const char *key, bool otherwise, bool *out);

/* ---- Names ---- */

/* What the names of a matrix's parts begin with. */
typedef struct mp_hf_stem {
    const char *text; /* ends in no NUL */
    size_t length;    /* 0: a name has another ending */
} mp_hf_stem;

/* Returns a name without that ending. */
mp_hf_stem mp_hf_stem_of(const char *name, const char *end);

/* Finds the part whose name has that ending. *out is NULL if there is none; NOT_FOUND where it is required. */
moepage_status mp_hf_find_part(mp_hf_stem stem, const char *end, const mp_checkpoint *checkpoint,
                               bool required, mp_tensor **out);

/* Adds a tensor of that name to what is computed, for which there is room; it and to->computed[to->n - 1] are
 * for the caller to fill in. */
mp_tensor *mp_hf_add_computed(mp_hf_stem stem, const char *end, mp_computed_tensors *to);

/* ---- Parts ---- */

/* Returns true if a part has rows and columns. */
bool mp_hf_is_matrix(const mp_tensor *part);

/* Fails unless a part is of the type and has this shape. */
moepage_status mp_hf_expect_part(const mp_tensor *part, uint32_t dtype, const uint64_t *shape,
                                 uint32_t rank);

/* Refuses a part of this type and shape; `words` say why. Returns UNSUPPORTED. */
moepage_status mp_hf_refuse_part(const mp_tensor *part, const char *words);

#endif
