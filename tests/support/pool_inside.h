/* pool_inside.h — the insides of the expert pool's rooms, for tests that look behind their doors. */
#ifndef MP_TESTS_POOL_INSIDE_H
#define MP_TESTS_POOL_INSIDE_H

#include "ahead/inside.h"
#include "ahead/versions_inside.h"
#include "cache/inside.h"
#include "pool/inside.h"
#include "transfer/inside.h"

static inline uint32_t pool_slots(const mp_shard *shard)
{
    return shard->all.end - shard->all.first;
}

/* The version of an expert that a client's open step sees. */
static inline uint32_t pool_version_seen(const struct moepage_expert_pool *pool,
                                         const mp_client *client, uint32_t key)
{
    return pool->versions[mp_deal_device(&pool->deal, key)]->readers[client->index].published[key];
}

#endif
