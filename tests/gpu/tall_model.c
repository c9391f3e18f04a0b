/* The small pack is written, opened, and its index unrolled over all layers; its bytes are in pinned
 * memory, too, for measurements that copy them without the library: a surgery on the library's own structures that nothing but a measurement should do. */
#include "tall_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/pack.h"

#define FORMS 2u
static const uint32_t forms[FORMS] = {MOEPAGE_FORM_DENSE, MOEPAGE_FORM_EXPH};

struct tall_hidden {
    unsigned char *pinned;
    int32_t *layer_of_moe;
    unsigned char *index[FORMS];
    _Atomic uint32_t *checked[FORMS];
    moepage_model_info info;
};

static void *new_bytes(uint64_t n)
{
    void *bytes = calloc(1, n ? n : 1);
    if (!bytes)
        gpu_die("out of host memory");
    return bytes;
}

/* A pack of one layer in a file that has no name any more. */
static moepage_model *small_pack(const tall_shape *s, uint32_t distinct)
{
    const uint64_t up = 2ull * s->intermediate * s->hidden,
                   down = (uint64_t)s->hidden * s->intermediate;
    const moepage_expert_tensor tensors[2] = {
        {.role = MOEPAGE_ROLE_GATE_UP,
         .dtype = MOEPAGE_DTYPE_BF16,
         .rank = 2,
         .shape = {2ull * s->intermediate, s->hidden}},
        {.role = MOEPAGE_ROLE_DOWN,
         .dtype = MOEPAGE_DTYPE_BF16,
         .rank = 2,
         .shape = {s->hidden, s->intermediate}},
    };
    uint16_t *weights = gpu_weights((up + down) * distinct, 5);
    const void **data = new_bytes(2ull * distinct * sizeof *data);
    for (uint32_t e = 0; e < distinct; e++) {
        data[2 * e] = weights + (up + down) * e;
        data[2 * e + 1] = weights + (up + down) * e + up;
    }
    const moepage_banks banks = {.struct_size = sizeof banks,
                                 .moe_layers = 1,
                                 .experts = distinct,
                                 .top_k = s->top_k < distinct ? s->top_k : distinct,
                                 .hidden = s->hidden,
                                 .expert_intermediate = s->intermediate,
                                 .n_tensors = 2,
                                 .tensors = tensors,
                                 .data = data};
    const moepage_pack_config config = {.struct_size = sizeof config,
                                        .forms =
                                            1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_EXPH};
    moepage_model *banked = NULL, *packed = NULL;
    char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/moepage-XXXXXX",
             folder                     ? folder
             : access("/dev/shm", W_OK) ? "/tmp"
                                        : "/dev/shm");
    int fd = mkstemp(path);
    if (fd < 0)
        gpu_die("%s cannot be written", path);
    close(fd);
    gpu_must(moepage_model_open_banks(&banks, NULL, &banked), "the experts");
    gpu_must(moepage_pack_write(banked, path, &config, NULL), path);
    gpu_must(moepage_model_close(banked), "the experts");
    gpu_must(moepage_model_open(path, NULL, &packed), path);
    unlink(path);
    free(data);
    free(weights);
    return packed;
}

/* Entry k of the long index is entry k mod distinct of the short one. */
static void unroll(struct tall_hidden *kept, uint32_t f, mp_pack_form *form, uint64_t keys,
                   uint32_t distinct)
{
    kept->index[f] = form->index;
    kept->checked[f] = form->checked;
    form->index = new_bytes(MP_PACK_INDEX_HEAD_BYTES + keys * form->entry_bytes);
    form->checked = new_bytes((keys + 31) / 32 * sizeof *form->checked);
    memcpy(form->index, kept->index[f], MP_PACK_INDEX_HEAD_BYTES);
    for (uint64_t k = 0; k < keys; k++) {
        memcpy(form->index + MP_PACK_INDEX_HEAD_BYTES + k * form->entry_bytes,
               kept->index[f] + MP_PACK_INDEX_HEAD_BYTES + k % distinct * form->entry_bytes,
               form->entry_bytes);
        form->checked[k / 32] |= 1u << k % 32;
    }
}

static void stretch(gpu_bench *b, tall_model *m)
{
    struct moepage_model *model = m->model;
    struct tall_hidden *kept = new_bytes(sizeof *kept);
    const uint64_t keys = (uint64_t)m->shape.layers * m->shape.experts;
    m->hidden = kept;
    kept->info = model->info;
    kept->layer_of_moe = model->layer_of_moe;
    kept->pinned = gpu_pinned_memory(b, model->pack->file.bytes);
    gpu_must(mp_model_file_read(&model->pack->file, 0, model->pack->file.bytes, kept->pinned),
             "the pack");
    for (uint32_t f = 0; f < FORMS; f++)
        unroll(kept, f, &model->pack->forms[forms[f]], keys, m->distinct);
    model->layer_of_moe = new_bytes(m->shape.layers * sizeof *model->layer_of_moe);
    for (uint32_t l = 0; l < m->shape.layers; l++)
        model->layer_of_moe[l] = (int32_t)l;
    model->info.layers = model->info.moe_layers = m->shape.layers;
    model->info.experts = m->shape.experts;
    model->info.top_k = m->shape.top_k;
    model->info.routed_bytes = keys * model->info.expert_bytes;
}

void tall_open(gpu_bench *b, const tall_shape *shape, uint32_t distinct, tall_model *out)
{
    *out = (tall_model){.shape = *shape, .distinct = distinct};
    out->model = small_pack(shape, distinct);
    const mp_pack_form *exph = &out->model->pack->forms[MOEPAGE_FORM_EXPH];
    const mp_pack_form *dense = &out->model->pack->forms[MOEPAGE_FORM_DENSE];
    out->expert_bytes = out->model->info.expert_bytes;
    out->exph_bytes = exph->image_bytes / distinct;
    out->dense_stride =
        distinct > 1 ? mp_pack_record_of(dense, 1).offset - mp_pack_record_of(dense, 0).offset
                     : out->expert_bytes;
    uint64_t first = mp_pack_record_of(dense, 0).offset;
    stretch(b, out);
    out->dense = out->hidden->pinned + first;
}

void tall_close(gpu_bench *b, tall_model *m)
{
    struct moepage_model *model = m->model;
    struct tall_hidden *kept = m->hidden;
    for (uint32_t f = 0; f < FORMS; f++) {
        mp_pack_form *form = &model->pack->forms[forms[f]];
        free(form->index);
        free((void *)form->checked);
        form->index = kept->index[f];
        form->checked = kept->checked[f];
    }
    free(model->layer_of_moe);
    model->layer_of_moe = kept->layer_of_moe;
    model->info = kept->info;
    gpu_free_pinned(b, kept->pinned);
    free(kept);
    gpu_must(moepage_model_close(m->model), "the model");
}
