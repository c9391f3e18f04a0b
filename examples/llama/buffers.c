/* The buffers that hold expert tensors: mappings of GGUF files, of which addresses become places in files, or
 * addresses without memory where the host reads files itself. Its bytes are then found again in a file that it has
 * open, and forgotten; where they are not, all of the model stays in memory. */
#include "plugin.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct held_buffer {
    paged_model *model;
    char *base;
    size_t bytes;
    bool mapped;     /* the host's mapping; otherwise memory of our own */
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
    pthread_mutex_init(&model->device.lock, NULL);
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
    pthread_mutex_destroy(&model->device.lock);
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

/* ---- banks in files ---- */

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

static void note_bank(paged_model *model, const struct ggml_tensor *tensor, uint32_t file,
                      uint64_t offset)
{
    uint32_t layer;
    const int kind = bank_kind(tensor->name, &layer);
    model->banks[layer][kind] = (bank){.address = tensor->data,
                                       .type = tensor->type,
                                       .columns = tensor->ne[0],
                                       .rows = tensor->ne[1],
                                       .experts = tensor->ne[2],
                                       .expert_bytes = tensor->nb[2],
                                       .file = file,
                                       .offset = offset};
    if (model->n_layers <= layer)
        model->n_layers = layer + 1;
}

/* The bank that a tensor is, if its bytes are in a file alone. */
static const bank *left_bank(const held_buffer *held, const struct ggml_tensor *tensor)
{
    uint32_t layer;
    const int kind = bank_kind(tensor->name, &layer);
    if (held->mapped || !held->model || held->model->in_memory || kind < 0)
        return NULL;
    const bank *of = &held->model->banks[layer][kind];
    return of->address == tensor->data ? of : NULL;
}

/* False, after a sentence, if a file does not give the bytes. */
static bool read_bank(const paged_model *model, const bank *of, uint64_t offset, size_t bytes,
                      char *out)
{
    const char *path = model->files[of->file];
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    for (ssize_t n = 1; file >= 0 && done < bytes && n > 0; done += n > 0 ? (size_t)n : 0)
        n = pread(file, out + done, bytes - done, (off_t)(of->offset + offset + done));
    if (file >= 0)
        close(file);
    if (done < bytes)
        say("%s cannot be read again", path);
    return done == bytes;
}

/* Reads what was left in files, for one bank is in none of them. */
static void keep_in_memory(paged_model *model, const char *name)
{
    for (uint32_t l = 0; l < model->n_layers; l++)
        for (int k = 0; k < MOST_BANKS; k++) {
            const bank *of = &model->banks[l][k];
            const size_t bytes = of->expert_bytes * (size_t)of->experts;
            if (of->address && !read_bank(model, of, 0, bytes, (char *)of->address))
                model->lost = true;
        }
    model->in_memory = true;
    say("%s comes without a mapping, and from no GGUF file that is open here: the experts stay in "
        "memory, nothing is "
        "paged (leave out --no-mmap)",
        name);
}

/* Notes where the bytes of a bank are, if a file that is open has them. */
static bool leave_in_file(held_buffer *held, const struct ggml_tensor *tensor, const void *data)
{
    static char path[PATH_MAX];
    uint64_t offset;
    pthread_mutex_lock(&lock);
    const int file =
        place_of_tensor(tensor, data, path, &offset) ? add_file(held->model, path) : -1;
    if (file >= 0)
        note_bank(held->model, tensor, (uint32_t)file, offset);
    else
        keep_in_memory(held->model, tensor->name);
    pthread_mutex_unlock(&lock);
    return file >= 0;
}

/* ---- ggml's view of a buffer ---- */

static void free_buffer(ggml_backend_buffer_t buffer)
{
    held_buffer *held = buffer->context;
    if (!held->mapped && held->base)
        munmap(held->base, held->bytes);
    if (held->model)
        drop_buffer(held->model);
    free(held);
}

static void *get_base(ggml_backend_buffer_t buffer)
{
    return ((held_buffer *)buffer->context)->base;
}

/* Notes a bank of a mapping. Other tensors stay where they are. */
static enum ggml_status init_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor)
{
    held_buffer *held = buffer->context;
    uint32_t layer;
    if (held->mapped && !tensor->view_src && bank_kind(tensor->name, &layer) >= 0)
        note_bank(held->model, tensor, held->file,
                  held->offset + (uint64_t)((char *)tensor->data - held->base));
    return GGML_STATUS_SUCCESS;
}

static void memset_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value,
                          size_t offset, size_t bytes)
{
    if (left_bank(buffer->context, tensor))
        keep_in_memory(((held_buffer *)buffer->context)->model, tensor->name);
    memset((char *)tensor->data + offset, value, bytes);
}

static void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t bytes)
{
    held_buffer *held = buffer->context;
    uint32_t layer;
    const bool whole = offset == 0 && bytes == ggml_nbytes(tensor);
    if (!held->mapped && held->model && !held->model->in_memory &&
        bank_kind(tensor->name, &layer) >= 0) {
        if (!whole)
            keep_in_memory(held->model, tensor->name);
        else if (leave_in_file(held, tensor, data))
            return;
    }
    memcpy((char *)tensor->data + offset, data, bytes);
}

static void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t bytes)
{
    held_buffer *held = buffer->context;
    const bank *left = left_bank(held, tensor);
    if (!left)
        memcpy(data, (const char *)tensor->data + offset, bytes);
    else if (!read_bank(held->model, left, offset, bytes, data))
        held->model->lost = true;
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    held_buffer *held = buffer->context;
    if (held->mapped || !held->base)
        return;
    if (value == 0)
        madvise(held->base, held->bytes, MADV_DONTNEED); /* zeros that take no memory */
    else
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
    held_buffer own = {.base = address, .bytes = bytes, .mapped = true};
    ggml_backend_buffer_t buffer = NULL;
    pthread_mutex_lock(&lock);
    if (!place_of_mapping(address, bytes, path, &own.offset)) {
        say("the file behind the mapping at %p is not to be found: was it moved or deleted?",
            address);
    } else if (settings_are_right() && (own.model = loading_model())) {
        const int file = add_file(own.model, path);
        own.file = (uint32_t)file;
        buffer = file < 0 ? NULL : make_buffer(own);
    }
    pthread_mutex_unlock(&lock);
    return buffer;
}

/* The host reads the file itself, without a mapping. Buffers of no bytes are its way of asking questions. */
static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t bytes)
{
    (void)type;
    held_buffer own = {.bytes = bytes};
    if (bytes == 0)
        return make_buffer(own);
    if (!settings_are_right())
        return NULL;
    own.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (own.base == MAP_FAILED)
        return NULL;
    pthread_mutex_lock(&lock);
    own.model = loading_model();
    ggml_backend_buffer_t buffer = own.model ? make_buffer(own) : NULL;
    if (!buffer)
        munmap(own.base, bytes);
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
