/* Places of compressed experts: whose they are, copying images there, and giving them up. */
#include "cache/compressed.h"

#include "arena/scratch.h"
#include "base/alloc.h"
#include "base/status.h"
#include "pool/expert_pool.h"

/* ---- whose a place is ---- */

static uint32_t members_of(const mp_shard *shard)
{
    return mp_pool_members(shard->pool, (uint32_t)(shard - shard->pool->shards));
}

static uint32_t divisor_of(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Near the golden section of n and prime to it: the first k multiples, modulo n, lie nearly evenly
 * for every k, and no two of the first n are the same. */
static uint32_t stride_of(uint32_t n)
{
    uint32_t stride = (uint32_t)((uint64_t)n * 618 / 1000);
    if (stride == 0)
        stride = 1;
    while (divisor_of(stride, n) != 1)
        stride++;
    return stride;
}

uint32_t mp_images_key(const mp_shard *shard, uint32_t place)
{
    const struct moepage_expert_pool *pool = shard->pool;
    uint32_t round = place / pool->layers, layer = place % pool->layers;
    uint32_t member = (uint32_t)((uint64_t)round * shard->compressed.stride % members_of(shard));
    uint32_t expert = member * pool->n_shards + (uint32_t)(shard - pool->shards);
    return layer * pool->experts + expert;
}

uint32_t mp_images_slots(const mp_shard *shard, uint32_t rounds)
{
    uint64_t bytes = (uint64_t)rounds * shard->pool->layers * shard->compressed.unit;
    return (uint32_t)((bytes + shard->pool->slot_bytes - 1) / shard->pool->slot_bytes);
}

moepage_status mp_images_open(mp_shard *shard, uint64_t unit)
{
    const struct moepage_expert_pool *pool = shard->pool;
    mp_compressed *compressed = &shard->compressed;
    compressed->place_of = mp_alloc_array(pool->keys, sizeof *compressed->place_of);
    if (!compressed->place_of)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the places of %u experts", pool->keys);
    for (uint32_t key = 0; key < pool->keys; key++)
        compressed->place_of[key] = MP_NO_SLOT;
    compressed->memory = shard->home->arena.base;
    compressed->unit = unit;
    compressed->stride = stride_of(members_of(shard));
    return MOEPAGE_OK;
}

void mp_images_close(mp_shard *shard)
{
    mp_free(shard->compressed.place_of);
}

bool mp_images_have(const mp_shard *shard, uint32_t key)
{
    const mp_compressed *compressed = &shard->compressed;
    return compressed->place_of && compressed->place_of[key] < compressed->usable;
}

const unsigned char *mp_images_find(const mp_shard *shard, uint32_t key)
{
    return shard->compressed.memory + shard->compressed.place_of[key] * shard->compressed.unit;
}

/* ---- giving places up ---- */

static mp_fill *fill_at(mp_compressed *compressed, uint32_t i)
{
    return &compressed->fills[(compressed->first_fill + i) % MP_FILLS];
}

void mp_images_limit(mp_shard *shard, uint32_t rounds)
{
    mp_compressed *compressed = &shard->compressed;
    uint32_t places = rounds * shard->pool->layers;
    places = places < compressed->n ? places : compressed->n;
    for (int kind = 0; kind < MP_PIPES && places < compressed->usable; kind++)
        compressed->leaving[kind] = compressed->read[kind];
    compressed->usable = places;
}

/* When the last copy to a place beyond `places` ends. Images come in the order of their places. */
static mp_tick last_fill(const mp_shard *shard, uint32_t places)
{
    const mp_compressed *compressed = &shard->compressed;
    if (compressed->n_fills == 0)
        return 0;
    const mp_fill *fill =
        &compressed->fills[(compressed->first_fill + compressed->n_fills - 1) % MP_FILLS];
    return fill->place >= places ? fill->tick : 0;
}

bool mp_images_quiet(const mp_shard *shard, uint32_t rounds)
{
    const mp_device_ops *ops = shard->home->device->ops;
    uint32_t places = rounds * shard->pool->layers;
    if (places >= shard->compressed.n)
        return true;
    for (int kind = 0; kind < MP_PIPES; kind++)
        if (shard->compressed.leaving[kind] &&
            ops->completed(shard->pipes[kind].decode) < shard->compressed.leaving[kind])
            return false;
    mp_tick tick = last_fill(shard, places);
    return !tick || ops->completed(shard->pipes[MP_PIPE_PREFETCH].bus) >= tick;
}

moepage_status mp_images_settle(mp_shard *shard, uint32_t rounds)
{
    const mp_device_ops *ops = shard->home->device->ops;
    uint32_t places = rounds * shard->pool->layers;
    moepage_status status = MOEPAGE_OK;
    if (places >= shard->compressed.n)
        return status;
    for (int kind = 0; kind < MP_PIPES && !status; kind++)
        if (shard->compressed.leaving[kind])
            status = ops->sync(shard->pipes[kind].decode, shard->compressed.leaving[kind]);
    mp_tick tick = last_fill(shard, places);
    return status || !tick ? status : ops->sync(shard->pipes[MP_PIPE_PREFETCH].bus, tick);
}

static void forget_from(mp_shard *shard, uint32_t places)
{
    mp_compressed *compressed = &shard->compressed;
    for (uint32_t place = places; place < compressed->n; place++) {
        uint32_t *at = &compressed->place_of[mp_images_key(shard, place)];
        compressed->landed -= *at == place;
        *at = MP_NO_SLOT;
    }
    while (compressed->n_fills && fill_at(compressed, compressed->n_fills - 1)->place >= places)
        compressed->n_fills--;
    if (compressed->next >= places) {
        compressed->next = places;
        compressed->offset = 0;
    }
}

void mp_images_set(mp_shard *shard, uint32_t rounds)
{
    mp_compressed *compressed = &shard->compressed;
    uint32_t places = rounds * shard->pool->layers;
    mp_images_sweep(shard); /* what has landed of those that stay is not copied again */
    if (places < compressed->n)
        forget_from(shard, places);
    compressed->n = compressed->usable = places;
}

/* ---- copying ---- */

bool mp_images_pending(const mp_shard *shard)
{
    const mp_compressed *compressed = &shard->compressed;
    if (compressed->next < compressed->usable)
        return true;
    return compressed->n_fills && compressed->fills[compressed->first_fill].whole;
}

/* The image that is being copied: one begun before, or the next one. */
static mp_fill *current_fill(mp_shard *shard)
{
    mp_compressed *compressed = &shard->compressed;
    if (compressed->offset > 0)
        return fill_at(compressed, compressed->n_fills - 1);
    if (compressed->n_fills == MP_FILLS)
        return NULL;
    mp_fill *fill = fill_at(compressed, compressed->n_fills++);
    fill->place = compressed->next;
    fill->whole = false;
    fill->tick = shard->pipes[MP_PIPE_PREFETCH].last_bus;
    atomic_store(&fill->result, MOEPAGE_OK);
    return fill;
}

/* Goes on with one image; what has failed is not copied to its end. */
static uint64_t advance_fill(mp_shard *shard, mp_fill *fill, uint64_t room)
{
    const struct moepage_expert_pool *pool = shard->pool;
    mp_compressed *compressed = &shard->compressed;
    mp_pipe *pipe = &shard->pipes[MP_PIPE_PREFETCH];
    uint32_t key = mp_images_key(shard, fill->place);
    mp_image image;
    mp_model_find_image(pool->model, key / pool->experts, key % pool->experts, MOEPAGE_FORM_EXPH,
                        &image);
    uint64_t left = image.bytes - compressed->offset, bytes = left < room ? left : room;
    mp_copy copy = mp_pool_copy_mapped(pool, key, MOEPAGE_FORM_EXPH, compressed->offset, bytes);
    copy.dst = compressed->memory + fill->place * compressed->unit + compressed->offset;
    copy.result = &fill->result;
    moepage_status status = shard->home->device->ops->copy(pipe->bus, &copy, 1, &pipe->last_bus);
    if (status)
        atomic_store(&fill->result, status);
    else
        fill->tick = pipe->last_bus;
    compressed->offset += bytes;
    fill->whole = bytes == left || atomic_load(&fill->result);
    if (fill->whole) {
        compressed->next++;
        compressed->offset = 0;
    }
    return bytes;
}

uint64_t mp_images_advance(mp_shard *shard, uint64_t room)
{
    mp_compressed *compressed = &shard->compressed;
    uint64_t total = 0;
    while (total < room && compressed->next < compressed->usable) {
        mp_fill *fill = current_fill(shard);
        if (!fill)
            break;
        total += advance_fill(shard, fill, room - total);
    }
    return total;
}

/* An expert whose image cannot be had is not kept compressed: whoever needs it will be told why. */
static void land(mp_shard *shard, const mp_fill *fill)
{
    mp_compressed *compressed = &shard->compressed;
    moepage_status status = atomic_load(&fill->result);
    if (status && !mp_is_image_fault(status))
        compressed->failure = status;
    if (status)
        return;
    compressed->place_of[mp_images_key(shard, fill->place)] = fill->place;
    compressed->landed++;
}

void mp_images_sweep(mp_shard *shard)
{
    const mp_device_ops *ops = shard->home->device->ops;
    mp_compressed *compressed = &shard->compressed;
    while (compressed->n_fills) {
        const mp_fill *fill = fill_at(compressed, 0);
        if (!fill->whole || ops->completed(shard->pipes[MP_PIPE_PREFETCH].bus) < fill->tick)
            break;
        land(shard, fill);
        compressed->first_fill = (compressed->first_fill + 1) % MP_FILLS;
        compressed->n_fills--;
    }
}
