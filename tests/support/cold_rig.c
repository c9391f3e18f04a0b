/* Streams as queues that the test drains, over plain memory. */
#include "cold_rig.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "testing.h"

#define QUEUE 64
#define PAGE 4096u

typedef struct cold_stream {
    cold_rig *rig;
    mp_copy queue[QUEUE]; /* ring by tick */
    mp_tick submitted, completed;
} cold_stream;

static cold_rig *rig_of(mp_device *device)
{
    return (cold_rig *)device;
}

static cold_stream *stream_of(const mp_stream *stream)
{
    return (cold_stream *)(uintptr_t)stream;
}

static bool strikes(uint32_t *countdown)
{
    return *countdown && --*countdown == 0;
}

/* ---- The device ---- */

static moepage_status map(mp_device *device, uint64_t bytes, mp_host_memory *out)
{
    cold_rig *rig = rig_of(device);
    if (strikes(&rig->no_memory_in))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "the rig was told to map nothing");
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    *out = (mp_host_memory){.base = aligned_alloc(PAGE, bytes),
                            .bytes = bytes,
                            .page_bytes = PAGE,
                            .node = -1};
    assert_non_null(out->base);
    memset(out->base, 0xa5, bytes);
    rig->mapped_bytes += bytes;
    return MOEPAGE_OK;
}

static void unmap(mp_device *device, const mp_host_memory *memory)
{
    rig_of(device)->mapped_bytes -= memory->bytes;
    free(memory->base);
}

static moepage_status create(mp_device *device, mp_stream_class cls, mp_stream **out)
{
    cold_rig *rig = rig_of(device);
    assert_int_equal(cls, MP_STREAM_COLD);
    if (strikes(&rig->no_stream_in))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "the rig was told to create no stream");
    cold_stream *stream = calloc(1, sizeof *stream);
    assert_non_null(stream);
    stream->rig = rig;
    rig->streams++;
    *out = (mp_stream *)stream;
    return MOEPAGE_OK;
}

static bool run_next(cold_stream *stream)
{
    if (stream->completed == stream->submitted)
        return false;
    const mp_copy *copy = &stream->queue[stream->completed % QUEUE];
    moepage_status status = stream->rig->poisoned ? MOEPAGE_E_DEVICE : copy->fill(copy, copy->dst);
    if (status)
        atomic_store(copy->result, status);
    stream->completed++;
    return true;
}

static void destroy(mp_stream *stream)
{
    while (run_next(stream_of(stream)))
        ;
    stream_of(stream)->rig->streams--;
    free(stream);
}

static moepage_status submit(mp_stream *stream, const mp_copy *copies, uint32_t n, mp_tick *out)
{
    cold_stream *to = stream_of(stream);
    if (strikes(&to->rig->refuse_in))
        return mp_fail(MOEPAGE_E_DEVICE, "the rig was told to refuse this submission");
    for (uint32_t i = 0; i < n; i++) {
        assert_true(to->submitted - to->completed < QUEUE);
        to->queue[to->submitted++ % QUEUE] = copies[i];
    }
    *out = to->submitted;
    return MOEPAGE_OK;
}

static mp_tick completed(const mp_stream *stream)
{
    return stream_of(stream)->completed;
}

static const mp_device_ops ops = {
    .version = MP_DEVICE_OPS_VERSION,
    .host_map = map,
    .host_unmap = unmap,
    .stream_create = create,
    .stream_destroy = destroy,
    .copy = submit,
    .completed = completed,
};

/* ---- The rig ---- */

void cold_rig_open(cold_rig *rig, uint32_t io_threads)
{
    *rig = (cold_rig){.device = {.ops = &ops, .name = "cold rig", .io_threads = io_threads}};
    rig->home.device = &rig->device;
    bank_model_open(&rig->bank, &(bank_shape){.layers = COLD_RIG_LAYERS,
                                              .experts = COLD_RIG_EXPERTS,
                                              .top_k = 1,
                                              .hidden = 6,
                                              .intermediate = 3,
                                              .callback = true,
                                              .seed = 7});
}

void cold_rig_close(cold_rig *rig)
{
    assert_int_equal(rig->streams, 0);
    assert_int_equal(rig->mapped_bytes, 0);
    bank_model_close(&rig->bank);
}

mp_host_tier *cold_rig_tier(cold_rig *rig, uint32_t entries)
{
    mp_host_tier *tier = NULL;
    uint64_t bytes = entries * mp_model_image_room(rig->bank.model, MOEPAGE_FORM_DENSE);
    assert_int_equal(mp_host_tier_create(&rig->home, rig->bank.model, MOEPAGE_FORM_DENSE, bytes,
                                         &tier),
                     MOEPAGE_OK);
    return tier;
}

bool cold_rig_land(mp_host_tier *tier, uint32_t lane)
{
    return run_next(stream_of(tier->lanes[lane].stream));
}

void cold_rig_land_all(mp_host_tier *tier)
{
    for (uint32_t i = 0; i < tier->n_lanes; i++)
        while (cold_rig_land(tier, i))
            ;
}

bool cold_rig_matches(const bank_model *bank, uint32_t key, const unsigned char *image)
{
    const void *tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    for (uint32_t t = 0; t < bank->n_tensors; t++)
        tensors[t] = image + bank->model->layouts[0].tensors[t].offset;
    return bank_model_matches(bank, key / bank->shape.experts, key % bank->shape.experts, tensors);
}
