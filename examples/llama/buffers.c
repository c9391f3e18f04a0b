/* The buffers that hold expert tensors: mappings of GGUF files, of which addresses become places in files, or
 * memory of our own where the host does not map. */
#include "plugin.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

typedef struct held_buffer {
    paged_model *model;
    char *base;
    size_t bytes;
    uint32_t file;   /* of the model; for mappings */
    uint64_t offset; /* of `base` in the file */
} held_buffer;

static paged_model *models;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list and of n_buffers */

/* ---- names ---- */

int bank_kind(const char *name, uint32_t *layer)
{
    static const char *const kinds[MOST_BANKS] = {"gate", "up", "down", "gate_up"};
    char kind[16];
    int end = 0;
    if (sscanf(name, "blk.%u.ffn_%15[a-z_]%n", layer, kind, &end) != 2 || *layer >= MOST_LAYERS ||
        strcmp(name + end, ".weight") != 0)
        return -1;
    char *exps = strstr(kind, "_exps");
    if (!exps || strcmp(exps, "_exps") != 0)
        return -1;
    *exps = 0;
    for (int i = 0; i < MOST_BANKS; i++)
        if (strcmp(kind, kinds[i]) == 0)
            return i;
    return -1;
}

/* ---- models ---- */

/* The model that is being loaded; a new one if there is none. The host makes all buffers of a model before it
 * places a tensor in one of them. */
static paged_model *loading_model(void)
{
    if (models && !models->closed && models->n_layers == 0)
        return models;
    paged_model *model = calloc(1, sizeof *model);
    if (!model)
        return NULL;
    model->next = models;
    models = model;
    return model;
}

static void drop_buffer(paged_model *model)
{
    pthread_mutex_lock(&lock);
    const bool last = --model->n_buffers == 0;
    for (paged_model **at = &models; last && *at; at = &(*at)->next)
        if (*at == model) {
            *at = model->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    pages_close(model);
    for (uint32_t i = 0; i < model->n_files; i++)
        free(model->files[i]);
    free(model);
}

bool buffers_each_model(bool (*each)(paged_model *model))
{
    bool good = true;
    pthread_mutex_lock(&lock);
    for (paged_model *model = models; model && good; model = model->next)
        good = each(model);
    pthread_mutex_unlock(&lock);
    return good;
}

/* ---- the file behind a mapping ---- */

/* Finds the file that is mapped at [address, address + bytes), and where in it that begins. */
static bool find_file(const char *address, size_t bytes, char *path, uint64_t *offset)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[PATH_MAX + 128];
    const char *next = address; /* found so far */
    while (maps && next < address + bytes && fgets(line, sizeof line, maps)) {
        unsigned long from, to, at, inode;
        unsigned major, minor;
        int name = 0;
        struct stat there;
        if (sscanf(line, "%lx-%lx %*s %lx %x:%x %lu %n", &from, &to, &at, &major, &minor, &inode,
                   &name) != 6 ||
            next < (const char *)from || next >= (const char *)to)
            continue;
        line[strcspn(line, "\n")] = 0;
        if (stat(line + name, &there) || there.st_ino != inode ||
            there.st_dev != makedev(major, minor) ||
            (next != address && strcmp(path, line + name) != 0))
            break;
        if (next == address) {
            snprintf(path, PATH_MAX, "%s", line + name);
            *offset = at + (unsigned long)address - from;
        }
        next = (const char *)to;
    }
    if (maps)
        fclose(maps);
    return next >= address + bytes;
}

static int add_file(paged_model *model, const char *path)
{
    for (uint32_t i = 0; i < model->n_files; i++)
        if (strcmp(model->files[i], path) == 0)
            return (int)i;
    if (model->n_files == MOST_FILES)
        return -1;
    char *own = strdup(path);
    if (!own)
        return -1;
    model->files[model->n_files] = own;
    return (int)model->n_files++;
}

/* ---- ggml's view of a buffer ---- */

static void free_buffer(ggml_backend_buffer_t buffer)
{
    held_buffer *held = buffer->context;
    if (held->model && held->model->in_memory && held->base)
        munmap(held->base, held->bytes);
    if (held->model)
        drop_buffer(held->model);
    free(held);
}

static void *get_base(ggml_backend_buffer_t buffer)
{
    return ((held_buffer *)buffer->context)->base;
}

/* Notes a bank. Other tensors stay where they are. */
static enum ggml_status init_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor)
{
    held_buffer *held = buffer->context;
    uint32_t layer;
    const int kind = bank_kind(tensor->name, &layer);
    if (!held->model || held->model->in_memory || kind < 0 || tensor->view_src)
        return GGML_STATUS_SUCCESS;
    bank *of = &held->model->banks[layer][kind];
    *of = (bank){.address = tensor->data,
                 .type = tensor->type,
                 .columns = tensor->ne[0],
                 .rows = tensor->ne[1],
                 .experts = tensor->ne[2],
                 .expert_bytes = tensor->nb[2],
                 .file = held->file,
                 .offset = held->offset + (uint64_t)((char *)tensor->data - held->base)};
    if (held->model->n_layers <= layer)
        held->model->n_layers = layer + 1;
    return GGML_STATUS_SUCCESS;
}

static void memset_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value,
                          size_t offset, size_t bytes)
{
    (void)buffer;
    memset((char *)tensor->data + offset, value, bytes);
}

static void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t bytes)
{
    (void)buffer;
    memcpy((char *)tensor->data + offset, data, bytes);
}

static void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t bytes)
{
    (void)buffer;
    memcpy(data, (const char *)tensor->data + offset, bytes);
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    held_buffer *held = buffer->context;
    if (held->model && held->model->in_memory)
        memset(held->base, value, held->bytes);
}

static const struct ggml_backend_buffer_i interface = {
    .free_buffer = free_buffer,
    .get_base = get_base,
    .init_tensor = init_tensor,
    .memset_tensor = memset_tensor,
    .set_tensor = set_tensor,
    .get_tensor = get_tensor,
    .clear = clear,
};

/* ---- buffers ---- */

/* Takes over `own`; its model has one buffer more. */
static ggml_backend_buffer_t make_buffer(held_buffer own)
{
    held_buffer *held = malloc(sizeof *held);
    if (!held)
        return NULL;
    *held = own;
    if (held->model)
        held->model->n_buffers++;
    return ggml_backend_buffer_init(buffers_type(), interface, held, held->bytes);
}

ggml_backend_buffer_t buffers_map(void *address, size_t bytes)
{
    static char path[PATH_MAX];
    held_buffer own = {.base = address, .bytes = bytes};
    ggml_backend_buffer_t buffer = NULL;
    pthread_mutex_lock(&lock);
    if (!find_file(address, bytes, path, &own.offset)) {
        say("the file behind the mapping at %p is not to be found: was it moved or deleted?",
            address);
    } else if (settings_get() && (own.model = loading_model())) {
        const int file = add_file(own.model, path);
        own.file = (uint32_t)file;
        buffer = file < 0 ? NULL : make_buffer(own);
    }
    pthread_mutex_unlock(&lock);
    return buffer;
}

/* The host reads the file itself, without a mapping: its bytes stay in memory. Buffers of no bytes are the host's
 * way of asking questions. */
static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t bytes)
{
    (void)type;
    held_buffer own = {.bytes = bytes};
    if (bytes == 0)
        return make_buffer(own);
    own.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own.base == MAP_FAILED)
        return NULL;
    pthread_mutex_lock(&lock);
    own.model = loading_model();
    ggml_backend_buffer_t buffer = own.model ? make_buffer(own) : NULL;
    if (buffer) {
        own.model->in_memory = true;
        say("the experts come without a mapping: %.1f GB stay in memory, nothing is paged "
            "(leave out --no-mmap)",
            (double)bytes / 1e9);
    } else {
        munmap(own.base, bytes);
    }
    pthread_mutex_unlock(&lock);
    return buffer;
}

static const char *type_name(ggml_backend_buffer_type_t type)
{
    (void)type;
    return "MOEPAGE";
}

static size_t alignment(ggml_backend_buffer_type_t type)
{
    (void)type;
    return 64;
}

static bool is_host(ggml_backend_buffer_type_t type)
{
    (void)type;
    return false; /* nobody else may touch the weights */
}

ggml_backend_buffer_type_t buffers_type(void)
{
    static struct ggml_backend_buffer_type type = {
        .iface = {.get_name = type_name,
                  .alloc_buffer = alloc_buffer,
                  .get_alignment = alignment,
                  .is_host = is_host},
    };
    return &type;
}

paged_model *buffers_model_of(const struct ggml_tensor *weight)
{
    if (!weight->buffer || weight->buffer->buft != buffers_type())
        return NULL;
    return ((held_buffer *)weight->buffer->context)->model;
}
