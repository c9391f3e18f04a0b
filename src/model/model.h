/* model.h — a checkpoint as the rest of the library sees it: a shape, an expert layout, and the
 * location of each expert's bytes.
 *
 * An expert's slot holds its tensors at fixed offsets. Its bytes come in pieces: a fused tensor in
 * the slot may be two tensors in the file (gate_proj and up_proj), and every piece is one
 * contiguous range of memory or of the caller's read callback. Experts are never copied on the
 * host: pieces point into the mapped files. */
#ifndef MP_MODEL_MODEL_H
#define MP_MODEL_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/handle.h"
#include "base/log.h"
#include "codec/quant.h"
#include "moepage.h"

#define MP_MAX_PIECES 16

/* One contiguous range of an expert's slot; identical for all experts. */
typedef struct mp_piece {
    uint32_t tensor; /* index into moepage_model.tensors */
    uint32_t reserved;
    uint64_t tensor_offset; /* within the tensor, for the read callback */
    uint64_t slot_offset;
    uint64_t bytes;
} mp_piece;

/* Offsets of the SwiGLU operands inside a slot. UINT64_MAX marks an absent bias. */
typedef struct mp_ffn_layout {
    uint32_t supported; /* 1: MP_KERNEL_EXPERTS can run these experts */
    uint32_t swiglu;    /* 1: the experts compute silu(gate) * up, with rows in GATE_UP's order */
    uint32_t dtype;
    uint64_t gate, up, down;
    uint64_t gate_bias, up_bias, down_bias;
    uint64_t gate_scale, up_scale, down_scale; /* UINT64_MAX when absent */
    mp_block_scale scale;
} mp_ffn_layout;

#define MP_FORMS 6 /* MOEPAGE_FORM_NONE to _INT2 */

/* An image is one expert in one form, as kept in host memory and moved over a bus: DENSE is the
 * slot itself, slot_bytes long; the other forms are one part per tensor, back to back. */
typedef struct mp_image_part {
    uint64_t offset; /* within the image; a multiple of 16 */
    uint64_t bytes;
    uint32_t form; /* the image's form, or MOEPAGE_FORM_DENSE for a tensor kept raw */
    uint32_t reserved;
} mp_image_part;

typedef struct mp_image {
    const unsigned char *mapped; /* the whole image in readable memory, or NULL */
    uint64_t bytes;
    uint64_t skew; /* offset at which mp_model_read_image puts the image in its buffer */
} mp_image;

/* The cost of reading an image. */
typedef struct mp_image_read {
    uint64_t bytes; /* read from storage */
    bool buffered;  /* true unless every byte was read past the page cache */
} mp_image_read;

/* Images of a model without weights: every expert's are alike, and have a size alone. Such a model is
 * for devices without bytes (MP_CAP_NO_BYTES); the simulation makes it. */
typedef struct mp_phantom_image {
    uint64_t bytes; /* 0 = no image of this form */
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
} mp_phantom_image;

typedef struct mp_phantom {
    mp_phantom_image images[MP_FORMS];
    uint32_t group; /* weights per scale, of the integer forms */
    void *mapped;   /* what images point to: addresses that fault; NULL = images are cold */
    uint64_t mapped_bytes;
    char architecture[64];
} mp_phantom;

struct moepage_model {
    mp_handle handle;
    _Atomic uint32_t users;  /* number of expert pools */
    moepage_model_info info; /* struct_size set; architecture lives as long as the model */
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_ffn_layout ffn;
    mp_piece pieces[MP_MAX_PIECES];
    uint32_t n_pieces;
    const void **sources; /* [moe_layers][experts][n_pieces]; NULL with a read callback or a pack */
    moepage_read_fn read; /* or NULL */
    void *read_user;
    int32_t *layer_of_moe; /* [moe_layers] */
    mp_log log;
    /* The model's source: at most one of these four is set. */
    struct mp_checkpoint *checkpoint; /* mapped files, tensor directory, config text */
    struct mp_pack *pack;             /* a mapped .moepack */
    struct mp_bank_extras *extras;    /* config text and dense tensors that the caller holds */
    mp_phantom *phantom;              /* there is none */
    void (*close)(struct moepage_model *model); /* frees that one; NULL before it is there */
};

/* Opens a checkpoint directory, as moepage_model_open does. */
moepage_status mp_model_open_checkpoint(const char *path, const mp_log *log,
                                        struct moepage_model **out);

/* Opens a .moepack file. */
moepage_status mp_model_open_pack(const char *path, const mp_log *log, struct moepage_model **out);

/* Creates a model of experts that the caller holds; `banks` is a full-sized struct of this
 * version. */
moepage_status mp_model_open_banks(const moepage_banks *banks, const mp_log *log,
                                   struct moepage_model **out);

/* Frees a model, half-built or whole. NULL is a no-op. */
void mp_model_free(struct moepage_model *model);

/* A tensor that is never paged. */
typedef struct mp_dense_tensor {
    const char *name;
    uint32_t dtype; /* NONE: a type or rank that no view can express */
    uint32_t rank;
    uint64_t shape[MOEPAGE_MAX_RANK];
    uint64_t bytes;
    const unsigned char *data; /* at any alignment */
} mp_dense_tensor;

/* Gives the dense tensor at `index` in the order of names; returns false past the last. */
bool mp_model_dense_at(const struct moepage_model *model, uint64_t index, mp_dense_tensor *out);

/* Finds the tensor of that name; its view is aligned for its dtype. */
moepage_status mp_model_find_tensor(const struct moepage_model *model, const char *name,
                                    moepage_tensor_view *out);

/* Returns config.json, or NULL for a model without one. */
const char *mp_model_config_text(const struct moepage_model *model);

/* ---- images (image.c) ---- */

/* Returns true if every expert has an image in this form. Checkpoints and banks have DENSE. Every
 * model with a lossless form provides DENSE images: those stored only as EXPH are decoded on
 * reading. */
bool mp_model_has_form(const struct moepage_model *model, uint32_t form);

/* Returns the weights per scale of an integer form that the model has. */
uint32_t mp_model_group(const struct moepage_model *model, uint32_t form);

/* Returns the size of a 4096-aligned buffer into which any expert's image of this form can be
 * read. */
uint64_t mp_model_image_room(const struct moepage_model *model, uint32_t form);

/* Returns the size of the largest expert image in a form that the model has; 0 for any other
 * form. */
uint64_t mp_model_most_bytes(const struct moepage_model *model, uint32_t form);

/* Locates an expert's image. Cheap: reads no weights. */
void mp_model_find_image(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t form, mp_image *out);

/* Locates the image's parts, one per expert tensor, for a form other than DENSE;
 * parts[MOEPAGE_MAX_EXPERT_TENSORS]. */
void mp_model_find_parts(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t form, mp_image_part *parts);

/* Reads an image into buffer[skew ..), checks it against its checksum and, for EXPH, that decoding
 * cannot fail. Uses direct I/O if the file system allows. Blocks; any thread. *read is written on
 * success. IO, FORMAT (the sentence names file, section, layer and expert), CALLBACK; the sentence
 * becomes the calling thread's last error. */
moepage_status mp_model_read_cold(const struct moepage_model *model, uint32_t layer,
                                  uint32_t expert, uint32_t form, void *buffer, uint64_t room,
                                  mp_image_read *read);
/* Reads an image as mp_model_read_cold does, and reports only the bytes read. */
moepage_status mp_model_read_image(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint32_t form, void *buffer, uint64_t room,
                                   uint64_t *read_bytes);

/* Checks a mapped image as reading does, once per expert and form: later calls cost one atomic
 * load. */
moepage_status mp_model_check_mapped(const struct moepage_model *model, uint32_t layer,
                                     uint32_t expert, uint32_t form);
bool mp_model_mapped_is_checked(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                                uint32_t form);

/* Returns true if experts are kept as images, mapped or to be read, rather than as pieces. */
static inline bool mp_model_keeps_images(const struct moepage_model *model)
{
    return model->pack || model->phantom;
}

/* Returns the index of (layer, expert, piece 0) in `sources`. */
static inline uint64_t mp_model_source_index(const struct moepage_model *model, uint32_t layer,
                                             uint32_t expert)
{
    return ((uint64_t)layer * model->info.experts + expert) * model->n_pieces;
}

#endif
