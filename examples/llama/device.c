/* Slots in memory of another of the host's devices (MOEPAGE_DEVICE), which then computes with them: what a GPU needs.
 * The library reads experts and says which slots they go to; the device's backend copies them there. */
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

/* ---- bytes ---- */

/* A tensor that is nothing but bytes of a buffer. */
static struct ggml_tensor bytes_of(ggml_backend_buffer_t buffer, void *at, size_t bytes)
{
    return (struct ggml_tensor){.type = GGML_TYPE_I8,
                                .buffer = buffer,
                                .ne = {(int64_t)bytes, 1, 1, 1},
                                .nb = {1, bytes, bytes, bytes},
                                .data = at};
}

void device_write(slot_device *of, ggml_backend_buffer_t buffer, void *to, const void *from,
                  size_t bytes)
{
    struct ggml_tensor tensor = bytes_of(buffer, to, bytes);
    pthread_mutex_lock(&of->lock);
    ggml_backend_tensor_set(&tensor, from, 0, bytes);
    pthread_mutex_unlock(&of->lock);
}

void device_read(slot_device *of, ggml_backend_buffer_t buffer, void *from, void *to, size_t bytes)
{
    struct ggml_tensor tensor = bytes_of(buffer, from, bytes);
    pthread_mutex_lock(&of->lock);
    ggml_backend_tensor_get(&tensor, to, 0, bytes);
    pthread_mutex_unlock(&of->lock);
}

/* ---- slots, as the library has them described ---- */

static moepage_status give_slots(void *user, uint64_t bytes, void **base)
{
    slot_device *of = user;
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(of->device);
    if (bytes > ggml_backend_buft_get_max_size(type))
        return MOEPAGE_E_BUDGET;
    of->slots = ggml_backend_buft_alloc_buffer(type, bytes);
    if (!of->slots)
        return MOEPAGE_E_NO_MEMORY;
    ggml_backend_buffer_set_usage(of->slots, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    *base = ggml_backend_buffer_get_base(of->slots);
    return MOEPAGE_OK;
}

static void take_slots(void *user, void *base, uint64_t bytes)
{
    slot_device *of = user;
    (void)base, (void)bytes;
    ggml_backend_buffer_free(of->slots);
    of->slots = NULL;
}

static moepage_status write_slot(void *user, void *to, const void *from, uint64_t bytes)
{
    slot_device *of = user;
    device_write(of, of->slots, to, from, bytes);
    return MOEPAGE_OK;
}

/* ---- opening ---- */

/* One expert of a bank, as the device has it to compute with. */
static struct ggml_tensor expert_of(const bank *from)
{
    struct ggml_tensor out = {.type = from->type, .ne = {from->columns, from->rows, 1, 1}};
    out.nb[0] = ggml_type_size(from->type);
    out.nb[1] = ggml_row_size(from->type, from->columns);
    out.nb[2] = out.nb[3] = out.nb[1] * (size_t)from->rows;
    return out;
}

/* Are weights what the bytes in a buffer are? Some backends want more room for them, and some keep them in an order of
 * their own, which shows when bytes are read as weights. */
static bool keeps_bytes(const slot_device *of, const bank *from)
{
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(of->device);
    struct ggml_tensor expert = expert_of(from);
    const size_t bytes = ggml_nbytes(&expert);
    if (ggml_backend_buft_get_alloc_size(type, &expert) > bytes)
        return false;
    expert.buffer = ggml_backend_buft_alloc_buffer(type, bytes);
    unsigned char *was = malloc(bytes), *is = malloc(bytes);
    bool same = false;
    if (expert.buffer && was && is) {
        expert.data = ggml_backend_buffer_get_base(expert.buffer);
        struct ggml_tensor plain = bytes_of(expert.buffer, expert.data, bytes);
        for (size_t i = 0; i < bytes; i++)
            was[i] = (unsigned char)(i * 2654435761u >> 13);
        ggml_backend_tensor_set(&plain, was, 0, bytes);
        same = ggml_backend_buffer_init_tensor(expert.buffer, &expert) == GGML_STATUS_SUCCESS;
        ggml_backend_tensor_get(&expert, is, 0, bytes);
        same = same && memcmp(was, is, bytes) == 0;
    }
    if (expert.buffer)
        ggml_backend_buffer_free(expert.buffer);
    free(was);
    free(is);
    return same;
}

static bool keeps_all(const paged_model *of)
{
    bool seen[GGML_TYPE_COUNT][MOST_BANKS] = {0};
    for (uint32_t l = 0; l < of->n_layers; l++)
        for (int k = 0; k < MOST_BANKS; k++) {
            const bank *from = &of->banks[l][k];
            if (!from->address || seen[from->type][k])
                continue;
            seen[from->type][k] = true;
            if (keeps_bytes(&of->device, from))
                continue;
            say("MOEPAGE_DEVICE=%s: it does not keep %s weights of %lld columns as they are in the "
                "file",
                ggml_backend_dev_name(of->device.device), ggml_type_name(from->type),
                (long long)from->columns);
            return false;
        }
    return true;
}

bool device_find(paged_model *of, const settings *chosen)
{
    slot_device *own = &of->device;
    if (!*chosen->device)
        return true;
    ggml_backend_dev_t found = ggml_backend_dev_by_name(chosen->device);
    if (!found || ggml_backend_dev_buffer_type(found) == buffers_type()) {
        say("MOEPAGE_DEVICE=%s: llama.cpp has no such device (--list-devices)", chosen->device);
        return false;
    }
    if (chosen->kernels == KERNELS_OWN) {
        say("MOEPAGE_DEVICE=%s: its own kernels compute; MOEPAGE_KERNELS=moepage cannot be",
            chosen->device);
        return false;
    }
    own->device = found;
    if (!keeps_all(of))
        return false;
    own->memory = MOEPAGE_EXTERNAL_MEMORY(.alloc = give_slots, .free = take_slots,
                                          .write = write_slot, .user = own);
    return true;
}

uint64_t device_free(const slot_device *of)
{
    size_t free_bytes = 0, all = 0;
    ggml_backend_dev_memory(of->device, &free_bytes, &all);
    return free_bytes;
}

/* ---- computing ---- */

bool device_room(const slot_device *of, ggml_backend_buffer_t *buffer, size_t bytes)
{
    if (*buffer && ggml_backend_buffer_get_size(*buffer) >= bytes)
        return true;
    if (*buffer)
        ggml_backend_buffer_free(*buffer);
    *buffer = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(of->device), bytes);
    if (!*buffer)
        say("%s has no %zu bytes for activations", ggml_backend_dev_name(of->device), bytes);
    return *buffer != NULL;
}

enum ggml_status device_compute(slot_device *of, ggml_backend_t backend, struct ggml_cgraph *graph)
{
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const struct ggml_tensor *node = ggml_graph_node(graph, i);
        if (ggml_backend_supports_op(backend, node))
            continue;
        say("%s cannot do %s with %s", ggml_backend_dev_name(of->device), ggml_op_name(node->op),
            ggml_type_name(node->src[0]->type));
        return GGML_STATUS_FAILED;
    }
    pthread_mutex_lock(&of->lock);
    const enum ggml_status status = ggml_backend_graph_compute(backend, graph);
    pthread_mutex_unlock(&of->lock);
    return status;
}
