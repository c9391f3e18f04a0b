/* The geometry of KV pools against sizes worked out by hand, and against a map of every byte. */
#include <stdlib.h>
#include <string.h>

#include "kv/kv_shape.h"
#include "testing.h"

#define MIB (1ull << 20)
#define COUNT(array) (sizeof(array) / sizeof *(array))

static moepage_status shape_of(mp_kv_shape *shape, uint32_t block_tokens, uint32_t layers,
                               const uint32_t *bytes_per_token, uint32_t run, uint64_t blocks,
                               uint64_t arena, uint64_t room, uint64_t *granules)
{
    moepage_kv_pool_config config = {
        .struct_size = sizeof config,
        .block_tokens = block_tokens,
        .layers = layers,
        .blocks_per_granule = run,
        .bytes_per_token = bytes_per_token,
        .blocks = blocks,
    };
    return mp_kv_shape_init(shape, &config, arena, room, granules);
}

static void test_kv_shape_of_equal_layers_gives_affine_ids(void **state)
{
    (void)state;
    const uint32_t bytes[] = {8, 0, 8, 8};
    mp_kv_shape shape;
    uint64_t granules;
    assert_int_equal(shape_of(&shape, 10, 4, bytes, 5, 12, 65536, 65536, &granules), MOEPAGE_OK);
    assert_int_equal(shape.layer_bytes[0], 128); /* 80 padded */
    assert_int_equal(shape.layer_bytes[1], 0);
    assert_int_equal(shape.block_bytes, 3 * 128);
    assert_int_equal(shape.granule_bytes, 5 * 3 * 128);
    assert_int_equal(shape.layer_offset[2], 5 * 128);
    assert_int_equal(shape.layer_offset[3], 10 * 128);
    assert_int_equal(shape.id_stride, 15);
    assert_int_equal(granules, 3);
    for (uint32_t block = 0; block < 30; block++) {
        uint32_t id = mp_kv_shape_id(&shape, block);
        assert_int_equal(mp_kv_shape_block(&shape, id), block);
        for (uint32_t layer = 0; layer < 4; layer += 2)
            assert_int_equal(mp_kv_shape_offset(&shape, layer, block),
                             shape.layer_offset[layer] + id * 128ull);
    }
    mp_kv_shape_fini(&shape);
}

static void test_kv_shape_of_unequal_layers_numbers_blocks_densely(void **state)
{
    (void)state;
    const uint32_t bytes[] = {8, 100};
    mp_kv_shape shape;
    uint64_t granules;
    assert_int_equal(shape_of(&shape, 16, 2, bytes, 4, 9, 65536, 65536, &granules), MOEPAGE_OK);
    assert_int_equal(shape.layer_bytes[0], 128);
    assert_int_equal(shape.layer_bytes[1], 1600);
    assert_int_equal(shape.granule_bytes, 4 * 1728);
    assert_int_equal(shape.id_stride, 4);
    assert_int_equal(granules, 3);
    for (uint32_t block = 0; block < 36; block++) {
        assert_int_equal(mp_kv_shape_id(&shape, block), block);
        assert_int_equal(mp_kv_shape_offset(&shape, 1, block),
                         block / 4 * 6912 + 512 + block % 4 * 1600);
    }
    mp_kv_shape_fini(&shape);
}

static void test_kv_shape_gives_every_byte_to_at_most_one_block(void **state)
{
    (void)state;
    const uint32_t bytes[][4] = {{8, 8, 8, 8}, {4, 0, 4, 0}, {1, 20, 0, 7}, {16, 0, 0, 0}};
    enum { ARENA = 40960 };
    for (size_t i = 0; i < COUNT(bytes); i++) {
        for (uint32_t run = 1; run < 9; run++) {
            mp_kv_shape shape;
            uint64_t granules;
            assert_int_equal(shape_of(&shape, 8, 4, bytes[i], run, 0, ARENA, ARENA, &granules),
                             MOEPAGE_OK);
            unsigned char *owned = calloc(ARENA, 1);
            for (uint32_t block = 0; block < granules * run; block++) {
                for (uint32_t layer = 0; layer < 4; layer++) {
                    uint64_t offset = mp_kv_shape_offset(&shape, layer, block);
                    assert_true(shape.layer_bytes[layer] >= 8u * bytes[i][layer]);
                    for (uint64_t k = 0; k < shape.layer_bytes[layer]; k++) {
                        assert_true(offset + k < granules * shape.granule_bytes);
                        assert_int_equal(owned[offset + k]++, 0);
                    }
                }
            }
            free(owned);
            mp_kv_shape_fini(&shape);
        }
    }
}

static void test_kv_shape_chooses_long_runs_and_fine_boundaries(void **state)
{
    (void)state;
    mp_kv_shape shape;
    uint64_t granules;
    const uint32_t equal[] = {2048, 2048}; /* 32 KiB per layer and block of 16 tokens */
    assert_int_equal(shape_of(&shape, 16, 2, equal, 0, 0, 1024 * MIB, 1024 * MIB, &granules), 0);
    assert_int_equal(shape.blocks_per_granule, 8); /* 256 KiB */
    assert_int_equal(granules, 2048);
    mp_kv_shape_fini(&shape);
    /* 70 blocks: a granule of 2 keeps the pool at 35 granules. */
    assert_int_equal(shape_of(&shape, 16, 2, equal, 0, 70, 1024 * MIB, 1024 * MIB, &granules), 0);
    assert_int_equal(shape.blocks_per_granule, 2);
    assert_int_equal(granules, 35);
    mp_kv_shape_fini(&shape);
    /* Padding 1001 blocks to granules would leave the room of 1003. */
    assert_int_equal(shape_of(&shape, 16, 2, equal, 0, 1001, 1024 * MIB, 1003 * 65536ull,
                              &granules),
                     0);
    assert_int_equal(shape.blocks_per_granule, 2);
    assert_int_equal(granules, 501);
    mp_kv_shape_fini(&shape);
    /* A block larger than the run stands alone. */
    const uint32_t large[] = {65536};
    assert_int_equal(shape_of(&shape, 16, 1, large, 0, 0, 1024 * MIB, 1024 * MIB, &granules), 0);
    assert_int_equal(shape.blocks_per_granule, 1);
    mp_kv_shape_fini(&shape);
}

static void test_kv_shape_refuses_what_the_arena_cannot_hold(void **state)
{
    (void)state;
    mp_kv_shape shape;
    uint64_t granules = 77;
    const uint32_t bytes[] = {4};
    const uint32_t none[] = {0, 0};
    const uint32_t huge[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
    assert_int_equal(shape_of(&shape, 16, 1, bytes, 4, 17, 4096, 1024, &granules),
                     MOEPAGE_E_BUDGET);
    assert_string_equal(moepage_last_error(),
                        "the pool needs 17 KV blocks of 64 bytes, the arena has room for 16");
    /* 16 blocks fit, but not as 6 granules of 3. */
    assert_int_equal(shape_of(&shape, 16, 1, bytes, 3, 16, 4096, 1024, &granules),
                     MOEPAGE_E_BUDGET);
    assert_int_equal(shape_of(&shape, 16, 1, bytes, 0, 0, 4096, 63, &granules), MOEPAGE_E_BUDGET);
    assert_int_equal(shape_of(&shape, 16, 1, bytes, 65, 1, 4096, 4096, &granules),
                     MOEPAGE_E_BUDGET);
    assert_int_equal(shape_of(&shape, 16, 2, none, 0, 0, 4096, 4096, &granules),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(shape_of(&shape, UINT32_MAX, 3, huge, 0, 0, 4096, 4096, &granules),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(shape_of(&shape, UINT32_MAX, 1, huge, UINT32_MAX, 1, UINT64_MAX, UINT64_MAX,
                              &granules),
                     MOEPAGE_E_BUDGET);
    assert_int_equal(granules, 77);
}

static void test_kv_shape_refuses_ids_past_32_bits(void **state)
{
    (void)state;
    mp_kv_shape shape;
    uint64_t granules;
    const uint32_t bytes[] = {1, 1};
    uint64_t limit = 64ull * UINT32_MAX; /* ids count one layer's blocks of 64 bytes */
    assert_int_equal(shape_of(&shape, 16, 2, bytes, 1, 10, limit, 4096, &granules), MOEPAGE_OK);
    uint32_t last = UINT32_MAX / 2 - 1;
    assert_int_equal(mp_kv_shape_id(&shape, last), UINT32_MAX - 3);
    assert_int_equal(mp_kv_shape_block(&shape, UINT32_MAX - 3), last);
    mp_kv_shape_fini(&shape);
    assert_int_equal(shape_of(&shape, 16, 2, bytes, 1, 10, limit + 64, 4096, &granules),
                     MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "4294967296 block ids"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_shape_of_equal_layers_gives_affine_ids),
        cmocka_unit_test(test_kv_shape_of_unequal_layers_numbers_blocks_densely),
        cmocka_unit_test(test_kv_shape_gives_every_byte_to_at_most_one_block),
        cmocka_unit_test(test_kv_shape_chooses_long_runs_and_fine_boundaries),
        cmocka_unit_test(test_kv_shape_refuses_what_the_arena_cannot_hold),
        cmocka_unit_test(test_kv_shape_refuses_ids_past_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
