/* The free tree and reference counts against a plain array. */
#include <stdlib.h>
#include <string.h>

#include "kv/kv_blocks.h"
#include "testing.h"

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) % below);
}

/* The pool's highest block without a reference; total if there is none. */
static uint32_t naive_highest_free(const uint32_t *refs, uint32_t first, uint32_t total)
{
    for (uint32_t block = total; block-- > first;) {
        if (!refs[block])
            return block;
    }
    return total;
}

static void run_against_model(uint32_t total, int operations)
{
    mp_kv_blocks blocks;
    assert_int_equal(mp_kv_blocks_init(&blocks, total), MOEPAGE_OK);
    uint32_t *refs = calloc(total, sizeof *refs);
    uint32_t first = total;
    uint32_t held = 0;
    uint32_t peak = 0;
    random_state = total;
    for (int i = 0; i < operations; i++) {
        uint32_t block = draw(total);
        switch (draw(8)) {
        case 0: { /* the boundary moves down, or up over free blocks */
            uint32_t lowest = first;
            while (lowest < total && !refs[lowest])
                lowest++;
            first = draw(lowest + 1);
            mp_kv_blocks_set_first(&blocks, first);
            break;
        }
        case 1:
            if (refs[block]) {
                mp_kv_blocks_share(&blocks, block);
                refs[block]++;
            }
            break;
        case 2:
        case 3:
        case 4:
            if (refs[block]) {
                mp_kv_blocks_drop(&blocks, block);
                held -= --refs[block] == 0;
            }
            break;
        default: {
            uint32_t expected = naive_highest_free(refs, first, total);
            assert_int_equal(blocks.free == 0, expected == total);
            if (expected < total) {
                assert_int_equal(mp_kv_blocks_take(&blocks), expected);
                refs[expected] = 1;
                held++;
            }
        }
        }
        peak = held > peak ? held : peak;
        assert_int_equal(mp_kv_blocks_capacity(&blocks), total - first);
        assert_int_equal(mp_kv_blocks_used(&blocks), held);
        assert_int_equal(blocks.peak, peak);
    }
    assert_memory_equal(blocks.refs, refs, total * sizeof *refs);
    free(refs);
    mp_kv_blocks_fini(&blocks);
}

static void test_kv_blocks_takes_the_highest_free_block_at_every_size(void **state)
{
    (void)state;
    const uint32_t totals[] = {1, 2, 63, 64, 65, 128, 4095, 4096, 4097, 10000};
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++)
        run_against_model(totals[i], 4000);
}

static void test_kv_blocks_can_be_emptied_and_filled_through_four_levels(void **state)
{
    (void)state;
    uint32_t total = 64 * 64 * 64 + 1;
    mp_kv_blocks blocks;
    assert_int_equal(mp_kv_blocks_init(&blocks, total), MOEPAGE_OK);
    assert_int_equal(blocks.levels, 4);
    mp_kv_blocks_set_first(&blocks, 0);
    for (uint32_t block = total; block-- > 0;)
        assert_int_equal(mp_kv_blocks_take(&blocks), block);
    assert_int_equal(blocks.free, 0);
    mp_kv_blocks_drop(&blocks, 0);
    assert_int_equal(mp_kv_blocks_take(&blocks), 0);
    mp_kv_blocks_drop(&blocks, 4096);
    mp_kv_blocks_drop(&blocks, total - 1);
    assert_int_equal(mp_kv_blocks_take(&blocks), total - 1);
    assert_int_equal(mp_kv_blocks_take(&blocks), 4096);
    mp_kv_blocks_fini(&blocks);
}

static void test_kv_blocks_move_forwards_and_restores(void **state)
{
    (void)state;
    mp_kv_blocks blocks;
    assert_int_equal(mp_kv_blocks_init(&blocks, 6), MOEPAGE_OK);
    mp_kv_blocks_set_first(&blocks, 1);
    for (int i = 0; i < 5; i++)
        mp_kv_blocks_take(&blocks);
    mp_kv_blocks_share(&blocks, 2);
    mp_kv_blocks_drop(&blocks, 4);
    mp_kv_blocks_drop(&blocks, 5);
    mp_kv_blocks_drop(&blocks, 1);

    assert_int_equal(mp_kv_blocks_move(&blocks, 2), 5);
    assert_int_equal(blocks.refs[2], 5);
    assert_int_equal(blocks.refs[5], 2);
    mp_kv_blocks_move_back(&blocks, 2);
    assert_int_equal(blocks.refs[2], 2);
    assert_int_equal(blocks.refs[5], 0);
    assert_int_equal(blocks.free, 3);

    assert_int_equal(mp_kv_blocks_move(&blocks, 2), 5);
    mp_kv_blocks_set_first(&blocks, 3);
    assert_int_equal(mp_kv_blocks_used(&blocks), 2);
    assert_int_equal(blocks.free, 1);
    assert_int_equal(blocks.peak, 5);
    assert_int_equal(mp_kv_blocks_take(&blocks), 4);
    mp_kv_blocks_set_first(&blocks, 1);
    assert_int_equal(mp_kv_blocks_take(&blocks), 2);
    mp_kv_blocks_fini(&blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_blocks_takes_the_highest_free_block_at_every_size),
        cmocka_unit_test(test_kv_blocks_can_be_emptied_and_filled_through_four_levels),
        cmocka_unit_test(test_kv_blocks_move_forwards_and_restores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
