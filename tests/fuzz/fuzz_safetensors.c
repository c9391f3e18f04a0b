/* Any bytes as model.safetensors, beside a config.json that would accept the right ones: opening
 * never crashes and asks for no unreasonable memory, and after it succeeds the tensors fill the
 * file's data section exactly, each as large as its shape. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "moe_maker.h"

#define NAME "model.safetensors"

static void check_size(const mp_tensor *tensor)
{
    unsigned __int128 bits = tensor->type->bits;
    for (uint32_t i = 0; i < tensor->rank && i < MOEPAGE_MAX_RANK; i++)
        bits *= tensor->shape[i];
    if (tensor->rank <= MOEPAGE_MAX_RANK)
        FUZZ_CHECK(bits == (unsigned __int128)tensor->bytes * 8, "tensor %s", tensor->name);
}

/* Paints every tensor over the data section: each byte must be painted once. */
static void check_places(const mp_safetensors *file, const uint8_t *data, size_t size)
{
    FUZZ_CHECK(file->file.bytes == size && size >= 8);
    uint64_t header = 0;
    memcpy(&header, data, sizeof header);
    FUZZ_CHECK(header <= size - 8);
    const uint64_t first = 8 + header;
    size_t n = size - 8 - header;
    unsigned char *painted = calloc(n + 1, 1);
    for (uint64_t t = 0; t < file->n_tensors; t++) {
        const mp_tensor *tensor = &file->tensors[t];
        FUZZ_CHECK(tensor->offset >= first && tensor->bytes <= n);
        FUZZ_CHECK(tensor->offset - first <= n - tensor->bytes);
        check_size(tensor);
        for (uint64_t i = 0; i < tensor->bytes; i++)
            FUZZ_CHECK(!painted[tensor->offset - first + i]++, "tensor %s overlaps", tensor->name);
    }
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK(painted[i], "byte %zu of the data belongs to no tensor", i);
    free(painted);
}

static void check_views(const moepage_model *model, const uint8_t *data)
{
    const mp_checkpoint *checkpoint = model->checkpoint;
    for (uint64_t t = 0; t < checkpoint->n_tensors; t++) {
        const mp_tensor *tensor = checkpoint->tensors[t];
        moepage_tensor_view view = {.struct_size = sizeof view};
        moepage_status status = moepage_model_find_tensor(model, tensor->name, &view);
        if (tensor->type->dtype == MOEPAGE_DTYPE_NONE || tensor->rank > MOEPAGE_MAX_RANK) {
            FUZZ_CHECK(status == MOEPAGE_E_UNSUPPORTED);
            continue;
        }
        FUZZ_CHECK(!status && view.bytes == tensor->bytes && view.rank == tensor->rank);
        FUZZ_CHECK((uintptr_t)view.data % mp_dtype_bytes(view.dtype) == 0);
        FUZZ_CHECK(memcmp(view.data, data + tensor->offset, view.bytes) == 0);
    }
}

static void check_experts(const moepage_model *model, size_t size)
{
    FUZZ_CHECK(model->checkpoint->n_files == 1 && model->checkpoint->files[0].file.bytes == size);
    uint64_t n = (uint64_t)model->info.moe_layers * model->info.experts;
    for (uint64_t i = 0; i < n * model->n_pieces; i++) {
        const mp_piece *piece = &model->layouts[0].pieces[i % model->n_pieces];
        const mp_file_span *spans =
            model->spans + i / model->n_pieces * model->n_spans + piece->span;
        for (uint32_t s = 0; s < (piece->how.kind ? piece->how.n_sources : 1); s++) {
            const mp_repack_source *source = &piece->how.sources[s];
            uint64_t bytes = piece->how.kind ? source->rows * source->row_bytes : piece->bytes;
            FUZZ_CHECK(bytes <= size && spans[s].offset <= size - bytes);
        }
    }
}

static void write_config(void)
{
    static bool written;
    if (written)
        return;
    moe_maker maker;
    moe_maker_init(&maker);
    fuzz_put("config.json", maker.config, strlen(maker.config));
    moe_maker_free(&maker);
    written = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    write_config();
    mp_safetensors file;
    moepage_status status = mp_safetensors_open(fuzz_put(NAME, data, size), &file);
    if (status == MOEPAGE_OK) {
        check_places(&file, data, size);
        mp_safetensors_close(&file);
    } else {
        fuzz_check_refusal(status);
    }
    moepage_model *model = fuzz_open(fuzz_dir());
    if (!model)
        return 0;
    fuzz_accepted++;
    FUZZ_CHECK(status == MOEPAGE_OK, "a model of a file that is refused");
    fuzz_check_model(model);
    check_experts(model, size);
    check_views(model, data);
    FUZZ_CHECK(!moepage_model_close(model));
    return 0;
}
