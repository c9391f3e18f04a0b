/* Any bytes as a .gguf file, beside a good second part of a split model: opening never crashes and
 * asks for no unreasonable memory, and after it succeeds every value and every tensor lies inside the
 * file, no two tensors overlap, and each is as large as its type and dimensions. In a model that
 * opens, every expert can be read, unless it is computed with a scale that lies; and experts, dense tensors and
 * the scales of either together are all tensors. */
#include <string.h>

#include "fuzz.h"
#include "gguf_sound.h"
#include "gguf_writer.h"
#include "model/dtype.h"
#include "model/model.h"

#define NAME "model-00001-of-00002.gguf"
#define SECOND "model-00002-of-00002.gguf"

/* One tensor of two that the model has. */
static void write_second(void)
{
    static bool written;
    static gguf_writer w;
    if (written)
        return;
    gguf_init(&w);
    gguf_u16(&w, "split.no", 1);
    gguf_u16(&w, "split.count", 2);
    gguf_u32(&w, "split.tensors.count", 2);
    gguf_tensor(&w, GGML_F32, 1, (const uint64_t[]){8}, "second");
    gguf_write(&w, fuzz_dir(), SECOND);
    gguf_free(&w);
    written = true;
}

/* What is computed may be refused, when it is read. */
static void check_read(moepage_status status, bool is_computed)
{
    FUZZ_CHECK(!status || (is_computed && status == MOEPAGE_E_FORMAT && moepage_last_error()[0]));
}

/* Every expert lies within the tensors that are marked as routed, which no dense tensor is. */
static void check_experts(const moepage_model *model)
{
    uint64_t routed = 0, dense = 0, stored = 0;
    mp_dense_tensor tensor;
    for (uint64_t i = 0; i < model->gguf->n_tensors; i++) {
        stored += gguf_stored_bytes(model->gguf->tensors[i]);
        if (model->gguf->tensors[i]->routed)
            routed += model->gguf->tensors[i]->bytes;
    }
    FUZZ_CHECK(routed == model->info.routed_bytes && stored == model->gguf->tensor_bytes);
    for (uint64_t i = 0; mp_model_dense_at(model, i, &tensor); i++) {
        fuzz_fence bytes = fuzz_fence_make(tensor.bytes);
        check_read(mp_dense_read(&tensor, bytes.bytes), tensor.computed);
        fuzz_fence_free(&bytes);
        dense += tensor.bytes;
    }
    FUZZ_CHECK(dense == model->info.dense_bytes);
    uint64_t room = mp_model_image_room(model, MOEPAGE_FORM_DENSE), bytes;
    fuzz_fence image = fuzz_fence_make(room);
    for (uint32_t layer = 0; layer < model->info.moe_layers; layer++)
        for (uint32_t expert = 0; expert < model->info.experts; expert++)
            check_read(mp_model_read_image(model, layer, expert, MOEPAGE_FORM_DENSE, image.bytes,
                                           room, &bytes),
                       model->gguf->n_computed);
    fuzz_fence_free(&image);
}

static void check_views(const moepage_model *model)
{
    for (uint64_t i = 0; i < model->gguf->n_tensors; i++) {
        const mp_gguf_tensor *tensor = model->gguf->tensors[i];
        moepage_tensor_view view = {.struct_size = sizeof view};
        moepage_status status = moepage_model_find_tensor(model, tensor->name, &view);
        if (tensor->dtype == MOEPAGE_DTYPE_NONE) {
            FUZZ_CHECK(status == MOEPAGE_E_UNSUPPORTED);
            continue;
        }
        check_read(status, tensor->computed);
        if (status)
            continue;
        FUZZ_CHECK(view.bytes == tensor->bytes);
        fuzz_touch(view.data, view.bytes);
        FUZZ_CHECK((uintptr_t)view.data % mp_dtype_align(view.dtype) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    write_second();
    mp_gguf *gguf = NULL;
    const char *path = fuzz_put(NAME, data, size);
    moepage_status status = mp_gguf_open(path, &gguf);
    if (status == MOEPAGE_OK) {
        const char *wrong = gguf_unsound(gguf);
        FUZZ_CHECK(!wrong, "%s", wrong);
        mp_gguf_close(gguf);
    } else {
        fuzz_check_refusal(status);
        FUZZ_CHECK(!gguf);
    }
    if (size < 4 || memcmp(data, "GGUF", 4) != 0)
        return 0; /* it would be opened as a pack */
    moepage_model *model = fuzz_open(path);
    if (!model)
        return 0;
    fuzz_accepted++;
    FUZZ_CHECK(status == MOEPAGE_OK, "a model of a file that is refused");
    fuzz_check_model(model);
    check_experts(model);
    check_views(model);
    FUZZ_CHECK(!moepage_model_close(model));
    return 0;
}
