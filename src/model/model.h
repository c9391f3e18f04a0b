/* model.h — a checkpoint as the rest of the library sees it: a shape, the layouts of its experts, and
 * the location of each expert's bytes.
 *
 * An expert's slot holds its tensors at fixed offsets. Its bytes come in pieces: a fused tensor in
 * the slot may be two tensors in the file (gate_proj and up_proj). A piece is one contiguous range of a
 * file, of the caller's memory or of the caller's read callback, or is computed from ranges of files
 * (model/repack.h). Files are read, never mapped: model/file.h says why.
 *
 * All experts have the same tensors in the same shapes, but from layer to layer their element types
 * may differ, and so their sizes and offsets: a layer has one of the model's layouts. */
#ifndef MP_MODEL_MODEL_H
#define MP_MODEL_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/activation.h"
#include "base/handle.h"
#include "base/log.h"
#include "codec/quant.h"
#include "model/file.h"
#include "model/repack.h"
#include "moepage.h"

#define MP_MAX_PIECES 16

/* One contiguous range of an expert's slot; identical for all experts of a layout. */
typedef struct mp_piece {
    uint32_t tensor;        /* index into mp_layout.tensors */
    uint32_t span;          /* in files: the first of its spans among the expert's */
    uint64_t tensor_offset; /* within the tensor, for the read callback */
    uint64_t slot_offset;
    uint64_t bytes;
    mp_repack how; /* it is computed from how.n_sources spans; how.kind NULL: it is one span */
} mp_piece;

/* Offsets of the kernels' operands inside a slot. UINT64_MAX marks an absent bias. */
typedef struct mp_ffn_layout {
    uint32_t supported; /* 1: MP_KERNEL_EXPERTS can run these experts */
    uint32_t in_order;  /* 1: a fused tensor has gate's rows and block scales first, then up's */
    uint32_t gate_dtype, up_dtype, down_dtype;
    uint32_t bias_dtype; /* of all biases; NONE without any */
    uint64_t gate, up, down;
    uint64_t gate_bias, up_bias, down_bias;
    uint64_t gate_scale, up_scale, down_scale; /* UINT64_MAX when absent */
    mp_block_scale scale;
} mp_ffn_layout;

/* Where an expert's tensors lie in its slot, and the pieces that they come in. */
typedef struct mp_layout {
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_piece pieces[MP_MAX_PIECES];
    mp_ffn_layout ffn;
    uint64_t expert_bytes; /* of the tensors */
    uint64_t slot_bytes;   /* and of the gaps between and behind them */
} mp_layout;

/* Files that mix types choose among a handful of them. */
#define MP_MAX_LAYOUTS 32

/* The one dtype of all matrices; NONE if they differ. */
static inline uint32_t mp_ffn_dtype(const mp_ffn_layout *ffn)
{
    bool alike = ffn->gate_dtype == ffn->down_dtype && ffn->up_dtype == ffn->down_dtype;
    return alike ? ffn->down_dtype : MOEPAGE_DTYPE_NONE;
}

#define MP_FORMS 6 /* MOEPAGE_FORM_NONE to _INT2 */

/* An image is one expert in one form, as kept in host memory and moved over a bus: DENSE is the
 * slot itself, its layout's slot_bytes long; the other forms are one part per tensor, back to back. */
typedef struct mp_image_part {
    uint64_t offset; /* within the image; a multiple of 16 */
    uint64_t bytes;
    uint32_t form; /* the image's form, or MOEPAGE_FORM_DENSE for a tensor kept raw */
    uint32_t reserved;
} mp_image_part;

typedef struct mp_image {
    const unsigned char *address; /* of the whole image, for a device without bytes; or NULL */
    bool stored; /* a pack has these bytes: ranges of them can be read (mp_model_read_stored) */
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
    mp_layout layouts[MP_MAX_LAYOUTS];
    uint32_t n_layouts; /* 1 or more; mp_model_alloc sets 1 */
    uint8_t *layout_of; /* [moe_layers] index into layouts; NULL = the first one, for all */
    uint32_t n_pieces;  /* of an expert, in any layout */
    /* Where pieces come from: memory that the caller holds, [moe_layers][experts][n_pieces], or files,
     * [moe_layers][experts][n_spans]. At most one of the two and `read` is set; none with a pack. */
    const void **sources;
    mp_file_span *spans;
    uint32_t n_spans;       /* of an expert; set by mp_slot_alloc_spans */
    mp_repack_rooms *rooms; /* of pieces that are computed; NULL without any */
    moepage_read_fn read;
    void *read_user;
    int32_t *layer_of_moe; /* [moe_layers] */
    mp_log log;
    pthread_mutex_t held_lock; /* guards what mp_dense_tensor.held points to */
    struct mp_bank_files
        *bank_files; /* what `spans` are ranges of, where the caller has named the files */
    /* The model's source: at most one of these five is set. */
    struct mp_checkpoint *checkpoint; /* files, tensor directory, config text */
    struct mp_gguf *gguf;             /* files, tensor directory, metadata */
    struct mp_pack *pack;             /* a .moepack */
    struct mp_bank_extras *extras;    /* config text and dense tensors that the caller holds */
    mp_phantom *phantom;              /* there is none */
    void (*close)(struct moepage_model *model); /* frees that one; NULL before it is there */
};

/* Opens a checkpoint directory, as moepage_model_open does. */
moepage_status mp_model_open_checkpoint(const char *path, const mp_log *log,
                                        struct moepage_model **out);

/* Returns true if the file begins as a GGUF file does. */
bool mp_model_is_gguf(const char *path);

/* Opens a .gguf file, or all parts of a split one by its first. */
moepage_status mp_model_open_gguf(const char *path, const mp_log *log, struct moepage_model **out);

/* Opens a .moepack file. */
moepage_status mp_model_open_pack(const char *path, const mp_log *log, struct moepage_model **out);

/* Creates a model of experts that the caller holds; `banks` is a full-sized struct of this
 * version. */
moepage_status mp_model_open_banks(const moepage_banks *banks, const mp_log *log,
                                   struct moepage_model **out);

/* A model with one layout, for its source to fill in; NULL for want of memory. */
struct moepage_model *mp_model_alloc(void);

/* Frees a model, half-built or whole. NULL is a no-op. */
void mp_model_free(struct moepage_model *model);

/* A tensor that is never paged. */
typedef struct mp_dense_tensor {
    const char *name;
    uint32_t dtype; /* NONE: a type or rank that no view can express */
    uint32_t rank;
    uint64_t shape[MOEPAGE_MAX_RANK];
    uint64_t bytes;
    const unsigned char *data; /* that the caller holds, at any alignment; NULL: it is in `file` */
    const struct mp_model_file *file;
    uint64_t offset;             /* within the file */
    const mp_computed *computed; /* NULL, or how its bytes are computed from others in files */
    bool has_sum;                /* the file states the bytes' checksum */
    uint64_t xxh3;
    void **held; /* its bytes in private memory from the first view on, until the model closes */
} mp_dense_tensor;

/* Copies the tensor's bytes to `out`; checks those of a file. IO, or FORMAT for a wrong checksum. */
moepage_status mp_dense_read(const mp_dense_tensor *tensor, void *out);

/* Copies bytes from `offset` of the tensor's on, all of them its own. IO. */
moepage_status mp_dense_read_part(const mp_dense_tensor *tensor, uint64_t offset, uint64_t bytes,
                                  void *out);

/* Reads the bytes of a tensor in a file to memory at *tensor->held, a multiple of 64. NO_MEMORY, IO,
 * FORMAT. */
moepage_status mp_dense_hold(const mp_dense_tensor *tensor);

/* Frees what mp_dense_tensor.held points to; NULL is a no-op. */
void mp_dense_free(void *held);

/* Gives the dense tensor at `index` in the order of names; returns false past the last. */
bool mp_model_dense_at(const struct moepage_model *model, uint64_t index, mp_dense_tensor *out);

/* Finds the tensor of that name, dense or, in a checkpoint, of an expert, if a view can express it. */
moepage_status mp_model_locate_tensor(const struct moepage_model *model, const char *name,
                                      mp_dense_tensor *out);

/* Copies a part of the tensor of that name, and describes it without data. ARGUMENT for bytes past its end. */
moepage_status mp_model_read_tensor(const struct moepage_model *model, const char *name,
                                    uint64_t offset, uint64_t bytes, void *out,
                                    moepage_tensor_view *view);

/* Finds the tensor of that name; its view is aligned for its dtype. The first view of a tensor in a
 * file reads it to memory that the model keeps. */
moepage_status mp_model_find_tensor(const struct moepage_model *model, const char *name,
                                    moepage_tensor_view *out);

/* Returns config.json, or NULL for a model without one. */
const char *mp_model_config_text(const struct moepage_model *model);

/* Returns the keys and values (model/gguf_values.h) of a GGUF model or of a pack of one, which live as
 * long as the model; NULL for any other model. */
const struct mp_gguf_metadata *mp_model_metadata(const struct moepage_model *model);

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

/* Returns the size of a slot that any expert fits in, in a form that the model has: DENSE slots as they
 * are laid out, an image of any other form rounded up to MP_SLOT_ALIGN; 0 for a form that it lacks. */
uint64_t mp_model_slot_bytes(const struct moepage_model *model, uint32_t form);

/* Locates an expert's image. Cheap: reads no weights. */
void mp_model_find_image(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t form, mp_image *out);

/* Locates the image's parts, one per expert tensor, for a form other than DENSE;
 * parts[MOEPAGE_MAX_EXPERT_TENSORS]. */
void mp_model_find_parts(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t form, mp_image_part *parts);

/* Reads an image into buffer[skew ..), checks it against its checksum and, for EXPH, that decoding
 * cannot fail. The model has the form, or it is DENSE, and the buffer has mp_model_image_room. Uses direct
 * I/O if the file system allows; a checkpoint's through `desk`, or one of the call's own if that is NULL.
 * Blocks; any thread. *read is written on success. IO, FORMAT (the sentence names file, section, layer and
 * expert), CALLBACK; the sentence becomes the calling thread's last error. */
moepage_status mp_model_read_cold(const struct moepage_model *model, uint32_t layer,
                                  uint32_t expert, uint32_t form, const mp_direct_desk *desk,
                                  void *buffer, mp_image_read *read);
/* Checks that there is such an image and enough room for it, NOT_FOUND and ARGUMENT, reads it as
 * mp_model_read_cold does, and reports only the bytes read. */
moepage_status mp_model_read_image(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint32_t form, void *buffer, uint64_t room,
                                   uint64_t *read_bytes);

/* Gets the memory that the following needs, so that later calls need none; kept until the model closes. */
moepage_status mp_model_prepare_stored(const struct moepage_model *model);

/* Reads `bytes` of a stored image from `offset` on, through the page cache. The first call for an
 * expert and form checks the whole image as mp_model_read_cold does; later ones check that the file
 * is still the same. */
moepage_status mp_model_read_stored(const struct moepage_model *model, uint32_t layer,
                                    uint32_t expert, uint32_t form, uint64_t offset, uint64_t bytes,
                                    void *out);

/* Reads `bytes` of an expert's piece from `offset` on: of a file, computed from files, of the caller's
 * memory, or through the caller's callback. IO, CALLBACK; NO_MEMORY and FORMAT where it is computed. */
moepage_status mp_model_read_piece(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint32_t piece, uint64_t offset, uint64_t bytes,
                                   void *out);

/* Says why an expert's image of this form cannot be had, or OK if nothing is found: that the file has
 * changed, or that the image is damaged. Reads a stored image unless it has been checked. STATE for
 * a form that the pack does not store byte for byte. */
moepage_status mp_model_check_image(const struct moepage_model *model, uint32_t layer,
                                    uint32_t expert, uint32_t form);

/* Returns true if a stored image has been read and found whole. */
bool mp_model_image_is_checked(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                               uint32_t form);

/* Returns true if experts are kept as images rather than as pieces. */
static inline bool mp_model_keeps_images(const struct moepage_model *model)
{
    return model->pack || model->phantom;
}

/* What the experts compute between their projections. */
static inline mp_activation mp_model_activation(const struct moepage_model *model)
{
    const moepage_model_info *info = &model->info;
    return (mp_activation){info->activation, info->activation_alpha, info->activation_limit};
}

/* ---- layouts and places (slot.c) ---- */

/* Returns the layout of a MoE layer's experts. */
const mp_layout *mp_model_layout(const struct moepage_model *model, uint32_t layer);

/* Returns the index of (layer, expert, piece 0) in `sources`. */
uint64_t mp_model_source_index(const struct moepage_model *model, uint32_t layer, uint32_t expert);

/* Returns an expert's spans. */
mp_file_span *mp_model_spans(const struct moepage_model *model, uint32_t layer, uint32_t expert);

#endif
