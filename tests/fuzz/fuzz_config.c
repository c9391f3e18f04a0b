/* Any bytes as config.json, beside a good model.safetensors: opening never crashes, and a model
 * that opens agrees with itself and with the file. */
#include <string.h>

#include "fuzz.h"
#include "model/model.h"
#include "moe_maker.h"

static void write_weights(void)
{
    static bool written;
    if (written)
        return;
    moe_maker maker;
    moe_maker_init(&maker);
    maker_write_shard(&maker.shard, fuzz_dir(), "model.safetensors");
    moe_maker_free(&maker);
    written = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    write_weights();
    fuzz_put("config.json", data, size);
    moepage_model *model = fuzz_open(fuzz_dir());
    if (!model)
        return 0;
    fuzz_accepted++;
    fuzz_check_model(model);
    const char *text = moepage_model_config_json(model);
    FUZZ_CHECK(text && strlen(text) == size && memcmp(text, data, size) == 0);
    /* The weights beside it are of one size: no other claim can be true. */
    moepage_model_info info = {.struct_size = sizeof info};
    FUZZ_CHECK(!moepage_model_get_info(model, &info));
    FUZZ_CHECK(info.hidden == MOE_HIDDEN && info.expert_intermediate == MOE_INTERMEDIATE);
    FUZZ_CHECK(info.experts == MOE_EXPERTS && info.moe_layers <= MOE_LAYERS);
    FUZZ_CHECK(!moepage_model_close(model));
    return 0;
}
