/* Damaged checkpoints: cut at every length, and changed in every byte that means something. The
 * library must never crash or read outside the file (the sanitized build watches), and either
 * refuse with a sentence or yield tensors that lie within the file and are as large as their
 * shapes say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "model/safetensors.h"
#include "moe_maker.h"
#include "testing.h"

static moe_maker maker;
static unsigned char *whole; /* model.safetensors as written */
static size_t n_whole;
static size_t n_header; /* its first 8 bytes and its header */
static uint64_t seed;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static uint64_t rounds(uint64_t usual)
{
    return getenv("MP_TEST_LONG") ? usual * 40 : usual;
}

static int make(void **state)
{
    (void)state;
    seed = 0x6d6f6570616765u;
    moe_maker_init(&maker);
    moe_maker_write(&maker);
    whole = maker_read(maker.dir, "model.safetensors", &n_whole);
    n_header = 8;
    for (int i = 0; i < 8; i++)
        n_header += (size_t)whole[i] << (8 * i);
    assert_in_range(n_header, 100, n_whole - 1);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    free(whole);
    moe_maker_free(&maker);
    return 0;
}

static uint64_t expected_bytes(const mp_tensor *tensor)
{
    unsigned __int128 bits = tensor->type->bits;
    for (uint32_t i = 0; i < tensor->rank && i < MOEPAGE_MAX_RANK; i++)
        bits *= tensor->shape[i];
    return (uint64_t)(bits / 8);
}

/* An accepted file's tensors must partition its data section. */
static void expect_sound(const mp_safetensors *file, const unsigned char *bytes, uint64_t n)
{
    uint64_t total = 0, header = 8;
    for (int i = 0; i < 8; i++)
        header += (uint64_t)bytes[i] << (8 * i);
    assert_int_equal(file->file.bytes, n);
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        const mp_tensor *tensor = &file->tensors[i];
        assert_true(tensor->offset >= header);
        assert_true(tensor->bytes <= n);
        assert_true(tensor->offset <= n - tensor->bytes);
        if (tensor->rank <= MOEPAGE_MAX_RANK)
            assert_int_equal(tensor->bytes, expected_bytes(tensor));
        total += tensor->bytes;
    }
    assert_int_equal(header + total, n);
}

/* Opens the bytes as one file, and the directory as a model. Says whether the model opened. */
static bool try_bytes(const unsigned char *bytes, size_t n)
{
    char path[128];
    maker_write(maker.dir, "model.safetensors", bytes, n);
    snprintf(path, sizeof path, "%s/model.safetensors", maker.dir);
    mp_safetensors file;
    moepage_status status = mp_safetensors_open(path, &file);
    if (status == MOEPAGE_OK) {
        expect_sound(&file, bytes, n);
        mp_safetensors_close(&file);
    } else {
        assert_in_range(-status, 1, 15);
        assert_non_null(strstr(moepage_last_error(), "model.safetensors"));
    }
    moepage_model *model = NULL;
    moepage_status opened = moepage_model_open(maker.dir, NULL, &model);
    if (opened == MOEPAGE_OK) {
        assert_int_equal(status, MOEPAGE_OK);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        return true;
    }
    assert_null(model);
    assert_true(strlen(moepage_last_error()) > strlen(maker.dir));
    return false;
}

static void test_mutations_every_truncation_is_refused(void **state)
{
    (void)state;
    assert_true(try_bytes(whole, n_whole));
    for (size_t n = 0; n < n_whole; n++)
        if (try_bytes(whole, n))
            fail_msg("accepted when cut to %zu of %zu bytes", n, n_whole);
}

static void test_mutations_every_extension_is_refused(void **state)
{
    (void)state;
    unsigned char *longer = calloc(1, n_whole + 64);
    memcpy(longer, whole, n_whole);
    for (size_t n = 1; n <= 64; n++)
        assert_false(try_bytes(longer, n_whole + n));
    free(longer);
}

/* One change to the header leaves the shapes or names that the config asks for only where it falls
 * on what has no meaning: the metadata, or padding. */
static void test_mutations_every_header_byte_may_change(void **state)
{
    (void)state;
    static const unsigned char flips[] = {0x01, 0x02, 0x10, 0x80};
    const bool all = getenv("MP_TEST_LONG") != NULL; /* or one of them for each byte */
    uint64_t refused = 0, tried = 0;
    for (size_t i = 0; i < n_header; i++)
        for (size_t f = all ? 0 : i % sizeof flips; f < sizeof flips; f += all ? 1 : sizeof flips) {
            whole[i] ^= flips[f];
            refused += !try_bytes(whole, n_whole);
            tried++;
            whole[i] ^= flips[f];
        }
    assert_true(refused > tried * 9 / 10);
}

static void test_mutations_random_edits_of_the_header(void **state)
{
    (void)state;
    unsigned char *edited = malloc(n_whole + 16);
    for (uint64_t round = 0; round < rounds(2000); round++) {
        memcpy(edited, whole, n_whole);
        for (uint64_t edits = 1 + next_random() % 4; edits; edits--) {
            size_t at = 8 + next_random() % (n_header - 8);
            static const char likely[] = "0123456789,:[]{}\"-. ";
            switch (next_random() % 3) {
            case 0: edited[at] = (unsigned char)likely[next_random() % (sizeof likely - 1)]; break;
            case 1: edited[at] = (unsigned char)next_random(); break;
            default: { /* copy a run of the header elsewhere within it */
                size_t from = 8 + next_random() % (n_header - 8);
                size_t room = n_header - (from > at ? from : at);
                size_t length = 1 + next_random() % 24;
                memmove(edited + at, edited + from, length < room ? length : room);
            }
            }
        }
        try_bytes(edited, n_whole);
    }
    free(edited);
}

static void test_mutations_of_the_config(void **state)
{
    (void)state;
    size_t n = strlen(maker.config);
    char edited[sizeof maker.config];
    for (uint64_t round = 0; round < rounds(3000); round++) {
        memcpy(edited, maker.config, n);
        static const char likely[] = "0123456789,:[]{}\"-.enu";
        for (uint64_t edits = 1 + next_random() % 2; edits; edits--)
            edited[next_random() % n] = next_random() % 4
                                            ? likely[next_random() % (sizeof likely - 1)]
                                            : (char)next_random();
        maker_write(maker.dir, "config.json", edited, n);
        moepage_model *model = NULL;
        moepage_status status = moepage_model_open(maker.dir, NULL, &model);
        if (status) {
            assert_true(strlen(moepage_last_error()) > strlen(maker.dir));
            continue;
        }
        /* What was accepted must still be the checkpoint's shape; fewer layers are a model too. */
        assert_in_range(model->info.moe_layers, 1, MOE_LAYERS);
        assert_int_equal(model->info.moe_layers, model->info.layers);
        assert_int_equal(model->info.experts, MOE_EXPERTS);
        assert_int_equal(model->info.hidden, MOE_HIDDEN);
        assert_int_equal(model->info.expert_intermediate, MOE_INTERMEDIATE);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_mutations_every_truncation_is_refused),
        CASE(test_mutations_every_extension_is_refused),
        CASE(test_mutations_every_header_byte_may_change),
        CASE(test_mutations_random_edits_of_the_header),
        CASE(test_mutations_of_the_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
