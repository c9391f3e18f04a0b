/* The files that hold the experts of a model which the caller describes. */
#include "model/bank_files.h"

#include "base/alloc.h"
#include "base/status.h"
#include "model/file.h"
#include "model/slot.h"

struct mp_bank_files {
    uint32_t n;
    mp_model_file at[];
};

void mp_bank_files_close(struct mp_bank_files *files)
{
    if (!files)
        return;
    for (uint32_t i = 0; i < files->n; i++)
        mp_model_file_close(&files->at[i]);
    mp_free(files);
}

static moepage_status open_files(struct mp_bank_files *files, const moepage_banks *banks)
{
    for (; files->n < banks->n_files; files->n++) {
        const char *path = banks->files[files->n];
        if (!path)
            return mp_fail(MOEPAGE_E_ARGUMENT, "files[%u] is NULL", files->n);
        moepage_status status = mp_model_file_open(path, &files->at[files->n]);
        if (status)
            return mp_path_fail_within(status, path);
        status = mp_direct_open(path, &files->at[files->n]);
        if (status) {
            mp_model_file_close(&files->at[files->n]);
            return status;
        }
    }
    return MOEPAGE_OK;
}

/* Checks a tensor's place, and says where it is. */
static moepage_status find(const struct mp_bank_files *files, const moepage_file_place *place,
                           uint64_t bytes, mp_file_span *out)
{
    if (place->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "reserved is %u, it must be 0", place->reserved);
    if (place->file >= files->n)
        return mp_fail(MOEPAGE_E_ARGUMENT, "it lies in file %u of %u", place->file, files->n);
    const mp_model_file *file = &files->at[place->file];
    if (place->offset > file->bytes || bytes > file->bytes - place->offset)
        return mp_fail(MOEPAGE_E_FORMAT, "its %llu bytes at %llu do not fit %.160s, which has %llu",
                       (unsigned long long)bytes, (unsigned long long)place->offset, file->name,
                       (unsigned long long)file->bytes);
    *out = (mp_file_span){file, place->offset};
    return MOEPAGE_OK;
}

static moepage_status find_all(struct moepage_model *model, const moepage_file_place *places)
{
    const uint32_t n = model->info.expert_tensors;
    for (uint32_t layer = 0; layer < model->info.moe_layers; layer++)
        for (uint32_t e = 0; e < model->info.experts; e++)
            for (uint32_t t = 0; t < n; t++) {
                const uint64_t place = mp_model_source_index(model, layer, e) + t;
                moepage_status status = find(model->bank_files, &places[place],
                                             mp_model_layout(model, layer)->tensors[t].bytes,
                                             mp_model_spans(model, layer, e) + t);
                if (status)
                    return mp_fail_within(status, "layer %u, expert %u, tensor %u", layer, e, t);
            }
    return MOEPAGE_OK;
}

moepage_status mp_bank_files_open(struct moepage_model *model, const moepage_banks *banks)
{
    struct mp_bank_files *files =
        mp_alloc(sizeof *files + (uint64_t)banks->n_files * sizeof *files->at);
    if (!files)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u files", banks->n_files);
    model->bank_files = files;
    moepage_status status = open_files(files, banks);
    if (!status)
        status = mp_slot_alloc_spans(model);
    return status ? status : find_all(model, banks->places);
}
