/* What a shard's probes have seen, in the units in which others ask. */
#include "pool/expert_pool.h"

/* Bytes that cross the bus for one expert. */
static uint64_t bytes_on_bus(const mp_shard *shard)
{
    const struct moepage_expert_pool *pool = shard->pool;
    mp_image image;
    mp_model_find_image(pool->model, 0, 0, pool->bus_form, &image);
    return image.bytes;
}

void mp_shard_live_rates(const mp_shard *shard, mp_rates *out)
{
    uint64_t bus = mp_rate_per_s(&shard->probes[MP_PROBE_BUS].rate);
    double dense = (double)shard->pool->slot_bytes / (double)bytes_on_bus(shard);
    *out = (mp_rates){
        .bus = (uint64_t)((double)bus * dense),
        .decode = mp_rate_per_s(&shard->probes[MP_PROBE_DECODE].rate),
        .cold = mp_rate_per_s(&shard->probes[MP_PROBE_COLD].rate),
    };
}

double mp_shard_bus_ns(const mp_shard *shard)
{
    double dense = (double)shard->pool->slot_bytes / (double)bytes_on_bus(shard);
    double before = shard->rates.bus ? 1e9 / (double)shard->rates.bus * dense : 0;
    return mp_rate_ns(&shard->probes[MP_PROBE_BUS].rate, before);
}

double mp_shard_load_ns(const mp_shard *shard)
{
    return mp_shard_bus_ns(shard) * (double)bytes_on_bus(shard);
}
