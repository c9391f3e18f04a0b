/* Measuring a shard's tiers. */
#include "memory/expert_measure.h"

#include <string.h>

#include "base/status.h"
#include "model/dtype.h"

#define PAGE 4096u
#define MOST_BUS_BYTES (4u << 20)
#define ROUNDS 3 /* the fastest counts: others were disturbed */

moepage_status mp_scratch_open(struct moepage_device *home, uint64_t room, mp_scratch *out)
{
    const mp_device_ops *ops = home->device->ops;
    *out = (mp_scratch){.bytes = room + PAGE, .room = room};
    moepage_status status = ops->alloc(home->device, MP_MEMORY_HOST, out->bytes, &out->memory);
    if (!status)
        out->aligned = (unsigned char *)out->memory + (-(uintptr_t)out->memory & (PAGE - 1));
    return status;
}

void mp_scratch_close(struct moepage_device *home, mp_scratch *scratch)
{
    if (scratch->memory)
        home->device->ops->free(home->device, MP_MEMORY_HOST, scratch->memory, scratch->bytes);
    scratch->memory = NULL;
}

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

/* Decodes one expert's image from a staging buffer, which it fills, into the first slot's place. */
static moepage_status decode_sample(mp_shard *shard, const unsigned char *image, uint64_t bytes)
{
    const mp_device_ops *ops = shard->home->device->ops;
    const struct moepage_model *model = shard->pool->model;
    mp_pipe *pipe = &shard->pipes[MP_PIPE_DEMAND];
    unsigned char *staged = shard->staging.buffers[0].memory;
    mp_decode_job jobs[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_decode_describe(model, 0, 0, staged, shard->home->arena.base, jobs);
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

static moepage_status measure_decode(mp_shard *shard)
{
    const struct moepage_model *model = shard->pool->model;
    mp_scratch scratch;
    mp_image image;
    mp_model_find_image(model, 0, 0, MOEPAGE_FORM_EXPH, &image);
    moepage_status status =
        mp_scratch_open(shard->home, mp_model_image_room(model, MOEPAGE_FORM_EXPH), &scratch);
    uint64_t read_bytes;
    if (!status)
        status = mp_model_read_image(model, 0, 0, MOEPAGE_FORM_EXPH, scratch.aligned, scratch.room,
                                     &read_bytes);
    if (!status)
        status = decode_sample(shard, scratch.aligned + image.skew, image.bytes);
    mp_scratch_close(shard->home, &scratch);
    return status;
}

/* The first experts are read, one per lane, and stay. */
static moepage_status measure_cold(mp_shard *shard)
{
    const mp_device_ops *ops = shard->home->device->ops;
    mp_host_tier *tier = shard->tier;
    uint32_t entries[MP_MAX_COLD_LANES], n = 0;
    moepage_status status = MOEPAGE_OK;
    uint64_t start = now_ns(shard);
    for (uint32_t key = 0; key < tier->n_keys && n < tier->n_lanes; key++)
        if (mp_pool_shard_of(shard->pool, key) == (uint32_t)(shard - shard->pool->shards))
            entries[n++] = mp_host_tier_fetch(tier, key);
    for (uint32_t i = 0; i < n && !status; i++) {
        const mp_host_entry *entry = &tier->entries[entries[i]];
        status = ops->sync(tier->lanes[entry->lane].stream, entry->tick);
        mp_host_tier_settle(tier, entries[i]);
    }
    shard->rates.cold = rate_of(n * shard->pool->slot_bytes, now_ns(shard) - start);
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
