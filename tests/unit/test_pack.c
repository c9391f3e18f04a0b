/* Packs: what comes out is what went in, in every form and from every kind of model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <unistd.h>

#include "codec/exph.h"
#include "model/model.h"
#include "moe_maker.h"
#include "pack_maker.h"
#include "testing.h"

static pack_source source;
static char directory[64], path[80];

static int make(void **state)
{
    (void)state;
    pack_source_init(&source);
    maker_dir_create(directory);
    snprintf(path, sizeof path, "%s/a.moepack", directory);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    pack_source_close(&source);
    maker_dir_remove(directory);
    return 0;
}

static void write_pack(const moepage_model *model, const moepage_pack_config *config,
                       moepage_pack_stats *stats)
{
    if (moepage_pack_write(model, path, config, stats))
        fail_msg("not packed: %s", moepage_last_error());
}

static void expect_round_trip(const moepage_model *model, uint32_t forms, int32_t cold_level)
{
    moepage_pack_config config = pack_config(forms, cold_level);
    config.verify = 1;
    write_pack(model, &config, NULL);
    moepage_model *pack = pack_open(path);
    pack_expect_same(model, pack);
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= MOEPAGE_FORM_INT2; form++) {
        moepage_form_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_model_get_form(pack, form, &info), MOEPAGE_OK);
        assert_int_equal(info.form, form);
        assert_int_equal(info.present, forms >> form & 1);
        assert_int_equal(info.group_size, info.present && form >= MOEPAGE_FORM_INT8 ? 64 : 0);
        assert_int_equal(info.image_bytes != 0, info.present);
        assert_true(info.stored_bytes <= info.image_bytes);
    }
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    assert_int_equal(pack_files_in(directory), 1);
}

/* ---- Round trips ------------------------------------------------------------------------- */

static const struct {
    uint32_t forms;
    int32_t cold_level;
} kinds[] = {
    {PACK_FORM(DENSE), 0},
    {PACK_FORM(DENSE), 1},
    {PACK_FORM(EXPH), 0},
    {PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT8) | PACK_FORM(INT4) | PACK_FORM(INT2), 3},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void test_pack_of_banks_is_the_same_model(void **state)
{
    (void)state;
    pack_source_open(&source);
    for (int i = 0; i < N_KINDS; i++)
        expect_round_trip(source.model, kinds[i].forms, kinds[i].cold_level);
}

static void test_pack_of_a_read_callback_is_the_same_model(void **state)
{
    (void)state;
    pack_source_read_by_callback(&source);
    pack_source_open(&source);
    for (int i = 0; i < N_KINDS; i++)
        expect_round_trip(source.model, kinds[i].forms, kinds[i].cold_level);
}

/* And what is packed of the pack again. */
static void test_pack_keeps_the_activation(void **state)
{
    (void)state;
    static const struct {
        uint32_t kind;
        float alpha, limit;
    } all[] = {{MOEPAGE_ACTIVATION_SWIGLU, 0, 0},
               {MOEPAGE_ACTIVATION_SWIGLU_CLAMPED, 1.25f, 0x1.234568p3f},
               {MOEPAGE_ACTIVATION_OTHER, 0, 0}};
    char again[96];
    snprintf(again, sizeof again, "%s/b.moepack", directory);
    pack_source_open(&source);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        source.banks.activation = all[i].kind;
        source.banks.activation_alpha = all[i].alpha;
        source.banks.activation_limit = all[i].limit;
        moepage_model *model = NULL;
        assert_int_equal(moepage_model_open_banks(&source.banks, NULL, &model), MOEPAGE_OK);
        expect_round_trip(model, kinds[0].forms, kinds[0].cold_level);
        moepage_model *pack = pack_open(path);
        assert_int_equal(pack->info.activation, all[i].kind);
        assert_true(pack->info.activation_alpha == all[i].alpha);
        assert_true(pack->info.activation_limit == all[i].limit);
        assert_int_equal(pack->info.ffn_supported, all[i].kind != MOEPAGE_ACTIVATION_OTHER);
        moepage_pack_config config = pack_config(kinds[0].forms, kinds[0].cold_level);
        assert_int_equal(moepage_pack_write(pack, again, &config, NULL), MOEPAGE_OK);
        moepage_model *second = pack_open(again);
        pack_expect_same(pack, second);
        assert_int_equal(moepage_model_close(second), MOEPAGE_OK);
        assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
        assert_int_equal(unlink(again), 0);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

/* The section's last eight bytes; a reader that does not know flag 2 refuses it. */
static void test_pack_checks_the_activation_s_numbers(void **state)
{
    (void)state;
    static const uint32_t wrong[][2] = {{0, 0x40e00000},          {0x7fc00000, 0x40e00000},
                                        {0xbfd9db23, 0x40e00000}, {0x3fd9db23, 0},
                                        {0x3fd9db23, 0x7f800000}, {0x3fd9db23, 0x7fc00000},
                                        {0x3fd9db23, 0xc0e00000}, {0x3a7fffff, 0x40e00000},
                                        {0x44800001, 0x40e00000}};
    uint64_t n;
    source.banks.activation = MOEPAGE_ACTIVATION_SWIGLU_CLAMPED;
    pack_source_open(&source);
    unsigned char *file = pack_make(source.model, PACK_FORM(DENSE), 0, &n);
    const pack_section shape = pack_find_section(file, 1, 0);
    unsigned char *end = file + shape.offset + shape.bytes;
    assert_int_equal(pack_number(file + shape.offset + 100, 4), 2);
    assert_int_equal(pack_number(end - 8, 4), 0x3fd9db23); /* 1.702 */
    assert_int_equal(pack_number(end - 4, 4), 0x40e00000); /* 7 */
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pack_set_number(end - 8, wrong[i][0], 4);
        pack_set_number(end - 4, wrong[i][1], 4);
        pack_seal(file, n);
        pack_expect_refusal(file, n, MOEPAGE_E_FORMAT, "section SHAPE|the activation has alpha");
    }
    free(file);
}

/* Every dtype, ranks 1 to 4, sizes that fill no unit of any kind. */
static void test_pack_holds_tensors_of_every_kind(void **state)
{
    (void)state;
    source.banks.n_tensors = 0;
    pack_source_tensor(&source, MOEPAGE_ROLE_GATE, MOEPAGE_DTYPE_F32, 2, (uint64_t[]){7, 5});
    pack_source_tensor(&source, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_F16, 2, (uint64_t[]){33, 131});
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN, MOEPAGE_DTYPE_BF16, 2, (uint64_t[]){1, 3});
    pack_source_tensor(&source, MOEPAGE_ROLE_GATE_BIAS, MOEPAGE_DTYPE_I64, 1, (uint64_t[]){9});
    pack_source_tensor(&source, MOEPAGE_ROLE_UP_BIAS, MOEPAGE_DTYPE_F8_E4M3, 3,
                       (uint64_t[]){3, 11, 101});
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_DTYPE_U8, 1, (uint64_t[]){1});
    pack_source_tensor(&source, MOEPAGE_ROLE_GATE_SCALE, MOEPAGE_DTYPE_F8_E5M2, 4,
                       (uint64_t[]){2, 3, 5, 7});
    pack_source_tensor(&source, MOEPAGE_ROLE_UP_SCALE, MOEPAGE_DTYPE_I32, 1, (uint64_t[]){300});
    pack_source_open(&source);
    for (int i = 0; i < N_KINDS; i++)
        expect_round_trip(source.model, kinds[i].forms, kinds[i].cold_level);
}

/* An odd number of bytes per block, blocks that fill no unit, and a dense tensor of blocks. */
static void test_pack_holds_tensors_of_blocks(void **state)
{
    (void)state;
    source.banks.n_tensors = 0;
    pack_source_tensor(&source, MOEPAGE_ROLE_GATE, MOEPAGE_DTYPE_MXFP4, 2, (uint64_t[]){7, 96});
    pack_source_tensor(&source, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_Q3_K, 2, (uint64_t[]){3, 256});
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN, MOEPAGE_DTYPE_BF16, 2, (uint64_t[]){64, 24});
    pack_source_dense(&source, "a.weight", MOEPAGE_DTYPE_Q6_K, 2, (uint64_t[]){3, 512});
    pack_source_open(&source);
    moepage_expert_tensor tensors[3];
    assert_int_equal(moepage_model_get_expert_tensors(source.model, tensors, 3), MOEPAGE_OK);
    assert_int_equal(tensors[0].bytes, 7 * 3 * 17);
    assert_int_equal(tensors[1].bytes, 3 * 110);
    for (int i = 0; i < N_KINDS; i++)
        if (kinds[i].forms < PACK_FORM(INT8))
            expect_round_trip(source.model, kinds[i].forms, kinds[i].cold_level);
    moepage_pack_config config = pack_config(PACK_FORM(DENSE) | PACK_FORM(INT8), 0);
    assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "tensor 0 is MXFP4 of rank 2"));
}

static void test_pack_of_bare_banks_has_no_config_and_no_tensors(void **state)
{
    (void)state;
    source.banks.architecture = source.banks.config_json = NULL;
    source.banks.layer_index = NULL;
    uint32_t n_dense = source.banks.n_dense;
    source.banks.n_dense = 0;
    pack_source_open(&source);
    expect_round_trip(source.model, PACK_FORM(EXPH), 0);
    moepage_model *pack = pack_open(path);
    assert_null(moepage_model_config_json(pack));
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    source.banks.n_dense = n_dense;
}

static void add_odd_tensors(moe_maker *maker)
{
    maker_add(&maker->shard, "F64", 1, (uint64_t[]){3}, "model.odd.f64");
    maker_add(&maker->shard, "F32", 5, (uint64_t[]){1, 2, 1, 2, 1}, "model.odd.rank5");
    maker_add(&maker->shard, "F32", 0, NULL, "model.odd.scalar");
    maker_add(&maker->shard, "BF16", 2, (uint64_t[]){0, 4}, "model.odd.empty");
}

static void test_pack_of_a_checkpoint_is_the_same_model(void **state)
{
    (void)state;
    static moe_maker maker;
    pack_source_open(&source);
    moe_maker_init(&maker);
    add_odd_tensors(&maker);
    maker.shard.padding = 1; /* every tensor askew */
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    for (int i = 0; i < N_KINDS; i++)
        expect_round_trip(model, kinds[i].forms, kinds[i].cold_level);
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.ffn_supported, 1); /* and so it is in the pack: the infos are alike */
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);

    moepage_model *pack = pack_open(path);
    moepage_tensor_view view = {.struct_size = sizeof view};
    assert_int_equal(moepage_model_find_tensor(pack, "model.odd.f64", &view),
                     MOEPAGE_E_UNSUPPORTED);
    assert_int_equal(moepage_model_find_tensor(pack, "model.odd.nothing", &view),
                     MOEPAGE_E_NOT_FOUND);
    assert_int_equal(moepage_model_find_tensor(pack, "model.layers.0.mlp.experts.0.up_proj.weight",
                                               &view),
                     MOEPAGE_E_NOT_FOUND);
    assert_int_equal(moepage_model_find_tensor(pack, "model.norm.weight", &view), MOEPAGE_OK);
    assert_int_equal((uintptr_t)view.data % 64, 0);
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    moe_maker_free(&maker);
}

/* Also that of a pack, whatever forms that had: the bytes are the model's alone. */
static void test_pack_has_the_same_bytes_however_it_is_made(void **state)
{
    (void)state;
    pack_source_open(&source);
    for (int i = 0; i < N_KINDS; i++) {
        uint64_t n, n_again;
        size_t n_threads;
        unsigned char *bytes = pack_make(source.model, kinds[i].forms, kinds[i].cold_level, &n);
        moepage_model *pack = pack_open(pack_memory_file(bytes, n));
        unsigned char *again = pack_make(pack, kinds[i].forms, kinds[i].cold_level, &n_again);
        assert_int_equal(n, n_again);
        assert_memory_equal(bytes, again, n);
        assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);

        moepage_pack_config config = pack_config(kinds[i].forms, kinds[i].cold_level);
        config.threads = 5;
        write_pack(source.model, &config, NULL);
        unsigned char *threads = maker_read(directory, "a.moepack", &n_threads);
        assert_int_equal(n, n_threads);
        assert_memory_equal(bytes, threads, n);
        free(bytes);
        free(again);
        free(threads);
    }
}

/* ---- Images ------------------------------------------------------------------------------ */

/* Reads an image into memory that the sanitiser watches. */
static unsigned char *read_image(const moepage_model *model, uint32_t layer, uint32_t expert,
                                 uint32_t form, mp_image *image)
{
    uint64_t room = mp_model_image_room(model, form), read_bytes = 0;
    unsigned char *buffer = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    assert_non_null(buffer);
    mp_model_find_image(model, layer, expert, form, image);
    assert_true(image->skew + image->bytes <= room);
    if (mp_model_read_image(model, layer, expert, form, buffer, room, &read_bytes))
        fail_msg("form %u: %s", form, moepage_last_error());
    assert_true(read_bytes > 0);
    return buffer;
}

static void test_pack_images_are_read_whole_and_in_ranges_alike(void **state)
{
    (void)state;
    pack_source_open(&source);
    moepage_pack_config config =
        pack_config(PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT4), 0);
    write_pack(source.model, &config, NULL);
    moepage_model *pack = pack_open(path);
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= MOEPAGE_FORM_INT2; form++)
        assert_int_equal(mp_model_has_form(pack, form), config.forms >> form & 1);
    for (uint32_t key = 0; key < 6; key++)
        for (uint32_t form = MOEPAGE_FORM_DENSE; form <= MOEPAGE_FORM_INT4; form++) {
            if (!mp_model_has_form(pack, form))
                continue;
            mp_image image;
            unsigned char *buffer = read_image(pack, key / 3, key % 3, form, &image);
            assert_true(image.stored);
            assert_false(mp_model_image_is_checked(pack, key / 3, key % 3, form));
            for (uint64_t at = 0; at < image.bytes; at += 1000) { /* the first of them checks it */
                unsigned char range[1000];
                uint64_t n = image.bytes - at < sizeof range ? image.bytes - at : sizeof range;
                assert_int_equal(mp_model_read_stored(pack, key / 3, key % 3, form, at, n, range),
                                 MOEPAGE_OK);
                assert_memory_equal(buffer + image.skew + at, range, n);
                assert_true(mp_model_image_is_checked(pack, key / 3, key % 3, form));
            }
            assert_int_equal(mp_model_check_image(pack, key / 3, key % 3, form), MOEPAGE_OK);
            free(buffer);
        }
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

static void test_pack_exph_images_decode_to_the_tensors(void **state)
{
    (void)state;
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_DTYPE_F32, 1, (uint64_t[]){3});
    pack_source_open(&source);
    moepage_pack_config config = pack_config(0, 0);
    moepage_pack_stats stats = {.struct_size = sizeof stats};
    write_pack(source.model, &config, &stats);
    assert_int_equal(stats.raw_parts, 6); /* the biases, which are never coded */
    moepage_model *pack = pack_open(path);
    const mp_exph_decoder *decoder = mp_exph_decoder_find("portable");
    for (uint32_t key = 0; key < 6; key++) {
        mp_image image;
        mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
        unsigned char *buffer = read_image(pack, key / 3, key % 3, MOEPAGE_FORM_EXPH, &image);
        const unsigned char *at = buffer + image.skew;
        mp_model_find_parts(pack, key / 3, key % 3, MOEPAGE_FORM_EXPH, parts);
        assert_int_equal(parts[0].offset, 0);
        for (uint32_t t = 0; t < 2; t++) {
            unsigned char *out = malloc(source.tensor_bytes[t]);
            uint64_t n = source.tensor_bytes[t] / 2;
            assert_int_equal(parts[t].form, MOEPAGE_FORM_EXPH);
            assert_int_equal(parts[t + 1].offset, parts[t].offset + parts[t].bytes);
            assert_true(parts[t].bytes < source.tensor_bytes[t]);
            mp_exph_decode(decoder, at + parts[t].offset, parts[t].bytes, MOEPAGE_DTYPE_BF16, n, 0,
                           mp_exph_chunks(n), out);
            assert_memory_equal(out, pack_source_bytes(&source, key / 3, key % 3, t), 2 * n);
            free(out);
        }
        assert_int_equal(parts[2].form, MOEPAGE_FORM_DENSE);
        assert_int_equal(parts[2].bytes, 12);
        assert_memory_equal(at + parts[2].offset, pack_source_bytes(&source, key / 3, key % 3, 2),
                            12);
        assert_int_equal(image.bytes, parts[2].offset + 16);
        free(buffer);
    }
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

static float bf16_at(const unsigned char *bytes, uint64_t i)
{
    uint32_t bits = (uint32_t)bytes[2 * i] << 16 | (uint32_t)bytes[2 * i + 1] << 24;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static double f16_value(uint32_t bits)
{
    double value = bits & 0x3ff;
    int exponent = bits >> 10 & 31;
    value = exponent ? value + 1024 : value;
    for (exponent = (exponent ? exponent : 1) - 25; exponent < 0; exponent++)
        value /= 2;
    return value;
}

/* The layout of quant.h read naively: every weight is within half a step of its number, and the
 * largest of a group is at the end of the range. */
static void test_pack_integer_images_are_the_weights_rounded(void **state)
{
    (void)state;
    static const uint32_t bits_of[] = {8, 4, 2};
    pack_source_open(&source);
    moepage_pack_config config =
        pack_config(PACK_FORM(EXPH) | PACK_FORM(INT8) | PACK_FORM(INT4) | PACK_FORM(INT2), 0);
    config.group_size = 32;
    write_pack(source.model, &config, NULL);
    moepage_model *pack = pack_open(path);
    for (uint32_t form = MOEPAGE_FORM_INT8; form <= MOEPAGE_FORM_INT2; form++) {
        const uint64_t rows[] = {48, 64}, columns[] = {64, 24};
        uint32_t bits = bits_of[form - MOEPAGE_FORM_INT8];
        mp_image image;
        mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
        unsigned char *buffer = read_image(pack, 1, 2, form, &image);
        mp_model_find_parts(pack, 1, 2, form, parts);
        for (uint32_t t = 0; t < 2; t++) {
            const unsigned char *at = buffer + image.skew + parts[t].offset;
            uint64_t row_bytes = columns[t] * bits / 8, groups = (columns[t] + 31) / 32;
            uint64_t scales = (rows[t] * row_bytes + 15) / 16 * 16;
            for (uint64_t r = 0; r < rows[t]; r++)
                for (uint64_t c = 0; c < columns[t]; c++) {
                    const unsigned char *scale = at + scales + 2 * (r * groups + c / 32);
                    double s = f16_value((uint32_t)scale[0] | (uint32_t)scale[1] << 8);
                    const bool four = bits == 2 && scale[1] >> 7; /* levels */
                    int q = at[r * row_bytes + c * bits / 8] >> c * bits % 8 & ((1 << bits) - 1);
                    if (q >> (bits - 1))
                        q -= 1 << bits;
                    const double value = (four ? q + 0.5 : q) * s;
                    double w = bf16_at(pack_source_bytes(&source, 1, 2, t), r * columns[t] + c);
                    /* the scale itself is rounded to 11 bits */
                    assert_true(w - value <= s * 0.57 && value - w <= s * 0.57);
                }
        }
        free(buffer);
    }
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

static void test_pack_dense_images_of_other_models_are_their_slots(void **state)
{
    (void)state;
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_DTYPE_F32, 1, (uint64_t[]){3});
    pack_source_read_by_callback(&source);
    pack_source_open(&source);
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(source.model, &info), MOEPAGE_OK);
    assert_true(mp_model_has_form(source.model, MOEPAGE_FORM_DENSE));
    assert_false(mp_model_has_form(source.model, MOEPAGE_FORM_EXPH));
    uint64_t read_bytes, room = mp_model_image_room(source.model, MOEPAGE_FORM_DENSE);
    assert_int_equal(room, info.slot_bytes);
    unsigned char *right = calloc(1, room), *buffer = malloc(room);
    for (uint64_t t = 0, at = 0; t < 3; at += (source.tensor_bytes[t++] + 255) / 256 * 256)
        memcpy(right + at, pack_source_bytes(&source, 1, 1, (uint32_t)t), source.tensor_bytes[t]);
    memset(buffer, 0xee, room);
    assert_int_equal(mp_model_read_image(source.model, 1, 1, MOEPAGE_FORM_DENSE, buffer, room,
                                         &read_bytes),
                     MOEPAGE_OK);
    assert_memory_equal(buffer, right, room);
    assert_int_equal(read_bytes, info.expert_bytes);
    assert_int_equal(mp_model_check_image(source.model, 1, 1, MOEPAGE_FORM_DENSE), MOEPAGE_OK);
    assert_int_equal(mp_model_read_image(source.model, 1, 1, MOEPAGE_FORM_DENSE, buffer, room - 1,
                                         &read_bytes),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(mp_model_read_image(source.model, 1, 1, MOEPAGE_FORM_EXPH, buffer, room,
                                         &read_bytes),
                     MOEPAGE_E_NOT_FOUND);
    free(right);
    free(buffer);
}

static void test_pack_read_expert_refuses_what_is_not_there(void **state)
{
    (void)state;
    pack_source_open(&source);
    unsigned char out[16384];
    char name[8];
    moepage_form_info info = {.struct_size = sizeof info};
    const moepage_model *model = source.model;
    assert_int_equal(moepage_model_read_expert(model, 2, 0, out, sizeof out), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_read_expert(model, 0, 3, out, sizeof out), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_read_expert(model, 0, 0, NULL, sizeof out), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_read_expert(model, 0, 0, out, 9215), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_read_expert(model, 0, 0, out, 9216), MOEPAGE_OK);
    assert_int_equal(moepage_model_get_form(model, MOEPAGE_FORM_NONE, &info), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_get_form(model, 6, &info), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_get_form(model, MOEPAGE_FORM_DENSE, &info), MOEPAGE_OK);
    assert_int_equal(info.image_bytes, 6 * 9216);
    assert_int_equal(moepage_model_get_tensor_name(model, 0, name, sizeof name),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_get_tensor_name(model, 3, name, sizeof name),
                     MOEPAGE_E_NOT_FOUND);
}

static int32_t read_nothing(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                            uint64_t offset, uint64_t bytes, void *out)
{
    (void)user, (void)offset;
    memset(out, 0x5a, bytes);
    return layer == 1 && expert == 2 && tensor == 1 ? 7 : 0;
}

static void test_pack_of_a_callback_that_fails_leaves_nothing(void **state)
{
    (void)state;
    source.banks.read = read_nothing;
    pack_source_open(&source);
    unsigned char out[9216] = {3};
    assert_int_equal(moepage_model_read_expert(source.model, 1, 2, out, sizeof out),
                     MOEPAGE_E_CALLBACK);
    expect_sentence("failed with 7|layer 1, expert 2, tensor 1");
    assert_int_equal(out[0], 3); /* untouched, though the first tensor could be read */
    moepage_pack_config config = pack_config(PACK_FORM(DENSE), 0);
    assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_E_CALLBACK);
    expect_sentence("failed with 7|layer 1, expert 2, tensor 1");
    assert_int_equal(pack_files_in(directory), 0);
}

/* What several I/O threads of a device do at once. */
static void *read_everything(void *user)
{
    const moepage_model *pack = user;
    for (uint32_t key = 0; key < 6; key++)
        for (uint32_t form = MOEPAGE_FORM_DENSE; form <= MOEPAGE_FORM_EXPH; form++) {
            uint64_t room = mp_model_image_room(pack, form), read_bytes;
            unsigned char *buffer = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
            if (!buffer ||
                mp_model_read_image(pack, key / 3, key % 3, form, buffer, room, &read_bytes) ||
                mp_model_check_image(pack, key / 3, key % 3, MOEPAGE_FORM_EXPH) ||
                !mp_model_image_is_checked(pack, key / 3, key % 3, MOEPAGE_FORM_EXPH))
                user = NULL;
            free(buffer);
        }
    return user;
}

static void test_pack_is_read_by_many_threads_at_once(void **state)
{
    (void)state;
    pack_source_open(&source);
    moepage_pack_config config = pack_config(PACK_FORM(DENSE) | PACK_FORM(EXPH), 1);
    write_pack(source.model, &config, NULL);
    moepage_model *pack = pack_open(path);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_everything, pack), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, pack);
    }
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

/* Their tensors' bytes would still be counted, the padding of their slots would not. */
static void test_pack_forms_of_slots_past_all_counting_are_refused(void **state)
{
    (void)state;
    moepage_banks banks = source.banks;
    moepage_expert_tensor tensor = {.role = MOEPAGE_ROLE_DOWN,
                                    .dtype = MOEPAGE_DTYPE_U8,
                                    .rank = 2,
                                    .shape = {65535, 65537}}; /* 2^32 - 1 */
    moepage_model *model = NULL;
    pack_source_open(&source);
    banks.moe_layers = banks.layers = 65536;
    banks.layer_index = NULL;
    banks.experts = 65536;
    banks.tensors = &tensor;
    banks.n_tensors = 1;
    banks.read = read_nothing;
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &model), MOEPAGE_E_ARGUMENT);
    expect_sentence("65536 experts of 4294967296 bytes|overflows");
    banks.experts = 65535;
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &model), MOEPAGE_OK);
    moepage_form_info of = {.struct_size = sizeof of};
    assert_int_equal(moepage_model_get_form(model, MOEPAGE_FORM_DENSE, &of), MOEPAGE_OK);
    assert_int_equal(of.image_bytes, (uint64_t)65535 << 48);
    assert_int_equal(of.stored_bytes, (uint64_t)65535 * 65536 * 4294967295u);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- Damage after opening ---------------------------------------------------------------- */

static void test_pack_that_rots_behind_its_back_is_found_when_read(void **state)
{
    (void)state;
    pack_source_open(&source);
    moepage_pack_config config = pack_config(PACK_FORM(EXPH) | PACK_FORM(INT8), 0);
    write_pack(source.model, &config, NULL);
    moepage_model *pack = pack_open(path);
    unsigned char out[9216];
    pack_rot(pack, 1, 0, MOEPAGE_FORM_EXPH, 100);
    assert_int_equal(moepage_model_read_expert(pack, 1, 0, out, sizeof out), MOEPAGE_E_FORMAT);
    expect_sentence("a.moepack|EXPERT DATA (exph)|layer 1, expert 0|checksum");
    assert_int_equal(mp_model_check_image(pack, 1, 0, MOEPAGE_FORM_EXPH), MOEPAGE_E_FORMAT);
    expect_sentence("a.moepack|EXPERT DATA (exph)|layer 1, expert 0|checksum");
    assert_false(mp_model_image_is_checked(pack, 1, 0, MOEPAGE_FORM_EXPH));
    assert_int_equal(moepage_model_read_expert(pack, 1, 1, out, sizeof out), MOEPAGE_OK);
    assert_int_equal(mp_model_check_image(pack, 1, 0, MOEPAGE_FORM_DENSE), MOEPAGE_E_STATE);
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

static void test_pack_cut_behind_its_back_is_an_error_when_read(void **state)
{
    (void)state;
    pack_source_open(&source);
    moepage_pack_config config = pack_config(PACK_FORM(DENSE), 0);
    write_pack(source.model, &config, NULL);
    moepage_model *pack = pack_open(path);
    unsigned char out[9216];
    assert_int_equal(truncate(path, 40000), 0);
    assert_int_equal(moepage_model_read_expert(pack, 1, 2, out, sizeof out), MOEPAGE_E_IO);
    expect_sentence(
        "a.moepack|layer 1, expert 2|was truncated since it was opened|it had 81920 bytes");
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_pack_of_banks_is_the_same_model),
        CASE(test_pack_of_a_read_callback_is_the_same_model),
        CASE(test_pack_keeps_the_activation),
        CASE(test_pack_checks_the_activation_s_numbers),
        CASE(test_pack_holds_tensors_of_every_kind),
        CASE(test_pack_holds_tensors_of_blocks),
        CASE(test_pack_of_bare_banks_has_no_config_and_no_tensors),
        CASE(test_pack_of_a_checkpoint_is_the_same_model),
        CASE(test_pack_has_the_same_bytes_however_it_is_made),
        CASE(test_pack_images_are_read_whole_and_in_ranges_alike),
        CASE(test_pack_exph_images_decode_to_the_tensors),
        CASE(test_pack_integer_images_are_the_weights_rounded),
        CASE(test_pack_dense_images_of_other_models_are_their_slots),
        CASE(test_pack_read_expert_refuses_what_is_not_there),
        CASE(test_pack_of_a_callback_that_fails_leaves_nothing),
        CASE(test_pack_is_read_by_many_threads_at_once),
        CASE(test_pack_forms_of_slots_past_all_counting_are_refused),
        CASE(test_pack_that_rots_behind_its_back_is_found_when_read),
        CASE(test_pack_cut_behind_its_back_is_an_error_when_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
