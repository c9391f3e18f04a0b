/* A PagedTensor, its caller, and looks at its addresses. */
#include "paged_rig.h"

#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "device_rig.h"
#include "gpu.h"
#include "paged_tensor/paged.h"
#include "sim_cuda.h"
#include "testing.h"

#define WORKSPACE_BYTES (1u << 20)
#define PAGE 4096u

/* ---- life ---- */

static uint64_t tensor_bytes(const bank_model *bank, uint32_t t)
{
    uint64_t end = t + 1 < bank->n_tensors ? bank->tensor_at[t + 1] : bank->expert_bytes;
    return end - bank->tensor_at[t];
}

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* By the specification alone: whole units of mapping for each tensor of a layer, but small ones
 * together, 256 bytes apart. */
static uint64_t buffer_bytes(const bank_model *bank, uint64_t view_bytes)
{
    uint64_t bytes = 0, small = 0;
    for (uint32_t t = 0; t < bank->n_tensors; t++) {
        uint64_t layer = tensor_bytes(bank, t) * bank->shape.experts;
        if (layer >= view_bytes)
            bytes += round_up(layer, view_bytes);
        else
            small += round_up(layer, 256);
    }
    return bytes + round_up(small, view_bytes);
}

static uint64_t used_bytes(const paged_rig *rig)
{
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(rig->device, &info), MOEPAGE_OK);
    assert_true(info.peak_bytes <= info.budget_bytes);
    return info.used_bytes;
}

static const mp_cuda_driver *enter_sim(paged_rig *rig)
{
    mp_cuda *cuda = mp_cuda_of(rig->device->device);
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    return cuda->driver;
}

static void leave_sim(paged_rig *rig)
{
    mp_cuda_leave(mp_cuda_of(rig->device->device));
}

void paged_rig_open_device(paged_rig *rig, const bank_shape *shape, const paged_rig_config *config)
{
    *rig = (paged_rig){.where = config->where};
    bank_model_open(&rig->bank, shape);
    uint64_t view_bytes = rig->where == PAGED_ON_SIM ? SIM_GRANULARITY : PAGE;
    uint32_t buffers = config->buffers ? config->buffers : shape->layers < 2 ? 1 : 2;
    uint64_t images = config->compressed * shape->layers *
                      mp_model_slot_bytes(rig->bank.model, MOEPAGE_FORM_EXPH);
    uint64_t arena = buffers * buffer_bytes(&rig->bank, view_bytes) + round_up(images, view_bytes);
    moepage_device_config device = {.struct_size = sizeof device,
                                    .threads = 2,
                                    .io_threads = 2,
                                    .budget_bytes = arena + WORKSPACE_BYTES,
                                    .max_budget_bytes =
                                        config->roomy ? 2 * arena + WORKSPACE_BYTES : 0,
                                    .workspace_bytes = WORKSPACE_BYTES};
    if (rig->where == PAGED_LATE) {
        rig->device = late_home_open(&device, shape->callback || shape->pack_forms);
        late_caller_open(&rig->caller, rig->device);
        return;
    }
    assert_int_equal(setenv("MP_TEST_DEVICE", rig->where == PAGED_ON_SIM ? "sim" : "host", 1), 0);
    rig->device = device_rig_open(&device);
    if (rig->where == PAGED_ON_SIM) {
        assert_int_equal(enter_sim(rig)->stream_create(&rig->native, MP_CU_STREAM_NON_BLOCKING, 0),
                         0);
        leave_sim(rig);
    }
}

moepage_status paged_rig_create(paged_rig *rig, const paged_rig_config *config)
{
    uint64_t entry = mp_model_image_room(rig->bank.model, MOEPAGE_FORM_DENSE);
    rig->config = (moepage_paged_config){.struct_size = sizeof rig->config,
                                         .buffers = config->buffers,
                                         .bus_form = config->bus_form,
                                         .compressed_experts = config->compressed,
                                         .host_tier_bytes = config->host_tier * entry};
    moepage_status status =
        moepage_paged_create(rig->device, rig->bank.model, &rig->config, &rig->paged);
    for (uint32_t t = 0; !status && t < rig->bank.n_tensors; t++) {
        rig->tensors[t].struct_size = sizeof rig->tensors[t];
        assert_int_equal(moepage_paged_get_tensor(rig->paged, t, &rig->tensors[t]), MOEPAGE_OK);
    }
    rig->used_bytes = used_bytes(rig);
    return status;
}

void paged_rig_open(paged_rig *rig, const bank_shape *shape, const paged_rig_config *config)
{
    paged_rig_open_device(rig, shape, config);
    assert_int_equal(paged_rig_create(rig, config), MOEPAGE_OK);
}

void paged_rig_close(paged_rig *rig)
{
    paged_rig_wait(rig);
    assert_int_equal(moepage_paged_destroy(rig->paged), MOEPAGE_OK);
    assert_int_equal(used_bytes(rig), 0);
    if (rig->where == PAGED_LATE) {
        late_caller_close(&rig->caller);
        late_home_close(rig->device);
    } else {
        if (rig->where == PAGED_ON_SIM) {
            assert_int_equal(enter_sim(rig)->stream_destroy(rig->native), 0);
            leave_sim(rig);
        }
        device_rig_close(rig->device);
    }
    bank_model_close(&rig->bank);
}

/* ---- the caller ---- */

void *paged_rig_stream(paged_rig *rig)
{
    switch (rig->where) {
    case PAGED_ON_HOST: return NULL;
    case PAGED_LATE: return &rig->caller;
    case PAGED_ON_SIM: return rig->native;
    }
    return NULL;
}

void paged_rig_shut(paged_rig *rig)
{
    if (rig->gated)
        return;
    if (rig->where == PAGED_ON_SIM)
        paged_rig_wait(rig); /* holding a stream holds what is on it already, too */
    rig->gated = true;
    if (rig->where == PAGED_LATE)
        late_gate_shut(&rig->caller);
    else if (rig->where == PAGED_ON_SIM)
        sim_cuda_hold(rig->native);
}

void paged_rig_open_gate(paged_rig *rig)
{
    if (!rig->gated)
        return;
    rig->gated = false;
    if (rig->where == PAGED_LATE)
        late_gate_open(&rig->caller);
    else if (rig->where == PAGED_ON_SIM)
        sim_cuda_release(rig->native);
}

void paged_rig_wait(paged_rig *rig)
{
    paged_rig_open_gate(rig);
    if (rig->where == PAGED_LATE) {
        late_wait(&rig->caller);
    } else if (rig->where == PAGED_ON_SIM) {
        assert_int_equal(enter_sim(rig)->stream_sync(rig->native), 0);
        leave_sim(rig);
    }
}

/* ---- tiers ---- */

moepage_paged_info paged_rig_info(paged_rig *rig)
{
    moepage_paged_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_paged_get_info(rig->paged, &info), MOEPAGE_OK);
    return info;
}

void paged_rig_resize(paged_rig *rig, uint32_t compressed)
{
    uint64_t before = 0, after = 0;
    moepage_status status;
    assert_int_equal(moepage_paged_sizes(rig->device, rig->bank.model, &rig->config, NULL, &before),
                     MOEPAGE_OK);
    rig->config.compressed_experts = compressed;
    assert_int_equal(moepage_paged_sizes(rig->device, rig->bank.model, &rig->config, NULL, &after),
                     MOEPAGE_OK);
    do
        status = moepage_paged_resize(rig->paged, compressed);
    while (status == MOEPAGE_E_BUSY);
    assert_int_equal(status, MOEPAGE_OK);
    rig->used_bytes = rig->used_bytes - before + after;
}

/* ---- states ---- */

uint32_t paged_rig_state(paged_rig *rig, uint32_t layer)
{
    uint32_t state = UINT32_MAX;
    assert_int_equal(moepage_paged_get_state(rig->paged, layer, &state), MOEPAGE_OK);
    return state;
}

void paged_rig_await(paged_rig *rig, uint32_t layer, uint32_t state)
{
    while (paged_rig_state(rig, layer) != state)
        sched_yield();
}

/* ---- bytes ---- */

uint64_t paged_rig_layer_bytes(const paged_rig *rig)
{
    return rig->bank.expert_bytes * rig->bank.shape.experts;
}

static unsigned char *address_of(const paged_rig *rig, uint32_t layer, uint32_t tensor)
{
    return (unsigned char *)rig->tensors[tensor].base + layer * rig->tensors[tensor].layer_stride;
}

/* A GPU's copies want it pinned. */
unsigned char *paged_rig_alloc(paged_rig *rig)
{
    mp_device *device = rig->device->device;
    void *bytes = rig->where == PAGED_ON_SIM ? NULL : malloc(paged_rig_layer_bytes(rig));
    if (rig->where == PAGED_ON_SIM)
        assert_int_equal(device->ops->alloc(device, MP_MEMORY_HOST, paged_rig_layer_bytes(rig),
                                            &bytes),
                         0);
    assert_non_null(bytes);
    memset(bytes, 0xee, paged_rig_layer_bytes(rig));
    return bytes;
}

void paged_rig_free(paged_rig *rig, unsigned char *bytes)
{
    mp_device *device = rig->device->device;
    if (rig->where == PAGED_ON_SIM)
        device->ops->free(device, MP_MEMORY_HOST, bytes, paged_rig_layer_bytes(rig));
    else
        free(bytes);
}

static void read_range(paged_rig *rig, unsigned char *out, const unsigned char *at, uint64_t bytes)
{
    switch (rig->where) {
    case PAGED_ON_HOST: memcpy(out, at, bytes); break;
    case PAGED_LATE: late_read(&rig->caller, out, at, bytes); break;
    case PAGED_ON_SIM:
        assert_int_equal(enter_sim(rig)->copy((mp_cu_ptr)(uintptr_t)out, (mp_cu_ptr)(uintptr_t)at,
                                              bytes, rig->native),
                         0);
        leave_sim(rig);
    }
}

void paged_rig_read(paged_rig *rig, uint32_t layer, unsigned char *out)
{
    for (uint32_t t = 0; t < rig->bank.n_tensors; t++) {
        uint64_t bytes = tensor_bytes(&rig->bank, t) * rig->bank.shape.experts;
        read_range(rig, out, address_of(rig, layer, t), bytes);
        out += bytes;
    }
}

bool paged_rig_is_layer(const paged_rig *rig, uint32_t layer, const unsigned char *bytes)
{
    for (uint32_t t = 0; t < rig->bank.n_tensors; t++)
        for (uint32_t e = 0; e < rig->bank.shape.experts; e++) {
            uint64_t n = tensor_bytes(&rig->bank, t);
            if (memcmp(bytes, bank_model_tensor(&rig->bank, layer, e, t), n))
                return false;
            bytes += n;
        }
    return true;
}

void paged_rig_visit(paged_rig *rig, uint32_t layer)
{
    unsigned char *bytes = paged_rig_alloc(rig);
    assert_int_equal(moepage_paged_acquire(rig->paged, layer, paged_rig_stream(rig)), MOEPAGE_OK);
    paged_rig_read(rig, layer, bytes);
    paged_rig_wait(rig);
    assert_true(paged_rig_is_layer(rig, layer, bytes));
    assert_int_equal(moepage_paged_release(rig->paged, layer, paged_rig_stream(rig)), MOEPAGE_OK);
    paged_rig_free(rig, bytes);
}

/* The system says so, and nothing faults here. */
static bool is_readable(const paged_rig *rig, const void *at)
{
    int ends[2];
    if (rig->where == PAGED_ON_SIM)
        return sim_cuda_accessible(at, 1);
    assert_int_equal(pipe(ends), 0);
    ssize_t n = write(ends[1], at, 1);
    assert_true(n == 1 || (n < 0 && errno == EFAULT));
    close(ends[0]);
    close(ends[1]);
    return n == 1;
}

/* Of the pages that hold a part of the layer. */
static uint32_t count_readable(const paged_rig *rig, uint32_t layer, uint32_t *pages)
{
    uint32_t readable = 0;
    *pages = 0;
    for (uint32_t t = 0; t < rig->bank.n_tensors; t++) {
        const unsigned char *at = address_of(rig, layer, t);
        const unsigned char *end = at + tensor_bytes(&rig->bank, t) * rig->bank.shape.experts;
        for (; at < end; at += PAGE - (uintptr_t)at % PAGE, ++*pages)
            readable += is_readable(rig, at);
    }
    return readable;
}

bool paged_rig_all_readable(const paged_rig *rig, uint32_t layer)
{
    uint32_t pages;
    return count_readable(rig, layer, &pages) == pages;
}

bool paged_rig_none_readable(const paged_rig *rig, uint32_t layer)
{
    uint32_t pages;
    return count_readable(rig, layer, &pages) == 0;
}

/* ---- what must hold ---- */

static void check_ownership(struct moepage_paged *paged)
{
    pthread_mutex_lock(&paged->lock);
    for (uint32_t b = 0; b < paged->n_buffers; b++) {
        uint32_t owner = paged->buffers[b].owner;
        assert_true(owner == MP_PAGED_NONE || paged->layers[owner].buffer == b);
    }
    for (uint32_t i = 0; i < paged->n_layers; i++) {
        const mp_paged_layer *layer = &paged->layers[i];
        bool has = layer->state == MOEPAGE_PAGED_LOADING || layer->state == MOEPAGE_PAGED_RESIDENT;
        assert_true(layer->buffer == MP_PAGED_NONE || paged->buffers[layer->buffer].owner == i);
        assert_true(!has || layer->buffer != MP_PAGED_NONE);
        assert_true(layer->state != MOEPAGE_PAGED_RESIDENT || layer->shown == layer->buffer);
        assert_true(layer->state != MOEPAGE_PAGED_UNMAPPED || layer->buffer == MP_PAGED_NONE);
        assert_true(!layer->acquired || has);
    }
    pthread_mutex_unlock(&paged->lock);
}

void paged_rig_check(paged_rig *rig)
{
    for (uint32_t t = 0; t < rig->bank.n_tensors; t++) {
        moepage_paged_tensor now = {.struct_size = sizeof now};
        assert_int_equal(moepage_paged_get_tensor(rig->paged, t, &now), MOEPAGE_OK);
        assert_memory_equal(&now, &rig->tensors[t], sizeof now);
    }
    check_ownership(rig->paged);
    assert_true(paged_rig_info(rig).compressed_experts <= rig->config.compressed_experts);
    assert_int_equal(used_bytes(rig), rig->used_bytes);
}

/* Transfers of one class take turns, so that as many as this pass all those that are ready. */
static void run_bus(paged_rig *rig)
{
    mp_device *device = rig->device->device;
    const mp_device_ops *ops = device->ops;
    mp_stream *stream;
    mp_tick tick = 0;
    void *byte = NULL;
    mp_copy copy = {.src = "x", .bytes = 1};
    assert_int_equal(ops->alloc(device, MP_MEMORY_WORKSPACE, 1, &byte), 0);
    copy.dst = byte;
    assert_int_equal(ops->stream_create(device, MP_STREAM_PREFETCH, &stream), 0);
    for (uint32_t i = 0; i < 256; i++)
        assert_int_equal(ops->copy(stream, &copy, 1, &tick), 0);
    assert_int_equal(ops->sync(stream, tick), 0);
    ops->stream_destroy(stream);
    ops->free(device, MP_MEMORY_WORKSPACE, byte, 1);
}

void paged_rig_idle(paged_rig *rig)
{
    struct moepage_paged *paged = rig->paged;
    pthread_mutex_lock(&paged->lock);
    while (paged->now_posted || paged->working) {
        pthread_mutex_unlock(&paged->lock);
        sched_yield();
        pthread_mutex_lock(&paged->lock);
    }
    while (mp_paged_work(paged))
        ;
    pthread_mutex_unlock(&paged->lock);
}

void paged_rig_quiesce(paged_rig *rig)
{
    paged_rig_idle(rig);
    /* A GPU's pinned memory may all be taken by loads that wait behind the gate. */
    if (!rig->gated || rig->where != PAGED_ON_SIM)
        run_bus(rig);
}
