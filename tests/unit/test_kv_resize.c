/* Moving the KV pool's boundary, with and without live blocks in the way. */
#include <string.h>

#include "kv/kv_pool.h"
#include "kv_fixture.h"
#include "testing.h"

static void test_kv_resize_of_a_half_empty_pool_moves_no_block(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 20);
    moepage_seq seq = kv_fixture_fill(&f, 10 * KV_BLOCK_TOKENS);
    uint64_t copies = f.fake.copies;
    assert_int_equal(mp_kv_pool_resize(f.pool, 10, NULL), MOEPAGE_OK);
    assert_int_equal(f.fake.copies, copies);
    assert_int_equal(kv_fixture_info(&f).relocated_blocks, 0);
    assert_int_equal(kv_fixture_info(&f).blocks, 10);
    assert_int_equal(mp_arena_claimed(&f.home->arena, MP_SIDE_KV), 10 * KV_BLOCK_BYTES);
    assert_true(kv_tokens_match(&f.tokens, seq, 40, f.tags));
    kv_fixture_close(&f);
}

/* 20 blocks; those above are freed, so that the survivors lie next to the boundary. */
static moepage_seq strand_sequence(kv_fixture *f, uint64_t n)
{
    moepage_seq above = kv_fixture_fill(f, 14 * KV_BLOCK_TOKENS);
    moepage_seq seq = kv_fixture_fill(f, n);
    assert_int_equal(moepage_kv_free(f->pool, above), MOEPAGE_OK);
    return seq;
}

static void test_kv_resize_relocates_live_blocks_and_every_table_follows(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 20);
    moepage_seq seq = strand_sequence(&f, 22), child, swapped;
    assert_int_equal(moepage_kv_fork(f.pool, seq, &child), MOEPAGE_OK);
    assert_int_equal(moepage_kv_truncate(f.pool, child, 13), MOEPAGE_OK);
    swapped = kv_fixture_fill(&f, 11);
    assert_int_equal(moepage_kv_swap_out(f.pool, swapped, NULL), MOEPAGE_OK);

    assert_int_equal(mp_kv_pool_resize(f.pool, 9, NULL), MOEPAGE_OK);
    moepage_kv_pool_info info = kv_fixture_info(&f);
    assert_int_equal(info.blocks, 10);
    assert_int_equal(info.free_blocks, 4);
    assert_int_equal(info.relocated_blocks, 6);
    assert_int_equal(info.peak_blocks, 20);
    memset(f.home->arena.base, 0xee, KV_ARENA - 10 * KV_BLOCK_BYTES);
    assert_true(kv_tokens_match(&f.tokens, seq, 22, f.tags));
    assert_true(kv_tokens_match(&f.tokens, child, 13, f.tags));
    for (int i = 0; i < 4; i++)
        assert_int_equal(kv_fixture_table(&f, seq).blocks[i],
                         kv_fixture_table(&f, child).blocks[i]);

    /* Still shared: a write copies, and the last table frees. */
    assert_int_equal(moepage_kv_append(f.pool, child, 1, NULL), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).copies_on_write, 1);
    assert_int_equal(moepage_kv_swap_in(f.pool, swapped, NULL), MOEPAGE_OK);
    assert_true(kv_tokens_match(&f.tokens, swapped, 11, f.tags));
    assert_int_equal(moepage_kv_free(f.pool, seq), MOEPAGE_OK);
    assert_int_equal(moepage_kv_free(f.pool, child), MOEPAGE_OK);
    assert_int_equal(moepage_kv_free(f.pool, swapped), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 10);
    kv_fixture_close(&f);
}

static void test_kv_resize_keeps_block_ids_while_it_grows(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 6);
    moepage_seq seq = kv_fixture_fill(&f, 23);
    uint32_t before[6];
    memcpy(before, kv_fixture_table(&f, seq).blocks, sizeof before);
    moepage_kv_layer_view view = {.struct_size = sizeof view};
    assert_int_equal(mp_kv_pool_resize(f.pool, 41, NULL), MOEPAGE_OK);
    assert_memory_equal(kv_fixture_table(&f, seq).blocks, before, sizeof before);
    for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
        assert_int_equal(moepage_kv_pool_get_layer(f.pool, layer, &view), MOEPAGE_OK);
        assert_memory_equal(&view, &f.tokens.views[layer], sizeof view);
    }
    assert_int_equal(kv_fixture_info(&f).blocks, 42);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 36);
    assert_int_equal(moepage_kv_append(f.pool, seq, 36 * KV_BLOCK_TOKENS, NULL), MOEPAGE_OK);
    kv_tokens_write(&f.tokens, seq, 23, 36 * KV_BLOCK_TOKENS, &f.tags[23]);
    assert_true(kv_tokens_match(&f.tokens, seq, 23 + 36 * KV_BLOCK_TOKENS, f.tags));
    kv_fixture_close(&f);
}

static void test_kv_resize_below_the_live_blocks_is_refused_with_the_numbers(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 20);
    moepage_seq seq = strand_sequence(&f, 22);
    uint64_t bytes = 77;
    assert_int_equal(mp_kv_pool_check_resize(f.pool, 4, &bytes), MOEPAGE_E_BUDGET);
    assert_int_equal(mp_kv_pool_resize(f.pool, 4, NULL), MOEPAGE_E_BUDGET);
    assert_string_equal(moepage_last_error(), "a KV pool of 4 blocks cannot hold the 6 that "
                                              "sequences use: free or swap out sequences first");
    assert_int_equal(mp_kv_pool_resize(f.pool, 0, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(mp_kv_pool_check_resize(f.pool, 43, &bytes), MOEPAGE_E_BUDGET);
    assert_int_equal(bytes, 77);
    assert_int_equal(kv_fixture_info(&f).blocks, 20);
    assert_int_equal(mp_kv_pool_check_resize(f.pool, 5, &bytes), MOEPAGE_OK);
    assert_int_equal(bytes, 6 * KV_BLOCK_BYTES);
    assert_int_equal(kv_fixture_info(&f).blocks, 20);
    assert_int_equal(mp_kv_pool_resize(f.pool, 5, NULL), MOEPAGE_OK);
    assert_true(kv_tokens_match(&f.tokens, seq, 22, f.tags));
    kv_fixture_close(&f);
}

static void test_kv_resize_into_the_experts_is_refused(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 20);
    assert_int_equal(mp_arena_attach(&f.home->arena, MP_SIDE_EXPERTS, 1000), MOEPAGE_OK);
    assert_int_equal(mp_arena_resize(&f.home->arena, MP_SIDE_EXPERTS, 4), MOEPAGE_OK);
    assert_int_equal(mp_kv_pool_resize(f.pool, 22, NULL), MOEPAGE_E_BUDGET);
    assert_int_equal(kv_fixture_info(&f).blocks, 20);
    assert_int_equal(mp_arena_resize(&f.home->arena, MP_SIDE_EXPERTS, 3), MOEPAGE_OK);
    assert_int_equal(mp_kv_pool_resize(f.pool, 22, NULL), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 22);
    mp_arena_detach(&f.home->arena, MP_SIDE_EXPERTS);
    kv_fixture_close(&f);
}

static void test_kv_resize_whose_copies_fail_leaves_the_old_pool(void **state)
{
    (void)state;
    for (uint64_t step = 1; step <= 6; step++) {
        for (int refused = 0; refused < 2; refused++) {
            kv_fixture f;
            kv_fixture_open(&f, 20);
            moepage_seq seq = strand_sequence(&f, 22), child;
            assert_int_equal(moepage_kv_fork(f.pool, seq, &child), MOEPAGE_OK);
            moepage_kv_pool_info before = kv_fixture_info(&f), after;
            if (refused)
                f.fake.faults.submit = step;
            else
                f.fake.faults.transfer = step * KV_LAYERS;
            assert_int_equal(mp_kv_pool_resize(f.pool, 6, NULL), MOEPAGE_E_DEVICE);
            after = kv_fixture_info(&f);
            assert_memory_equal(&before, &after, sizeof before);
            assert_true(kv_tokens_match(&f.tokens, seq, 22, f.tags));
            assert_true(kv_tokens_match(&f.tokens, child, 22, f.tags));
            assert_int_equal(mp_kv_pool_resize(f.pool, 6, NULL), MOEPAGE_OK);
            assert_true(kv_tokens_match(&f.tokens, child, 22, f.tags));
            kv_fixture_close(&f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_resize_of_a_half_empty_pool_moves_no_block),
        cmocka_unit_test(test_kv_resize_relocates_live_blocks_and_every_table_follows),
        cmocka_unit_test(test_kv_resize_keeps_block_ids_while_it_grows),
        cmocka_unit_test(test_kv_resize_below_the_live_blocks_is_refused_with_the_numbers),
        cmocka_unit_test(test_kv_resize_into_the_experts_is_refused),
        cmocka_unit_test(test_kv_resize_whose_copies_fail_leaves_the_old_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
