/* An opened checkpoint: its slot, its experts, its dense tensors, every tensor refused by name. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

static moe_maker maker;

static int make(void **state)
{
    (void)state;
    moe_maker_init(&maker);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    moe_maker_free(&maker);
    return 0;
}

#define EXPERT "model.layers.1.mlp.experts.2."

static void test_model_open_describes_the_slot_and_every_expert(void **state)
{
    (void)state;
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);

    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.layers, 2);
    assert_int_equal(info.moe_layers, 2);
    assert_int_equal(info.experts, 4);
    assert_int_equal(info.top_k, 2);
    assert_int_equal(info.hidden, 8);
    assert_int_equal(info.expert_intermediate, 4);
    assert_int_equal(info.shared_experts, 0);
    assert_int_equal(info.vocabulary, 16);
    assert_int_equal(info.expert_tensors, 2);
    assert_int_equal(info.expert_bytes, 192);
    assert_int_equal(info.slot_bytes, 512); /* 128 and 64 bytes, each at a multiple of 256 */
    assert_int_equal(info.routed_bytes, 8 * 192);
    /* embedding, 2 norms, 2 routers, final norm in F32 */
    assert_int_equal(info.dense_bytes, 16 * 8 * 2 + 2 * 16 + 2 * 64 + 32);
    assert_string_equal(info.architecture, "qwen3_moe");
    assert_int_equal(info.ffn_supported, 1);

    moepage_expert_tensor t[8];
    assert_int_equal(moepage_model_get_expert_tensors(model, t, 8), MOEPAGE_OK);
    assert_int_equal(t[0].role, MOEPAGE_ROLE_GATE_UP);
    assert_int_equal(t[0].dtype, MOEPAGE_DTYPE_BF16);
    assert_int_equal(t[0].rank, 2);
    assert_int_equal(t[0].shape[0], 8);
    assert_int_equal(t[0].shape[1], 8);
    assert_int_equal(t[0].shape[2], 0);
    assert_int_equal(t[0].bytes, 128);
    assert_int_equal(t[0].offset, 0);
    assert_int_equal(t[1].role, MOEPAGE_ROLE_DOWN);
    assert_int_equal(t[1].shape[0], 8);
    assert_int_equal(t[1].shape[1], 4);
    assert_int_equal(t[1].bytes, 64);
    assert_int_equal(t[1].offset, 256);

    assert_int_equal(model->layouts[0].pieces[0].slot_offset, 0);
    assert_int_equal(model->layouts[0].pieces[1].slot_offset, 64);
    assert_int_equal(model->layouts[0].pieces[1].tensor_offset, 64);
    assert_int_equal(model->layouts[0].pieces[2].slot_offset, 256);
    assert_int_equal(model->layouts[0].ffn.gate, 0);
    assert_int_equal(model->layouts[0].ffn.up, 64);
    assert_int_equal(model->layouts[0].ffn.down, 256);
    assert_true(model->layouts[0].ffn.gate_bias == UINT64_MAX &&
                model->layouts[0].ffn.up_bias == UINT64_MAX &&
                model->layouts[0].ffn.down_bias == UINT64_MAX);
    for (uint32_t l = 0; l < MOE_LAYERS; l++)
        for (uint32_t e = 0; e < MOE_EXPERTS; e++)
            moe_expect_expert(model, l, e);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_model_find_tensor_gives_dtype_shape_and_bytes(void **state)
{
    (void)state;
    uint64_t none[] = {0, 3}, deep[] = {1, 1, 1, 1, 2}, wide[] = {3};
    maker_add(&maker.shard, "F32", 2, none, "empty");
    maker_add(&maker.shard, "F32", 5, deep, "deep");
    maker_add(&maker.shard, "F64", 1, wide, "wide");
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    for (uint32_t i = 0; i < maker.shard.n_tensors - 2; i++) {
        const maker_tensor *made = &maker.shard.tensors[i];
        moepage_tensor_view view = {.struct_size = sizeof view};
        assert_int_equal(moepage_model_find_tensor(model, made->name, &view), MOEPAGE_OK);
        assert_int_equal(view.struct_size, sizeof view);
        assert_int_equal(view.dtype,
                         made->dtype[0] == 'B' ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32);
        assert_int_equal(view.rank, made->rank);
        for (uint32_t d = 0; d < made->rank; d++)
            assert_int_equal(view.shape[d], made->shape[d]);
        assert_int_equal(view.bytes, made->bytes);
        if (made->bytes)
            assert_memory_equal(view.data, made->data, made->bytes);
    }
    moepage_tensor_view view = {.struct_size = sizeof view, .bytes = 77};
    assert_int_equal(moepage_model_find_tensor(model, "nope", &view), MOEPAGE_E_NOT_FOUND);
    expect_sentence("\"nope\"");
    assert_int_equal(moepage_model_find_tensor(model, "deep", &view), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("\"deep\"|rank 5");
    assert_int_equal(moepage_model_find_tensor(model, "wide", &view), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("\"wide\"|F64");
    assert_int_equal(view.bytes, 77);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_model_read_tensor_copies_any_part(void **state)
{
    (void)state;
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    const maker_tensor *made = maker_find(&maker.shard, "model.norm.weight");
    const uint64_t n = made->bytes;
    unsigned char out[4096];
    moepage_tensor_view view = {.struct_size = sizeof view}, whole = view;
    assert_in_range(n, 2, sizeof out - 1);
    for (uint64_t first = 0; first <= n; first++)
        for (uint64_t bytes = 0; bytes <= n - first; bytes++) {
            memset(out, 0xa5, sizeof out);
            assert_int_equal(moepage_model_read_tensor(model, made->name, first, bytes, out, &view),
                             MOEPAGE_OK);
            assert_memory_equal(out, (const unsigned char *)made->data + first, bytes);
            assert_int_equal(out[bytes], 0xa5);
        }
    assert_int_equal(moepage_model_find_tensor(model, made->name, &whole), MOEPAGE_OK);
    assert_non_null(whole.data);
    whole.data = NULL;
    assert_memory_equal(&whole, &view, sizeof view);
    assert_int_equal(moepage_model_read_tensor(model, made->name, 0, n + 1, out, NULL),
                     MOEPAGE_E_ARGUMENT);
    expect_sentence("model.norm.weight|at 0 are not all of it");
    assert_int_equal(moepage_model_read_tensor(model, made->name, n + 1, 0, out, NULL),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_read_tensor(model, made->name, 1, UINT64_MAX, out, NULL),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_read_tensor(model, made->name, 0, 1, NULL, NULL),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_read_tensor(model, NULL, 0, 1, out, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_read_tensor(model, "nope", 0, 1, out, NULL),
                     MOEPAGE_E_NOT_FOUND);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void count_log(void *user, int32_t level, const char *text)
{
    assert_int_equal(level, MOEPAGE_LOG_INFO);
    assert_non_null(strstr(text, "model.norm.weight"));
    ++*(int *)user;
}

/* Nothing is worth a line of the log here: every view is a copy. */
static void test_model_find_tensor_aligns_what_the_file_has_askew(void **state)
{
    (void)state;
    for (uint32_t padding = 0; padding < 8; padding++) {
        maker.shard.padding = padding;
        moe_maker_write(&maker);
        int logged = 0;
        moepage_model_config config = {.struct_size = sizeof config,
                                       .log = count_log,
                                       .log_user = &logged};
        moepage_model *model;
        assert_int_equal(moepage_model_open(maker.dir, &config, &model), MOEPAGE_OK);
        const maker_tensor *made = maker_find(&maker.shard, "model.norm.weight");
        moepage_tensor_view view = {.struct_size = sizeof view}, again = view;
        assert_int_equal(moepage_model_find_tensor(model, made->name, &view), MOEPAGE_OK);
        assert_int_equal((uintptr_t)view.data % 4, 0);
        assert_memory_equal(view.data, made->data, made->bytes);
        assert_int_equal(moepage_model_find_tensor(model, made->name, &again), MOEPAGE_OK);
        assert_ptr_equal(again.data, view.data);
        assert_int_equal(logged, 0);
        moe_expect_expert(model, 1, 3);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

static void *find_norm(void *model)
{
    moepage_tensor_view view = {.struct_size = sizeof view};
    if (moepage_model_find_tensor(model, "model.norm.weight", &view))
        return NULL;
    return (void *)(uintptr_t)view.data;
}

static void test_model_find_tensor_makes_one_copy_for_all_threads(void **state)
{
    (void)state;
    maker.shard.padding = 1;
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    pthread_t threads[4];
    void *found[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, find_norm, model), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], &found[i]), 0);
    const maker_tensor *made = maker_find(&maker.shard, "model.norm.weight");
    for (int i = 0; i < 4; i++) {
        assert_non_null(found[i]);
        assert_ptr_equal(found[i], found[0]);
        assert_memory_equal(found[i], made->data, made->bytes);
    }
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_model_config_json_is_the_file(void **state)
{
    (void)state;
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    assert_string_equal(moepage_model_config_json(model), maker.config);
    assert_int_equal(moepage_model_layer_index(model, 0), 0);
    assert_int_equal(moepage_model_layer_index(model, 1), 1);
    assert_int_equal(moepage_model_layer_index(model, 2), -1);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- Tensors ----------------------------------------------------------------------------- */

static void test_model_open_refuses_a_missing_tensor_whichever(void **state)
{
    (void)state;
    uint32_t n = maker.shard.n_tensors;
    for (uint32_t i = 0; i < n; i++) {
        moe_maker_free(&maker);
        moe_maker_init(&maker);
        char name[128];
        snprintf(name, sizeof name, "%s", maker.shard.tensors[i].name);
        maker_remove(&maker.shard, name);
        moe_maker_write(&maker);
        bool dense = !strstr(name, ".mlp.");
        if (dense)
            moe_expect_whole(&maker);
        else
            moe_expect_refusal(&maker, MOEPAGE_E_NOT_FOUND, name);
    }
}

static void test_model_open_refuses_the_first_odd_expert(void **state)
{
    (void)state;
    uint64_t right[] = {4, 8}, turned[] = {8, 4}, flat[] = {32};
    maker_tensor *up = maker_find(&maker.shard, EXPERT "up_proj.weight");
    maker_reshape(up, "F16", 2, right);
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, EXPERT "up_proj.weight|F16|BF16");
    maker_reshape(up, "BF16", 2, turned);
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, EXPERT "up_proj.weight|[8, 4]|[4, 8]");
    maker_reshape(up, "BF16", 1, flat);
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, EXPERT "up_proj.weight|[32]|[4, 8]");
    maker_reshape(up, "BF16", 2, right);
    moe_maker_write(&maker);
    moe_expect_whole(&maker);
}

static void test_model_open_refuses_gate_and_up_of_different_types(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < maker.shard.n_tensors; i++)
        if (strstr(maker.shard.tensors[i].name, "up_proj"))
            maker_reshape(&maker.shard.tensors[i], "F16", 2, (uint64_t[]){4, 8});
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "layers.0.mlp.experts.0.up_proj.weight|F16|BF16");
}

static void test_model_open_refuses_experts_of_a_type_without_name_here(void **state)
{
    (void)state;
    maker_reshape(maker_find(&maker.shard, "model.layers.0.mlp.experts.0.gate_proj.weight"), "F64",
                  2, (uint64_t[]){4, 8});
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_UNSUPPORTED, "experts.0.gate_proj.weight|F64");
}

static void test_model_open_refuses_what_an_expert_has_beyond_its_layout(void **state)
{
    (void)state;
    uint64_t shape[] = {8};
    maker_add(&maker.shard, "BF16", 1, shape, EXPERT "down_proj.bias");
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, EXPERT "down_proj.bias|not part of any");
    maker_remove(&maker.shard, EXPERT "down_proj.bias");
    maker_add(&maker.shard, "BF16", 1, shape, "model.layers.0.mlp.experts.4.up_proj.weight");
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "experts.4.up_proj.weight|4 experts");
}

static void test_model_open_leaves_layers_past_the_last_dense(void **state)
{
    (void)state;
    uint64_t shape[] = {4, 8};
    maker_add(&maker.shard, "BF16", 2, shape, "model.layers.2.mlp.experts.0.up_proj.weight");
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    assert_int_equal(model->info.dense_bytes, 16 * 8 * 2 + 2 * 16 + 2 * 64 + 32 + 64);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_model_open_refuses_a_router_that_is_not_finite(void **state)
{
    (void)state;
    static const struct {
        const char *dtype;
        unsigned char bytes[4];
        const char *words;
    } bad[] = {
        {"BF16", {0xc0, 0x7f}, "NaN"},
        {"BF16", {0x80, 0x7f}, "an infinity"},
        {"BF16", {0x80, 0xff}, "an infinity"},
        {"BF16", {0x81, 0xff}, "NaN"},
        {"F16", {0x00, 0x7c}, "an infinity"},
        {"F16", {0x01, 0xfc}, "NaN"},
        {"F32", {0x00, 0x00, 0xc0, 0x7f}, "NaN"},
        {"F32", {0x01, 0x00, 0x80, 0x7f}, "NaN"},
        {"F32", {0x00, 0x00, 0x80, 0xff}, "an infinity"},
    };
    const char *name = "model.layers.1.mlp.gate.weight";
    maker_tensor *router = maker_find(&maker.shard, name);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        maker_reshape(router, bad[i].dtype, 2, (uint64_t[]){4, 8});
        moe_maker_write(&maker);
        moe_expect_whole(&maker);
        size_t element = router->bytes / 32;
        memcpy(router->data + 29 * element, bad[i].bytes, element); /* row 3, column 5 */
        moe_maker_write(&maker);
        moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, name);
        expect_sentence(bad[i].words);
        expect_sentence("row 3, column 5");
    }
    maker_reshape(router, "I32", 2, (uint64_t[]){4, 8});
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_UNSUPPORTED, "layers.1.mlp.gate.weight|I32");
}

static void test_model_open_takes_the_largest_finite_router(void **state)
{
    (void)state;
    maker_tensor *router = maker_find(&maker.shard, "model.layers.0.mlp.gate.weight");
    memcpy(router->data, "\x7f\x7f\x7f\xff", 4); /* plus and minus the largest BF16 */
    moe_maker_write(&maker);
    moe_expect_whole(&maker);
}

/* ---- Calls ------------------------------------------------------------------------------- */

static void test_model_calls_refuse_bad_arguments(void **state)
{
    (void)state;
    moe_maker_write(&maker);
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open(NULL, NULL, &model), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_open("", NULL, &model), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_open(maker.dir, NULL, NULL), MOEPAGE_E_ARGUMENT);
    moepage_model_config config = {.struct_size = sizeof config, .reserved = 1};
    assert_int_equal(moepage_model_open(maker.dir, &config, &model), MOEPAGE_E_ARGUMENT);
    config.struct_size = 3;
    assert_int_equal(moepage_model_open(maker.dir, &config, &model), MOEPAGE_E_VERSION);
    assert_null(model);

    model = moe_expect_open(&maker);
    moepage_expert_tensor tensors[2];
    assert_int_equal(moepage_model_get_expert_tensors(model, tensors, 1), MOEPAGE_E_ARGUMENT);
    expect_sentence("capacity is 1|2 tensors");
    assert_int_equal(moepage_model_get_expert_tensors(model, NULL, 2), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_get_expert_tensors(NULL, tensors, 2), MOEPAGE_E_ARGUMENT);
    moepage_tensor_view view = {.struct_size = sizeof view};
    assert_int_equal(moepage_model_find_tensor(model, NULL, &view), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_find_tensor(model, "model.norm.weight", NULL),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_find_tensor(NULL, "x", &view), MOEPAGE_E_ARGUMENT);
    moepage_model_info info = {.struct_size = 4};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_E_VERSION);
    assert_int_equal(moepage_model_get_info(model, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_layer_index(NULL, 0), -1);
    assert_null(moepage_model_config_json(NULL));
    assert_int_equal(moepage_model_close(NULL), MOEPAGE_OK);
    uint32_t foreign[4] = {MP_KIND_DEVICE};
    assert_int_equal(moepage_model_close((moepage_model *)foreign), MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_model_close_waits_for_its_pools(void **state)
{
    (void)state;
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    atomic_fetch_add(&model->users, 2);
    assert_int_equal(moepage_model_close(model), MOEPAGE_E_BUSY);
    expect_sentence("2 expert pools");
    atomic_fetch_sub(&model->users, 2);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_model_errors_survive_a_long_path(void **state)
{
    (void)state;
    char path[3000];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    for (size_t i = 200; i < sizeof path - 1; i += 200)
        path[i] = '/';
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open(path, NULL, &model), MOEPAGE_E_NOT_FOUND);
    expect_sentence("config.json|No such file");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_model_open_describes_the_slot_and_every_expert),
        CASE(test_model_find_tensor_gives_dtype_shape_and_bytes),
        CASE(test_model_read_tensor_copies_any_part),
        CASE(test_model_find_tensor_aligns_what_the_file_has_askew),
        CASE(test_model_find_tensor_makes_one_copy_for_all_threads),
        CASE(test_model_config_json_is_the_file),
        CASE(test_model_open_refuses_a_missing_tensor_whichever),
        CASE(test_model_open_refuses_the_first_odd_expert),
        CASE(test_model_open_refuses_gate_and_up_of_different_types),
        CASE(test_model_open_refuses_experts_of_a_type_without_name_here),
        CASE(test_model_open_refuses_what_an_expert_has_beyond_its_layout),
        CASE(test_model_open_leaves_layers_past_the_last_dense),
        CASE(test_model_open_refuses_a_router_that_is_not_finite),
        CASE(test_model_open_takes_the_largest_finite_router),
        CASE(test_model_calls_refuse_bad_arguments),
        CASE(test_model_close_waits_for_its_pools),
        CASE(test_model_errors_survive_a_long_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
