/* Any bytes as a .moepack: opening never crashes, and after it every tensor by name and every expert
 * in every form is either read in full or refused. What is read is what the file holds in that
 * place; a slot is filled in full, and nothing beside it.
 *
 * Checksums keep a mutation of a file from reaching anything behind them, and pages of zeros make
 * files long. So an input that begins with 'S' stands for a file whose checksums are right whatever
 * it says:
 *
 *   'S', u8 which checksums to leave (SEAL_LEAVE_*), then any number of: u16 n and
 *       n below 0x8000: n bytes, and if n is 0, zeros to the next page
 *       n from 0x8000:  n - 0x8000 zeros
 *
 * Anything else is taken as it is. */
#include <stdlib.h>
#include <string.h>

#include "codec/exph.h"
#include "fuzz.h"
#include "model/gguf_values.h"
#include "model/model.h"
#include "seal.h"

enum {
    PAGE = 4096,
    ZEROS = 0x8000,
    MOST_FILE_BYTES = 64 * PAGE,
    MOST_SLOT_BYTES = 1 << 22,
    MOST_READS = 64,
    UNTOUCHED = 0xcd
};

/* ---- Experts ----------------------------------------------------------------------------- */

static void check_parts(const moepage_model *model, uint32_t layer, uint32_t expert, uint32_t form,
                        const mp_image *image, const unsigned char *bytes)
{
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_model_find_parts(model, layer, expert, form, parts);
    uint64_t end = 0;
    for (uint32_t i = 0; i < model->info.expert_tensors; i++) {
        const moepage_expert_tensor *tensor = &mp_model_layout(model, layer)->tensors[i];
        FUZZ_CHECK(parts[i].offset >= end && parts[i].offset % 16 == 0);
        end = parts[i].offset + parts[i].bytes;
        FUZZ_CHECK(end <= image->bytes && parts[i].bytes);
        FUZZ_CHECK(parts[i].form == form || parts[i].form == MOEPAGE_FORM_DENSE);
        if (parts[i].form == MOEPAGE_FORM_DENSE)
            FUZZ_CHECK(parts[i].bytes == tensor->bytes);
        fuzz_touch(bytes + parts[i].offset, parts[i].bytes);
    }
}

/* Reads one image into room of exactly the size that was asked for. */
static void check_image(const moepage_model *model, uint32_t layer, uint32_t expert, uint32_t form)
{
    uint64_t room = mp_model_image_room(model, form), read_bytes = 0;
    uint64_t pages = (room + PAGE - 1) / PAGE * PAGE;
    fuzz_fence buffer = fuzz_fence_make(pages);
    moepage_status status =
        mp_model_read_image(model, layer, expert, form, buffer.bytes, pages, &read_bytes);
    mp_image image;
    mp_model_find_image(model, layer, expert, form, &image);
    FUZZ_CHECK(image.skew <= pages && image.bytes <= pages - image.skew);
    if (status == MOEPAGE_OK) {
        const unsigned char *bytes = buffer.bytes + image.skew;
        FUZZ_CHECK(read_bytes > 0);
        for (int again = 0; image.stored && again < 2; again++) {
            fuzz_fence range = fuzz_fence_make(image.bytes);
            FUZZ_CHECK(
                !mp_model_read_stored(model, layer, expert, form, 0, image.bytes, range.bytes));
            FUZZ_CHECK(memcmp(range.bytes, bytes, image.bytes) == 0);
            fuzz_fence_free(&range);
        }
        if (form != MOEPAGE_FORM_DENSE)
            check_parts(model, layer, expert, form, &image, bytes);
    } else {
        fuzz_check_refusal(status);
    }
    if (image.stored)
        FUZZ_CHECK(mp_model_check_image(model, layer, expert, form) == status);
    FUZZ_CHECK(!image.stored ||
               mp_model_image_is_checked(model, layer, expert, form) == (status == MOEPAGE_OK));
    fuzz_fence_free(&buffer);
}

static void check_slot(const moepage_model *model, uint32_t layer, uint32_t expert)
{
    fuzz_fence slot = fuzz_fence_make(model->info.slot_bytes);
    FUZZ_CHECK(moepage_model_read_expert(model, layer, expert, slot.bytes, slot.n_bytes - 1) ==
               MOEPAGE_E_ARGUMENT);
    memset(slot.bytes, UNTOUCHED, slot.n_bytes);
    moepage_status status =
        moepage_model_read_expert(model, layer, expert, slot.bytes, slot.n_bytes);
    if (status)
        fuzz_check_refusal(status);
    for (size_t i = 0; status && i < slot.n_bytes; i++)
        FUZZ_CHECK(slot.bytes[i] == UNTOUCHED, "byte %zu of a failed read", i);
    if (!status)
        fuzz_touch(slot.bytes, slot.n_bytes);
    fuzz_accepted += status == MOEPAGE_OK;
    fuzz_fence_free(&slot);
}

static void check_experts(const moepage_model *model)
{
    const moepage_model_info *info = &model->info;
    uint64_t n = (uint64_t)info->moe_layers * info->experts;
    uint64_t step = n <= MOST_READS ? 1 : n / MOST_READS;
    for (uint64_t key = 0; key < n; key += step) {
        uint32_t layer = (uint32_t)(key / info->experts), expert = (uint32_t)(key % info->experts);
        for (uint32_t form = MOEPAGE_FORM_DENSE; form < MP_FORMS; form++)
            if (mp_model_has_form(model, form))
                check_image(model, layer, expert, form);
        check_slot(model, layer, expert);
    }
}

/* ---- The rest ---------------------------------------------------------------------------- */

static void check_forms(const moepage_model *model)
{
    bool lossless = false;
    for (uint32_t form = MOEPAGE_FORM_DENSE; form < MP_FORMS; form++) {
        moepage_form_info info = {.struct_size = sizeof info};
        FUZZ_CHECK(!moepage_model_get_form(model, form, &info));
        FUZZ_CHECK(info.form == form && info.present == mp_model_has_form(model, form));
        FUZZ_CHECK(info.most_bytes <= info.image_bytes);
        lossless |= info.present && form <= MOEPAGE_FORM_EXPH;
    }
    FUZZ_CHECK(lossless);
}

static void check_tensors(const moepage_model *model)
{
    char name[512], before[512] = "";
    uint64_t bytes = 0;
    moepage_status status = MOEPAGE_OK;
    for (uint64_t i = 0;; i++) {
        status = moepage_model_get_tensor_name(model, i, name, sizeof name);
        if (status == MOEPAGE_E_ARGUMENT)
            continue;
        if (status)
            break;
        FUZZ_CHECK(strcmp(before, name) < 0, "%s after %s", name, before);
        strcpy(before, name);
        moepage_tensor_view view = {.struct_size = sizeof view};
        status = moepage_model_find_tensor(model, name, &view);
        FUZZ_CHECK(status == MOEPAGE_OK || status == MOEPAGE_E_UNSUPPORTED, "status %d", status);
        if (status)
            continue;
        FUZZ_CHECK((uintptr_t)view.data % 16 == 0 && view.rank <= MOEPAGE_MAX_RANK);
        fuzz_touch(view.data, view.bytes);
        bytes += view.bytes;
    }
    FUZZ_CHECK(status == MOEPAGE_E_NOT_FOUND && bytes <= model->info.dense_bytes);
}

/* Every value lies within the section. */
static void check_metadata(const moepage_model *model)
{
    const mp_gguf_metadata *metadata = mp_model_metadata(model);
    for (uint64_t i = 0; metadata && i < metadata->n_values; i++) {
        const mp_gguf_value *value = &metadata->values[i];
        const uint64_t at = (uint64_t)(value->at - metadata->stored);
        FUZZ_CHECK(value->at >= metadata->stored && at <= metadata->stored_bytes);
        FUZZ_CHECK(value->n_bytes <= metadata->stored_bytes - at);
        fuzz_touch(value->at, value->n_bytes);
        FUZZ_CHECK(mp_gguf_metadata_find(metadata, value->key) == value);
    }
}

static void check_pack(const char *path)
{
    moepage_model *model = fuzz_open(path);
    if (!model)
        return;
    fuzz_check_model(model);
    check_forms(model);
    check_tensors(model);
    check_metadata(model);
    if (moepage_model_config_json(model))
        fuzz_touch(moepage_model_config_json(model), strlen(moepage_model_config_json(model)));
    if (model->info.slot_bytes <= MOST_SLOT_BYTES)
        check_experts(model);
    FUZZ_CHECK(!moepage_model_close(model));
}

/* ---- Input ------------------------------------------------------------------------------- */

/* The file, to be freed. It ends at a page. */
static uint8_t *spread(fuzz_input in, size_t *n_bytes)
{
    uint8_t *file = calloc(1, MOST_FILE_BYTES);
    size_t at = 0;
    FUZZ_CHECK(file);
    while (in.left > 2 && at < MOST_FILE_BYTES) {
        size_t n = fuzz_take(&in, 2), zeros = n >= ZEROS ? n - ZEROS : n ? 0 : PAGE - at % PAGE;
        if (n >= ZEROS)
            n = 0;
        n = n < in.left ? n : in.left;
        if (n + zeros > MOST_FILE_BYTES - at)
            break;
        memcpy(file + at, in.at, n);
        in.at += n;
        in.left -= n;
        at += n + zeros;
    }
    *n_bytes = (at + PAGE - 1) / PAGE * PAGE;
    return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || data[0] != 'S') {
        check_pack(fuzz_put("model.moepack", data, size));
        return 0;
    }
    size_t n_bytes;
    uint8_t *file = spread((fuzz_input){data + 2, size - 2}, &n_bytes);
    seal_pack(file, n_bytes, data[1]);
    const char *path = fuzz_put("model.moepack", file, n_bytes);
    free(file);
    check_pack(path);
    return 0;
}
