/* Sequences in a KV pool: growth, sharing, copy on write, swapping, stale ids. */
#include <string.h>

#include "kv/kv_pool.h"
#include "kv_fixture.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void test_kv_append_takes_blocks_as_tokens_need_them(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq seq;
    assert_int_equal(moepage_kv_create(f.pool, &seq), MOEPAGE_OK);
    for (uint64_t n = 1; n <= 17; n++) {
        assert_int_equal(moepage_kv_append(f.pool, seq, 1, NULL), MOEPAGE_OK);
        moepage_kv_table table = kv_fixture_table(&f, seq);
        assert_int_equal(table.n_tokens, n);
        assert_int_equal(table.n_blocks, (n + 3) / 4);
        assert_int_equal(kv_fixture_info(&f).free_blocks, 8 - (n + 3) / 4);
    }
    assert_int_equal(moepage_kv_append(f.pool, seq, 0, NULL), MOEPAGE_OK);
    assert_int_equal(kv_fixture_table(&f, seq).n_tokens, 17);
    kv_fixture_close(&f);
}

static void test_kv_append_that_would_not_fit_takes_nothing_and_says_the_numbers(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq seq = kv_fixture_fill(&f, 6);
    assert_int_equal(moepage_kv_append(f.pool, seq, 27, NULL), MOEPAGE_E_WOULD_NOT_FIT);
    assert_string_equal(moepage_last_error(), "would not fit: needs 7 blocks, 6 free");
    assert_int_equal(kv_fixture_info(&f).free_blocks, 6);
    assert_true(kv_tokens_match(&f.tokens, seq, 6, f.tags));
    assert_int_equal(moepage_kv_append(f.pool, seq, UINT64_MAX - 6, NULL), MOEPAGE_E_WOULD_NOT_FIT);
    assert_int_equal(moepage_kv_append(f.pool, seq, UINT64_MAX - 5, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_append(f.pool, seq, 26, NULL), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 0);
    assert_int_equal(kv_fixture_info(&f).peak_blocks, 8);
    kv_fixture_close(&f);
}

static void test_kv_truncate_gives_whole_blocks_back(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq seq = kv_fixture_fill(&f, 20);
    assert_int_equal(moepage_kv_truncate(f.pool, seq, 21), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_truncate(f.pool, seq, 9), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 5);
    assert_true(kv_tokens_match(&f.tokens, seq, 9, f.tags));
    assert_int_equal(moepage_kv_truncate(f.pool, seq, 0), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 8);
    assert_int_equal(kv_fixture_info(&f).peak_blocks, 5);
    kv_fixture_close(&f);
}

static void test_kv_fork_shares_blocks_until_either_side_writes(void **state)
{
    (void)state;
    for (int writer_is_child = 0; writer_is_child < 2; writer_is_child++) {
        kv_fixture f;
        kv_fixture_open(&f, 8);
        moepage_seq parent = kv_fixture_fill(&f, 6), child;
        assert_int_equal(moepage_kv_fork(f.pool, parent, &child), MOEPAGE_OK);
        assert_int_equal(kv_fixture_info(&f).free_blocks, 6);
        moepage_seq writer = writer_is_child ? child : parent;
        moepage_seq reader = writer_is_child ? parent : child;
        uint64_t longer[7];
        memcpy(longer, f.tags, sizeof longer);
        longer[6] = 5;
        assert_int_equal(moepage_kv_append(f.pool, writer, 1, NULL), MOEPAGE_OK);
        kv_tokens_write(&f.tokens, writer, 6, 1, &longer[6]);
        assert_true(kv_tokens_match(&f.tokens, writer, 7, longer));
        assert_int_equal(kv_fixture_info(&f).free_blocks, 5);
        assert_int_equal(kv_fixture_info(&f).copies_on_write, 1);

        assert_int_equal(moepage_kv_append(f.pool, reader, 1, NULL), MOEPAGE_OK);
        assert_int_equal(kv_fixture_info(&f).copies_on_write, 1);
        kv_tokens_write(&f.tokens, reader, 6, 1, &f.tags[6]);
        assert_true(kv_tokens_match(&f.tokens, writer, 7, longer));
        assert_true(kv_tokens_match(&f.tokens, reader, 7, f.tags));
        assert_ptr_not_equal(kv_fixture_table(&f, parent).blocks,
                             kv_fixture_table(&f, child).blocks);
        assert_int_equal(kv_fixture_table(&f, parent).blocks[0],
                         kv_fixture_table(&f, child).blocks[0]);
        kv_fixture_close(&f);
    }
}

static void test_kv_append_at_a_block_border_copies_nothing(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq parent = kv_fixture_fill(&f, 8), child;
    assert_int_equal(moepage_kv_fork(f.pool, parent, &child), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(f.pool, child, 1, NULL), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).copies_on_write, 0);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 5);
    /* Cut back into a shared block, the child must not write there either. */
    assert_int_equal(moepage_kv_truncate(f.pool, child, 6), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(f.pool, child, 2, NULL), MOEPAGE_OK);
    uint64_t other[] = {1, 2};
    kv_tokens_write(&f.tokens, child, 6, 2, other);
    assert_int_equal(kv_fixture_info(&f).copies_on_write, 1);
    assert_true(kv_tokens_match(&f.tokens, parent, 8, f.tags));
    kv_fixture_close(&f);
}

static void test_kv_append_counts_the_copied_block_as_needed(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 2);
    moepage_seq parent = kv_fixture_fill(&f, 6), child;
    assert_int_equal(moepage_kv_fork(f.pool, parent, &child), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(f.pool, child, 1, NULL), MOEPAGE_E_WOULD_NOT_FIT);
    assert_string_equal(moepage_last_error(), "would not fit: needs 1 blocks, 0 free");
    assert_int_equal(moepage_kv_free(f.pool, parent), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(f.pool, child, 1, NULL), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).copies_on_write, 0);
    kv_fixture_close(&f);
}

static void test_kv_shared_blocks_are_freed_by_their_last_table(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq parent = kv_fixture_fill(&f, 10), child, grandchild;
    assert_int_equal(moepage_kv_fork(f.pool, parent, &child), MOEPAGE_OK);
    assert_int_equal(moepage_kv_fork(f.pool, child, &grandchild), MOEPAGE_OK);
    assert_int_equal(moepage_kv_free(f.pool, parent), MOEPAGE_OK);
    assert_int_equal(moepage_kv_truncate(f.pool, child, 4), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 5);
    assert_true(kv_tokens_match(&f.tokens, grandchild, 10, f.tags));
    assert_int_equal(moepage_kv_free(f.pool, grandchild), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 7);
    assert_true(kv_tokens_match(&f.tokens, child, 4, f.tags));
    kv_fixture_close(&f);
}

static void test_kv_ids_of_freed_sequences_are_refused(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq old = kv_fixture_fill(&f, 3), next, out;
    moepage_kv_table table = {.struct_size = sizeof table};
    assert_int_equal(moepage_kv_free(f.pool, old), MOEPAGE_OK);
    assert_int_equal(moepage_kv_create(f.pool, &next), MOEPAGE_OK);
    assert_true(next != old);
    const moepage_seq bad[] = {old, 0, 1, next + 1, next + (1ull << 32), UINT64_MAX};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(moepage_kv_append(f.pool, bad[i], 1, NULL), MOEPAGE_E_HANDLE);
        assert_int_equal(moepage_kv_truncate(f.pool, bad[i], 0), MOEPAGE_E_HANDLE);
        assert_int_equal(moepage_kv_fork(f.pool, bad[i], &out), MOEPAGE_E_HANDLE);
        assert_int_equal(moepage_kv_free(f.pool, bad[i]), MOEPAGE_E_HANDLE);
        assert_int_equal(moepage_kv_swap_out(f.pool, bad[i], NULL), MOEPAGE_E_HANDLE);
        assert_int_equal(moepage_kv_swap_in(f.pool, bad[i], NULL), MOEPAGE_E_HANDLE);
        assert_int_equal(moepage_kv_get_table(f.pool, bad[i], &table), MOEPAGE_E_HANDLE);
        assert_non_null(strstr(moepage_last_error(), "is not live in this KV pool"));
    }
    assert_int_equal(kv_fixture_table(&f, next).n_tokens, 0);
    kv_fixture_close(&f);
}

static void test_kv_ids_of_a_destroyed_pool_are_refused_by_its_successor(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_kv_pool_config config = kv_fixture_config(8);
    moepage_seq old = kv_fixture_fill(&f, 3), next;
    assert_int_equal(moepage_kv_pool_destroy(f.pool), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_OK);
    assert_int_equal(moepage_kv_create(f.pool, &next), MOEPAGE_OK);
    assert_true(next != old);
    assert_int_equal(moepage_kv_append(f.pool, old, 1, NULL), MOEPAGE_E_HANDLE);
    assert_int_equal(kv_fixture_table(&f, next).n_tokens, 0);
    kv_fixture_close(&f);
}

static void test_kv_swap_keeps_every_byte_and_frees_the_blocks(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq seq = kv_fixture_fill(&f, 15);
    assert_int_equal(moepage_kv_swap_in(f.pool, seq, NULL), MOEPAGE_E_STATE);
    assert_int_equal(moepage_kv_swap_out(f.pool, seq, NULL), MOEPAGE_OK);
    moepage_kv_table table = kv_fixture_table(&f, seq);
    assert_int_equal(table.swapped, 1);
    assert_null(table.blocks);
    assert_int_equal(table.n_tokens, 15);
    moepage_kv_pool_info info = kv_fixture_info(&f);
    assert_int_equal(info.free_blocks, 8);
    assert_int_equal(info.swapped, 1);
    assert_int_equal(info.swap_bytes, 4 * KV_BLOCK_BYTES);
    assert_int_equal(info.swapped_out_blocks, 4);
    assert_int_equal(f.fake.held_bytes[MP_MEMORY_HOST], 4 * KV_BLOCK_BYTES);

    memset(f.home->arena.base, 0xee, KV_ARENA);
    moepage_seq out;
    assert_int_equal(moepage_kv_swap_out(f.pool, seq, NULL), MOEPAGE_E_STATE);
    assert_int_equal(moepage_kv_append(f.pool, seq, 1, NULL), MOEPAGE_E_STATE);
    assert_int_equal(moepage_kv_fork(f.pool, seq, &out), MOEPAGE_E_STATE);
    assert_int_equal(moepage_kv_swap_in(f.pool, seq, NULL), MOEPAGE_OK);
    assert_true(kv_tokens_match(&f.tokens, seq, 15, f.tags));
    info = kv_fixture_info(&f);
    assert_int_equal(info.free_blocks, 4);
    assert_int_equal(info.swapped, 0);
    assert_int_equal(info.swap_bytes, 0);
    assert_int_equal(info.swapped_in_blocks, 4);
    assert_int_equal(f.fake.held_bytes[MP_MEMORY_HOST], 0);
    kv_fixture_close(&f);
}

static void test_kv_swap_in_that_would_not_fit_leaves_the_sequence_whole(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 6);
    moepage_seq seq = kv_fixture_fill(&f, 15);
    assert_int_equal(moepage_kv_swap_out(f.pool, seq, NULL), MOEPAGE_OK);
    moepage_seq other = kv_fixture_fill(&f, 9);
    assert_int_equal(moepage_kv_swap_in(f.pool, seq, NULL), MOEPAGE_E_WOULD_NOT_FIT);
    assert_string_equal(moepage_last_error(), "would not fit: needs 4 blocks, 3 free");
    assert_int_equal(kv_fixture_table(&f, seq).swapped, 1);
    assert_int_equal(moepage_kv_truncate(f.pool, seq, 12), MOEPAGE_OK);
    assert_int_equal(moepage_kv_swap_in(f.pool, seq, NULL), MOEPAGE_OK);
    assert_true(kv_tokens_match(&f.tokens, seq, 12, f.tags));
    assert_true(kv_tokens_match(&f.tokens, other, 9, f.tags));
    kv_fixture_close(&f);
}

static void test_kv_swap_of_a_sharing_sequence_leaves_its_sharers_whole(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq parent = kv_fixture_fill(&f, 6), child;
    assert_int_equal(moepage_kv_fork(f.pool, parent, &child), MOEPAGE_OK);
    assert_int_equal(moepage_kv_swap_out(f.pool, parent, NULL), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 6);
    assert_true(kv_tokens_match(&f.tokens, child, 6, f.tags));
    assert_int_equal(moepage_kv_append(f.pool, child, 1, NULL), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).copies_on_write, 0);
    assert_int_equal(moepage_kv_swap_in(f.pool, parent, NULL), MOEPAGE_OK);
    assert_true(kv_tokens_match(&f.tokens, parent, 6, f.tags));
    assert_int_equal(kv_fixture_info(&f).free_blocks, 4);
    kv_fixture_close(&f);
}

static void test_kv_swap_of_an_empty_sequence_holds_no_memory(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq seq, swapped;
    assert_int_equal(moepage_kv_create(f.pool, &seq), MOEPAGE_OK);
    assert_int_equal(moepage_kv_swap_out(f.pool, seq, NULL), MOEPAGE_OK);
    assert_int_equal(f.fake.held_bytes[MP_MEMORY_HOST], 0);
    assert_int_equal(moepage_kv_swap_in(f.pool, seq, NULL), MOEPAGE_OK);
    swapped = kv_fixture_fill(&f, 8);
    assert_int_equal(moepage_kv_swap_out(f.pool, swapped, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_kv_free(f.pool, swapped), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).swap_bytes, 0);
    assert_int_equal(kv_fixture_info(&f).swapped, 0);
    assert_int_equal(f.fake.held_bytes[MP_MEMORY_HOST], 0);
    kv_fixture_close(&f);
}

static void test_kv_failed_copies_change_nothing(void **state)
{
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        kv_fixture f;
        kv_fixture_open(&f, 8);
        uint64_t *fault = refused ? &f.fake.faults.submit : &f.fake.faults.transfer;
        moepage_seq seq = kv_fixture_fill(&f, 14), child;
        assert_int_equal(moepage_kv_fork(f.pool, seq, &child), MOEPAGE_OK);
        moepage_kv_pool_info before = kv_fixture_info(&f), after;

        *fault = 1;
        assert_int_equal(moepage_kv_append(f.pool, child, 3, NULL), MOEPAGE_E_DEVICE);
        *fault = 2;
        assert_int_equal(moepage_kv_swap_out(f.pool, seq, NULL), MOEPAGE_E_DEVICE);
        f.fake.faults.alloc = 1;
        assert_int_equal(moepage_kv_swap_out(f.pool, seq, NULL), MOEPAGE_E_NO_MEMORY);
        after = kv_fixture_info(&f);
        before.peak_blocks = after.peak_blocks;
        assert_memory_equal(&before, &after, sizeof before);
        assert_int_equal(f.fake.held_bytes[MP_MEMORY_HOST], 0);
        assert_true(kv_tokens_match(&f.tokens, seq, 14, f.tags));
        assert_true(kv_tokens_match(&f.tokens, child, 14, f.tags));

        assert_int_equal(moepage_kv_swap_out(f.pool, seq, NULL), MOEPAGE_OK);
        *fault = 3;
        assert_int_equal(moepage_kv_swap_in(f.pool, seq, NULL), MOEPAGE_E_DEVICE);
        assert_int_equal(kv_fixture_table(&f, seq).swapped, 1);
        assert_int_equal(kv_fixture_info(&f).free_blocks, 4);
        assert_int_equal(moepage_kv_swap_in(f.pool, seq, NULL), MOEPAGE_OK);
        assert_true(kv_tokens_match(&f.tokens, seq, 14, f.tags));
        kv_fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_append_takes_blocks_as_tokens_need_them),
        cmocka_unit_test(test_kv_append_that_would_not_fit_takes_nothing_and_says_the_numbers),
        cmocka_unit_test(test_kv_truncate_gives_whole_blocks_back),
        cmocka_unit_test(test_kv_fork_shares_blocks_until_either_side_writes),
        cmocka_unit_test(test_kv_append_at_a_block_border_copies_nothing),
        cmocka_unit_test(test_kv_append_counts_the_copied_block_as_needed),
        cmocka_unit_test(test_kv_shared_blocks_are_freed_by_their_last_table),
        cmocka_unit_test(test_kv_ids_of_freed_sequences_are_refused),
        cmocka_unit_test(test_kv_ids_of_a_destroyed_pool_are_refused_by_its_successor),
        cmocka_unit_test(test_kv_swap_keeps_every_byte_and_frees_the_blocks),
        cmocka_unit_test(test_kv_swap_in_that_would_not_fit_leaves_the_sequence_whole),
        cmocka_unit_test(test_kv_swap_of_a_sharing_sequence_leaves_its_sharers_whole),
        cmocka_unit_test(test_kv_swap_of_an_empty_sequence_holds_no_memory),
        cmocka_unit_test(test_kv_failed_copies_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
