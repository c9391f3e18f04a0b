/* Opening a model while memory is short: every allocation failed in turn, once and from then on. */
#include <stdio.h>
#include <string.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "descriptors.h"
#include "gguf_moe.h"
#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

static struct {
    uint64_t calls;
    uint64_t fail_at; /* 1 = the first; 0 = never */
    uint64_t largest; /* the most bytes asked for at once */
    bool persistent;
} heap;

static bool fails(size_t bytes)
{
    heap.calls++;
    heap.largest = bytes > heap.largest ? bytes : heap.largest;
    return heap.fail_at &&
           (heap.persistent ? heap.calls >= heap.fail_at : heap.calls == heap.fail_at);
}

static moe_maker maker;

static int make(void **state)
{
    (void)state;
    memset(&heap, 0, sizeof heap);
    moe_maker_init(&maker);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    memset(&heap, 0, sizeof heap);
    moe_maker_free(&maker);
    return 0;
}

/* Runs `open` until it succeeds, with the first, second, ... allocation failing; no file stays open, and
 * what memory the failures lost, the sanitized build reports as leaks. Returns how many there were. */
static uint64_t fail_each(moepage_status (*open)(moepage_model **out), bool persistent)
{
    const uint32_t descriptors = count_descriptors();
    for (uint64_t at = 1;; at++) {
        heap.calls = 0;
        heap.fail_at = at;
        heap.persistent = persistent;
        moepage_model *model = NULL;
        moepage_status status = open(&model);
        heap.fail_at = 0;
        if (status == MOEPAGE_OK) {
            assert_true(heap.calls < at);
            assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
            assert_int_equal(count_descriptors(), descriptors);
            return at - 1;
        }
        assert_int_equal(count_descriptors(), descriptors);
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_null(model);
        expect_sentence("no memory");
    }
}

static moepage_status open_directory(moepage_model **out)
{
    return moepage_model_open(maker.dir, NULL, out);
}

static void test_model_open_survives_every_failed_allocation(void **state)
{
    (void)state;
    moe_maker_write(&maker);
    uint64_t once = fail_each(open_directory, false);
    assert_in_range(once, 12, 1000);
    assert_int_equal(fail_each(open_directory, true), once);
}

/* Experts that only config.json and the routers have are found missing, not made room for. */
static void test_model_open_takes_no_memory_for_experts_that_are_not_there(void **state)
{
    (void)state;
    moe_maker_replace(&maker, "\"num_experts\": 4", "\"num_experts\": 65536");
    for (uint32_t layer = 0; layer < MOE_LAYERS; layer++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.mlp.gate.weight", layer);
        maker_reshape(maker_find(&maker.shard, name), "BF16", 2, (uint64_t[]){65536, MOE_HIDDEN});
    }
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_NOT_FOUND, "layers.1.mlp.experts.65535.gate_proj.weight");
    assert_in_range(heap.largest, 1, 1 << 20);
}

static void test_model_open_of_indexed_and_loose_files_survives_too(void **state)
{
    (void)state;
    char text[8192], name[32];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"weight_map\": {");
    maker_shard one = {0};
    /* One file per tensor: the list of names grows more than once. */
    for (uint32_t i = 0; i < maker.shard.n_tensors; i++) {
        snprintf(name, sizeof name, "part-%02u.safetensors", i);
        one.n_tensors = 1;
        one.tensors[0] = maker.shard.tensors[i];
        maker_write_shard(&one, maker.dir, name);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%s\": \"%s\"", i ? ", " : "",
                              one.tensors[0].name, name);
    }
    snprintf(text + n, sizeof text - n, "}}");
    maker_write_text(maker.dir, "config.json", maker.config);
    uint64_t loose = fail_each(open_directory, false);
    assert_true(loose > 5 * maker.shard.n_tensors);
    maker_write_text(maker.dir, "model.safetensors.index.json", text);
    uint64_t indexed = fail_each(open_directory, false);
    assert_true(indexed > 5 * maker.shard.n_tensors);
}

static void test_model_find_tensor_survives_a_failed_copy(void **state)
{
    (void)state;
    maker.shard.padding = 1;
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    const maker_tensor *made = maker_find(&maker.shard, "model.norm.weight");
    moepage_tensor_view view = {.struct_size = sizeof view};
    heap.calls = 0;
    heap.fail_at = 1;
    assert_int_equal(moepage_model_find_tensor(model, made->name, &view), MOEPAGE_E_NO_MEMORY);
    expect_sentence("model.norm.weight|no memory");
    assert_null(view.data);
    assert_int_equal(moepage_model_find_tensor(model, made->name, &view), MOEPAGE_OK);
    assert_memory_equal(view.data, made->data, made->bytes);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static const char *gguf_name;

static moepage_status open_gguf(moepage_model **out)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", maker.dir, gguf_name);
    return moepage_model_open(path, NULL, out);
}

static void test_gguf_open_survives_every_failed_allocation(void **state)
{
    (void)state;
    static gguf_writer w;
    gguf_moe usual = gguf_moe_usual();
    gguf_init(&w);
    gguf_moe_make(&w, &usual);
    gguf_write(&w, maker.dir, gguf_name = "m.gguf");
    uint64_t once = fail_each(open_gguf, false);
    assert_in_range(once, 12, 40);
    assert_int_equal(fail_each(open_gguf, true), once);

    gguf_u16(&w, "split.no", 0);
    gguf_u16(&w, "split.count", 2);
    gguf_u32(&w, "split.tensors.count", w.n_tensors);
    gguf_write(&w, maker.dir, gguf_name = "m-00001-of-00002.gguf");
    gguf_free(&w);
    gguf_u16(&w, "split.no", 1);
    gguf_u16(&w, "split.count", 2);
    gguf_u32(&w, "split.tensors.count", 17);
    gguf_write(&w, maker.dir, "m-00002-of-00002.gguf");
    gguf_free(&w);
    assert_in_range(fail_each(open_gguf, false), once + 5, once + 20);
}

/* A count of experts or layers that no tensor bears out is refused before room is made for it. */
static void test_gguf_open_takes_no_memory_for_experts_that_are_not_there(void **state)
{
    (void)state;
    static gguf_writer w;
    gguf_moe usual = gguf_moe_usual();
    moepage_model *model = NULL;
    gguf_init(&w);
    gguf_moe_make(&w, &usual);
    gguf_clear_values(&w);
    gguf_moe_values(&w, &usual, "expert_count");
    gguf_u32(&w, "qwen3moe.expert_count", 65536);
    gguf_write(&w, maker.dir, gguf_name = "m.gguf");
    gguf_free(&w);
    assert_int_equal(open_gguf(&model), MOEPAGE_E_FORMAT);
    expect_sentence("blk.0.ffn_gate_inp.weight");
    assert_in_range(heap.largest, 1,
                    sizeof *model); /* the model itself, where layouts have places */
}

static const char *const *bank_files; /* two; NULL: the experts are in memory */

static moepage_status open_banks(moepage_model **out)
{
    static const unsigned char bytes[4];
    static const moepage_file_place places[4] = {{.file = 1}, {.offset = 4}, {.file = 1}, {0}};
    const void *data[] = {bytes, bytes, bytes, bytes};
    moepage_expert_tensor tensor = {.role = MOEPAGE_ROLE_GATE,
                                    .dtype = MOEPAGE_DTYPE_F32,
                                    .rank = 1,
                                    .shape = {1}};
    moepage_banks banks = {
        .struct_size = sizeof banks,
        .moe_layers = 2,
        .experts = 2,
        .top_k = 1,
        .hidden = 1,
        .expert_intermediate = 1,
        .n_tensors = 1,
        .tensors = &tensor,
        .data = bank_files ? NULL : data,
        .n_files = bank_files ? 2 : 0,
        .files = bank_files,
        .places = bank_files ? places : NULL,
    };
    return moepage_model_open_banks(&banks, NULL, out);
}

static void test_banks_open_survives_every_failed_allocation(void **state)
{
    (void)state;
    assert_int_equal(fail_each(open_banks, false), 3);
    assert_int_equal(fail_each(open_banks, true), 3);
}

/* As in memory, and the two names, the list of files, and what each direct read needs. */
static void test_bank_files_open_survives_every_failed_allocation(void **state)
{
    (void)state;
    char paths[2][128];
    const char *const list[] = {paths[0], paths[1]};
    for (int f = 0; f < 2; f++) {
        char name[8];
        snprintf(name, sizeof name, "%d.bin", f);
        maker_write(maker.dir, name, "12345678", 8);
        snprintf(paths[f], sizeof paths[f], "%s/%s", maker.dir, name);
    }
    const uint64_t allocations = 3 + 3 + (has_direct_reads(paths[0]) ? 2 : 0);
    bank_files = list;
    assert_int_equal(fail_each(open_banks, false), allocations);
    assert_int_equal(fail_each(open_banks, true), allocations);
    bank_files = NULL;
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_model_open_survives_every_failed_allocation),
        CASE(test_model_open_takes_no_memory_for_experts_that_are_not_there),
        CASE(test_model_open_of_indexed_and_loose_files_survives_too),
        CASE(test_model_find_tensor_survives_a_failed_copy),
        CASE(test_gguf_open_survives_every_failed_allocation),
        CASE(test_gguf_open_takes_no_memory_for_experts_that_are_not_there),
        CASE(test_banks_open_survives_every_failed_allocation),
        CASE(test_bank_files_open_survives_every_failed_allocation),
    };
    alloc_fault_strikes = fails;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
