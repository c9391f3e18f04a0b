/* Any bytes as config.json and model.safetensors of 4-bit weights, integers or floats: opening never crashes, and of
 * a model that opens every matrix is computed in full or refused with a sentence; ranges of it are those of the
 * whole.
 *
 * The input is the length of config.json in two bytes, config.json, and model.safetensors. */
#include <string.h>

#include "fuzz.h"
#include "model/checkpoint.h"
#include "model/model.h"

/* What a part that lies may be refused with, when it is read. */
static void check_failure(moepage_status status)
{
    FUZZ_CHECK(status == MOEPAGE_E_FORMAT && moepage_last_error()[0], "status %d", status);
}

static void check_piece(const moepage_model *model, uint32_t layer, uint32_t expert, uint32_t piece,
                        uint64_t random)
{
    const uint64_t bytes = model->layouts[0].pieces[piece].bytes;
    fuzz_fence whole = fuzz_fence_make(bytes);
    moepage_status status = mp_model_read_piece(model, layer, expert, piece, 0, bytes, whole.bytes);
    if (status) {
        check_failure(status);
        fuzz_fence_free(&whole);
        return;
    }
    const uint64_t from = random % bytes, n = random / 7 % (bytes - from) + 1;
    fuzz_fence part = fuzz_fence_make(n);
    FUZZ_CHECK(!mp_model_read_piece(model, layer, expert, piece, from, n, part.bytes));
    FUZZ_CHECK(memcmp(part.bytes, whole.bytes + from, n) == 0);
    fuzz_fence_free(&part);
    fuzz_fence_free(&whole);
}

static void check_dense(const moepage_model *model)
{
    const mp_checkpoint *checkpoint = model->checkpoint;
    for (uint64_t i = 0; i < checkpoint->n_dense; i++) {
        const mp_tensor *tensor = checkpoint->dense[i];
        moepage_tensor_view view = {.struct_size = sizeof view};
        moepage_status status = moepage_model_find_tensor(model, tensor->name, &view);
        if (!status)
            fuzz_touch(view.data, view.bytes);
        else if (tensor->computed)
            check_failure(status);
        else
            FUZZ_CHECK(status == MOEPAGE_E_UNSUPPORTED);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    uint64_t n = fuzz_take(&in, 2);
    n = n < in.left ? n : in.left;
    fuzz_put("config.json", in.at, n);
    fuzz_put("model.safetensors", in.at + n, in.left - n);
    moepage_model *model = fuzz_open(fuzz_dir());
    if (!model)
        return 0;
    fuzz_accepted++;
    fuzz_check_model(model);
    for (uint32_t layer = 0; layer < model->info.moe_layers; layer++)
        for (uint32_t expert = 0; expert < model->info.experts; expert++)
            for (uint32_t piece = 0; piece < model->n_pieces; piece++)
                check_piece(model, layer, expert, piece,
                            (layer + 3 * expert + 5 * piece + 1) * 2654435761u);
    check_dense(model);
    FUZZ_CHECK(!moepage_model_close(model));
    return 0;
}
