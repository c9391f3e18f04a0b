/* pack_encode.h — one expert in one form, as a .moepack record holds it. */
#ifndef MP_MODEL_PACK_ENCODE_H
#define MP_MODEL_PACK_ENCODE_H

#include "model/model.h"
#include "model/pack_sections.h"
#include "model/pack_write.h"

/* The memory and settings for encoding experts of one model in one form. */
typedef struct mp_pack_encoder {
    const struct moepage_model *model;
    mp_pack_storage storage;
    int32_t level;
    uint32_t search;
    moepage_moments_fn moments; /* or NULL */
    void *moments_user;
    uint64_t source_bytes;  /* page-aligned room for the expert as read */
    uint64_t out_bytes;     /* 64-byte-aligned room for the record; 0 if the source is the record */
    uint64_t scratch_bytes; /* 64-byte aligned */
} mp_pack_encoder;

/* Prepares an encoder; UNSUPPORTED if the form cannot hold the model's experts. */
moepage_status mp_pack_encoder_init(const struct moepage_model *model,
                                    const mp_pack_options *options, uint32_t form,
                                    mp_pack_encoder *out);

/* One expert's memory, of the encoder's sizes, and its result. */
typedef struct mp_pack_encoded {
    unsigned char *source, *out, *scratch;
    uint32_t layer, expert;      /* that was read last */
    const mp_layout *layout;     /* its */
    const unsigned char *slot;   /* it, in `source` */
    const unsigned char *record; /* zero-padded to a multiple of MP_PACK_RECORD_ALIGN */
    uint64_t bytes;
    uint64_t xxh3;   /* of the record and its padding */
    uint64_t offset; /* within the file, once placed */
    uint32_t parts[MOEPAGE_MAX_EXPERT_TENSORS];
    uint32_t n_raw; /* parts of an EXPH image kept raw */
} mp_pack_encoded;

/* Reads an expert, then encodes it. Safe on any thread. */
moepage_status mp_pack_encode_read(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint64_t source_bytes, mp_pack_encoded *item);
moepage_status mp_pack_encode(const mp_pack_encoder *encoder, mp_pack_encoded *item);

#endif
