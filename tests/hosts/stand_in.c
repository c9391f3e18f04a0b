/* A device of ggml's for tests, as a GPU is one to the CPU: its memory lies at addresses that fault, and is reached by
 * the functions of its buffers and by its own computing alone. That is the CPU backend's, on the bytes that the addresses
 * stand for; a graph with a tensor that is not in its memory fails. MOEPAGE_STAND_IN=room: it wants room behind weights;
 * =layout: it keeps weights in another order; =small: it has little memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml.h>

enum { MOST_TENSORS = 4096, MEMORY = 1 << 30 };

typedef struct memory {
    char *base;  /* faults */
    char *bytes; /* what it stands for */
    size_t size;
} memory;

static struct ggml_backend_buffer_type type;
static struct ggml_backend_device device;

static int mode_is(const char *name)
{
    const char *mode = getenv("MOEPAGE_STAND_IN");
    return mode && strcmp(mode, name) == 0;
}

/* ---- buffers ---- */

static char *bytes_of(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor)
{
    memory *of = buffer->context;
    return of->bytes + ((char *)tensor->data - of->base);
}

/* The order in which weights are kept: backwards, if asked for. */
static void move(void *to, const void *from, size_t bytes, int backwards)
{
    for (size_t i = 0; i < bytes; i++)
        ((char *)to)[i] = ((const char *)from)[backwards ? bytes - 1 - i : i];
}

static int is_backwards(const struct ggml_tensor *tensor)
{
    return mode_is("layout") && tensor->type != GGML_TYPE_I8;
}

static void free_buffer(ggml_backend_buffer_t buffer)
{
    memory *of = buffer->context;
    munmap(of->base, of->size);
    free(of->bytes);
    free(of);
}

static void *get_base(ggml_backend_buffer_t buffer)
{
    return ((memory *)buffer->context)->base;
}

static void memset_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value,
                          size_t offset, size_t bytes)
{
    memset(bytes_of(buffer, tensor) + offset, value, bytes);
}

static void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t bytes)
{
    move(bytes_of(buffer, tensor) + offset, data, bytes, is_backwards(tensor));
}

static void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t bytes)
{
    move(data, bytes_of(buffer, tensor) + offset, bytes, is_backwards(tensor));
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    memory *of = buffer->context;
    memset(of->bytes, value, of->size);
}

static const char *type_name(ggml_backend_buffer_type_t of)
{
    (void)of;
    return "STANDIN";
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t of, size_t size)
{
    static const struct ggml_backend_buffer_i functions = {.free_buffer = free_buffer,
                                                           .get_base = get_base,
                                                           .memset_tensor = memset_tensor,
                                                           .set_tensor = set_tensor,
                                                           .get_tensor = get_tensor,
                                                           .clear = clear};
    memory *own = malloc(sizeof *own);
    if (!own || size > (mode_is("small") ? MEMORY >> 10 : MEMORY))
        return NULL;
    own->size = size ? size : 1;
    own->bytes = aligned_alloc(64, (own->size + 63) / 64 * 64);
    own->base = mmap(NULL, own->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!own->bytes || own->base == MAP_FAILED)
        return NULL;
    return ggml_backend_buffer_init(of, functions, own, size);
}

static size_t alignment(ggml_backend_buffer_type_t of)
{
    (void)of;
    return 64;
}

static size_t alloc_size(ggml_backend_buffer_type_t of, const struct ggml_tensor *tensor)
{
    (void)of;
    return ggml_nbytes(tensor) + (mode_is("room") ? 64 : 0);
}

/* ---- computing ---- */

typedef struct moved {
    struct ggml_tensor *tensor;
    void *data;
    ggml_backend_buffer_t buffer;
} moved;

/* Lets a tensor lie where its bytes are. */
static int bring(struct ggml_tensor *tensor, moved *all, int *n)
{
    for (int i = 0; i < *n; i++)
        if (all[i].tensor == tensor)
            return 1;
    if (!tensor->buffer || tensor->buffer->buft != &type || *n == MOST_TENSORS) {
        fprintf(stderr, "stand-in: a tensor of %s is not in its memory\n",
                ggml_op_name(tensor->op));
        return 0;
    }
    all[(*n)++] = (moved){tensor, tensor->data, tensor->buffer};
    tensor->data = bytes_of(tensor->buffer, tensor);
    tensor->buffer = NULL;
    return 1;
}

static enum ggml_status compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    static moved all[MOST_TENSORS];
    int n = 0, good = 1;
    for (int i = 0; i < ggml_graph_n_nodes(graph) && good; i++) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        good = bring(node, all, &n);
        for (int s = 0; s < GGML_MAX_SRC && good; s++)
            good = !node->src[s] || bring(node->src[s], all, &n);
    }
    const enum ggml_status status =
        good ? ggml_backend_graph_compute(backend->context, graph) : GGML_STATUS_FAILED;
    for (int i = 0; i < n; i++) {
        all[i].tensor->data = all[i].data;
        all[i].tensor->buffer = all[i].buffer;
    }
    return status;
}

static const char *name(ggml_backend_t backend)
{
    (void)backend;
    return "STANDIN";
}

static void free_backend(ggml_backend_t backend)
{
    ggml_backend_free(backend->context);
    free(backend);
}

static ggml_backend_t init(ggml_backend_dev_t of, const char *parameters)
{
    static ggml_guid guid = {0x73, 0x74, 0x61, 0x6e, 0x64, 0x2d, 0x69, 0x6e,
                             1,    2,    3,    4,    5,    6,    7,    8};
    (void)parameters;
    ggml_backend_t own = calloc(1, sizeof *own);
    if (!own)
        return NULL;
    *own = (struct ggml_backend){
        .guid = &guid,
        .iface = {.get_name = name, .free = free_backend, .graph_compute = compute},
        .device = of,
        .context = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL)};
    return own;
}

/* ---- the device ---- */

static const char *device_name(ggml_backend_dev_t of)
{
    (void)of;
    return "AWAY0";
}

static const char *description(ggml_backend_dev_t of)
{
    (void)of;
    return "memory that the CPU must not touch";
}

static void free_memory(ggml_backend_dev_t of, size_t *free_bytes, size_t *total)
{
    (void)of;
    *free_bytes = *total = MEMORY;
}

static enum ggml_backend_dev_type kind(ggml_backend_dev_t of)
{
    (void)of;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void properties(ggml_backend_dev_t of, struct ggml_backend_dev_props *out)
{
    *out = (struct ggml_backend_dev_props){.name = device_name(of),
                                           .description = description(of),
                                           .memory_free = MEMORY,
                                           .memory_total = MEMORY,
                                           .type = kind(of)};
}

static ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t of)
{
    (void)of;
    return &type;
}

static bool supports_op(ggml_backend_dev_t of, const struct ggml_tensor *op)
{
    (void)of;
    return op->op == GGML_OP_MUL_MAT_ID || op->op == GGML_OP_ADD_ID || op->op == GGML_OP_GLU;
}

static bool supports_type(ggml_backend_dev_t of, ggml_backend_buffer_type_t other)
{
    (void)of;
    return other == &type;
}

/* ---- the registry ---- */

static const char *registry_name(ggml_backend_reg_t registry)
{
    (void)registry;
    return "STANDIN";
}

static size_t count(ggml_backend_reg_t registry)
{
    (void)registry;
    return 1;
}

static ggml_backend_dev_t get(ggml_backend_reg_t registry, size_t index)
{
    (void)registry;
    return index == 0 ? &device : NULL;
}

static struct ggml_backend_reg registry = {
    .api_version = GGML_BACKEND_API_VERSION,
    .iface = {.get_name = registry_name, .get_device_count = count, .get_device = get},
};

ggml_backend_reg_t ggml_backend_init(void);

ggml_backend_reg_t ggml_backend_init(void)
{
    type = (struct ggml_backend_buffer_type){.iface = {.get_name = type_name,
                                                       .alloc_buffer = alloc_buffer,
                                                       .get_alignment = alignment,
                                                       .get_alloc_size = alloc_size},
                                             .device = &device};
    device = (struct ggml_backend_device){.iface = {.get_name = device_name,
                                                    .get_description = description,
                                                    .get_memory = free_memory,
                                                    .get_type = kind,
                                                    .get_props = properties,
                                                    .init_backend = init,
                                                    .get_buffer_type = buffer_type,
                                                    .supports_op = supports_op,
                                                    .supports_buft = supports_type},
                                          .reg = &registry};
    return &registry;
}
