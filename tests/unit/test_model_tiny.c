/* The checkpoint in examples/models: what opening it yields, against file offsets and FNV-1a sums
 * that another program worked out from the files. */
#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "testing.h"

#define DIR "examples/models/tiny-qwen3moe"
#define FIRST DIR "/model-00001-of-00002.safetensors"
#define SECOND DIR "/model-00002-of-00002.safetensors"

static const struct {
    const char *name, *file;
    long offset; /* from the start of the file */
    uint64_t bytes, rows, columns, fnv;
} known[] = {
    {"model.embed_tokens.weight", FIRST, 92680, 66560, 260, 128, 0x372ace5aee7df419},
    {"lm_head.weight", SECOND, 13137208, 66560, 260, 128, 0x725870fa8b0fb5df},
    {"model.norm.weight", SECOND, 13136952, 256, 128, 0, 0x5de8620d911a2165},
    {"model.layers.0.mlp.gate.weight", FIRST, 258184, 16384, 64, 128, 0x0c9cd0f931e0fe4e},
    {"model.layers.7.self_attn.k_proj.weight", SECOND, 9909176, 16384, 64, 128, 0xca35cdd34936177b},
    {"model.layers.3.mlp.experts.63.up_proj.weight", FIRST, 13170696, 16384, 64, 128,
     0x978f30c93a82beeb},
};

/* gate, up and down of some experts, by layer and number. */
static const struct {
    uint32_t layer, expert;
    uint64_t fnv[3];
} experts[] = {
    {0, 0, {0xb766a34bfdd763d0, 0x96ef6a9e649c5729, 0xd8588e6040b3a0a6}},
    {4, 17, {0xf97b835c72e0d994, 0x51fd05b95db50b55, 0x3dfa5cc7a2379b42}},
    {7, 63, {0x24255f3eadd275c0, 0x13b7a9035975314d, 0xd4bd2bef46679d94}},
};

static uint64_t fnv1a(const void *data, uint64_t n)
{
    const unsigned char *bytes = data;
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static int open_model(void **state)
{
    moepage_model *model = NULL;
    if (moepage_model_open(DIR, NULL, &model))
        fail_msg("not opened: %s", moepage_last_error());
    *state = model;
    return 0;
}

static int close_model(void **state)
{
    return moepage_model_close(*state) != MOEPAGE_OK;
}

static void test_tiny_info_is_the_readmes(void **state)
{
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(*state, &info), MOEPAGE_OK);
    assert_int_equal(info.layers, 8);
    assert_int_equal(info.moe_layers, 8);
    assert_int_equal(info.experts, 64);
    assert_int_equal(info.top_k, 8);
    assert_int_equal(info.hidden, 128);
    assert_int_equal(info.expert_intermediate, 64);
    assert_int_equal(info.shared_experts, 0);
    assert_int_equal(info.vocabulary, 260);
    assert_int_equal(info.expert_tensors, 2);
    assert_int_equal(info.expert_bytes, 49152);
    assert_int_equal(info.slot_bytes, 49152);
    assert_int_equal(info.routed_bytes, 25165824);
    assert_int_equal(info.dense_bytes, 1056000);
    assert_string_equal(info.architecture, "qwen3_moe");
    assert_int_equal(info.ffn_supported, 1);
}

static void test_tiny_tensors_are_the_files_bytes(void **state)
{
    static unsigned char raw[66560];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        moepage_tensor_view view = {.struct_size = sizeof view};
        assert_int_equal(moepage_model_find_tensor(*state, known[i].name, &view), MOEPAGE_OK);
        assert_int_equal(view.dtype, MOEPAGE_DTYPE_BF16);
        assert_int_equal(view.rank, known[i].columns ? 2 : 1);
        assert_int_equal(view.shape[0], known[i].rows);
        assert_int_equal(view.shape[1], known[i].columns);
        assert_int_equal(view.bytes, known[i].bytes);
        FILE *file = fopen(known[i].file, "rb");
        assert_non_null(file);
        assert_int_equal(fseek(file, known[i].offset, SEEK_SET), 0);
        assert_int_equal(fread(raw, 1, known[i].bytes, file), known[i].bytes);
        fclose(file);
        assert_memory_equal(view.data, raw, known[i].bytes);
        assert_true(fnv1a(view.data, view.bytes) == known[i].fnv);
    }
}

static void test_tiny_experts_are_gate_up_and_down(void **state)
{
    const struct moepage_model *model = *state;
    assert_int_equal(model->n_pieces, 3);
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) {
        unsigned char bytes[16384];
        for (uint32_t p = 0; p < 3; p++) {
            assert_int_equal(model->layouts[0].pieces[p].bytes, 16384);
            assert_int_equal(model->layouts[0].pieces[p].slot_offset, p * 16384);
            assert_int_equal(mp_model_read_piece(model, experts[i].layer, experts[i].expert, p, 0,
                                                 16384, bytes),
                             MOEPAGE_OK);
            assert_true(fnv1a(bytes, 16384) == experts[i].fnv[p]);
        }
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, open_model, close_model)
    const struct CMUnitTest tests[] = {
        CASE(test_tiny_info_is_the_readmes),
        CASE(test_tiny_tensors_are_the_files_bytes),
        CASE(test_tiny_experts_are_gate_up_and_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
