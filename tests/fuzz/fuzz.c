/* Helpers of the fuzz targets. */
#include "fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BEFORE 0xa5 /* what lies before a fence's first byte */

unsigned fuzz_accepted;

_Noreturn void fuzz_fail(const char *file, int line, const char *claim, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: does not hold: %s:", file, line, claim);
    vfprintf(stderr, format, args);
    fprintf(stderr, " (last error: %s)\n", moepage_last_error());
    va_end(args);
    abort();
}

/* ---- Files ------------------------------------------------------------------------------- */

static char dir[64];

static void remove_dir(void)
{
    maker_dir_remove(dir);
}

const char *fuzz_dir(void)
{
    if (!dir[0]) {
        maker_dir_create(dir);
        atexit(remove_dir);
    }
    return dir;
}

const char *fuzz_put(const char *name, const void *bytes, size_t n_bytes)
{
    static char path[256];
    maker_write(fuzz_dir(), name, bytes, n_bytes);
    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    return path;
}

/* ---- Models ------------------------------------------------------------------------------ */

void fuzz_check_refusal(moepage_status status)
{
    /* Not NO_MEMORY: no claim in a small file may be taken at its word. */
    FUZZ_CHECK(status == MOEPAGE_E_FORMAT || status == MOEPAGE_E_UNSUPPORTED ||
                   status == MOEPAGE_E_VERSION || status == MOEPAGE_E_NOT_FOUND,
               "status %d", status);
    FUZZ_CHECK(strlen(moepage_last_error()) > 10);
}

moepage_model *fuzz_open(const char *path)
{
    moepage_model *model = NULL;
    moepage_status status = moepage_model_open(path, NULL, &model);
    if (status == MOEPAGE_OK) {
        FUZZ_CHECK(model);
        return model;
    }
    fuzz_check_refusal(status);
    FUZZ_CHECK(!model);
    return NULL;
}

void fuzz_touch(const void *bytes, uint64_t n_bytes)
{
    const unsigned char *at = bytes;
    volatile unsigned char sum = 0;
    for (uint64_t i = 0; i < n_bytes; i++)
        sum = (unsigned char)(sum ^ at[i]);
}

static void check_layers(const moepage_model *model, const moepage_model_info *info)
{
    FUZZ_CHECK(info->moe_layers >= 1 && info->moe_layers <= info->layers);
    int32_t before = -1;
    for (uint32_t i = 0; i < info->moe_layers; i++) {
        int32_t layer = moepage_model_layer_index(model, i);
        FUZZ_CHECK(layer > before && (uint32_t)layer < info->layers, "layer %d", layer);
        before = layer;
    }
    FUZZ_CHECK(moepage_model_layer_index(model, info->moe_layers) == -1);
}

/* The tensors of a layer's slots: inside them, each behind the one before. Returns their bytes. */
static uint64_t check_slot(const moepage_model *model, const moepage_model_info *info,
                           uint32_t layer)
{
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    FUZZ_CHECK(!moepage_model_get_layer_tensors(model, layer, tensors, info->expert_tensors));
    uint64_t filled = 0, bytes = 0;
    for (uint32_t i = 0; i < info->expert_tensors; i++) {
        const moepage_expert_tensor *tensor = &tensors[i];
        FUZZ_CHECK(tensor->rank >= 1 && tensor->rank <= MOEPAGE_MAX_RANK);
        FUZZ_CHECK(tensor->bytes >= 1 && tensor->offset >= filled);
        FUZZ_CHECK(tensor->offset <= info->slot_bytes &&
                   tensor->bytes <= info->slot_bytes - tensor->offset);
        filled = tensor->offset + tensor->bytes;
        bytes += tensor->bytes;
    }
    return bytes;
}

static void check_slots(const moepage_model *model, const moepage_model_info *info)
{
    uint64_t most = 0, total = 0;
    FUZZ_CHECK(info->expert_tensors >= 1 && info->expert_tensors <= MOEPAGE_MAX_EXPERT_TENSORS);
    FUZZ_CHECK(info->layouts >= 1 && info->layouts <= info->moe_layers);
    for (uint32_t layer = 0; layer < info->moe_layers; layer++) {
        uint64_t bytes = check_slot(model, info, layer);
        most = bytes > most ? bytes : most;
        total += bytes * info->experts;
    }
    FUZZ_CHECK(most == info->expert_bytes && total == info->routed_bytes);
}

void fuzz_check_model(const moepage_model *model)
{
    moepage_model_info info = {.struct_size = sizeof info};
    FUZZ_CHECK(!moepage_model_get_info(model, &info));
    FUZZ_CHECK(info.experts >= 1 && info.top_k >= 1 && info.top_k <= info.experts);
    FUZZ_CHECK(info.hidden >= 1 && info.expert_intermediate >= 1);
    FUZZ_CHECK(info.architecture && info.architecture[0]);
    check_layers(model, &info);
    check_slots(model, &info);
    moepage_tensor_view view = {.struct_size = sizeof view};
    FUZZ_CHECK(moepage_model_find_tensor(model, "no.such.tensor.", &view) == MOEPAGE_E_NOT_FOUND);
}

/* ---- Fences ------------------------------------------------------------------------------ */

fuzz_fence fuzz_fence_make(size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (n_bytes / page + 1) * page; /* at least one byte before the first */
    fuzz_fence fence = {.n_bytes = n_bytes, .map_bytes = inner + page};
    fence.map =
        mmap(NULL, fence.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FUZZ_CHECK(fence.map != MAP_FAILED && !mprotect(fence.map + inner, page, PROT_NONE));
    fence.bytes = fence.map + inner - n_bytes;
    memset(fence.map, BEFORE, inner - n_bytes);
    return fence;
}

fuzz_fence fuzz_fence_copy(const void *bytes, size_t n_bytes)
{
    fuzz_fence fence = fuzz_fence_make(n_bytes);
    if (n_bytes)
        memcpy(fence.bytes, bytes, n_bytes);
    return fence;
}

void fuzz_fence_free(fuzz_fence *fence)
{
    for (const unsigned char *at = fence->map; at < fence->bytes; at++)
        FUZZ_CHECK(*at == BEFORE, "written %td bytes before the first", fence->bytes - at);
    munmap(fence->map, fence->map_bytes);
    fence->map = fence->bytes = NULL;
}

/* ---- Input ------------------------------------------------------------------------------- */

uint64_t fuzz_take(fuzz_input *in, unsigned n_bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < n_bytes && in->left; i++, in->left--)
        value |= (uint64_t)*in->at++ << (8 * i);
    return value;
}
