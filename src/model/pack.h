/* pack.h — an open .moepack file: mapped whole, everything but the experts checked, and a second
 * descriptor for direct reads of experts.
 *
 * The mapping serves dense tensors and, to who asks for it, plain images. What decides where bytes
 * are (shape, directory, indexes) is copied to memory before it is checked, so that a file that
 * changes later cannot lead outside it. */
#ifndef MP_MODEL_PACK_H
#define MP_MODEL_PACK_H

#include "model/file.h"
#include "model/model.h"
#include "model/pack_format.h"

/* The experts in one form. */
typedef struct mp_pack_form {
    bool present;
    bool zstd;                 /* records are zstd frames of byte planes */
    uint32_t group;            /* weights per scale, of the integer forms */
    uint32_t n_parts;          /* per image: 0 for DENSE */
    uint32_t entry_bytes;      /* of the index */
    unsigned char *index;      /* the section */
    uint64_t image_bytes;      /* of all images */
    uint64_t most_bytes;       /* the largest */
    uint64_t stored_bytes;     /* of all records, without their padding */
    uint64_t room;             /* that the pages around any record take */
    _Atomic uint32_t *checked; /* a bit per expert: its mapped record has been checked */
} mp_pack_form;

typedef struct mp_pack {
    char *name; /* last component of the path */
    int fd;
    int direct_fd;       /* opened for direct I/O, or -1 */
    _Atomic bool direct; /* and no read through it has been refused */
    mp_file_map map;
    char architecture[MP_PACK_NAME_BYTES];
    char *config_text;        /* or NULL */
    unsigned char *directory; /* of the dense tensors: the section */
    uint64_t n_dense;
    const unsigned char *dense_data;
    mp_pack_form forms[MP_FORMS];
} mp_pack;

/* Where a record is, and what it should be. */
typedef struct mp_pack_record {
    uint64_t offset;            /* in the file */
    uint64_t bytes;             /* stored; padding up to MP_PACK_RECORD_ALIGN follows, zero */
    uint64_t xxh3;              /* of both */
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

static inline uint64_t mp_pack_key(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert)
{
    return (uint64_t)layer * model->info.experts + expert;
}

/* ---- opening ---- */

/* The sections, whose checksums have been found right. Sentences of the first and the last do not
 * name the section. */
moepage_status mp_pack_shape_decode(const unsigned char *section, uint64_t bytes,
                                    struct moepage_model *model);
moepage_status mp_pack_dense_check(mp_pack *pack, uint64_t directory_bytes, uint64_t data_bytes,
                                   uint64_t *dense_bytes);
/* `data` is the section that the form's index, in memory already, speaks of. */
moepage_status mp_pack_index_check(struct moepage_model *model, uint32_t form, uint64_t index_bytes,
                                   const mp_pack_section *data);

/* ---- dense tensors ---- */

void mp_pack_dense_at(const mp_pack *pack, uint64_t index, mp_dense_tensor *out);

/* ---- images ---- */

/* Is it a matrix that integer forms quantise? */
bool mp_pack_is_weight(uint32_t role);

/* How a tensor of an expert is quantised in an integer form; false for one that is kept raw. */
bool mp_pack_quant_shape(const moepage_expert_tensor *tensor, uint32_t form, uint32_t group,
                         mp_quant_shape *out);

/* Elements of an expert's tensor. */
uint64_t mp_pack_elements(const moepage_expert_tensor *tensor);

/* The parts of an image in any form but DENSE. */
void mp_pack_parts_of(const struct moepage_model *model, uint32_t form,
                      const mp_pack_record *record, mp_image_part *parts);

/* What mp_model_read_cold and mp_model_check_mapped do for a pack that has the form, or for DENSE
 * that it has to decode; the buffer is page-aligned and large enough. */
moepage_status mp_pack_read_image(const struct moepage_model *model, uint32_t layer,
                                  uint32_t expert, uint32_t form, void *buffer,
                                  mp_image_read *read);
moepage_status mp_pack_check_mapped(const struct moepage_model *model, uint32_t layer,
                                    uint32_t expert, uint32_t form);

/* Decodes a checked EXPH image into a slot, padding included. */
void mp_pack_decode_exph(const struct moepage_model *model, const mp_image_part *parts,
                         const unsigned char *image, unsigned char *slot);

#endif
