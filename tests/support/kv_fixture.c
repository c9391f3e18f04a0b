/* The small KV pool. */
#include "kv_fixture.h"

#include "testing.h"

moepage_kv_pool_config kv_fixture_config(uint64_t blocks)
{
    static const uint32_t bytes_per_token[KV_LAYERS] = {16, 4, 9};
    return (moepage_kv_pool_config){
        .struct_size = sizeof(moepage_kv_pool_config),
        .block_tokens = KV_BLOCK_TOKENS,
        .layers = KV_LAYERS,
        .blocks_per_granule = KV_RUN,
        .bytes_per_token = bytes_per_token,
        .blocks = blocks,
    };
}

void kv_fixture_open(kv_fixture *f, uint64_t blocks)
{
    moepage_kv_pool_config config = kv_fixture_config(blocks);
    fake_device_init(&f->fake);
    f->home = fake_home_open(&f->fake, KV_ARENA, 0);
    assert_int_equal(moepage_kv_pool_create(f->home, &config, &f->pool), MOEPAGE_OK);
    kv_tokens_open(&f->tokens, f->pool, KV_LAYERS, config.bytes_per_token);
    for (uint64_t i = 0; i < sizeof f->tags / sizeof *f->tags; i++)
        f->tags[i] = 1000 + i;
}

void kv_fixture_close(kv_fixture *f)
{
    assert_int_equal(moepage_kv_pool_destroy(f->pool), MOEPAGE_OK);
    fake_home_close(f->home);
}

moepage_kv_pool_info kv_fixture_info(kv_fixture *f)
{
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_kv_pool_get_info(f->pool, &info), MOEPAGE_OK);
    return info;
}

moepage_kv_table kv_fixture_table(kv_fixture *f, moepage_seq seq)
{
    moepage_kv_table table = {.struct_size = sizeof table};
    assert_int_equal(moepage_kv_get_table(f->pool, seq, &table), MOEPAGE_OK);
    return table;
}

moepage_seq kv_fixture_fill(kv_fixture *f, uint64_t n)
{
    moepage_seq seq = 0;
    assert_int_equal(moepage_kv_create(f->pool, &seq), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(f->pool, seq, n, NULL), MOEPAGE_OK);
    kv_tokens_write(&f->tokens, seq, 0, n, f->tags);
    return seq;
}
