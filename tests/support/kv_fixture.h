/* kv_fixture.h — a small KV pool on a fake device, for tests that state one claim at a time. */
#ifndef KV_FIXTURE_H
#define KV_FIXTURE_H

#include "fake_device.h"
#include "kv_tokens.h"

enum {
    KV_LAYERS = 3,
    KV_BLOCK_TOKENS = 4,
    KV_BLOCK_BYTES = 3 * 64, /* 16, 4 and 9 bytes per token, padded */
    KV_RUN = 2,              /* blocks per granule */
    KV_ARENA = 8192          /* 42 blocks */
};

typedef struct kv_fixture {
    fake_device fake;
    struct moepage_device *home;
    moepage_kv_pool *pool;
    kv_tokens tokens;
    uint64_t tags[256];
} kv_fixture;

/* A config for this shape, for tests that create the pool themselves. */
moepage_kv_pool_config kv_fixture_config(uint64_t blocks);

void kv_fixture_open(kv_fixture *f, uint64_t blocks);
void kv_fixture_close(kv_fixture *f);

moepage_kv_pool_info kv_fixture_info(kv_fixture *f);
moepage_kv_table kv_fixture_table(kv_fixture *f, moepage_seq seq);

/* A sequence of n tokens tagged tags[0..n). */
moepage_seq kv_fixture_fill(kv_fixture *f, uint64_t n);

#endif
