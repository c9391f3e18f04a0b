/* Measuring a shard's tiers. */
#include "memory/expert_measure.h"

#include <string.h>

#include "memory/scratch.h"

#define MOST_BUS_BYTES (4u << 20)
#define SAMPLES 8u
#define ROUNDS 3 /* the fastest counts: others were disturbed */

static uint64_t now_ns(const mp_shard *shard)
{
    return shard->home->device->ops->now_ns(shard->home->device);
}

/* Bytes per second, at least 1. */
static uint64_t rate_of(uint64_t bytes, uint64_t ns)
{
    unsigned __int128 rate = (unsigned __int128)bytes * 1000000000u / (ns ? ns : 1);
    return rate < 1 ? 1 : rate > UINT64_MAX ? UINT64_MAX : (uint64_t)rate;
}

/* A rate at which images move, as the dense bytes that they stand for. */
static uint64_t as_dense(const mp_shard *shard, uint64_t image_rate)
{
    const struct moepage_expert_pool *pool = shard->pool;
    mp_image image;
    mp_model_find_image(pool->model, 0, 0, pool->bus_form, &image);
    return (uint64_t)((unsigned __int128)image_rate * pool->slot_bytes / image.bytes);
}

static moepage_status measure_bus(mp_shard *shard)
{
    const mp_device_ops *ops = shard->home->device->ops;
    mp_pipe *pipe = &shard->pipes[MP_PIPE_DEMAND];
    uint64_t bytes = shard->pool->slot_bytes;
    mp_scratch scratch;
    moepage_status status =
        mp_scratch_open(shard->home, bytes < MOST_BUS_BYTES ? bytes : MOST_BUS_BYTES, &scratch);
    if (status)
        return status;
    memset(scratch.aligned, 1, scratch.room); /* real pages, not the one of zeros */
    uint64_t fastest = UINT64_MAX;
    for (int round = 0; round < ROUNDS && !status; round++) {
        mp_copy copy = {.dst = shard->home->arena.base,
                        .src = scratch.aligned,
                        .bytes = scratch.room};
        uint64_t start = now_ns(shard);
        status = ops->copy(pipe->bus, &copy, 1, &pipe->last_bus);
        if (!status)
            status = ops->sync(pipe->bus, pipe->last_bus);
        uint64_t ns = now_ns(shard) - start;
        fastest = ns < fastest ? ns : fastest;
    }
    shard->rates.bus = as_dense(shard, rate_of(scratch.room, fastest));
    mp_scratch_close(shard->home, &scratch);
    return status;
}

/* Decodes an expert's image from a staging buffer, which it fills, into the first slot's place. */
static moepage_status decode_sample(mp_shard *shard, uint32_t key, const unsigned char *image,
                                    uint64_t bytes)
{
    const mp_device_ops *ops = shard->home->device->ops;
    const struct moepage_model *model = shard->pool->model;
    mp_pipe *pipe = &shard->pipes[MP_PIPE_DEMAND];
    unsigned char *staged = shard->staging.buffers[0].memory;
    mp_decode_job jobs[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_decode_describe(model, key / model->info.experts, key % model->info.experts, staged,
                       shard->home->arena.base, jobs);
    mp_kernel_decode_args args = {.jobs = jobs, .n_jobs = model->info.expert_tensors};
    mp_copy copy = {.dst = staged, .src = image, .bytes = bytes};
    uint64_t fastest = UINT64_MAX;
    moepage_status status = ops->copy(pipe->bus, &copy, 1, &pipe->last_bus);
    if (!status)
        status = ops->sync(pipe->bus, pipe->last_bus);
    for (int round = 0; round < ROUNDS && !status; round++) {
        uint64_t start = now_ns(shard);
        status = ops->launch(pipe->decode, MP_KERNEL_DECODE, &args, &pipe->last_decode);
        if (!status)
            status = ops->sync(pipe->decode, pipe->last_decode);
        uint64_t ns = now_ns(shard) - start;
        fastest = ns < fastest ? ns : fastest;
    }
    shard->rates.decode = rate_of(shard->pool->slot_bytes, fastest);
    return status;
}

/* By the first of a few experts that can be read: one that is damaged fails its own load alone. */
static moepage_status measure_decode(mp_shard *shard)
{
    const struct moepage_model *model = shard->pool->model;
    mp_scratch scratch;
    moepage_status status =
        mp_scratch_open(shard->home, mp_model_image_room(model, MOEPAGE_FORM_EXPH), &scratch);
    if (status)
        return status;
    uint32_t key = 0, few = shard->pool->keys < SAMPLES ? shard->pool->keys : SAMPLES;
    do {
        uint32_t layer = key / model->info.experts, expert = key % model->info.experts;
        uint64_t read_bytes;
        mp_image image;
        mp_model_find_image(model, layer, expert, MOEPAGE_FORM_EXPH, &image);
        status = mp_model_read_image(model, layer, expert, MOEPAGE_FORM_EXPH, scratch.aligned,
                                     scratch.room, &read_bytes);
        if (!status)
            status = decode_sample(shard, key, scratch.aligned + image.skew, image.bytes);
    } while (mp_is_image_fault(status) && ++key < few);
    mp_scratch_close(shard->home, &scratch);
    return status;
}

/* The shard's first experts are read, one per lane, and stay. */
static moepage_status measure_cold(mp_shard *shard)
{
    mp_host_tier *tier = shard->tier;
    uint32_t entries[MP_MAX_COLD_LANES], n = 0, valid = 0;
    uint64_t start = now_ns(shard);
    for (uint32_t key = 0; key < tier->n_keys && n < tier->n_lanes; key++)
        if (mp_pool_shard_of(shard->pool, key) == (uint32_t)(shard - shard->pool->shards))
            entries[n++] = mp_host_tier_fetch(tier, key, false);
    moepage_status status = mp_host_tier_sync(tier);
    uint64_t ns = now_ns(shard) - start;
    for (uint32_t i = 0; i < n; i++) {
        mp_host_tier_settle(tier, entries[i]);
        valid += tier->entries[entries[i]].state == MP_ENTRY_VALID;
    }
    shard->rates.cold = valid ? rate_of(valid * shard->pool->slot_bytes, ns) : 0;
    return status;
}

moepage_status mp_measure_tiers(mp_shard *shard)
{
    if (mp_arena_room(&shard->home->arena, MP_SIDE_EXPERTS) == 0)
        return MOEPAGE_OK; /* the pool will say so itself */
    moepage_status status = measure_bus(shard);
    if (!status && shard->staging.n)
        status = measure_decode(shard);
    if (!status && shard->tier)
        status = measure_cold(shard);
    return status;
}
