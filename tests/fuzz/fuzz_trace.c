/* Any bytes as a trace file: reading never crashes, every step that is handed out is within the
 * limits of the format and of the file's own header, and a failure is final.
 *
 * Checksums keep a mutation of a file from reaching anything behind them. So an input that begins
 * with 'S' stands for a file whose checksums are right whatever it says:
 *
 *   'S', u8 records per frame (0: all in one), 120 bytes of header without its checksum, records
 *
 * It is compressed and sealed as docs/format-trace.md says. Anything else is taken as it is. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

#include "fuzz.h"

/* A frame of the smallest record, 4 bytes, is less than 32 times as large. */
enum { HEADER = 120, FRAME_HEAD = 24, MOST_GROWTH = 32, FIXED_ROOM = 1024 };

/* A file being put together. */
typedef struct sealed {
    uint8_t *bytes;
    size_t n_bytes;
    uint64_t chain, steps;
} sealed;

static void put(sealed *file, uint64_t value, unsigned n_bytes)
{
    memcpy(file->bytes + file->n_bytes, &value, n_bytes);
    file->n_bytes += n_bytes;
}

static uint64_t seal(sealed *file, size_t from)
{
    uint64_t checksum = XXH3_64bits(file->bytes + from, file->n_bytes - from);
    put(file, checksum, 8);
    return checksum;
}

static void fold(sealed *file, uint64_t checksum)
{
    file->chain = XXH3_64bits_withSeed(&checksum, 8, file->chain);
}

/* Bytes of the first n records, as far as their sizes can be followed; *count is how many. */
static size_t measure(const uint8_t *records, size_t size, unsigned n, uint32_t *count)
{
    size_t at = 0;
    for (*count = 0; at < size && (!n || *count < n); ++*count) {
        uint32_t bytes = 0;
        memcpy(&bytes, records + at, size - at < 4 ? size - at : 4);
        at = bytes < 4 || bytes > size - at ? size : at + bytes;
    }
    return at;
}

static void put_frame(sealed *file, const uint8_t *records, size_t size, uint32_t count)
{
    size_t from = file->n_bytes, room = ZSTD_compressBound(size);
    size_t packed = ZSTD_compress(file->bytes + from + FRAME_HEAD, room, records, size, 1);
    FUZZ_CHECK(!ZSTD_isError(packed));
    put(file, 0x4d52464d, 4);
    put(file, packed, 4);
    put(file, size, 4);
    put(file, count, 4);
    put(file, file->steps, 8);
    file->n_bytes += packed;
    fold(file, seal(file, from));
    file->steps += count;
}

static sealed make_file(fuzz_input in)
{
    sealed file = {0};
    unsigned per_frame = (unsigned)fuzz_take(&in, 1);
    file.bytes = calloc(1, in.left * MOST_GROWTH + FIXED_ROOM);
    FUZZ_CHECK(file.bytes);
    for (int i = 0; i < HEADER; i++)
        put(&file, fuzz_take(&in, 1), 1);
    seal(&file, 0);
    fold(&file, XXH3_64bits(file.bytes, file.n_bytes));
    while (in.left) {
        uint32_t count;
        size_t size = measure(in.at, in.left, per_frame, &count);
        put_frame(&file, in.at, size, count);
        in.at += size;
        in.left -= size;
    }
    size_t from = file.n_bytes;
    put(&file, 0x444e454d, 8);
    put(&file, file.steps, 8);
    put(&file, file.chain, 8);
    seal(&file, from);
    return file;
}

/* ---- What a step must be ----------------------------------------------------------------- */

static void check_sequences(const moepage_trace_step *step)
{
    uint64_t tokens = 0;
    FUZZ_CHECK(step->n_sequences >= 1 && step->sequences);
    for (uint32_t s = 0; s < step->n_sequences; s++) {
        FUZZ_CHECK(step->sequences[s].phase <= MOEPAGE_PHASE_PREFILL);
        tokens += step->sequences[s].n_tokens;
    }
    FUZZ_CHECK(tokens == step->n_tokens);
}

static void check_layers(const moepage_trace_info *info, const moepage_trace_step *step)
{
    uint64_t per_layer = (uint64_t)step->n_tokens * step->top_k;
    for (uint64_t l = 0; l < info->moe_layers; l++) {
        FUZZ_CHECK(step->layer_present[l] <= 1);
        for (uint64_t i = l * per_layer; i < (l + 1) * per_layer; i++) {
            int32_t id = step->ids[i];
            FUZZ_CHECK(id >= MOEPAGE_NO_EXPERT && id < (int64_t)info->experts, "id %d", id);
            FUZZ_CHECK(step->layer_present[l] ||
                       (id == MOEPAGE_NO_EXPERT && step->weights[i] == 0));
        }
    }
    fuzz_touch(step->weights, info->moe_layers * per_layer * sizeof(float));
}

static void check_step(const moepage_trace_info *info, const moepage_trace_step *step, uint64_t n)
{
    FUZZ_CHECK(step->step == n && step->n_tokens >= 1 && step->top_k <= info->max_top_k);
    check_sequences(step);
    check_layers(info, step);
    FUZZ_CHECK(info->has_probabilities || !step->probabilities);
    FUZZ_CHECK(info->semantic_dim || !step->semantic);
    if (step->probabilities)
        fuzz_touch(step->probabilities, 4ull * info->moe_layers * step->n_tokens * info->experts);
    if (step->semantic)
        fuzz_touch(step->semantic, 4ull * step->n_sequences * info->semantic_dim);
}

static void read_trace(const char *path)
{
    moepage_trace *trace = NULL;
    moepage_trace_info info = {.struct_size = sizeof info};
    moepage_status status = moepage_trace_open(path, &trace);
    if (status) {
        fuzz_check_refusal(status);
        FUZZ_CHECK(!trace);
        return;
    }
    FUZZ_CHECK(!moepage_trace_get_info(trace, &info));
    FUZZ_CHECK(info.moe_layers >= 1 && info.experts >= 1 && info.max_top_k >= 1);
    FUZZ_CHECK(memchr(info.model, 0, sizeof info.model));
    moepage_trace_step step = {.struct_size = sizeof step};
    uint64_t n = 0;
    for (; !(status = moepage_trace_next(trace, &step)); n++)
        check_step(&info, &step, n);
    if (status != MOEPAGE_E_END)
        fuzz_check_refusal(status);
    fuzz_accepted += n > 0;
    FUZZ_CHECK(moepage_trace_next(trace, &step) == status, "the first time %d", status);
    FUZZ_CHECK(!moepage_trace_close(trace));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || data[0] != 'S') {
        read_trace(fuzz_put("trace", data, size));
        return 0;
    }
    sealed file = make_file((fuzz_input){data + 1, size - 1});
    read_trace(fuzz_put("trace", file.bytes, file.n_bytes));
    free(file.bytes);
    return 0;
}
