/* Seeds of the moepack target: packs of small models in every form, and packs that lie, in the form
 * that fuzz_moepack.c seals. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "corpus.h"
#include "gguf_moe.h"
#include "moepage.h"
#include "seal.h"

enum { PAGE = 4096, LAYERS = 1, EXPERTS = 2, HIDDEN = 16, WIDE_HIDDEN = 64 };

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, moepage_last_error());
    exit(1);
}

typedef struct pack {
    uint8_t *bytes;
    size_t n_bytes;
} pack;

/* What a model is made of. */
typedef struct recipe {
    uint32_t dtype, kind; /* kind: CORPUS_*, for weights as in models; otherwise all are equal */
    bool random;
    uint32_t hidden;
    uint32_t forms;
    int32_t level;
    uint32_t group;
    bool bare; /* neither config nor dense tensors */
} recipe;

#define FORM(name) (1u << MOEPAGE_FORM_##name)

/* ---- Making packs ------------------------------------------------------------------------ */

static uint8_t *make_weights(const recipe *of, uint64_t n)
{
    static const uint8_t one[] = {0x80, 0x3f};
    /* Any exponent is too much for an integer form's scale. */
    if (of->random)
        return corpus_weights(of->kind, n, of->forms & ~(FORM(DENSE) | FORM(EXPH)) ? 0 : 40);
    uint8_t *weights = malloc(2 * n);
    for (uint64_t i = 0; i < n; i++)
        memcpy(weights + 2 * i, one, 2);
    return weights;
}

static pack read_back(const char *path)
{
    pack out = {0};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        give_up(path);
    out.n_bytes = (size_t)ftell(file);
    out.bytes = malloc(out.n_bytes);
    rewind(file);
    if (fread(out.bytes, 1, out.n_bytes, file) != out.n_bytes)
        give_up(path);
    fclose(file);
    unlink(path);
    return out;
}

static pack write_model(moepage_model *model, const recipe *of)
{
    char path[] = "/tmp/moepage-corpus-XXXXXX";
    int fd = mkstemp(path);
    moepage_pack_config config = {.struct_size = sizeof config,
                                  .forms = of->forms,
                                  .cold_level = of->level,
                                  .group_size = of->group,
                                  .threads = 1,
                                  .verify = 1};
    if (fd < 0 || moepage_pack_write(model, path, &config, NULL) || moepage_model_close(model))
        give_up(path);
    close(fd);
    return read_back(path);
}

static pack make_pack(const recipe *of)
{
    uint64_t h = of->hidden, i = h / 2;
    const moepage_expert_tensor tensors[] = {
        {.role = MOEPAGE_ROLE_GATE_UP, .dtype = of->dtype, .rank = 2, .shape = {2 * i, h}},
        {.role = MOEPAGE_ROLE_DOWN, .dtype = of->dtype, .rank = 2, .shape = {h, i}}};
    uint8_t *weights = make_weights(of, 2 * i * h + h * i * EXPERTS);
    const void *data[LAYERS * EXPERTS * 2];
    for (int e = 0; e < LAYERS * EXPERTS; e++) {
        data[2 * e] = weights;
        data[2 * e + 1] = weights + 2 * (size_t)e;
    }
    static const _Alignas(8) uint8_t dense_data[64] = {1, 2, 3};
    const moepage_dense_tensor dense[] = {{.name = "b.weight",
                                           .dtype = MOEPAGE_DTYPE_BF16,
                                           .rank = 1,
                                           .shape = {5},
                                           .data = dense_data},
                                          {.name = "a.norm",
                                           .dtype = MOEPAGE_DTYPE_F32,
                                           .rank = 2,
                                           .shape = {2, 3},
                                           .data = dense_data}};
    moepage_banks banks = {.struct_size = sizeof banks,
                           .moe_layers = LAYERS,
                           .experts = EXPERTS,
                           .top_k = 1,
                           .hidden = (uint32_t)h,
                           .expert_intermediate = (uint32_t)i,
                           .n_tensors = 2,
                           .tensors = tensors,
                           .data = data,
                           .layers = 2};
    if (!of->bare) {
        banks.config_json = "{}";
        banks.n_dense = 2;
        banks.dense = dense;
    }
    moepage_model *model;
    if (moepage_model_open_banks(&banks, NULL, &model))
        give_up("banks");
    pack out = write_model(model, of);
    free(weights);
    return out;
}

/* A GGUF file of two layers of two experts; in the second layer some are other blocks and some floats.
 * `equal`: all bytes are. */
static pack make_mixed(uint32_t forms, int32_t level, bool equal)
{
    static gguf_writer w;
    char dir[] = "/tmp/moepage-corpus-XXXXXX", path[64];
    const recipe of = {.forms = forms, .level = level};
    gguf_moe model_of = gguf_moe_usual();
    moepage_model *model;
    if (!mkdtemp(dir))
        give_up(dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    model_of.layers = model_of.experts = 2;
    model_of.width = 32;
    gguf_init(&w);
    gguf_moe_make(&w, &model_of);
    gguf_moe_retype(&w, 1, "gate", GGML_Q4_0);
    gguf_moe_retype(&w, 1, "down", GGML_BF16);
    gguf_made *down = gguf_made_of(&w, "blk.1.ffn_down_exps.weight");
    uint8_t *weights = corpus_weights(CORPUS_BF16, down->bytes / 2, 40);
    memcpy(down->data, weights, down->bytes);
    free(weights);
    for (uint32_t i = 0; equal && i < w.n_tensors; i++)
        memset(w.tensors[i].data, 0x3c, w.tensors[i].bytes);
    gguf_write(&w, dir, "m.gguf");
    gguf_free(&w);
    if (moepage_model_open(path, NULL, &model))
        give_up(path);
    pack out = write_model(model, &of);
    unlink(path);
    rmdir(dir);
    return out;
}

/* ---- Writing inputs ---------------------------------------------------------------------- */

/* Zeros from here on, and bytes before the next run of zeros that is worth a word of its own. */
static size_t zeros_at(const pack *of, size_t at)
{
    size_t n = 0;
    while (at + n < of->n_bytes && !of->bytes[at + n] && n < 0x7fff)
        n++;
    return n;
}

static size_t bytes_at(const pack *of, size_t at)
{
    size_t n = 0;
    while (at + n < of->n_bytes && zeros_at(of, at + n) < 5 && n < 0x7fff)
        n++;
    return n;
}

static void write_sealed(const pack *of, unsigned leave, const char *name)
{
    corpus_bytes out = {0};
    corpus_add_text(&out, "S");
    corpus_add_uint(&out, leave, 1);
    for (size_t at = 0; at < of->n_bytes;) {
        size_t zeros = zeros_at(of, at), n = bytes_at(of, at), page = PAGE - at % PAGE;
        bool to_page = zeros >= page;
        corpus_add_uint(&out, n ? n : to_page ? 0 : 0x8000 + zeros, 2);
        corpus_add(&out, of->bytes + at, n);
        at += n ? n : to_page ? page : zeros;
    }
    corpus_add_uint(&out, 0x8000, 3); /* nothing; the last word is read if a byte follows it */
    corpus_finish(&out, "moepack", name);
}

static void make_good(void)
{
    static const struct {
        const char *name;
        recipe of;
    } seeds[] = {
        {"exph", {MOEPAGE_DTYPE_BF16, CORPUS_BF16, true, WIDE_HIDDEN / 2, FORM(EXPH), 0, 0, false}},
        {"exph-f16", {MOEPAGE_DTYPE_F16, CORPUS_F16, true, HIDDEN, FORM(EXPH), 0, 0, true}},
        {"dense", {MOEPAGE_DTYPE_BF16, CORPUS_BF16, true, HIDDEN, FORM(DENSE), 0, 0, false}},
        {"dense-zstd", {MOEPAGE_DTYPE_BF16, CORPUS_BF16, true, HIDDEN, FORM(DENSE), 3, 0, true}},
        {"all-forms",
         {MOEPAGE_DTYPE_BF16, CORPUS_BF16, true, HIDDEN,
          FORM(DENSE) | FORM(EXPH) | FORM(INT8) | FORM(INT4) | FORM(INT2), 1, 32, false}},
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        pack made = make_pack(&seeds[i].of);
        write_sealed(&made, 0, seeds[i].name);
        free(made.bytes);
    }
}

/* ---- Lies -------------------------------------------------------------------------------- */

/* Sections as the format numbers them; TABLE + n is the n-th entry of the section table. */
enum { HEADER, SHAPE, CONFIG, DIRECTORY, DENSE, INDEX, DATA, METADATA, TABLE = 100 };

typedef struct lie {
    const char *name;
    uint32_t section, at, bytes;
    uint64_t value;
    uint32_t leave;
} lie;

#define MUCH (UINT64_C(1) << 60)

/* Of a model whose experts are zstd frames of equal weights. */
static const lie frame_lies[] = {
    {"magic", HEADER, 6, 1, 'C', 0},
    {"major-0", HEADER, 8, 2, 0, 0},
    {"major-2", HEADER, 8, 2, 2, 0},
    {"major-3", HEADER, 8, 2, 3, 0},
    {"minor-9", HEADER, 10, 2, 9, 0},
    {"header-bytes", HEADER, 12, 4, 64, 0},
    {"file-bytes-0", HEADER, 16, 8, 0, SEAL_LEAVE_SIZE},
    {"file-bytes-2-63", HEADER, 16, 8, UINT64_C(1) << 63, SEAL_LEAVE_SIZE},
    {"table-elsewhere", HEADER, 24, 8, 4096, 0},
    {"sections-0", HEADER, 32, 4, 0, 0},
    {"sections-4", HEADER, 32, 4, 4, 0},
    {"sections-124", HEADER, 32, 4, 124, 0},
    {"sections-2-32", HEADER, 32, 4, UINT32_MAX, 0},
    {"header-reserved", HEADER, 36, 4, 1, 0},
    {"header-checksum", HEADER, 120, 8, 7, SEAL_LEAVE_HEADER},
    {"table-checksum", HEADER, 40, 8, 7, SEAL_LEAVE_TABLE},
    {"section-type-77", TABLE + 1, 0, 4, 77, 0},
    {"section-type-0", TABLE + 1, 0, 4, 0, 0},
    {"section-twice", TABLE + 1, 0, 4, 1, 0},
    {"section-form-9", TABLE + 4, 4, 4, 9, 0},
    {"section-form-none", TABLE + 4, 4, 4, 0, 0},
    {"section-other-form", TABLE + 5, 4, 4, MOEPAGE_FORM_EXPH, 0},
    {"section-overlaps", TABLE + 2, 8, 8, 4096, 0},
    {"section-askew", TABLE + 2, 8, 8, 3 * 4096 + 64, 0},
    {"section-at-2-63", TABLE + 2, 8, 8, UINT64_C(1) << 63, 0},
    {"section-bytes-0", TABLE + 2, 16, 8, 0, 0},
    {"section-bytes-2-64", TABLE + 2, 16, 8, UINT64_MAX - 4096, 0},
    {"section-bytes-to-end", TABLE + 0, 16, 8, 6 * 4096, 0},
    {"section-checksum", TABLE + 0, 24, 8, 7, SEAL_LEAVE_SECTIONS},
    {"data-checksum", TABLE + 3, 24, 8, 7, 0},
    {"architecture-empty", SHAPE, 0, 8, 0, 0},
    {"architecture-behind-nul", SHAPE, 60, 1, 'x', 0},
    {"layers-0", SHAPE, 64, 4, 0, 0},
    {"layers-2-32", SHAPE, 64, 4, UINT32_MAX, 0},
    {"moe-layers-0", SHAPE, 68, 4, 0, 0},
    {"moe-layers-2", SHAPE, 68, 4, 2, 0},
    {"moe-layers-2-32", SHAPE, 68, 4, UINT32_MAX, 0},
    {"experts-0", SHAPE, 72, 4, 0, 0},
    {"experts-3", SHAPE, 72, 4, 3, 0},
    {"experts-2-32", SHAPE, 72, 4, UINT32_MAX, 0},
    {"top-k-3", SHAPE, 76, 4, 3, 0},
    {"hidden-0", SHAPE, 80, 4, 0, 0},
    {"hidden-other", SHAPE, 80, 4, 17, 0},
    {"tensors-0", SHAPE, 96, 4, 0, 0},
    {"tensors-9", SHAPE, 96, 4, 9, 0},
    {"flags", SHAPE, 100, 4, 2, 0},
    {"scale-dtype", SHAPE, 104, 4, 7, 0},
    {"scale-rows", SHAPE, 108, 4, 9, 0},
    {"shape-reserved", SHAPE, 116, 4, 1, 0},
    {"slot-bytes", SHAPE, 120, 8, MUCH, 0},
    {"tensor-role", SHAPE, 128, 4, 99, 0},
    {"tensor-role-twice", SHAPE, 128 + 64, 4, MOEPAGE_ROLE_GATE_UP, 0},
    {"tensor-dtype", SHAPE, 132, 4, 99, 0},
    {"tensor-dtype-f32", SHAPE, 132, 4, MOEPAGE_DTYPE_F32, 0},
    {"tensor-rank-0", SHAPE, 136, 4, 0, 0},
    {"tensor-rank-5", SHAPE, 136, 4, 5, 0},
    {"tensor-dim-0", SHAPE, 144, 8, 0, 0},
    {"tensor-dim-2-60", SHAPE, 144, 8, MUCH, 0},
    {"tensor-bytes", SHAPE, 176, 8, 8, 0},
    {"tensor-offset", SHAPE, 184, 8, 4096, 0},
    {"layer-negative", SHAPE, 256, 4, UINT32_MAX, 0},
    {"layer-past-the-end", SHAPE, 256, 4, 2, 0},
    {"config-nul", CONFIG, 1, 1, 0, 0},
    {"dense-count", DIRECTORY, 0, 8, MUCH, 0},
    {"dense-count-1", DIRECTORY, 0, 8, 1, 0},
    {"dense-name-bytes", DIRECTORY, 8, 8, MUCH, 0},
    {"dense-name-at", DIRECTORY, 16, 8, 3, 0},
    {"dense-name-empty", DIRECTORY, 24, 4, 0, 0},
    {"dense-name-long", DIRECTORY, 24, 4, UINT32_MAX, 0},
    {"dense-name-order", DIRECTORY, 176, 1, 'z', 0},
    {"dense-dtype", DIRECTORY, 28, 4, 99, 0},
    {"dense-dtype-none", DIRECTORY, 28, 4, 0, 0},
    {"dense-rank", DIRECTORY, 32, 4, 9, 0},
    {"dense-reserved", DIRECTORY, 36, 4, 1, 0},
    {"dense-dim", DIRECTORY, 40, 8, MUCH, 0},
    {"dense-dim-unused", DIRECTORY, 56, 8, 1, 0},
    {"dense-offset", DIRECTORY, 72, 8, 256, 0},
    {"dense-offset-2-64", DIRECTORY, 72, 8, UINT64_MAX, 0},
    {"dense-bytes", DIRECTORY, 80, 8, UINT64_MAX - 9, 0},
    {"dense-checksum", DIRECTORY, 88, 8, 7, SEAL_LEAVE_RECORDS},
    {"dense-padding", DENSE, 100, 1, 7, 0},
    {"index-form", INDEX, 0, 4, MOEPAGE_FORM_EXPH, 0},
    {"index-group", INDEX, 4, 4, 32, 0},
    {"index-stored-plain", INDEX, 8, 4, 0, 0},
    {"index-stored-2", INDEX, 8, 4, 2, 0},
    {"index-parts", INDEX, 12, 4, 2, 0},
    {"index-records", INDEX, 16, 8, MUCH, 0},
    {"index-records-1", INDEX, 16, 8, 1, 0},
    {"index-reserved", INDEX, 24, 8, 1, 0},
    {"record-at-0", INDEX, 32, 8, 0, 0},
    {"record-at-2-64", INDEX, 32, 8, UINT64_MAX - 63, 0},
    {"record-same", INDEX, 56, 8, 6 * 4096, 0},
    {"record-bytes-0", INDEX, 40, 8, 0, 0},
    {"record-bytes-1", INDEX, 40, 8, 1, 0},
    {"record-bytes-2-64", INDEX, 40, 8, UINT64_MAX - 7, 0},
    {"record-checksum", INDEX, 48, 8, 7, SEAL_LEAVE_RECORDS},
    {"frame-magic", DATA, 0, 4, 0, 0},
    {"frame-skippable", DATA, 0, 4, 0x184d2a50, 0},
    {"frame-descriptor", DATA, 4, 1, 0xe0, 0},
    {"frame-content-less", DATA, 5, 1, 1, 0},
    {"frame-block", DATA, 7, 3, 0xffffff, 0},
    {"frame-padding", DATA, 63, 1, 7, 0},
};

/* Of a model whose experts have one tensor as a stream and one that is kept raw. */
static const lie image_lies[] = {
    {"image-part-0", INDEX, 56, 4, 0, 0},
    {"image-part-most", INDEX, 56, 4, 0x7fffffff, 0},
    {"image-part-raw", INDEX, 56, 4, 0x80000020, 0},
    {"image-part-raw-less", INDEX, 60, 4, 0x8000000f, 0},
    {"image-part-not-raw", INDEX, 60, 4, 0x10, 0},
    {"image-group", INDEX, 4, 4, 32, 0},
    {"image-stored-zstd", INDEX, 8, 4, 1, 0},
    {"stream-checksum", DATA, 8, 4, 7, SEAL_LEAVE_STREAMS},
    {"stream-version", DATA, 0, 1, 2, 0},
    {"stream-dtype", DATA, 1, 1, MOEPAGE_DTYPE_F16, 0},
    {"stream-elements", DATA, 2, 5, 255, 0},
    {"stream-lengths", DATA, 28, 8, 0x4444444444444444, 0},
    {"stream-no-code", DATA, 12, 8, 0, 0},
    {"stream-chunk-at", DATA, 36, 5, 99, 0},
    {"stream-mode-raw", DATA, 41, 1, 2, 0},
    {"stream-mode-9", DATA, 41, 1, 9, 0},
    {"stream-escapes", DATA, 42, 2, 0xffff, 0},
    {"stream-lane", DATA, 52, 1, 0xff, 0},
    {"stream-shortest", DATA, 50, 2, 0xffff, 0},
    {"raw-bits", DATA, 460, 1, 0x55, 0},
};

/* Of two layers of two layouts, with three tensors each, and metadata. */
enum { LAYOUT_OF = 128 + 3 * 64 + 2 * 4, SECOND = LAYOUT_OF + 2 * 4 };
static const lie mixed_lies[] = {
    {"mixed-major-1", HEADER, 8, 4, 1, 0},
    {"mixed-major-1-1", HEADER, 8, 4, 0x10001, 0},
    {"mixed-layouts-0", SHAPE, 116, 4, 0, 0},
    {"mixed-layouts-1", SHAPE, 116, 4, 1, 0},
    {"mixed-layouts-33", SHAPE, 116, 4, 33, 0},
    {"mixed-layouts-2-32", SHAPE, 116, 4, UINT32_MAX, 0},
    {"mixed-layout-of-1", SHAPE, LAYOUT_OF, 4, 1, 0},
    {"mixed-layout-of-2", SHAPE, LAYOUT_OF + 4, 4, 2, 0},
    {"mixed-layout-of-256", SHAPE, LAYOUT_OF + 4, 4, 256, 0},
    {"mixed-layout-unused", SHAPE, LAYOUT_OF + 4, 4, 0, 0},
    {"mixed-scale-dtype", SHAPE, SECOND, 4, 7, 0},
    {"mixed-scale-rows", SHAPE, SECOND + 4, 4, 9, 0},
    {"mixed-reserved", SHAPE, SECOND + 12, 4, 1, 0},
    {"mixed-slot-bytes", SHAPE, SECOND + 16, 8, MUCH, 0},
    {"mixed-role", SHAPE, SECOND + 24, 4, MOEPAGE_ROLE_DOWN, 0},
    {"mixed-dtype", SHAPE, SECOND + 28, 4, MOEPAGE_DTYPE_Q8_0, 0},
    {"mixed-dtype-f16", SHAPE, SECOND + 24 + 2 * 64 + 4, 4, MOEPAGE_DTYPE_F16, 0},
    {"mixed-rank", SHAPE, SECOND + 32, 4, 1, 0},
    {"mixed-dim", SHAPE, SECOND + 40, 8, 64, 0},
    {"mixed-bytes", SHAPE, SECOND + 72, 8, 64, 0},
    {"metadata-count-0", METADATA, 0, 8, 0, 0},
    {"metadata-count-less", METADATA, 0, 8, 1, 0},
    {"metadata-count-2-60", METADATA, 0, 8, MUCH, 0},
    {"metadata-key-bytes", METADATA, 8, 8, MUCH, 0},
    {"metadata-key-empty", METADATA, 8, 8, 0, 0},
    {"metadata-key-nul", METADATA, 16, 1, 0, 0},
    {"metadata-type", METADATA, 36, 4, 99, 0},
    {"metadata-array", METADATA, 36, 4, 9, 0},
    {"metadata-text-bytes", METADATA, 40, 8, UINT64_MAX, 0},
};

static uint64_t get(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static size_t offset_of(const pack *of, uint32_t section)
{
    if (section == HEADER)
        return 0;
    if (section >= TABLE)
        return 128 + 32 * (section - TABLE);
    for (size_t entry = 128; entry < PAGE; entry += 32)
        if (of->bytes[entry] == section)
            return get(of->bytes + entry + 8);
    give_up("no such section");
}

static void tell(const pack *of, const lie *lies, size_t n)
{
    pack changed = {malloc(of->n_bytes), of->n_bytes};
    for (size_t i = 0; i < n; i++) {
        memcpy(changed.bytes, of->bytes, of->n_bytes);
        memcpy(changed.bytes + offset_of(of, lies[i].section) + lies[i].at, &lies[i].value,
               lies[i].bytes);
        write_sealed(&changed, lies[i].leave, lies[i].name);
    }
    free(changed.bytes);
}

/* ---- Lengths ----------------------------------------------------------------------------- */

static void make_lengths(pack *of)
{
    corpus_write("moepack", "empty", "", 0);
    corpus_write("moepack", "magic-only", of->bytes, 8);
    corpus_write("moepack", "page-less-1", of->bytes, PAGE - 1);
    of->n_bytes -= PAGE;
    write_sealed(of, 0, "cut-by-a-page");
    write_sealed(of, SEAL_LEAVE_SIZE, "cut-by-a-page-unsaid");
    of->n_bytes += PAGE;
}

void corpus_make_packs(void)
{
    const recipe frames = {MOEPAGE_DTYPE_BF16, CORPUS_BF16, false, HIDDEN,
                           FORM(DENSE),        19,          0,     false};
    const recipe images = {MOEPAGE_DTYPE_BF16, CORPUS_BF16, true, HIDDEN, FORM(EXPH), 0, 0, true};
    make_good();
    pack of = make_pack(&frames);
    write_sealed(&of, 0, "frames");
    tell(&of, frame_lies, sizeof frame_lies / sizeof *frame_lies);
    make_lengths(&of);
    free(of.bytes);
    of = make_pack(&images);
    write_sealed(&of, 0, "images");
    tell(&of, image_lies, sizeof image_lies / sizeof *image_lies);
    free(of.bytes);
    of = make_mixed(FORM(DENSE) | FORM(EXPH), 0, false);
    write_sealed(&of, 0, "mixed");
    free(of.bytes);
    of = make_mixed(FORM(DENSE), 19, true);
    write_sealed(&of, 0, "mixed-zstd");
    tell(&of, mixed_lies, sizeof mixed_lies / sizeof *mixed_lies);
    free(of.bytes);
}
