/* pack.h — an open .moepack file: checked except for the experts, with a second descriptor for
 * direct reads of experts.
 *
 * The sections that locate bytes (shape, directory, indexes) are copied to memory before they are
 * checked, so that a file modified later cannot lead outside itself. Dense tensors and experts are
 * read, and checked, when they are asked for. */
#ifndef MP_MODEL_PACK_H
#define MP_MODEL_PACK_H

#include "model/bounce.h"
#include "model/file.h"
#include "model/gguf_values.h"
#include "model/model.h"
#include "model/pack_format.h"

/* The experts in one form. */
typedef struct mp_pack_form {
    bool present;
    bool zstd;             /* records are zstd frames of byte planes */
    uint32_t group;        /* weights per scale, of the integer forms */
    uint32_t n_parts;      /* per image: 0 for DENSE */
    uint32_t entry_bytes;  /* of an index entry */
    unsigned char *index;  /* the index section */
    uint64_t image_bytes;  /* total over all images */
    uint64_t most_bytes;   /* of the largest image */
    uint64_t stored_bytes; /* total over all records, without padding */
    uint64_t room;         /* enough for the pages around any record */
    /* One bit per expert: the record has been read and found whole. Good as long as the file is
     * what it was, which every read looks at anew. */
    _Atomic uint32_t *checked;
} mp_pack_form;

typedef struct mp_pack {
    mp_model_file file;
    char architecture[MP_PACK_NAME_BYTES];
    char *config_text;               /* or NULL */
    unsigned char *metadata_section; /* or NULL */
    mp_gguf_metadata metadata;       /* points into the section */
    unsigned char *directory;        /* the section with the dense tensors' directory */
    uint64_t n_dense;
    uint64_t dense_data; /* offset of the section with their bytes */
    void **held;         /* [n_dense] the bytes of those that a view has been asked for */
    mp_pack_form forms[MP_FORMS];
    mp_bounce desk; /* room for any record while it is checked; kept once it is there */
    pthread_mutex_t desk_lock;
} mp_pack;

/* The location of a record, and its expected contents. */
typedef struct mp_pack_record {
    uint64_t offset;            /* within the file */
    uint64_t bytes;             /* as stored; zero padding up to MP_PACK_RECORD_ALIGN follows */
    uint64_t xxh3;              /* of the record and its padding */
    const unsigned char *parts; /* u32 [n_parts] */
} mp_pack_record;

static inline mp_pack_record mp_pack_record_of(const mp_pack_form *form, uint64_t key)
{
    const unsigned char *entry = form->index + MP_PACK_INDEX_HEAD_BYTES + key * form->entry_bytes;
    return (mp_pack_record){.offset = mp_get64(entry),
                            .bytes = mp_get64(entry + 8),
                            .xxh3 = mp_get64(entry + 16),
                            .parts = entry + MP_PACK_RECORD_BYTES};
}

/* Returns true if the stored record has been read and found whole. */
static inline bool mp_pack_is_checked(const mp_pack_form *form, uint64_t key)
{
    return form->present &&
           atomic_load_explicit(&form->checked[key / 32], memory_order_acquire) >> key % 32 & 1;
}

static inline uint64_t mp_pack_key(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert)
{
    return (uint64_t)layer * model->info.experts + expert;
}

/* ---- opening ---- */

/* Decode and check sections whose checksums have already been verified. Sentences of all functions but
 * the third do not name the section. */
moepage_status mp_pack_shape_decode(const unsigned char *section, uint64_t bytes, uint32_t major,
                                    struct moepage_model *model);
/* *out is zero-filled before the call, and points into the section afterwards. */
moepage_status mp_pack_metadata_decode(const unsigned char *section, uint64_t bytes,
                                       mp_gguf_metadata *out);
moepage_status mp_pack_dense_check(mp_pack *pack, uint64_t directory_bytes, uint64_t data_bytes,
                                   uint64_t *dense_bytes);
/* Checks the form's index, already in memory; `data` is the section that it describes. */
moepage_status mp_pack_index_check(struct moepage_model *model, uint32_t form, uint64_t index_bytes,
                                   const mp_pack_section *data);

/* ---- dense tensors ---- */

void mp_pack_dense_at(const mp_pack *pack, uint64_t index, mp_dense_tensor *out);

/* Frees the tensors' bytes in memory. */
void mp_pack_dense_free(mp_pack *pack);

/* ---- images ---- */

/* Returns true if integer forms quantise a tensor of this role: a matrix of weights. */
bool mp_pack_is_weight(uint32_t role);

/* Gives the quantisation of an expert's tensor in an integer form; returns false if the tensor is
 * kept raw. */
bool mp_pack_quant_shape(const moepage_expert_tensor *tensor, uint32_t form, uint32_t group,
                         mp_quant_shape *out);

/* Returns the number of elements of an expert's tensor. */
uint64_t mp_pack_elements(const moepage_expert_tensor *tensor);

/* Locates the parts of an image in any form but DENSE. */
void mp_pack_parts_of(const struct moepage_model *model, uint32_t layer, uint32_t form,
                      const mp_pack_record *record, mp_image_part *parts);

/* Reads and checks an image for mp_model_read_cold, from a pack that has the form, or decodes it to
 * DENSE; the buffer is page-aligned and large enough. */
moepage_status mp_pack_read_image(const struct moepage_model *model, uint32_t layer,
                                  uint32_t expert, uint32_t form, void *buffer,
                                  mp_image_read *read);

/* Gets the memory in which mp_pack_read_stored checks images. NO_MEMORY. */
moepage_status mp_pack_prepare(mp_pack *pack);

/* The same for mp_model_read_stored and mp_model_check_image. */
moepage_status mp_pack_read_stored(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint32_t form, uint64_t offset, uint64_t bytes,
                                   void *out);
moepage_status mp_pack_check_stored(const struct moepage_model *model, uint32_t layer,
                                    uint32_t expert, uint32_t form);

/* Decodes a checked EXPH image of an expert of this layer into a slot, padding included. */
void mp_pack_decode_exph(const struct moepage_model *model, uint32_t layer,
                         const mp_image_part *parts, const unsigned char *image,
                         unsigned char *slot);

#endif
