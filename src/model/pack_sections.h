/* pack_sections.h — writing the sections of a .moepack file; pack.h is the reading side. */
#ifndef MP_MODEL_PACK_SECTIONS_H
#define MP_MODEL_PACK_SECTIONS_H

#include "model/gguf_values.h"
#include "model/model.h"
#include "model/pack_format.h"

uint64_t mp_pack_shape_bytes(const struct moepage_model *model);
void mp_pack_shape_encode(const struct moepage_model *model, unsigned char *out);

/* Of METADATA; the model has metadata. */
uint64_t mp_pack_metadata_bytes(const mp_gguf_metadata *metadata);
void mp_pack_metadata_encode(const mp_gguf_metadata *metadata, unsigned char *out);

/* Writes an entry of the dense directory: the name is at `name_at` of the names; the tensor's bytes,
 * hashed here, are at `offset` of DENSE DATA. */
void mp_pack_dense_encode(const mp_dense_tensor *tensor, const void *bytes, uint64_t name_at,
                          uint64_t offset, unsigned char *out);

/* The storage of experts in one form. */
typedef struct mp_pack_storage {
    uint32_t form;
    uint32_t group;  /* weights per scale, of the integer forms, else 0 */
    uint32_t stored; /* MP_PACK_STORED_* */
    uint32_t n_parts;
    uint64_t n_records;
} mp_pack_storage;

uint64_t mp_pack_index_bytes(const mp_pack_storage *storage);
void mp_pack_index_head_encode(const mp_pack_storage *storage, unsigned char *out);
/* Writes an index entry. `parts`: sizes in units of MP_PACK_PART_ALIGN, with MP_PACK_PART_RAW. */
void mp_pack_index_entry_encode(const mp_pack_storage *storage, uint64_t offset, uint64_t bytes,
                                uint64_t xxh3, const uint32_t *parts, unsigned char *out);

#endif
