/* Copies on write on a device that does them later, when one of them goes wrong: the caller is
 * told, and its sequences are as they were. */
#include <stdlib.h>
#include <string.h>

#include "device_rig.h"
#include "kv/kv_pool.h"
#include "sim_cuda.h"
#include "testing.h"

enum { LAYERS = 2, TOKEN_BYTES = 64, BLOCK_TOKENS = 4, BLOCKS = 8 };

static moepage_device *device;
static moepage_kv_pool *pool;

static void open_pool(void)
{
    static const uint32_t bytes_per_token[LAYERS] = {TOKEN_BYTES, TOKEN_BYTES};
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .budget_bytes = 8 << 20,
                                          .workspace_bytes = 1 << 20,
                                          .threads = 1,
                                          .io_threads = 1};
    const moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                       .block_tokens = BLOCK_TOKENS,
                                       .layers = LAYERS,
                                       .bytes_per_token = bytes_per_token,
                                       .blocks = BLOCKS};
    device = device_rig_open(&config);
    assert_int_equal(moepage_kv_pool_create(device, &kv, &pool), MOEPAGE_OK);
}

static void close_pool(void)
{
    assert_int_equal(moepage_kv_pool_destroy(pool), MOEPAGE_OK);
    device_rig_close(device);
}

static uint32_t block_of(moepage_seq seq)
{
    moepage_kv_table table = {.struct_size = sizeof table};
    assert_int_equal(moepage_kv_get_table(pool, seq, &table), MOEPAGE_OK);
    assert_int_equal(table.n_blocks, 1);
    return table.blocks[0];
}

static unsigned char *bytes_of(moepage_seq seq, uint32_t layer)
{
    uint32_t block = mp_kv_shape_block(&pool->shape, block_of(seq));
    return pool->base + mp_kv_shape_offset(&pool->shape, layer, block);
}

static uint64_t free_blocks(void)
{
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_kv_pool_get_info(pool, &info), MOEPAGE_OK);
    return info.free_blocks;
}

/* Two sequences of one token that share its block. */
static void share_block(moepage_seq *parent, moepage_seq *child)
{
    assert_int_equal(moepage_kv_create(pool, parent), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(pool, *parent, 1, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_kv_fork(pool, *parent, child), MOEPAGE_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        memset(bytes_of(*parent, layer), 7 + (int)layer, BLOCK_TOKENS * TOKEN_BYTES);
}

static void check_failing(sim_cuda_call call, moepage_status wanted)
{
    moepage_seq parent = 0, child = 0;
    open_pool();
    share_block(&parent, &child);
    uint64_t before = free_blocks();
    sim_cuda_fail(call, 1, MP_CU_INVALID_VALUE, false);
    assert_int_equal(moepage_kv_append(pool, child, 1, NULL), wanted);
    sim_cuda_fail_none();
    assert_int_equal(free_blocks(), before);
    assert_int_equal(block_of(child), block_of(parent));
    assert_int_equal(moepage_kv_append(pool, child, 1, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_kv_free(pool, parent), MOEPAGE_OK);
    moepage_seq out = child; /* swapping out waits for what has been handed over */
    assert_int_equal(moepage_kv_swap_out(pool, out, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_kv_swap_in(pool, out, NULL), MOEPAGE_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < TOKEN_BYTES; i++)
            assert_int_equal(bytes_of(child, layer)[i], 7 + layer);
    close_pool();
}

static void test_cuda_kv_copies_that_are_refused_are_told_of(void **state)
{
    (void)state;
    check_failing(SIM_copy_batch, MOEPAGE_E_DEVICE);
}

/* The copies are on their way by then: the block that they write to is not free before they are
 * done, or the next sequence's tokens would be overwritten. */
static void test_cuda_kv_copies_are_over_when_the_callers_stream_cannot_wait(void **state)
{
    (void)state;
    moepage_seq parent = 0, child = 0, other = 0;
    open_pool();
    share_block(&parent, &child);
    sim_cuda_jitter(3);
    sim_cuda_fail(SIM_stream_capturing, 2, MP_CU_INVALID_VALUE, false); /* 1 enters, 2 follows */
    assert_int_equal(moepage_kv_append(pool, child, 1, NULL), MOEPAGE_E_DEVICE);
    sim_cuda_fail_none();
    assert_int_equal(moepage_kv_create(pool, &other), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(pool, other, 1, NULL), MOEPAGE_OK);
    mp_tick last = 0;
    const mp_device_ops *ops = pool->home->device->ops;
    mp_tick done = ops->completed(pool->inner);
    assert_int_equal(ops->mark(pool->inner, &last), MOEPAGE_OK);
    assert_true(done + 1 >= last); /* nothing was under way */
    assert_int_equal(ops->sync(pool->inner, last), MOEPAGE_OK);
    sim_cuda_jitter(0);
    close_pool();
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_kv_copies_that_are_refused_are_told_of),
        cmocka_unit_test(test_cuda_kv_copies_are_over_when_the_callers_stream_cannot_wait),
    };
    setenv("MP_TEST_DEVICE", "sim", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
