/* Small models and packs of them. */
#include "pack_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "bank_model.h"
#include "codec/blocks.h"
#include "model/pack.h"
#include "testing.h"

void pack_source_tensor(pack_source *source, uint32_t role, uint32_t dtype, uint32_t rank,
                        const uint64_t *shape)
{
    moepage_expert_tensor *tensor = &source->tensors[source->banks.n_tensors++];
    *tensor = (moepage_expert_tensor){.role = role, .dtype = dtype, .rank = rank};
    memcpy(tensor->shape, shape, rank * sizeof *shape);
}

static uint64_t element_bytes(uint32_t dtype)
{
    static const uint64_t bytes[] = {0, 4, 2, 2, 1, 1, 1, 1, 1, 4, 8};
    return bytes[dtype];
}

/* Of a tensor; a block counts as one element of its last dimension. */
static uint64_t tensor_bytes(uint32_t dtype, uint32_t rank, const uint64_t *shape)
{
    const mp_block_format *blocks = mp_block_format_of(dtype);
    uint64_t bytes = blocks ? blocks->bytes : element_bytes(dtype);
    for (uint32_t d = 0; d < rank; d++)
        bytes *= blocks && d + 1 == rank ? shape[d] / blocks->weights : shape[d];
    return bytes;
}

/* Bell-shaped, so that few exponents carry almost all elements. */
static float weight(uint64_t *random)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)bank_below(random, 1u << 20) / (1u << 20) - 0.5f;
    return sum * 0.05f;
}

static void fill(uint32_t dtype, uint64_t n_bytes, uint64_t *random, unsigned char *out)
{
    for (uint64_t i = 0; i < n_bytes; i++)
        out[i] = (unsigned char)bank_below(random, 64);
    if (dtype != MOEPAGE_DTYPE_F32 && dtype != MOEPAGE_DTYPE_BF16)
        return;
    for (uint64_t i = 0; i < n_bytes; i += element_bytes(dtype)) {
        float value = weight(random);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if (dtype == MOEPAGE_DTYPE_BF16)
            bits >>= 16;
        memcpy(out + i, &bits, element_bytes(dtype));
    }
}

void pack_source_dense(pack_source *source, const char *name, uint32_t dtype, uint32_t rank,
                       const uint64_t *shape)
{
    uint32_t i = source->banks.n_dense++;
    uint64_t bytes = tensor_bytes(dtype, rank, shape), random = 77 + i;
    moepage_dense_tensor *tensor = &source->dense[i];
    *tensor = (moepage_dense_tensor){.name = name, .dtype = dtype, .rank = rank};
    for (uint32_t d = 0; d < rank; d++)
        tensor->shape[d] = shape[d];
    source->dense_bytes[i] = malloc(bytes + 1);
    assert_non_null(source->dense_bytes[i]);
    fill(dtype, bytes, &random, source->dense_bytes[i]);
    tensor->data = source->dense_bytes[i];
}

void pack_source_init(pack_source *source)
{
    memset(source, 0, sizeof *source);
    source->layer_index[1] = 2;
    source->banks = (moepage_banks){
        .struct_size = sizeof source->banks,
        .moe_layers = 2,
        .experts = 3,
        .top_k = 2,
        .hidden = 64,
        .expert_intermediate = 24,
        .tensors = source->tensors,
        .architecture = "made_up",
        .config_json = "{\"model_type\": \"made_up\"}\n",
        .layer_index = source->layer_index,
        .layers = 3,
        .shared_experts = 1,
        .vocabulary = 11,
        .dense = source->dense,
    };
    pack_source_tensor(source, MOEPAGE_ROLE_GATE_UP, MOEPAGE_DTYPE_BF16, 2, (uint64_t[]){48, 64});
    pack_source_tensor(source, MOEPAGE_ROLE_DOWN, MOEPAGE_DTYPE_BF16, 2, (uint64_t[]){64, 24});
    /* Not in the order of their names. */
    pack_source_dense(source, "norm.weight", MOEPAGE_DTYPE_F32, 1, (uint64_t[]){5});
    pack_source_dense(source, "embed.weight", MOEPAGE_DTYPE_BF16, 2, (uint64_t[]){11, 13});
    pack_source_dense(source, "layers.0.scale", MOEPAGE_DTYPE_F32, 0, NULL);
}

static int32_t read_made(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                         uint64_t offset, uint64_t bytes, void *out)
{
    const pack_source *source = user;
    memcpy(out, pack_source_bytes(source, layer, expert, tensor) + offset, bytes);
    return 0;
}

void pack_source_open(pack_source *source)
{
    moepage_banks *banks = &source->banks;
    uint64_t n = (uint64_t)banks->moe_layers * banks->experts * banks->n_tensors, random = 1;
    source->bytes = calloc(n, sizeof *source->bytes);
    assert_non_null(source->bytes);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t t = (uint32_t)(i % banks->n_tensors);
        const moepage_expert_tensor *tensor = &source->tensors[t];
        uint64_t bytes = tensor_bytes(tensor->dtype, tensor->rank, tensor->shape);
        source->tensor_bytes[t] = bytes;
        source->bytes[i] = malloc(bytes);
        assert_non_null(source->bytes[i]);
        fill(tensor->dtype, bytes, &random, source->bytes[i]);
    }
    if (banks->read == NULL)
        banks->data = (const void *const *)source->bytes;
    if (moepage_model_open_banks(banks, NULL, &source->model))
        fail_msg("not opened: %s", moepage_last_error());
}

void pack_source_close(pack_source *source)
{
    const moepage_banks *banks = &source->banks;
    assert_int_equal(moepage_model_close(source->model), MOEPAGE_OK);
    for (uint64_t i = 0; i < (uint64_t)banks->moe_layers * banks->experts * banks->n_tensors; i++)
        free(source->bytes[i]);
    free(source->bytes);
    for (uint32_t i = 0; i < banks->n_dense; i++)
        free(source->dense_bytes[i]);
}

const unsigned char *pack_source_bytes(const pack_source *source, uint32_t layer, uint32_t expert,
                                       uint32_t tensor)
{
    const moepage_banks *banks = &source->banks;
    return source->bytes[(layer * banks->experts + expert) * banks->n_tensors + tensor];
}

void pack_source_read_by_callback(pack_source *source)
{
    source->banks.read = read_made;
    source->banks.read_user = source;
}

/* ---- files ---- */

static char *temporary_path(char *path, size_t room)
{
    const char *parent = getenv("TMPDIR");
    snprintf(path, room, "%s/moepage-pack-XXXXXX", parent ? parent : P_tmpdir);
    assert_non_null(mkdtemp(path));
    strcat(path, "/pack");
    return path;
}

moepage_pack_config pack_config(uint32_t forms, int32_t cold_level)
{
    return (moepage_pack_config){.struct_size = sizeof(moepage_pack_config),
                                 .forms = forms,
                                 .cold_level = cold_level,
                                 .threads = 2};
}

uint32_t pack_files_in(const char *directory)
{
    uint32_t n = 0;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

unsigned char *pack_make(const moepage_model *model, uint32_t forms, int32_t cold_level,
                         uint64_t *n_bytes)
{
    char path[300];
    temporary_path(path, sizeof path - sizeof "/pack");
    moepage_pack_config config = {.struct_size = sizeof config,
                                  .forms = forms,
                                  .cold_level = cold_level,
                                  .threads = 1};
    if (moepage_pack_write(model, path, &config, NULL))
        fail_msg("not packed: %s", moepage_last_error());
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *n_bytes = (uint64_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*n_bytes);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n_bytes, file), *n_bytes);
    fclose(file);
    unlink(path);
    *strrchr(path, '/') = 0;
    assert_int_equal(rmdir(path), 0);
    return bytes;
}

const char *pack_memory_file(const void *bytes, uint64_t n_bytes)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("moepage-pack", MFD_CLOEXEC);
        assert_true(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    assert_int_equal(ftruncate(fd, (off_t)n_bytes), 0);
    assert_int_equal(pwrite(fd, bytes, n_bytes, 0), n_bytes);
    return path;
}

uint64_t pack_record_offset(const moepage_model *model, uint32_t layer, uint32_t expert,
                            uint32_t form)
{
    return mp_pack_record_of(&model->pack->forms[form], mp_pack_key(model, layer, expert)).offset;
}

/* The file may have no name any more. That its times stay is made so by taking them anew. */
void pack_rot(moepage_model *model, uint32_t layer, uint32_t expert, uint32_t form, uint64_t at)
{
    char path[64];
    unsigned char byte;
    off_t where = (off_t)(pack_record_offset(model, layer, expert, form) + at);
    snprintf(path, sizeof path, "/proc/self/fd/%d", model->pack->file.fd);
    int file = open(path, O_RDWR | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(pread(file, &byte, 1, where), 1);
    byte ^= 1;
    assert_int_equal(pwrite(file, &byte, 1, where), 1);
    close(file);
    assert_true(mp_file_print_take(model->pack->file.fd, &model->pack->file.print));
}

moepage_model *pack_open(const char *path)
{
    moepage_model *model = NULL;
    if (moepage_model_open(path, NULL, &model))
        fail_msg("not opened: %s", moepage_last_error());
    return model;
}

static void expect_words(const char *words)
{
    char copy[256], *rest;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
        if (!strstr(moepage_last_error(), word))
            fail_msg("\"%s\" is not in \"%s\"", word, moepage_last_error());
}

void pack_expect_refusal(const void *bytes, uint64_t n_bytes, moepage_status status,
                         const char *words)
{
    moepage_model *model = NULL;
    moepage_status found = moepage_model_open(pack_memory_file(bytes, n_bytes), NULL, &model);
    if (found != status)
        fail_msg("status %d, not %d, for words %s: %s", found, status, words,
                 found ? moepage_last_error() : "accepted");
    assert_null(model);
    expect_words(words);
}

/* ---- comparing ---- */

static void expect_same_shape(const moepage_model *a, const moepage_model *b)
{
    moepage_model_info x = {.struct_size = sizeof x}, y = {.struct_size = sizeof y};
    moepage_expert_tensor s[MOEPAGE_MAX_EXPERT_TENSORS], t[MOEPAGE_MAX_EXPERT_TENSORS];
    assert_int_equal(moepage_model_get_info(a, &x), MOEPAGE_OK);
    assert_int_equal(moepage_model_get_info(b, &y), MOEPAGE_OK);
    assert_string_equal(x.architecture, y.architecture);
    x.architecture = y.architecture;
    assert_memory_equal(&x, &y, sizeof x);
    assert_int_equal(moepage_model_get_expert_tensors(a, s, MOEPAGE_MAX_EXPERT_TENSORS), 0);
    assert_int_equal(moepage_model_get_expert_tensors(b, t, MOEPAGE_MAX_EXPERT_TENSORS), 0);
    assert_memory_equal(s, t, x.expert_tensors * sizeof *s);
    for (uint32_t layer = 0; layer <= x.moe_layers; layer++)
        assert_int_equal(moepage_model_layer_index(a, layer), moepage_model_layer_index(b, layer));
    for (uint32_t layer = 0; layer < x.moe_layers; layer++) {
        assert_int_equal(moepage_model_get_layer_tensors(a, layer, s, MOEPAGE_MAX_EXPERT_TENSORS),
                         0);
        assert_int_equal(moepage_model_get_layer_tensors(b, layer, t, MOEPAGE_MAX_EXPERT_TENSORS),
                         0);
        assert_memory_equal(s, t, x.expert_tensors * sizeof *s);
    }
    const char *config = moepage_model_config_json(a), *other = moepage_model_config_json(b);
    assert_int_equal(!config, !other);
    if (config)
        assert_string_equal(config, other);
}

/* Every key, and the bytes of its value. */
static void expect_same_metadata(const moepage_model *a, const moepage_model *b)
{
    const mp_gguf_metadata *x = mp_model_metadata(a), *y = mp_model_metadata(b);
    assert_int_equal(!x, !y);
    if (!x)
        return;
    assert_int_equal(x->n_values, y->n_values);
    for (uint64_t i = 0; i < x->n_values; i++) {
        assert_string_equal(x->values[i].key, y->values[i].key);
        assert_int_equal(x->values[i].type, y->values[i].type);
        assert_int_equal(x->values[i].element, y->values[i].element);
        assert_int_equal(x->values[i].n, y->values[i].n);
        assert_int_equal(x->values[i].n_bytes, y->values[i].n_bytes);
        assert_memory_equal(x->values[i].at, y->values[i].at, x->values[i].n_bytes);
    }
}

static void expect_same_dense(const moepage_model *a, const moepage_model *b)
{
    char name[256], other[256];
    for (uint64_t i = 0;; i++) {
        moepage_status status = moepage_model_get_tensor_name(a, i, name, sizeof name);
        assert_int_equal(moepage_model_get_tensor_name(b, i, other, sizeof other), status);
        if (status) {
            assert_int_equal(status, MOEPAGE_E_NOT_FOUND);
            return;
        }
        assert_string_equal(name, other);
        moepage_tensor_view x = {.struct_size = sizeof x}, y = {.struct_size = sizeof y};
        status = moepage_model_find_tensor(a, name, &x);
        assert_int_equal(moepage_model_find_tensor(b, name, &y), status);
        if (status) {
            assert_int_equal(status, MOEPAGE_E_UNSUPPORTED);
            continue;
        }
        assert_int_equal(x.dtype, y.dtype);
        assert_int_equal(x.rank, y.rank);
        assert_memory_equal(x.shape, y.shape, sizeof x.shape);
        assert_int_equal(x.bytes, y.bytes);
        if (x.bytes)
            assert_memory_equal(x.data, y.data, x.bytes);
    }
}

void pack_expect_same_rest(const moepage_model *a, const moepage_model *b)
{
    expect_same_shape(a, b);
    expect_same_metadata(a, b);
    expect_same_dense(a, b);
}

void pack_expect_same(const moepage_model *a, const moepage_model *b)
{
    moepage_model_info info = {.struct_size = sizeof info};
    pack_expect_same_rest(a, b);
    assert_int_equal(moepage_model_get_info(a, &info), MOEPAGE_OK);
    unsigned char *x = malloc(info.slot_bytes), *y = malloc(info.slot_bytes);
    assert_true(x && y);
    for (uint32_t layer = 0; layer < info.moe_layers; layer++)
        for (uint32_t expert = 0; expert < info.experts; expert++) {
            memset(x, 1, info.slot_bytes);
            memset(y, 2, info.slot_bytes);
            if (moepage_model_read_expert(a, layer, expert, x, info.slot_bytes) ||
                moepage_model_read_expert(b, layer, expert, y, info.slot_bytes))
                fail_msg("layer %u, expert %u: %s", layer, expert, moepage_last_error());
            assert_memory_equal(x, y, mp_model_layout(a, layer)->slot_bytes);
        }
    free(x);
    free(y);
}

/* ---- structure ---- */

uint64_t pack_number(const unsigned char *at, int width)
{
    uint64_t value = 0;
    for (int i = 0; i < width; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

void pack_set_number(unsigned char *at, uint64_t value, int width)
{
    for (int i = 0; i < width; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

pack_section pack_find_section(const unsigned char *file, uint32_t type, uint32_t form)
{
    uint64_t n = pack_number(file + 32, 4);
    for (uint64_t i = 0; i < n; i++) {
        const unsigned char *entry = file + 128 + 32 * i;
        if (pack_number(entry, 4) == type && pack_number(entry + 4, 4) == form)
            return (pack_section){type, form, pack_number(entry + 8, 8),
                                  pack_number(entry + 16, 8)};
    }
    fail_msg("no section of type %u, form %u", type, form);
    return (pack_section){0};
}

unsigned char *pack_find_record(unsigned char *file, uint32_t form, uint32_t layer, uint32_t expert)
{
    pack_section index = pack_find_section(file, 5, form);
    uint32_t parts = (uint32_t)pack_number(file + index.offset + 12, 4);
    uint64_t entry_bytes = (24 + 4 * parts + 7) / 8 * 8;
    const unsigned char *entry = file + index.offset + 32 + (layer * 3 + expert) * entry_bytes;
    return file + pack_number(entry, 8);
}

void pack_seal(unsigned char *file, uint64_t n_bytes)
{
    uint64_t n = pack_number(file + 32, 4);
    for (uint64_t i = 0; i < n && i < 124; i++) {
        unsigned char *entry = file + 128 + 32 * i;
        uint64_t type = pack_number(entry, 4), offset = pack_number(entry + 8, 8);
        uint64_t bytes = pack_number(entry + 16, 8);
        if (type != 4 && type != 6 && offset <= n_bytes && bytes <= n_bytes - offset)
            pack_set_number(entry + 24, XXH3_64bits(file + offset, bytes), 8);
    }
    pack_set_number(file + 40, XXH3_64bits(file + 128, n < 124 ? 32 * n : 0), 8);
    pack_set_number(file + 120, XXH3_64bits(file, 120), 8);
}
