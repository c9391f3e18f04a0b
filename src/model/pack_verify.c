/* Reads a written .moepack file back: compares every tensor, and every expert in every form, with
 * the model that it was made from. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/bounce.h"
#include "model/pack.h"
#include "model/pack_encode.h"

typedef struct verification {
    const struct moepage_model *model, *written;
    mp_pack_encoder encoder;
    uint32_t form;
    uint64_t first; /* key of part 0's expert */
    mp_pack_failure failure;
} verification;

/* The memory for comparing one expert. */
typedef struct desk {
    mp_bounce item, image, slot;
    mp_pack_encoded encoded;
} desk;

static void desk_free(desk *d)
{
    mp_bounce_free(&d->item);
    mp_bounce_free(&d->image);
    mp_bounce_free(&d->slot);
}

static moepage_status desk_alloc(const verification *v, desk *d)
{
    const mp_pack_encoder *e = &v->encoder;
    uint64_t out_at = mp_pack_round_up(e->source_bytes, MP_PACK_RECORD_ALIGN);
    if (!mp_bounce_alloc(out_at + e->out_bytes + e->scratch_bytes, &d->item) ||
        !mp_bounce_alloc(mp_model_image_room(v->written, v->form), &d->image) ||
        !mp_bounce_alloc(v->model->info.slot_bytes, &d->slot))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to compare an expert of %llu bytes",
                       (unsigned long long)v->model->info.expert_bytes);
    d->encoded.source = d->item.bytes;
    d->encoded.out = d->item.bytes + out_at;
    d->encoded.scratch = d->encoded.out + e->out_bytes;
    return MOEPAGE_OK;
}

/* Compares one expert: lossless forms must give the model's own bytes; for an integer form,
 * quantising again must give the same integers. */
static moepage_status compare(const verification *v, uint32_t layer, uint32_t expert, desk *d,
                              bool *same)
{
    const struct moepage_model *written = v->written;
    mp_image image;
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    uint64_t read_bytes, n = mp_model_layout(v->model, layer)->slot_bytes;
    moepage_status status =
        mp_pack_encode_read(v->model, layer, expert, v->encoder.source_bytes, &d->encoded);
    if (!status)
        status = mp_model_read_image(written, layer, expert, v->form, d->image.bytes,
                                     mp_model_image_room(written, v->form), &read_bytes);
    if (status)
        return status;
    mp_model_find_image(written, layer, expert, v->form, &image);
    const unsigned char *got = d->image.bytes + image.skew, *right = d->encoded.slot;
    if (v->form == MOEPAGE_FORM_EXPH) {
        mp_model_find_parts(written, layer, expert, v->form, parts);
        mp_pack_decode_exph(written, layer, parts, got, d->slot.bytes);
        got = d->slot.bytes;
    } else if (v->form != MOEPAGE_FORM_DENSE) {
        status = mp_pack_encode(&v->encoder, &d->encoded);
        right = d->encoded.record;
        n = d->encoded.bytes;
        *same = n == image.bytes;
        if (status || !*same)
            return status;
    }
    *same = memcmp(got, right, n) == 0;
    return MOEPAGE_OK;
}

static void verify_expert(void *context, uint32_t part, uint32_t n_parts)
{
    (void)n_parts;
    verification *v = context;
    uint64_t key = v->first + part;
    uint32_t layer = (uint32_t)(key / v->model->info.experts);
    uint32_t expert = (uint32_t)(key % v->model->info.experts);
    if (mp_pack_failed(&v->failure))
        return;
    desk d = {0};
    bool same = true;
    moepage_status status = desk_alloc(v, &d);
    if (!status)
        status = compare(v, layer, expert, &d, &same);
    if (!status && !same)
        status = mp_fail(MOEPAGE_E_IO, "section %s: layer %u, expert %u is not the model's",
                         mp_pack_section_name(MP_PACK_EXPERT_DATA, v->form).text, layer, expert);
    if (status)
        mp_pack_failure_keep(&v->failure, status);
    desk_free(&d);
}

static moepage_status verify_form(const struct moepage_model *model,
                                  const struct moepage_model *written,
                                  const mp_pack_options *options, uint32_t form,
                                  mp_pack_progress *progress)
{
    verification v = {.model = model, .written = written, .form = form};
    moepage_status status = mp_pack_encoder_init(model, options, form, &v.encoder);
    uint64_t n = (uint64_t)model->info.moe_layers * model->info.experts;
    uint64_t most = (uint64_t)options->threads * 16;
    for (; !status && v.first < n; v.first += most) {
        uint32_t parts = (uint32_t)(n - v.first < most ? n - v.first : most);
        options->run(options->run_user, verify_expert, &v, parts);
        status = mp_pack_failure_raise(&v.failure);
        if (!status)
            status = mp_pack_progress_add(progress, mp_pack_experts_bytes(model, v.first, parts));
    }
    return status;
}

static bool same_shape(const mp_dense_tensor *a, const mp_dense_tensor *b)
{
    return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0 && a->bytes == b->bytes;
}

/* Reads both and compares them. */
static moepage_status compare_tensors(const mp_dense_tensor *a, const mp_dense_tensor *b)
{
    void *mine = mp_realloc(NULL, a->bytes), *written = mp_realloc(NULL, b->bytes);
    moepage_status status = MOEPAGE_OK;
    if (!mine || !written)
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to compare tensor \"%.160s\"", a->name);
    if (!status)
        status = mp_dense_read(a, mine);
    if (!status)
        status = mp_dense_read(b, written);
    if (!status && memcmp(mine, written, a->bytes) != 0)
        status = mp_fail(MOEPAGE_E_IO, "section DENSE DATA: tensor \"%.160s\" is not the model's",
                         a->name);
    mp_free(mine);
    mp_free(written);
    return status;
}

static moepage_status verify_dense(const struct moepage_model *model,
                                   const struct moepage_model *written)
{
    mp_dense_tensor a, b;
    moepage_status status = MOEPAGE_OK;
    for (uint64_t i = 0; !status && mp_model_dense_at(model, i, &a); i++) {
        if (!mp_model_dense_at(written, i, &b) || !same_shape(&a, &b))
            status = mp_fail(MOEPAGE_E_IO,
                             "section DENSE DATA: tensor \"%.160s\" is not the model's", a.name);
        else
            status = compare_tensors(&a, &b);
    }
    return status;
}

static moepage_status verify_metadata(const struct moepage_model *model,
                                      const struct moepage_model *written)
{
    const mp_gguf_metadata *a = mp_model_metadata(model), *b = mp_model_metadata(written);
    if (!a == !b && (!a || (a->stored_bytes == b->stored_bytes &&
                            memcmp(a->stored, b->stored, a->stored_bytes) == 0)))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_IO, "section METADATA is not the model's");
}

moepage_status mp_pack_verify(const struct moepage_model *model,
                              const struct moepage_model *written, const mp_pack_options *options,
                              mp_pack_progress *progress)
{
    moepage_status status = verify_metadata(model, written);
    if (!status)
        status = verify_dense(model, written);
    for (uint32_t form = MOEPAGE_FORM_DENSE; !status && form < MP_FORMS; form++)
        if (options->forms & 1u << form)
            status = verify_form(model, written, options, form, progress);
    return status;
}
