/* The parts of a cache: which shard and scope an expert belongs to. */
#include "cache/inside.h"

uint32_t mp_cache_members(const mp_cache *cache, uint32_t device)
{
    return cache->setup.deal->members[device];
}

mp_shard *mp_cache_shard(const mp_cache *cache, uint32_t device)
{
    return &cache->shards[device];
}

mp_shard *mp_cache_shard_of(const mp_cache *cache, uint32_t key)
{
    return &cache->shards[mp_deal_device(cache->setup.deal, key)];
}

mp_transfer *mp_shard_transfer(const mp_shard *shard)
{
    return shard->transfer;
}

uint32_t mp_shard_device(const mp_shard *shard)
{
    return shard->device;
}
