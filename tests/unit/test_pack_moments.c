/* Packs whose integer forms are rounded for inputs of given moments: the callback is asked for every matrix,
 * the integers are those of its moments, all else is as without them, and its failures end the call. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/quant.h"
#include "moe_maker.h"
#include "pack_maker.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 3

static pack_source source;
static char directory[64], path[80];

static int make(void **state)
{
    (void)state;
    pack_source_init(&source);
    pack_source_open(&source);
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

/* What the callback is asked, and what it is to do. */
typedef struct asked {
    atomic_uint calls[LAYERS][EXPERTS][2];
    uint32_t fails_in; /* the layer whose expert 2 it has no down projection's moments of */
    int32_t code;
    bool impossible;
} asked;

static uint64_t columns_of(uint32_t tensor)
{
    return tensor ? 24 : 64;
}

/* Inputs along one direction, of every matrix its own, beside some noise. */
static void fill(uint32_t layer, uint32_t expert, uint32_t tensor, float *out)
{
    const uint64_t n = columns_of(tensor);
    float x[64];
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)((i * 7 + layer * 5 + expert * 3 + tensor) % 11) - 4;
    for (uint64_t a = 0; a < n; a++)
        for (uint64_t b = a; b < n; b++)
            out[a * n + b] = x[a] * x[b] + (a == b ? 2.0f : 0);
}

static int32_t answer(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                      const void *slot, uint64_t columns, float *out)
{
    asked *a = user;
    assert_true(layer < LAYERS && expert < EXPERTS && tensor < 2);
    assert_int_equal(columns, columns_of(tensor));
    a->calls[layer][expert][tensor]++;
    for (uint32_t t = 0; t < 2; t++) {
        moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
        assert_int_equal(moepage_model_get_layer_tensors(source.model, layer, tensors,
                                                         MOEPAGE_MAX_EXPERT_TENSORS),
                         MOEPAGE_OK);
        assert_memory_equal((const char *)slot + tensors[t].offset,
                            pack_source_bytes(&source, layer, expert, t), source.tensor_bytes[t]);
    }
    fill(layer, expert, tensor, out);
    if (a->impossible)
        out[0] = -1e6f;
    return a->code && layer == a->fails_in && expert == 2 && tensor == 1 ? a->code : 0;
}

static moepage_pack_config config_of(asked *a, uint32_t forms)
{
    moepage_pack_config config = pack_config(forms, 0);
    config.moments = answer;
    config.moments_user = a;
    return config;
}

static void expect_calls(const asked *a, uint32_t each)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            for (uint32_t t = 0; t < 2; t++)
                assert_int_equal(a->calls[l][e][t], each);
}

static void expect_image(unsigned char *file, uint32_t form, uint32_t bits, uint32_t layer,
                         uint32_t expert, int search, uint32_t *n_changed)
{
    const unsigned char *record = pack_find_record(file, form, layer, expert);
    for (uint32_t t = 0; t < 2; t++) {
        const mp_quant_shape shape = {t ? 64 : 48, columns_of(t), bits, 64};
        mp_quant_layout layout;
        float moments[64 * 64];
        unsigned char want[8192], plain[8192];
        const void *weights = pack_source_bytes(&source, layer, expert, t);
        assert_true(mp_quant_layout_of(&shape, &layout) && layout.bytes <= sizeof want);
        fill(layer, expert, t, moments);
        assert_int_equal(mp_quant_encode_for(&shape, MOEPAGE_DTYPE_BF16, weights, search, moments,
                                             want),
                         MOEPAGE_OK);
        assert_int_equal(mp_quant_encode(&shape, MOEPAGE_DTYPE_BF16, weights, search, plain),
                         MOEPAGE_OK);
        assert_memory_equal(record, want, layout.bytes);
        *n_changed += memcmp(want, plain, layout.bytes) != 0;
        record += layout.bytes;
    }
}

static void test_integer_forms_are_rounded_for_the_moments(void **state)
{
    (void)state;
    const uint32_t forms =
        PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT8) | PACK_FORM(INT4) | PACK_FORM(INT2);
    for (uint32_t search = 0; search < 2; search++) {
        asked a = {0};
        moepage_pack_config config = config_of(&a, forms);
        config.scale_search = search;
        if (moepage_pack_write(source.model, path, &config, NULL))
            fail_msg("not packed: %s", moepage_last_error());
        expect_calls(&a, 3);
        size_t n;
        uint32_t n_changed = 0;
        unsigned char *file = maker_read(directory, "a.moepack", &n);
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t e = 0; e < EXPERTS; e++)
                for (uint32_t form = MOEPAGE_FORM_INT8; form <= MOEPAGE_FORM_INT2; form++)
                    expect_image(file, form, 8u >> (form - MOEPAGE_FORM_INT8), l, e, (int)search,
                                 &n_changed);
        free(file);
        assert_int_equal(n_changed, LAYERS * EXPERTS * 2 * 3);
        moepage_model *pack = pack_open(path);
        pack_expect_same(source.model, pack);
        assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    }
}

static void test_verifying_asks_for_the_moments_again(void **state)
{
    (void)state;
    asked a = {0};
    moepage_pack_config config = config_of(&a, PACK_FORM(EXPH) | PACK_FORM(INT2));
    config.verify = 1;
    if (moepage_pack_write(source.model, path, &config, NULL))
        fail_msg("not packed: %s", moepage_last_error());
    expect_calls(&a, 2);
}

static void expect_failure(asked *a, moepage_status status, const char *words)
{
    const moepage_pack_config config = config_of(a, PACK_FORM(EXPH) | PACK_FORM(INT4));
    maker_write_text(directory, "a.moepack", "before");
    assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), status);
    expect_sentence(words);
    assert_int_equal(pack_files_in(directory), 1);
    size_t n;
    free(maker_read(directory, "a.moepack", &n));
    assert_int_equal(n, 6);
}

static void test_moments_that_fail_end_the_call(void **state)
{
    (void)state;
    asked a = {.fails_in = 1, .code = -7};
    expect_failure(&a, MOEPAGE_E_CALLBACK, "layer 1, expert 2|tensor 1|moments|-7");
    asked b = {.impossible = true};
    expect_failure(&b, MOEPAGE_E_ARGUMENT, "layer|expert|tensor|no inputs have these moments");
}

static void test_moments_without_an_integer_form_are_refused(void **state)
{
    (void)state;
    asked a = {0};
    const moepage_pack_config config = config_of(&a, PACK_FORM(EXPH));
    assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_E_ARGUMENT);
    expect_sentence("moments|no integer form");
    expect_calls(&a, 0);
}

/* The struct as it was before it had moments: what lies behind it is not read. */
static void test_a_config_without_moments_is_as_before(void **state)
{
    (void)state;
    asked a = {0};
    moepage_pack_config config = config_of(&a, PACK_FORM(EXPH) | PACK_FORM(INT2));
    config.struct_size = offsetof(moepage_pack_config, moments);
    if (moepage_pack_write(source.model, path, &config, NULL))
        fail_msg("not packed: %s", moepage_last_error());
    expect_calls(&a, 0);
    config.struct_size--;
    assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_E_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_integer_forms_are_rounded_for_the_moments, make,
                                        unmake),
        cmocka_unit_test_setup_teardown(test_verifying_asks_for_the_moments_again, make, unmake),
        cmocka_unit_test_setup_teardown(test_moments_that_fail_end_the_call, make, unmake),
        cmocka_unit_test_setup_teardown(test_moments_without_an_integer_form_are_refused, make,
                                        unmake),
        cmocka_unit_test_setup_teardown(test_a_config_without_moments_is_as_before, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
