/* Bandwidths of a device's bus, decoder and cold tier, measured when its transfers are opened. */
#include <string.h>

#include "arena/scratch.h"
#include "transfer/inside.h"

/* Enough distinct bytes that no cache holds them, unless the model has fewer; and a limit of time
 * for a slow bus. */
#define MOST_BUS_BYTES (64u << 20)
#define MOST_BUS_COPIES 512u
#define MOST_BUS_NS 50000000u
#define SAMPLES 8u

/* Bytes per second, at least 1. */
static uint64_t rate_of(uint64_t bytes, uint64_t ns)
{
    unsigned __int128 rate = (unsigned __int128)bytes * 1000000000u / (ns ? ns : 1);
    return rate < 1 ? 1 : rate > UINT64_MAX ? UINT64_MAX : (uint64_t)rate;
}

static unsigned char *place_at(const mp_transfer *transfer, uint64_t index)
{
    return transfer->home->arena.base + index * transfer->place_bytes;
}

/* Returns the number of places that are claimed while measuring. */
static uint64_t count_places(const mp_transfer *transfer)
{
    return mp_arena_claimed(&transfer->home->arena, MP_SIDE_EXPERTS) / transfer->place_bytes;
}

/* Times n copies from consecutive addresses to places in turn. */
static moepage_status time_copies(mp_transfer *transfer, const unsigned char *from, uint64_t bytes,
                                  uint32_t n, uint64_t *ns)
{
    const mp_device_ops *ops = transfer->ops;
    mp_pipe *pipe = &transfer->pipes[MP_PIPE_DEMAND];
    uint64_t places = count_places(transfer);
    mp_copy copies[MOST_BUS_COPIES];
    for (uint32_t i = 0; i < n; i++) {
        unsigned char *to = place_at(transfer, i % places);
        copies[i] = (mp_copy){.dst = to, .src = from + i * bytes, .bytes = bytes};
    }
    uint64_t start = mp_transfer_now_ns(transfer);
    moepage_status status = ops->copy(pipe->bus, copies, n, &pipe->last_bus);
    if (!status)
        status = ops->sync(pipe->bus, pipe->last_bus);
    *ns = mp_transfer_now_ns(transfer) - start;
    return status;
}

/* Times one image to see how long it takes, then as many as fit the limits above. */
static moepage_status measure_bus(mp_transfer *transfer)
{
    uint64_t bytes = mp_transfer_image(transfer, 0, transfer->bus_form).bytes;
    uint64_t most =
        MOST_BUS_BYTES / bytes < transfer->keys ? MOST_BUS_BYTES / bytes : transfer->keys;
    uint64_t n = most < 2 ? 2 : most < MOST_BUS_COPIES ? most : MOST_BUS_COPIES, ns;
    mp_scratch scratch;
    moepage_status status = mp_scratch_open(transfer->home, n * bytes, &scratch);
    if (status)
        return status;
    if (!(transfer->home->device->caps & MP_CAP_NO_BYTES))
        /* Touches pages, which else all are the kernel's one page of zeros. */
        memset(scratch.aligned, 1, scratch.room);
    status = time_copies(transfer, scratch.aligned, bytes, 1, &ns);
    uint64_t rest = MOST_BUS_NS / (ns ? ns : 1);
    rest = rest < 1 ? 1 : rest < n - 1 ? rest : n - 1;
    if (!status)
        status = time_copies(transfer, scratch.aligned + bytes, bytes, (uint32_t)rest, &ns);
    transfer->rates.bus = rate_of(rest * transfer->slot_bytes, ns);
    mp_scratch_close(transfer->home, &scratch);
    return status;
}

/* Times the decoding of an expert's image into a place, from a staging buffer that
 * it fills first. */
static moepage_status time_decode(mp_transfer *transfer, uint32_t key, const unsigned char *image,
                                  uint64_t bytes, uint64_t *ns)
{
    const mp_device_ops *ops = transfer->ops;
    const struct moepage_model *model = transfer->model;
    mp_pipe *pipe = &transfer->pipes[MP_PIPE_DEMAND];
    unsigned char *staged = transfer->staging.buffers[key % transfer->staging.n].memory;
    uint64_t places = count_places(transfer);
    mp_decode_job jobs[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_decode_describe(transfer, key, staged, place_at(transfer, key % places), jobs);
    mp_kernel_decode_args args = {.jobs = jobs, .n_jobs = model->info.expert_tensors};
    mp_copy copy = {.dst = staged, .src = image, .bytes = bytes};
    moepage_status status = ops->copy(pipe->bus, &copy, 1, &pipe->last_bus);
    if (!status)
        status = ops->sync(pipe->bus, pipe->last_bus);
    uint64_t start = mp_transfer_now_ns(transfer);
    if (!status)
        status = ops->launch(pipe->decode, MP_KERNEL_DECODE, &args, &pipe->last_decode);
    if (!status)
        status = ops->sync(pipe->decode, pipe->last_decode);
    *ns = mp_transfer_now_ns(transfer) - start;
    return status;
}

/* Times a few experts. One whose image cannot be read is left out: its own loads will fail. The
 * first expert's time counts only if there is no other, since it finds caches and threads cold. */
static moepage_status measure_decode(mp_transfer *transfer)
{
    const struct moepage_model *model = transfer->model;
    uint64_t sum_ns = 0;
    uint32_t n = 0;
    mp_scratch scratch;
    moepage_status status =
        mp_scratch_open(transfer->home, mp_model_image_room(model, MOEPAGE_FORM_EXPH), &scratch);
    if (status)
        return status;
    for (uint32_t key = 0; key < transfer->keys && key < SAMPLES; key++) {
        uint32_t layer = key / model->info.experts, expert = key % model->info.experts;
        uint64_t read_bytes, ns = 0;
        mp_image image;
        mp_model_find_image(model, layer, expert, MOEPAGE_FORM_EXPH, &image);
        status = MOEPAGE_OK;
        if (!(transfer->home->device->caps & MP_CAP_NO_BYTES))
            status = mp_model_read_image(model, layer, expert, MOEPAGE_FORM_EXPH, scratch.aligned,
                                         scratch.room, &read_bytes);
        if (!status)
            status = time_decode(transfer, key, scratch.aligned + image.skew, image.bytes, &ns);
        if (status && !mp_is_image_fault(status))
            break;
        sum_ns = n == 1 ? ns : sum_ns + ns;
        n += !status;
    }
    mp_scratch_close(transfer->home, &scratch);
    uint64_t counted = n > 1 ? n - 1 : n;
    transfer->rates.decode = n ? rate_of(counted * transfer->slot_bytes, sum_ns) : 0;
    return n && mp_is_image_fault(status) ? MOEPAGE_OK : status;
}

/* Reads the device's first experts, one per lane; they stay in the tier. */
static moepage_status measure_cold(mp_transfer *transfer)
{
    mp_host_tier *tier = transfer->tier;
    uint32_t entries[MP_MAX_COLD_LANES], n = 0, valid = 0;
    uint64_t start = mp_transfer_now_ns(transfer);
    for (uint32_t key = 0; key < tier->n_keys && n < tier->n_lanes; key++)
        if (mp_deal_device(transfer->deal, key) == transfer->part)
            entries[n++] = mp_host_tier_fetch(tier, key, false);
    moepage_status status = mp_host_tier_sync(tier);
    uint64_t ns = mp_transfer_now_ns(transfer) - start;
    for (uint32_t i = 0; i < n; i++) {
        mp_host_tier_settle(tier, entries[i]);
        valid += tier->entries[entries[i]].state == MP_ENTRY_VALID;
    }
    transfer->rates.cold = valid ? rate_of(valid * transfer->slot_bytes, ns) : 0;
    return status;
}

moepage_status mp_transfer_measure(mp_transfer *transfer, uint64_t places)
{
    mp_arena *arena = &transfer->home->arena;
    uint64_t room = mp_arena_room(arena, MP_SIDE_EXPERTS);
    if (room == 0)
        return MOEPAGE_OK; /* the owner reports that by itself */
    moepage_status status =
        mp_arena_resize(arena, MP_SIDE_EXPERTS, places && places < room ? places : room);
    bool fits = !status && count_places(transfer) > 0;
    if (fits)
        status = measure_bus(transfer);
    if (!status && fits && transfer->staging.n)
        status = measure_decode(transfer);
    if (!status && fits && transfer->tier)
        status = measure_cold(transfer);
    moepage_status given_back = mp_arena_resize(arena, MP_SIDE_EXPERTS, 0);
    return status ? status : given_back;
}
