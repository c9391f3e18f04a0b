/* libggml-moepage.so as ggml sees it: a registry with one device of the kind ACCEL. Its buffers come first in the
 * host's list for weights on the CPU, and take nothing but banks of experts; its backend computes what is
 * done with them, in the host's own memory. */
#include "plugin.h"

#include <stdlib.h>
#include <string.h>

/* ---- backend ---- */

static const char *backend_name(ggml_backend_t backend)
{
    (void)backend;
    return "MOEPAGE";
}

static void backend_free(ggml_backend_t backend)
{
    compute_close(backend->context);
    free(backend);
}

static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    return compute_graph(backend->context, graph);
}

static void backend_set_threads(ggml_backend_t backend, int n_threads)
{
    compute_set_threads(backend->context, n_threads);
}

static ggml_guid_t backend_guid(void)
{
    static ggml_guid guid = {0x6d, 0x6f, 0x65, 0x70, 0x61, 0x67, 0x65, 0x00,
                             0x9c, 0x41, 0x5d, 0x3e, 0x27, 0xb8, 0x0f, 0x01};
    return &guid;
}

/* The backend's device, which is not in the registry: activations are to lie in the host's own buffers. */
static struct ggml_backend_device inner;

static ggml_backend_t device_init(ggml_backend_dev_t device, const char *parameters)
{
    (void)device, (void)parameters;
    if (!settings_are_right() || !buffers_each_model(pages_open))
        return NULL;
    ggml_backend_t backend = calloc(1, sizeof *backend);
    compute *of = backend ? compute_open() : NULL;
    if (!of) {
        free(backend);
        return NULL;
    }
    *backend = (struct ggml_backend){
        .guid = backend_guid(),
        .iface = {.get_name = backend_name, .free = backend_free, .graph_compute = backend_compute},
        .device = &inner,
        .context = of,
    };
    return backend;
}

/* ---- device ---- */

static const char *device_name(ggml_backend_dev_t device)
{
    (void)device;
    return "MOEPAGE";
}

static const char *device_description(ggml_backend_dev_t device)
{
    (void)device;
    return "experts paged from their file";
}

static void device_memory(ggml_backend_dev_t device, size_t *free_bytes, size_t *total_bytes)
{
    (void)device;
    *free_bytes = *total_bytes = 0;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device)
{
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

static void device_properties(ggml_backend_dev_t device, struct ggml_backend_dev_props *out)
{
    *out = (struct ggml_backend_dev_props){
        .name = device_name(device),
        .description = device_description(device),
        .type = device_type(device),
        .caps = {.buffer_from_host_ptr = true},
    };
}

static ggml_backend_buffer_type_t weights_type(ggml_backend_dev_t device)
{
    (void)device;
    return buffers_type();
}

static ggml_backend_buffer_type_t host_type(ggml_backend_dev_t device)
{
    (void)device;
    return ggml_backend_dev_buffer_type(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

static ggml_backend_buffer_t device_map(ggml_backend_dev_t device, void *address, size_t bytes,
                                        size_t most_tensor)
{
    (void)device, (void)most_tensor;
    return buffers_map(address, bytes);
}

static bool supports_op(ggml_backend_dev_t device, const struct ggml_tensor *node)
{
    (void)device;
    return op_kind_of(node) == OP_NOTHING || is_bank_product(node) || follows_bank_product(node);
}

static bool supports_type(ggml_backend_dev_t device, ggml_backend_buffer_type_t type)
{
    (void)device;
    return type == buffers_type() || ggml_backend_buft_is_host(type);
}

/* ---- registry ---- */

static const char *registry_name(ggml_backend_reg_t registry)
{
    (void)registry;
    return "MOEPAGE";
}

static size_t device_count(ggml_backend_reg_t registry)
{
    (void)registry;
    return 1;
}

static ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, size_t index);

static void *proc_address(ggml_backend_reg_t registry, const char *name)
{
    (void)registry;
    return strcmp(name, "ggml_backend_set_n_threads") == 0 ? (void *)backend_set_threads : NULL;
}

static struct ggml_backend_reg registry = {
    .api_version = GGML_BACKEND_API_VERSION,
    .iface = {.get_name = registry_name,
              .get_device_count = device_count,
              .get_device = registry_device,
              .get_proc_address = proc_address},
};

static struct ggml_backend_device device = {
    .iface = {.get_name = device_name,
              .get_description = device_description,
              .get_memory = device_memory,
              .get_type = device_type,
              .get_props = device_properties,
              .init_backend = device_init,
              .get_buffer_type = weights_type,
              .buffer_from_host_ptr = device_map,
              .supports_op = supports_op,
              .supports_buft = supports_type},
    .reg = &registry,
};

static ggml_backend_dev_t registry_device(ggml_backend_reg_t of, size_t index)
{
    (void)of;
    return index == 0 ? &device : NULL;
}

/* What ggml looks for in a library that GGML_BACKEND_PATH names. */
__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void);

ggml_backend_reg_t ggml_backend_init(void)
{
    buffers_type()->device = &device;
    inner = device;
    inner.iface.get_buffer_type = host_type;
    return &registry;
}
