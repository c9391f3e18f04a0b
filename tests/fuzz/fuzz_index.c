/* Any bytes as model.safetensors.index.json, beside two shards: opening never crashes and reaches
 * for no file outside the directory, and a model that opens has every tensor where the index places
 * it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "model/shards.h"
#include "moe_maker.h"

#define NAME "model.safetensors.index.json"

/* The even tensors to one shard, the odd ones to the other. */
static void write_shards(void)
{
    static bool written;
    if (written)
        return;
    static const char *const names[] = {"a.safetensors", "b.safetensors"};
    moe_maker maker;
    moe_maker_init(&maker);
    fuzz_put("config.json", maker.config, strlen(maker.config));
    for (uint32_t s = 0; s < 2; s++) {
        maker_shard *shard = calloc(1, sizeof *shard);
        for (uint32_t t = s; t < maker.shard.n_tensors; t += 2) {
            const maker_tensor *tensor = &maker.shard.tensors[t];
            maker_add(shard, tensor->dtype, tensor->rank, tensor->shape, "%s", tensor->name);
        }
        maker_write_shard(shard, fuzz_dir(), names[s]);
        maker_shard_free(shard);
        free(shard);
    }
    moe_maker_free(&maker);
    written = true;
}

static void check_list(const mp_shards *shards)
{
    FUZZ_CHECK(shards->n_names >= 1);
    for (uint32_t i = 0; i < shards->n_names; i++) {
        const char *name = shards->names[i];
        FUZZ_CHECK(!strchr(name, '/') && strcmp(name, "..") != 0, "name %s", name);
        FUZZ_CHECK(i == 0 || strcmp(shards->names[i - 1], name) < 0, "name %s", name);
    }
}

static const mp_safetensors *file_of(const mp_checkpoint *checkpoint, const char *tensor)
{
    for (uint32_t f = 0; f < checkpoint->n_files; f++)
        for (uint64_t t = 0; t < checkpoint->files[f].n_tensors; t++)
            if (strcmp(checkpoint->files[f].tensors[t].name, tensor) == 0)
                return &checkpoint->files[f];
    return NULL;
}

static void check_placement(const mp_checkpoint *checkpoint, const uint8_t *data, size_t size)
{
    json_t *index = json_loadb((const char *)data, size, 0, NULL), *place;
    const char *tensor;
    FUZZ_CHECK(index);
    json_object_foreach(json_object_get(index, "weight_map"), tensor, place)
    {
        const mp_safetensors *file = file_of(checkpoint, tensor);
        FUZZ_CHECK(file && strcmp(file->file.name, json_string_value(place)) == 0, "tensor %s",
                   tensor);
    }
    json_decref(index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    write_shards();
    fuzz_put(NAME, data, size);
    mp_shards shards;
    moepage_status status = mp_shards_list(fuzz_dir(), &shards);
    if (status == MOEPAGE_OK) {
        check_list(&shards);
        mp_shards_free(&shards);
    } else {
        fuzz_check_refusal(status);
    }
    moepage_model *model = fuzz_open(fuzz_dir());
    if (!model)
        return 0;
    fuzz_accepted++;
    FUZZ_CHECK(status == MOEPAGE_OK, "a model of an index that is refused");
    fuzz_check_model(model);
    check_placement(model->checkpoint, data, size);
    FUZZ_CHECK(!moepage_model_close(model));
    return 0;
}
