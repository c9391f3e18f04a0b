/* Experts in block formats, as a pool and a PagedTensor bring them from every source: byte for byte
 * what was given. */
#include <stdlib.h>
#include <string.h>

#include "pack_maker.h"
#include "pool_rig.h"
#include "testing.h"

enum { LAYERS = 2, EXPERTS = 3, TENSORS = 3, SLOTS = 3, SPARE = 4 << 20 };

static pack_source source;

/* Blocks of an odd and of an even number of bytes, and a tensor that an EXPH image codes. */
static int make(void **state)
{
    (void)state;
    pack_source_init(&source);
    source.banks.n_tensors = 0;
    pack_source_tensor(&source, MOEPAGE_ROLE_GATE_UP, MOEPAGE_DTYPE_MXFP4, 2, (uint64_t[]){7, 96});
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN, MOEPAGE_DTYPE_Q4_K, 2, (uint64_t[]){3, 512});
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_DTYPE_BF16, 1, (uint64_t[]){4096});
    pack_source_open(&source);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    pack_source_close(&source);
    return 0;
}

static const struct {
    const char *name;
    uint32_t forms;
    int32_t cold_level;
    uint32_t host_experts;
} ways[] = {
    {"pointers", 0, 0, 0},
    {"a dense pack", PACK_FORM(DENSE), 0, 0},
    {"a zstd pack and a host tier", PACK_FORM(DENSE), 3, 2},
    {"an EXPH pack", PACK_FORM(EXPH), 0, 0},
    {"an EXPH pack and a host tier", PACK_FORM(EXPH), 0, 2},
};

static moepage_model *open_way(size_t w)
{
    if (!ways[w].forms)
        return source.model;
    uint64_t bytes;
    unsigned char *file = pack_make(source.model, ways[w].forms, ways[w].cold_level, &bytes);
    moepage_model *model = pack_open(pack_memory_file(file, bytes));
    free(file);
    return model;
}

static moepage_device *open_device(uint64_t arena)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = 1,
                                    .workspace_bytes = SPARE,
                                    .budget_bytes = SPARE + (arena + 4095) / 4096 * 4096};
    moepage_device *device = NULL;
    if (moepage_device_open("host", &config, &device))
        fail_msg("no device: %s", moepage_last_error());
    return device;
}

static void expect_tensor(size_t w, uint32_t layer, uint32_t expert, uint32_t tensor,
                          const void *bytes)
{
    if (memcmp(bytes, pack_source_bytes(&source, layer, expert, tensor),
               source.tensor_bytes[tensor]))
        fail_msg("%s: layer %u, expert %u, tensor %u differs", ways[w].name, layer, expert, tensor);
}

/* ---- a pool ---- */

static void visit(size_t w, moepage_session *session, uint32_t layer, int32_t expert)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    if (pool_rig_route(session, layer, &expert, 1, &plan))
        fail_msg("%s: %s", ways[w].name, moepage_last_error());
    for (uint32_t t = 0; t < TENSORS; t++)
        expect_tensor(w, layer, (uint32_t)expert, t, plan.experts[0].tensors[t]);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

static void test_block_experts_are_paged_by_pools_as_they_are(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        moepage_model *model = open_way(w);
        moepage_model_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
        moepage_device *device = open_device(SLOTS * info.slot_bytes);
        moepage_expert_pool_config config = {.struct_size = sizeof config,
                                             .slots = SLOTS,
                                             .host_tier_bytes = ways[w].host_experts * 64ull << 10};
        moepage_expert_pool *pool = NULL;
        moepage_session *session = NULL;
        if (moepage_expert_pool_create(&device, 1, model, &config, &pool))
            fail_msg("%s: %s", ways[w].name, moepage_last_error());
        assert_int_equal(moepage_session_create(pool, NULL, NULL, &session), MOEPAGE_OK);
        for (int round = 0; round < 2; round++)
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                for (int32_t expert = 0; expert < EXPERTS; expert++)
                    visit(w, session, layer, expert);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
        assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
        if (ways[w].forms)
            assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

/* ---- a PagedTensor ---- */

static void expect_layer(size_t w, moepage_paged *paged, uint32_t layer)
{
    if (moepage_paged_materialise(paged, layer) || moepage_paged_acquire(paged, layer, NULL))
        fail_msg("%s: %s", ways[w].name, moepage_last_error());
    for (uint32_t t = 0; t < TENSORS; t++) {
        moepage_paged_tensor at = {.struct_size = sizeof at};
        assert_int_equal(moepage_paged_get_tensor(paged, t, &at), MOEPAGE_OK);
        assert_int_equal(at.dtype, source.tensors[t].dtype);
        assert_int_equal(at.expert_stride, source.tensor_bytes[t]);
        for (uint32_t expert = 0; expert < EXPERTS; expert++)
            expect_tensor(w, layer, expert, t,
                          (const char *)at.base + layer * at.layer_stride +
                              expert * at.expert_stride);
    }
    assert_int_equal(moepage_paged_release(paged, layer, NULL), MOEPAGE_OK);
}

static void test_block_experts_are_dense_in_paged_tensors(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        moepage_model *model = open_way(w);
        moepage_device *device = open_device(1 << 20);
        moepage_paged *paged = NULL;
        if (moepage_paged_create(device, model, NULL, &paged))
            fail_msg("%s: %s", ways[w].name, moepage_last_error());
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            expect_layer(w, paged, layer);
        assert_int_equal(moepage_paged_destroy(paged), MOEPAGE_OK);
        assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
        if (ways[w].forms)
            assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_block_experts_are_paged_by_pools_as_they_are, make,
                                        unmake),
        cmocka_unit_test_setup_teardown(test_block_experts_are_dense_in_paged_tensors, make,
                                        unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
