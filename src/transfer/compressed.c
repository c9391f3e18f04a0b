/* Compressed experts: each one's place, copying images there, and giving places up. */
#include "arena/scratch.h"
#include "base/alloc.h"
#include "base/divisor.h"
#include "base/status.h"
#include "transfer/inside.h"

/* ---- places ---- */

/* Near the golden section of n and prime to it: the first k multiples, modulo n, lie nearly evenly
 * for every k, and no two of the first n are the same. */
static uint32_t stride_of(uint32_t n)
{
    uint32_t stride = (uint32_t)((uint64_t)n * 618 / 1000);
    if (stride == 0)
        stride = 1;
    while (mp_common_divisor(stride, n) != 1)
        stride++;
    return stride;
}

uint32_t mp_images_key(const mp_transfer *transfer, uint32_t place)
{
    uint32_t round = place / transfer->layers, layer = place % transfer->layers;
    uint32_t member = (uint32_t)((uint64_t)round * transfer->compressed.stride % transfer->members);
    return layer * transfer->experts + mp_deal_expert(transfer->deal, transfer->part, member);
}

uint32_t mp_images_places(const mp_transfer *transfer, uint32_t rounds)
{
    uint64_t bytes = (uint64_t)rounds * transfer->layers * transfer->compressed.unit;
    return (uint32_t)((bytes + transfer->place_bytes - 1) / transfer->place_bytes);
}

moepage_status mp_images_open(mp_transfer *transfer, uint64_t at, uint64_t unit)
{
    mp_compressed *compressed = &transfer->compressed;
    compressed->place_of = mp_alloc_array(transfer->keys, sizeof *compressed->place_of);
    if (!compressed->place_of)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the places of %u experts",
                       transfer->keys);
    for (uint32_t key = 0; key < transfer->keys; key++)
        compressed->place_of[key] = MP_NO_PLACE;
    compressed->memory = transfer->home->arena.base + at;
    compressed->unit = unit;
    compressed->stride = stride_of(transfer->members);
    return MOEPAGE_OK;
}

void mp_images_close(mp_transfer *transfer)
{
    mp_free(transfer->compressed.place_of);
}

const unsigned char *mp_images_find(const mp_transfer *transfer, uint32_t key)
{
    return transfer->compressed.memory +
           transfer->compressed.place_of[key] * transfer->compressed.unit;
}

bool mp_images_possible(const mp_transfer *transfer)
{
    return transfer->compressed.unit > 0;
}

moepage_status mp_images_check(const mp_transfer *transfer, uint32_t compressed, const char *owner)
{
    if (!mp_images_possible(transfer))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "experts cannot be kept compressed: the model does not store them as EXPH, "
                       "or %s has no staging because it was created without that form",
                       owner);
    if (compressed > transfer->experts)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%u compressed experts per layer: a layer has %u",
                       compressed, transfer->experts);
    return MOEPAGE_OK;
}

uint64_t mp_images_bytes(const mp_transfer *transfer)
{
    return transfer->compressed.unit;
}

uint32_t mp_images_rounds(const mp_transfer *transfer)
{
    return transfer->compressed.n / transfer->layers;
}

uint32_t mp_images_usable(const mp_transfer *transfer)
{
    return transfer->compressed.usable / transfer->layers;
}

/* ---- giving places up ---- */

static mp_fill *fill_at(mp_compressed *compressed, uint32_t i)
{
    return &compressed->fills[(compressed->first_fill + i) % MP_FILLS];
}

void mp_images_limit(mp_transfer *transfer, uint32_t rounds)
{
    mp_compressed *compressed = &transfer->compressed;
    uint32_t places = rounds * transfer->layers;
    places = places < compressed->n ? places : compressed->n;
    for (int kind = 0; kind < MP_PIPES && places < compressed->usable; kind++)
        compressed->leaving[kind] = compressed->read[kind];
    compressed->usable = places;
}

/* Returns the tick of the last copy to a place beyond `places`, or 0. Images are copied in the
 * order of their places, so the last fill is the one to look at. */
static mp_tick last_fill(const mp_transfer *transfer, uint32_t places)
{
    const mp_compressed *compressed = &transfer->compressed;
    if (compressed->n_fills == 0)
        return 0;
    const mp_fill *fill =
        &compressed->fills[(compressed->first_fill + compressed->n_fills - 1) % MP_FILLS];
    return fill->place >= places ? fill->tick : 0;
}

bool mp_images_quiet(const mp_transfer *transfer, uint32_t rounds)
{
    const mp_device_ops *ops = transfer->ops;
    uint32_t places = rounds * transfer->layers;
    if (places >= transfer->compressed.n)
        return true;
    for (int kind = 0; kind < MP_PIPES; kind++)
        if (transfer->compressed.leaving[kind] &&
            ops->completed(transfer->pipes[kind].decode) < transfer->compressed.leaving[kind])
            return false;
    mp_tick tick = last_fill(transfer, places);
    return !tick || ops->completed(transfer->pipes[MP_PIPE_PREFETCH].bus) >= tick;
}

moepage_status mp_images_settle(mp_transfer *transfer, uint32_t rounds)
{
    const mp_device_ops *ops = transfer->ops;
    uint32_t places = rounds * transfer->layers;
    moepage_status status = MOEPAGE_OK;
    if (places >= transfer->compressed.n)
        return status;
    for (int kind = 0; kind < MP_PIPES && !status; kind++)
        if (transfer->compressed.leaving[kind])
            status = ops->sync(transfer->pipes[kind].decode, transfer->compressed.leaving[kind]);
    mp_tick tick = last_fill(transfer, places);
    return status || !tick ? status : ops->sync(transfer->pipes[MP_PIPE_PREFETCH].bus, tick);
}

static void forget_from(mp_transfer *transfer, uint32_t places)
{
    mp_compressed *compressed = &transfer->compressed;
    for (uint32_t place = places; place < compressed->n; place++) {
        uint32_t *at = &compressed->place_of[mp_images_key(transfer, place)];
        compressed->landed -= *at == place;
        *at = MP_NO_PLACE;
    }
    while (compressed->n_fills && fill_at(compressed, compressed->n_fills - 1)->place >= places)
        compressed->n_fills--;
    if (compressed->next >= places) {
        compressed->next = places;
        compressed->offset = 0;
    }
}

void mp_images_set(mp_transfer *transfer, uint32_t rounds)
{
    mp_compressed *compressed = &transfer->compressed;
    uint32_t places = rounds * transfer->layers;
    mp_images_sweep(transfer); /* so that images that have landed and stay are not copied again */
    if (places < compressed->n)
        forget_from(transfer, places);
    compressed->n = compressed->usable = places;
}

/* ---- copying ---- */

bool mp_images_pending(const mp_transfer *transfer)
{
    const mp_compressed *compressed = &transfer->compressed;
    if (compressed->next < compressed->usable)
        return true;
    return compressed->n_fills && compressed->fills[compressed->first_fill].whole;
}

/* Returns the image to go on copying: one begun before, or the next one. */
static mp_fill *current_fill(mp_transfer *transfer)
{
    mp_compressed *compressed = &transfer->compressed;
    if (compressed->offset > 0)
        return fill_at(compressed, compressed->n_fills - 1);
    if (compressed->n_fills == MP_FILLS)
        return NULL;
    mp_fill *fill = fill_at(compressed, compressed->n_fills++);
    fill->place = compressed->next;
    fill->whole = false;
    fill->tick = transfer->pipes[MP_PIPE_PREFETCH].last_bus;
    atomic_store(&fill->result, MOEPAGE_OK);
    return fill;
}

/* Goes on copying one image; one that has failed is not copied to its end. */
static uint64_t advance_fill(mp_transfer *transfer, mp_fill *fill, uint64_t room)
{
    mp_compressed *compressed = &transfer->compressed;
    mp_pipe *pipe = &transfer->pipes[MP_PIPE_PREFETCH];
    uint32_t key = mp_images_key(transfer, fill->place);
    mp_image image = mp_transfer_image(transfer, key, MOEPAGE_FORM_EXPH);
    uint64_t left = image.bytes - compressed->offset, bytes = left < room ? left : room;
    mp_copy copy =
        mp_transfer_copy_stored(transfer, key, MOEPAGE_FORM_EXPH, compressed->offset, bytes);
    copy.dst = compressed->memory + fill->place * compressed->unit + compressed->offset;
    copy.result = &fill->result;
    moepage_status status = transfer->ops->copy(pipe->bus, &copy, 1, &pipe->last_bus);
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

uint64_t mp_images_advance(mp_transfer *transfer, uint64_t room)
{
    mp_compressed *compressed = &transfer->compressed;
    uint64_t total = 0;
    while (total < room && compressed->next < compressed->usable) {
        mp_fill *fill = current_fill(transfer);
        if (!fill)
            break;
        total += advance_fill(transfer, fill, room - total);
    }
    return total;
}

/* Makes an image that has landed usable. An expert whose image cannot be read is not kept
 * compressed: its next load reports why. */
static void land(mp_transfer *transfer, const mp_fill *fill)
{
    mp_compressed *compressed = &transfer->compressed;
    moepage_status status = atomic_load(&fill->result);
    if (status && !mp_is_image_fault(status))
        compressed->failure = status;
    if (status)
        return;
    compressed->place_of[mp_images_key(transfer, fill->place)] = fill->place;
    compressed->landed++;
}

void mp_images_sweep(mp_transfer *transfer)
{
    const mp_device_ops *ops = transfer->ops;
    mp_compressed *compressed = &transfer->compressed;
    while (compressed->n_fills) {
        const mp_fill *fill = fill_at(compressed, 0);
        if (!fill->whole || ops->completed(transfer->pipes[MP_PIPE_PREFETCH].bus) < fill->tick)
            break;
        land(transfer, fill);
        compressed->first_fill = (compressed->first_fill + 1) % MP_FILLS;
        compressed->n_fills--;
    }
}
