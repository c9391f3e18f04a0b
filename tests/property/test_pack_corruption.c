/* Packs of which any byte is changed, or that are cut anywhere: the damage is found, by a sentence
 * that names its section and, in a record, its layer and expert; whatever is not refused is the
 * original, byte for byte. And packs whose structure is changed under checksums that are right: they
 * may be another model, but nothing outside them is read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "bank_model.h"
#include "checkpoint_maker.h"
#include "gguf_moe.h"
#include "model/model.h"
#include "pack_maker.h"
#include "testing.h"

enum { EXPERTS = 2, LAYERS = 2, MOST_SLOT = 1 << 16 };

static pack_source source;
static char dir[64], gguf[96];
static gguf_writer writer;
static const moepage_model
    *truth; /* what is packed: the source's model, or that of the GGUF file */
static moepage_model *mixed;
static unsigned char *file;
static uint64_t n_bytes;
static unsigned char *buffer; /* page-aligned */
static unsigned char *images[MP_FORMS][LAYERS * EXPERTS];
static uint64_t image_bytes[MP_FORMS][LAYERS * EXPERTS];

/* One layer of two experts, just big enough for exponents to be worth coding. */
static void make_source(void)
{
    pack_source_init(&source);
    source.banks.moe_layers = 1;
    source.banks.layers = 1;
    source.banks.layer_index = NULL;
    source.banks.experts = EXPERTS;
    source.banks.n_tensors = 0;
    pack_source_tensor(&source, MOEPAGE_ROLE_GATE_UP, MOEPAGE_DTYPE_BF16, 2, (uint64_t[]){16, 64});
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_DTYPE_F32, 1, (uint64_t[]){5});
    pack_source_open(&source);
}

/* Two layers of two experts in blocks, of two types: smaller in the second, where some are floats. */
static void make_mixed(void)
{
    static const gguf_moe of = {.architecture = "qwen3moe",
                                .width_key = "expert_feed_forward_length",
                                .layers = LAYERS,
                                .type = GGML_Q8_0,
                                .hidden = 32,
                                .width = 32,
                                .experts = EXPERTS};
    maker_dir_create(dir);
    snprintf(gguf, sizeof gguf, "%s/m.gguf", dir);
    gguf_init(&writer);
    gguf_moe_make(&writer, &of);
    gguf_moe_retype(&writer, 1, "gate", GGML_Q4_0);
    gguf_moe_retype(&writer, 1, "down", GGML_BF16);
    gguf_made *down = gguf_made_of(&writer, "blk.1.ffn_down_exps.weight");
    for (uint64_t i = 1; i < down->bytes; i += 2)
        down->data[i] = (unsigned char)(0x3c | (down->data[i - 1] & 0x80));
    gguf_write(&writer, dir, "m.gguf");
    mixed = pack_open(gguf);
}

static uint32_t n_images(void)
{
    return truth->info.moe_layers * EXPERTS;
}

static void remember_images(void)
{
    moepage_model *model = pack_open(pack_memory_file(file, n_bytes));
    for (uint32_t form = MOEPAGE_FORM_DENSE; form < MP_FORMS; form++)
        for (uint32_t key = 0; key < n_images(); key++) {
            uint64_t read_bytes;
            mp_image image;
            images[form][key] = NULL;
            if (form != MOEPAGE_FORM_DENSE && !mp_model_has_form(model, form))
                continue;
            mp_model_find_image(model, key / EXPERTS, key % EXPERTS, form, &image);
            assert_int_equal(mp_model_read_image(model, key / EXPERTS, key % EXPERTS, form, buffer,
                                                 MOST_SLOT, &read_bytes),
                             MOEPAGE_OK);
            image_bytes[form][key] = image.bytes;
            images[form][key] = malloc(image.bytes);
            memcpy(images[form][key], buffer + image.skew, image.bytes);
        }
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static int make(void **state)
{
    (void)state;
    buffer = aligned_alloc(4096, MOST_SLOT);
    make_source();
    make_mixed();
    return buffer ? 0 : -1;
}

static int unmake(void **state)
{
    (void)state;
    free(buffer);
    pack_source_close(&source);
    assert_int_equal(moepage_model_close(mixed), MOEPAGE_OK);
    gguf_free(&writer);
    maker_dir_remove(dir);
    return 0;
}

static void begin(const moepage_model *model, uint32_t forms, int32_t cold_level)
{
    truth = model;
    file = pack_make(model, forms, cold_level, &n_bytes);
    remember_images();
}

static void end(void)
{
    for (uint32_t form = 0; form < MP_FORMS; form++)
        for (uint32_t key = 0; key < LAYERS * EXPERTS; key++)
            free(images[form][key]);
    memset(images, 0, sizeof images);
    free(file);
}

/* ---- Reading a damaged pack -------------------------------------------------------------- */

/* One image in one way: refused, or the original. */
static moepage_status read_one(const moepage_model *model, uint32_t key, uint32_t form)
{
    const uint32_t layer = key / EXPERTS, e = key % EXPERTS;
    uint64_t read_bytes;
    mp_image image;
    mp_model_find_image(model, layer, e, form, &image);
    moepage_status status =
        mp_model_read_image(model, layer, e, form, buffer, MOST_SLOT, &read_bytes);
    if (!status) {
        assert_int_equal(image.bytes, image_bytes[form][key]);
        assert_memory_equal(buffer + image.skew, images[form][key], image.bytes);
    }
    if (!image.stored)
        return status;
    for (int again = 0; again < 2; again++) { /* not yet checked, then as that has left it */
        memset(buffer, 0xee, image.bytes);
        assert_int_equal(mp_model_read_stored(model, layer, e, form, 0, image.bytes, buffer),
                         status);
        if (!status)
            assert_memory_equal(buffer, images[form][key], image.bytes);
        assert_int_equal(mp_model_check_image(model, layer, e, form), status);
    }
    return status;
}

static moepage_status read_all(const char *path)
{
    moepage_model *model;
    moepage_status status = moepage_model_open(path, NULL, &model);
    if (status)
        return status;
    pack_expect_same_rest(truth, model);
    for (uint32_t form = MOEPAGE_FORM_DENSE; form < MP_FORMS; form++)
        for (uint32_t key = 0; key < n_images(); key++)
            if (images[form][key]) {
                moepage_status one = read_one(model, key, form);
                status = status ? status : one;
            }
    /* The last sentence is to be the failure's, and closing sets none. */
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    return status;
}

/* ---- What a byte belongs to -------------------------------------------------------------- */

static void name_section(uint32_t type, uint32_t form, char *out, size_t room)
{
    static const char *const names[] = {"",
                                        "section SHAPE",
                                        "section CONFIG",
                                        "section DENSE DIRECTORY",
                                        "section DENSE DATA",
                                        "section EXPERT INDEX",
                                        "section EXPERT DATA",
                                        "section METADATA"};
    static const char *const forms[] = {"", " (dense)", " (exph)", " (int8)", " (int4)", " (int2)"};
    snprintf(out, room, "%s%s", names[type], forms[form]);
}

/* What must be in the sentence that refuses a change at `at`. */
static void name_place(uint64_t at, char *out, size_t room)
{
    uint64_t n_sections = pack_number(file + 32, 4);
    snprintf(out, room, "%s", at < 128 ? "header" : "section table");
    for (uint64_t i = 0; i < n_sections; i++) {
        const unsigned char *entry = file + 128 + 32 * i;
        uint32_t type = (uint32_t)pack_number(entry, 4), form = (uint32_t)pack_number(entry + 4, 4);
        uint64_t from = pack_number(entry + 8, 8), bytes = pack_number(entry + 16, 8);
        if (at < from || at >= from + (bytes + 4095) / 4096 * 4096)
            continue;
        char name[64];
        name_section(type, form, name, sizeof name);
        snprintf(out, room, "%s%s", at < from + bytes ? "" : "padding after ", name);
        if (type != 6 || at >= from + bytes)
            return;
        const unsigned char *index = file + pack_find_section(file, 5, form).offset;
        uint64_t entry_bytes = (24 + 4 * pack_number(index + 12, 4) + 7) / 8 * 8;
        uint32_t key = 0;
        while (key + 1 < n_images() && at >= pack_number(index + 32 + (key + 1) * entry_bytes, 8))
            key++;
        snprintf(out, room, "%s: layer %u, expert %u", name, key / EXPERTS, key % EXPERTS);
        return;
    }
}

static bool is_padding(uint64_t at)
{
    char place[128];
    name_place(at, place, sizeof place);
    return strncmp(place, "padding", 7) == 0;
}

/* ---- Claims ------------------------------------------------------------------------------ */

static const struct {
    moepage_model **model;
    uint32_t forms;
    int32_t cold_level;
} kinds[] = {
    {&source.model, PACK_FORM(DENSE), 0},
    {&source.model, PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT4), 3},
    {&mixed, PACK_FORM(DENSE) | PACK_FORM(EXPH), 0},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* Of padding and of lengths, one in so many is tried, and of bytes one change: damage to the other kinds is
 * found by the code that finds the first one's. */
static uint64_t stride_of(int kind)
{
    return kind < 1 || getenv("MP_TEST_LONG") ? 1 : 16;
}

static void expect_found(const char *path, int fd, uint64_t at, unsigned char change)
{
    char place[128];
    unsigned char byte = file[at] ^ change;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    moepage_status status = read_all(path);
    name_place(at, place, sizeof place);
    if (status != MOEPAGE_E_FORMAT && !(status == MOEPAGE_E_VERSION && (at == 8 || at == 9)))
        fail_msg("byte %llu (%s) changed by %#x: %s", (unsigned long long)at, place, change,
                 moepage_status_text(status));
    if (!strstr(moepage_last_error(), place))
        fail_msg("byte %llu changed by %#x: \"%s\" is not in \"%s\"", (unsigned long long)at,
                 change, place, moepage_last_error());
    assert_int_equal(pwrite(fd, &file[at], 1, (off_t)at), 1);
}

static void test_pack_with_any_byte_changed_is_found(void **state)
{
    (void)state;
    bool lengthy = getenv("MP_TEST_LONG");
    uint64_t random = 5;
    for (int k = 0; k < N_KINDS; k++) {
        int fd;
        begin(*kinds[k].model, kinds[k].forms, kinds[k].cold_level);
        const char *path = pack_memory_file(file, n_bytes);
        assert_int_equal(sscanf(path, "/proc/self/fd/%d", &fd), 1);
        assert_int_equal(read_all(path), MOEPAGE_OK);
        for (uint64_t at = 0; at < n_bytes; at++) {
            if (at % stride_of(k) && is_padding(at))
                continue;
            for (int bit = 0; lengthy && bit < 8; bit++)
                expect_found(path, fd, at, (unsigned char)(1u << bit));
            expect_found(path, fd, at, (unsigned char)(1u << bank_below(&random, 8)));
            if (stride_of(k) == 1 && !is_padding(at))
                expect_found(path, fd, at, 0xff);
        }
        assert_int_equal(read_all(path), MOEPAGE_OK);
        end();
    }
}

static void test_pack_cut_anywhere_is_found(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        int fd;
        begin(*kinds[k].model, kinds[k].forms, kinds[k].cold_level);
        const char *path = pack_memory_file(file, n_bytes);
        assert_int_equal(sscanf(path, "/proc/self/fd/%d", &fd), 1);
        for (uint64_t n = n_bytes - 1; n < n_bytes; n -= stride_of(k)) {
            assert_int_equal(ftruncate(fd, (off_t)n), 0);
            if (read_all(path) != MOEPAGE_E_FORMAT || !strstr(moepage_last_error(), "header"))
                fail_msg("cut to %llu bytes: %s", (unsigned long long)n, moepage_last_error());
        }
        end();
    }
}

static void test_pack_with_bytes_behind_its_end_is_found(void **state)
{
    (void)state;
    begin(source.model, PACK_FORM(DENSE), 0);
    unsigned char *longer = calloc(1, n_bytes + 4096);
    memcpy(longer, file, n_bytes);
    pack_expect_refusal(longer, n_bytes + 1, MOEPAGE_E_FORMAT, "header");
    pack_expect_refusal(longer, n_bytes + 4096, MOEPAGE_E_FORMAT, "header");
    free(longer);
    end();
}

/* Reads whatever there is, for the sanitiser to watch. */
static void touch_all(moepage_model *model)
{
    volatile unsigned char sink = 0;
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    char name[256];
    for (uint64_t i = 0; !moepage_model_get_tensor_name(model, i, name, sizeof name); i++) {
        moepage_tensor_view view = {.struct_size = sizeof view};
        if (moepage_model_find_tensor(model, name, &view))
            continue;
        for (uint64_t at = 0; at < view.bytes; at++)
            sink ^= ((const unsigned char *)view.data)[at];
    }
    unsigned char *slot = malloc(info.slot_bytes);
    assert_non_null(slot);
    for (uint32_t layer = 0; layer < info.moe_layers; layer++)
        for (uint32_t e = 0; e < info.experts; e++) {
            moepage_model_read_expert(model, layer, e, slot, info.slot_bytes);
            for (uint32_t form = MOEPAGE_FORM_DENSE; form < MP_FORMS; form++)
                if (mp_model_has_form(model, form))
                    mp_model_check_image(model, layer, e, form);
        }
    free(slot);
    (void)sink;
}

/* One to three bytes or numbers of the structure changed, and the checksums made right again. */
static void tell_lies(const moepage_model *of, uint32_t forms, const uint32_t *structure,
                      uint32_t n_structure)
{
    static const uint64_t lies[] = {0, 1, 64, 4096, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
    uint32_t rounds = getenv("MP_TEST_LONG") ? 100000 : 5000, opened = 0;
    uint64_t random = 11;
    begin(of, forms, 1);
    unsigned char *copy = malloc(n_bytes);
    for (uint32_t round = 0; round < rounds; round++) {
        memcpy(copy, file, n_bytes);
        for (uint32_t changes = 1 + bank_below(&random, 3); changes; changes--) {
            uint32_t type = structure[bank_below(&random, n_structure)];
            uint32_t form = (uint32_t[]){1, 2, 4}[bank_below(&random, forms & 1u << 4 ? 3 : 2)];
            pack_section at = {.bytes = 128 + 32 * pack_number(file + 32, 4)};
            if (type)
                at = pack_find_section(file, type, type == 5 ? form : 0);
            unsigned char *byte = copy + at.offset + bank_below(&random, (uint32_t)at.bytes - 8);
            if (bank_below(&random, 2))
                *byte ^= (unsigned char)(1u << bank_below(&random, 8));
            else
                pack_set_number(byte - (byte - copy) % 4, lies[bank_below(&random, 8)],
                                bank_below(&random, 2) ? 8 : 4);
        }
        pack_seal(copy, n_bytes);
        moepage_model *model;
        if (moepage_model_open(pack_memory_file(copy, n_bytes), NULL, &model))
            continue;
        touch_all(model);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        opened++;
    }
    assert_in_range(opened, rounds / 1000, rounds - rounds / 4); /* the lies are of both kinds */
    free(copy);
    end();
}

static void test_pack_with_lies_under_right_checksums_leads_nowhere(void **state)
{
    (void)state;
    static const uint32_t structure[] = {0, 1, 3, 5}, with_metadata[] = {0, 1, 1, 3, 5, 7};
    tell_lies(source.model, PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT4), structure, 4);
    tell_lies(mixed, PACK_FORM(DENSE) | PACK_FORM(EXPH), with_metadata, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack_with_any_byte_changed_is_found),
        cmocka_unit_test(test_pack_cut_anywhere_is_found),
        cmocka_unit_test(test_pack_with_bytes_behind_its_end_is_found),
        cmocka_unit_test(test_pack_with_lies_under_right_checksums_leads_nowhere),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
