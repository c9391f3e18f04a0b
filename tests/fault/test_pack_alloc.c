/* Packs while memory is short: every allocation failed in turn, once and from then on, in opening,
 * reading and writing one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "checkpoint_maker.h"
#include "gguf_moe.h"
#include "moe_maker.h"
#include "pack_maker.h"
#include "testing.h"

static struct {
    uint64_t calls;
    uint64_t fail_at; /* 1 = the first; 0 = never */
    bool persistent;
} heap;

static bool fails(size_t bytes)
{
    (void)bytes;
    heap.calls++;
    return heap.fail_at &&
           (heap.persistent ? heap.calls >= heap.fail_at : heap.calls == heap.fail_at);
}

static pack_source source;
static char directory[64], path[80];
static unsigned char *file;
static uint64_t n_bytes;

static int make(void **state)
{
    (void)state;
    memset(&heap, 0, sizeof heap);
    pack_source_init(&source);
    pack_source_open(&source);
    maker_dir_create(directory);
    snprintf(path, sizeof path, "%s/a.moepack", directory);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    memset(&heap, 0, sizeof heap);
    free(file);
    file = NULL;
    maker_dir_remove(directory);
    pack_source_close(&source);
    return 0;
}

/* Calls `act` until it succeeds, with the first, second, ... allocation failing; what the failures
 * lost, the sanitized build reports as leaks. Returns how many there were. */
static uint64_t fail_each(moepage_status (*act)(void *user), void *user, bool persistent)
{
    for (uint64_t at = 1;; at++) {
        heap.calls = 0;
        heap.fail_at = at;
        heap.persistent = persistent;
        moepage_status status = act(user);
        heap.fail_at = 0;
        if (status == MOEPAGE_OK) {
            assert_true(heap.calls < at);
            return at - 1;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        expect_sentence("no memory");
        assert_int_equal(pack_files_in(directory), 0);
    }
}

static moepage_status open_and_close(void *user)
{
    moepage_model *model = NULL;
    moepage_status status = moepage_model_open(user, NULL, &model);
    if (status)
        assert_null(model);
    else
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    return status;
}

static void test_pack_open_survives_every_failed_allocation(void **state)
{
    (void)state;
    file =
        pack_make(source.model, PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT4), 1, &n_bytes);
    const char *memory = pack_memory_file(file, n_bytes);
    uint64_t once = fail_each(open_and_close, (void *)memory, false);
    assert_in_range(once, 10, 40);
    assert_int_equal(fail_each(open_and_close, (void *)memory, true), once);
}

/* Layers of two layouts, and metadata. */
static void test_pack_open_mixed_survives_every_failed_allocation(void **state)
{
    (void)state;
    static gguf_writer writer;
    const gguf_moe of = gguf_moe_usual();
    char gguf[80];
    gguf_init(&writer);
    gguf_moe_make(&writer, &of);
    gguf_moe_retype(&writer, 1, "down", GGML_Q4_0);
    gguf_write(&writer, directory, "m.gguf");
    snprintf(gguf, sizeof gguf, "%s/m.gguf", directory);
    moepage_model *model = pack_open(gguf);
    file = pack_make(model, PACK_FORM(DENSE) | PACK_FORM(EXPH), 0, &n_bytes);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    assert_int_equal(unlink(gguf), 0);
    gguf_free(&writer);
    const char *memory = pack_memory_file(file, n_bytes);
    uint64_t once = fail_each(open_and_close, (void *)memory, false);
    assert_in_range(once, 10, 40);
    assert_int_equal(fail_each(open_and_close, (void *)memory, true), once);
}

static moepage_status read_expert(void *user)
{
    unsigned char out[9216], right[9216];
    memset(out, 9, sizeof out);
    moepage_status status = moepage_model_read_expert(user, 1, 1, out, sizeof out);
    heap.fail_at = 0;
    assert_int_equal(moepage_model_read_expert(source.model, 1, 1, right, sizeof right), 0);
    if (status)
        memset(right, 9, sizeof right);
    assert_memory_equal(out, right, sizeof right);
    return status;
}

static void test_pack_read_expert_survives_every_failed_allocation(void **state)
{
    (void)state;
    static const struct {
        uint32_t forms;
        int32_t cold_level;
        uint64_t allocations;
    } kinds[] = {{PACK_FORM(DENSE), 0, 1}, {PACK_FORM(DENSE), 1, 3}, {PACK_FORM(EXPH), 0, 2}};
    for (int i = 0; i < 3; i++) {
        file = pack_make(source.model, kinds[i].forms, kinds[i].cold_level, &n_bytes);
        moepage_model *model = pack_open(pack_memory_file(file, n_bytes));
        for (uint64_t at = 1; at <= kinds[i].allocations; at++) {
            heap.calls = 0;
            heap.fail_at = at;
            assert_int_equal(read_expert(model), MOEPAGE_E_NO_MEMORY);
            expect_sentence("no memory");
        }
        assert_int_equal(read_expert(model), MOEPAGE_OK);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        free(file);
        file = NULL;
    }
}

static moepage_status write_and_remove(void *user)
{
    moepage_status status = moepage_pack_write(source.model, path, user, NULL);
    if (!status)
        assert_int_equal(unlink(path), 0);
    return status;
}

static void test_pack_write_survives_every_failed_allocation(void **state)
{
    (void)state;
    moepage_pack_config config = {
        .struct_size = sizeof config,
        .forms = PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT2),
        .cold_level = 1,
        .threads = 1,
        .verify = 1,
    };
    uint64_t once = fail_each(write_and_remove, &config, false);
    assert_in_range(once, 30, 200);
    assert_int_equal(fail_each(write_and_remove, &config, true), once);
}

static moepage_status open_banks(void *user)
{
    moepage_model *model = NULL;
    moepage_status status = moepage_model_open_banks(user, NULL, &model);
    if (!status)
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    return status;
}

static void test_banks_open_with_all_extras_survives_every_failed_allocation(void **state)
{
    (void)state;
    uint64_t once = fail_each(open_banks, &source.banks, false);
    assert_int_equal(once, 8);
    assert_int_equal(fail_each(open_banks, &source.banks, true), once);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_pack_open_survives_every_failed_allocation),
        CASE(test_pack_open_mixed_survives_every_failed_allocation),
        CASE(test_pack_read_expert_survives_every_failed_allocation),
        CASE(test_pack_write_survives_every_failed_allocation),
        CASE(test_banks_open_with_all_extras_survives_every_failed_allocation),
    };
    alloc_fault_strikes = fails;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
