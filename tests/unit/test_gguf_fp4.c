/* GGUF files with scales beside their tensors of NVFP4: blocks that carry them, in layers of other types as well;
 * and what is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "gguf_moe.h"
#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__})
#define DOWN "blk.1.ffn_down_exps."

static char dir[64];
static gguf_writer writer;

/* Layer 1 has down in NVFP4, a block to each row, the others Q8_0; and there is a dense matrix. */
static int make(void **state)
{
    const gguf_moe usual = gguf_moe_usual();
    (void)state;
    maker_dir_create(dir);
    gguf_init(&writer);
    gguf_moe_make(&writer, &usual);
    gguf_moe_retype(&writer, 1, "down", GGML_NVFP4);
    gguf_tensor(&writer, GGML_NVFP4, 2, SHAPE(256, 3), "blk.0.attn_q.weight");
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    gguf_free(&writer);
    maker_dir_remove(dir);
    return 0;
}

static void add_scales(const char *name, uint32_t n, float first)
{
    gguf_made *made = gguf_tensor(&writer, GGML_F32, 1, SHAPE(n), "%s", name);
    for (uint32_t i = 0; i < n; i++) {
        const float scale = first + (float)i;
        memcpy(made->data + 4 * i, &scale, 4);
    }
}

static moepage_status open_model(moepage_model **out)
{
    char path[96];
    gguf_write(&writer, dir, "m.gguf");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    *out = NULL;
    return moepage_model_open(path, NULL, out);
}

static moepage_model *expect_open(void)
{
    moepage_model *model;
    if (open_model(&model))
        fail_msg("not opened: %s", moepage_last_error());
    return model;
}

static void expect_refusal(moepage_status status, const char *words)
{
    moepage_model *model;
    assert_int_equal(open_model(&model), status);
    expect_sentence(words);
}

/* One block of 64, 128 or 256 weights from those of 64. */
static uint64_t put_block(const unsigned char *from, uint32_t each, float scale, unsigned char *out)
{
    unsigned char *at = out;
    memcpy(at, &scale, 4);
    at += 4;
    for (uint32_t i = 0; i < each; i++, at += 4)
        memcpy(at, from + 36 * i, 4);
    for (uint32_t i = 0; i < each; i++, at += 32)
        memcpy(at, from + 36 * i + 4, 32);
    return (uint64_t)(at - out);
}

static const gguf_made *made_of(const char *name)
{
    for (uint32_t i = 0; i < writer.n_tensors; i++)
        if (strcmp(writer.tensors[i].name, name) == 0)
            return &writer.tensors[i];
    fail_msg("there is no %s", name);
    return NULL;
}

static void expect_piece(const moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t piece, const unsigned char *want, uint64_t bytes)
{
    static unsigned char got[1 << 14];
    assert_int_equal(mp_model_layout(model, layer)->pieces[piece].bytes, bytes);
    assert_int_equal(mp_model_read_piece(model, layer, expert, piece, 0, bytes, got), MOEPAGE_OK);
    assert_memory_equal(got, want, bytes);
    assert_int_equal(mp_model_read_piece(model, layer, expert, piece, bytes / 3, bytes / 2, got),
                     MOEPAGE_OK);
    assert_memory_equal(got, want + bytes / 3, bytes / 2);
}

static void expect_stored(const moepage_model *model, uint32_t layer, uint32_t piece)
{
    static const char *const parts[] = {"gate", "up", "down"};
    char name[64];
    snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, parts[piece]);
    const gguf_made *made = made_of(name);
    for (uint32_t e = 0; e < GM_EXPERTS; e++)
        expect_piece(model, layer, e, piece, made->data + e * (made->bytes / GM_EXPERTS),
                     made->bytes / GM_EXPERTS);
}

static void expect_scaled(const moepage_model *model, float first)
{
    static unsigned char want[GM_HIDDEN * 40];
    const gguf_made *made = made_of(DOWN "weight");
    for (uint32_t e = 0; e < GM_EXPERTS; e++) {
        for (uint32_t r = 0; r < GM_HIDDEN; r++)
            put_block(made->data + 36 * (e * GM_HIDDEN + r), 1, first + (float)e, want + 40 * r);
        expect_piece(model, 1, e, 2, want, sizeof want);
    }
}

static void test_gguf_fp4_takes_the_scales_of_experts_and_matrices(void **state)
{
    unsigned char want[3 * 148];
    moepage_tensor_view view = {.struct_size = sizeof view};
    (void)state;
    add_scales(DOWN "scale", GM_EXPERTS, 0.25f);
    add_scales(DOWN "input_scale", GM_EXPERTS, 7);
    add_scales("blk.0.attn_q.scale", 1, 3);
    moepage_model *model = expect_open();
    assert_int_equal(model->info.ffn_supported, 1);
    assert_int_equal(model->n_layouts, 2);
    for (uint32_t layer = 0; layer < GM_LAYERS; layer++)
        for (uint32_t piece = 0; piece < 3; piece++)
            if (layer != 1 || piece != 2)
                expect_stored(model, layer, piece);
    expect_scaled(model, 0.25f);
    assert_int_equal(moepage_model_find_tensor(model, "blk.0.attn_q.weight", &view), MOEPAGE_OK);
    assert_int_equal(view.dtype, MOEPAGE_DTYPE_NVFP4G256_F32);
    assert_int_equal(view.shape[0], 3);
    assert_int_equal(view.bytes, sizeof want);
    for (uint32_t r = 0; r < 3; r++)
        put_block(made_of("blk.0.attn_q.weight")->data + 144 * r, 4, 3, want + 148 * r);
    assert_memory_equal(view.data, want, sizeof want);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* Without scales beside them blocks are what they are. */
static void test_gguf_fp4_without_scales_is_as_stored(void **state)
{
    (void)state;
    moepage_model *model = expect_open();
    for (uint32_t layer = 0; layer < GM_LAYERS; layer++)
        for (uint32_t piece = 0; piece < 3; piece++)
            expect_stored(model, layer, piece);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_fp4_refuses_scales_of_other_shapes_and_types(void **state)
{
    (void)state;
    add_scales(DOWN "scale", GM_EXPERTS - 1, 1);
    expect_refusal(MOEPAGE_E_FORMAT, DOWN "scale|[3]|[4]");
    gguf_remove(&writer, DOWN "scale");
    gguf_tensor(&writer, GGML_F32, 2, SHAPE(1, GM_EXPERTS), DOWN "scale");
    expect_refusal(MOEPAGE_E_FORMAT, DOWN "scale|[1, 4]|[4]");
    gguf_remove(&writer, DOWN "scale");
    gguf_tensor(&writer, GGML_F16, 1, SHAPE(GM_EXPERTS), DOWN "scale");
    expect_refusal(MOEPAGE_E_FORMAT, DOWN "scale|F32 [4]");
    gguf_remove(&writer, DOWN "scale");
    add_scales("blk.0.attn_q.scale", 2, 1);
    expect_refusal(MOEPAGE_E_FORMAT, "blk.0.attn_q.scale|[2]|[1]");
}

static void test_gguf_fp4_refuses_names_too_long_to_have_a_scale(void **state)
{
    char name[200];
    (void)state;
    for (uint32_t n = 176; n <= 177; n++) {
        snprintf(name, sizeof name, "%0*u.weight", (int)n - 7, 0);
        gguf_tensor(&writer, GGML_NVFP4, 2, SHAPE(64, 1), "%s", name);
        if (n == 176)
            assert_int_equal(moepage_model_close(expect_open()), MOEPAGE_OK);
        else
            expect_refusal(MOEPAGE_E_UNSUPPORTED, "m.gguf|00000|177 bytes|176");
    }
}

static void test_gguf_fp4_a_scale_that_no_quantiser_makes_fails_its_load(void **state)
{
    unsigned char out[64];
    (void)state;
    add_scales(DOWN "scale", GM_EXPERTS, -1); /* -1, 0, 1, 2 */
    moepage_model *model = expect_open();
    assert_int_equal(mp_model_read_piece(model, 1, 0, 2, 0, sizeof out, out), MOEPAGE_E_FORMAT);
    expect_sentence("layer 1, expert 0|m.gguf|scale of a matrix|2^-100");
    for (uint32_t e = 1; e < GM_EXPERTS; e++)
        assert_int_equal(mp_model_read_piece(model, 1, e, 2, 0, sizeof out, out), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gguf_fp4_takes_the_scales_of_experts_and_matrices,
                                        make, unmake),
        cmocka_unit_test_setup_teardown(test_gguf_fp4_without_scales_is_as_stored, make, unmake),
        cmocka_unit_test_setup_teardown(test_gguf_fp4_refuses_scales_of_other_shapes_and_types,
                                        make, unmake),
        cmocka_unit_test_setup_teardown(test_gguf_fp4_refuses_names_too_long_to_have_a_scale, make,
                                        unmake),
        cmocka_unit_test_setup_teardown(
            test_gguf_fp4_a_scale_that_no_quantiser_makes_fails_its_load, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
