/* Writes a .moepack file: sections in the order of the file, experts form by form, the header
 * last. */
#include "model/pack_write.h"

#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/bounce.h"
#include "model/file.h"
#include "model/pack.h"
#include "model/pack_encode.h"
#include "model/pack_file.h"
#include "model/pack_sections.h"

/* Memory for the experts of one pass: two batches, one encoded while the other is written. A batch
 * is large enough to keep all threads busy and to write small records together. */
#define PASS_MEMORY (UINT64_C(2) << 30)
#define BATCH_BYTES (UINT64_C(8) << 20)
#define BATCH_PER_THREAD 4u
#define BATCH_MAX 4096u

typedef struct writer {
    const struct moepage_model *model;
    const mp_pack_options *options;
    mp_pack_file file;
    uint64_t at; /* where the next section starts */
    uint32_t n_sections;
    mp_pack_section sections[MP_PACK_MAX_SECTIONS];
    mp_pack_progress progress;
    moepage_pack_stats *stats;
} writer;

/* ---- sections ---- */

static void add_section(writer *w, uint32_t type, uint32_t form, uint64_t bytes, uint64_t xxh3)
{
    w->sections[w->n_sections++] = (mp_pack_section){
        .type = type, .form = form, .offset = w->at, .bytes = bytes, .xxh3 = xxh3};
    w->at = mp_pack_round_up(w->at + bytes, MP_PACK_PAGE);
}

static moepage_status write_section(writer *w, uint32_t type, uint32_t form, const void *bytes,
                                    uint64_t n)
{
    uint64_t offset = w->at;
    add_section(w, type, form, n, XXH3_64bits(bytes, n));
    return mp_pack_file_write(&w->file, bytes, n, offset);
}

static moepage_status write_shape(writer *w)
{
    uint64_t n = mp_pack_shape_bytes(w->model);
    unsigned char *bytes = mp_alloc(n);
    if (!bytes)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model's shape");
    mp_pack_shape_encode(w->model, bytes);
    moepage_status status = write_section(w, MP_PACK_SHAPE, 0, bytes, n);
    mp_free(bytes);
    return status;
}

static moepage_status write_config(writer *w)
{
    const char *text = mp_model_config_text(w->model);
    return text ? write_section(w, MP_PACK_CONFIG, 0, text, strlen(text)) : MOEPAGE_OK;
}

static moepage_status write_metadata(writer *w)
{
    const mp_gguf_metadata *metadata = mp_model_metadata(w->model);
    if (!metadata)
        return MOEPAGE_OK;
    uint64_t n = mp_pack_metadata_bytes(metadata);
    unsigned char *bytes = mp_alloc(n);
    if (!bytes)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %llu bytes of metadata",
                       (unsigned long long)n);
    mp_pack_metadata_encode(metadata, bytes);
    moepage_status status = write_section(w, MP_PACK_METADATA, 0, bytes, n);
    mp_free(bytes);
    return status;
}

/* ---- dense tensors ---- */

/* Returns the bytes of the directory, and of its names. */
static uint64_t directory_bytes(const writer *w, uint64_t *n_tensors, uint64_t *name_bytes)
{
    mp_dense_tensor tensor;
    *n_tensors = *name_bytes = 0;
    for (; mp_model_dense_at(w->model, *n_tensors, &tensor); ++*n_tensors)
        *name_bytes += strlen(tensor.name) + 1;
    return MP_PACK_DENSE_HEAD_BYTES + *n_tensors * MP_PACK_DENSE_TENSOR_BYTES + *name_bytes;
}

/* Writes a tensor's bytes and its entry. */
static moepage_status write_tensor(writer *w, const mp_dense_tensor *tensor, uint64_t name_at,
                                   uint64_t data_at, uint64_t offset, unsigned char *entry)
{
    void *bytes = mp_realloc(NULL, tensor->bytes);
    if (!bytes)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the %llu bytes of tensor \"%.160s\"",
                       (unsigned long long)tensor->bytes, tensor->name);
    moepage_status status = mp_dense_read(tensor, bytes);
    if (!status) {
        mp_pack_dense_encode(tensor, bytes, name_at, offset, entry);
        status = mp_pack_file_write(&w->file, bytes, tensor->bytes, data_at + offset);
    }
    mp_free(bytes);
    return status;
}

static moepage_status write_tensors(writer *w, unsigned char *directory, uint64_t n_tensors,
                                    uint64_t data_at, uint64_t *data_bytes)
{
    unsigned char *entry = directory + MP_PACK_DENSE_HEAD_BYTES;
    unsigned char *names = entry + n_tensors * MP_PACK_DENSE_TENSOR_BYTES, *name = names;
    moepage_status status = MOEPAGE_OK;
    *data_bytes = 0;
    for (uint64_t i = 0; !status && i < n_tensors; i++, entry += MP_PACK_DENSE_TENSOR_BYTES) {
        mp_dense_tensor tensor;
        mp_model_dense_at(w->model, i, &tensor);
        uint64_t offset = mp_pack_round_up(*data_bytes, MP_PACK_DENSE_ALIGN);
        status = write_tensor(w, &tensor, (uint64_t)(name - names), data_at, offset, entry);
        name = (unsigned char *)stpcpy((char *)name, tensor.name) + 1;
        if (!status)
            status = mp_pack_progress_add(&w->progress, tensor.bytes);
        *data_bytes = offset + tensor.bytes;
        w->stats->dense_bytes += tensor.bytes;
    }
    return status;
}

static moepage_status write_dense(writer *w)
{
    uint64_t n_tensors, name_bytes, data_bytes;
    uint64_t n = directory_bytes(w, &n_tensors, &name_bytes);
    unsigned char *directory = mp_alloc(n);
    if (!directory)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a directory of %llu tensors",
                       (unsigned long long)n_tensors);
    mp_put64(directory, n_tensors);
    mp_put64(directory + 8, name_bytes);
    moepage_status status = write_tensors(w, directory, n_tensors,
                                          mp_pack_round_up(w->at + n, MP_PACK_PAGE), &data_bytes);
    if (!status)
        status = write_section(w, MP_PACK_DENSE_DIRECTORY, 0, directory, n);
    if (!status)
        add_section(w, MP_PACK_DENSE_DATA, 0, data_bytes, 0);
    mp_free(directory);
    return status;
}

/* ---- experts ---- */

typedef struct batch {
    uint64_t first; /* key */
    uint32_t n;
    mp_pack_encoded *items;
    mp_bounce memory;
} batch;

/* One parallel run: part 0 writes the preceding batch, if there is one; the other parts encode. */
typedef struct pass {
    writer *writer;
    mp_pack_encoder encoder;
    uint32_t batch_experts;
    batch batches[2];
    batch *writing, *encoding;
    unsigned char *index;
    uint64_t at; /* where the next record starts */
    mp_pack_failure failure;
} pass;

static uint64_t item_bytes(const mp_pack_encoder *encoder)
{
    return mp_pack_round_up(encoder->source_bytes + encoder->out_bytes + encoder->scratch_bytes,
                            MP_PACK_PAGE);
}

static uint32_t batch_experts(const pass *p, uint32_t threads)
{
    uint64_t fit = PASS_MEMORY / 2 / item_bytes(&p->encoder);
    uint64_t n = BATCH_BYTES / item_bytes(&p->encoder);
    if (n < (uint64_t)threads * BATCH_PER_THREAD)
        n = (uint64_t)threads * BATCH_PER_THREAD;
    n = n < fit ? n : fit;
    n = n < BATCH_MAX ? n : BATCH_MAX;
    n = n < p->encoder.storage.n_records ? n : p->encoder.storage.n_records;
    return n ? (uint32_t)n : 1;
}

static moepage_status alloc_batch(const pass *p, batch *b)
{
    const mp_pack_encoder *encoder = &p->encoder;
    b->items = mp_alloc_array(p->batch_experts, sizeof *b->items);
    if (!b->items || !mp_bounce_alloc(p->batch_experts * item_bytes(encoder), &b->memory))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to encode %u experts at once",
                       p->batch_experts);
    uint64_t out_at = mp_pack_round_up(encoder->source_bytes, MP_PACK_RECORD_ALIGN);
    for (uint32_t i = 0; i < p->batch_experts; i++) {
        unsigned char *at = b->memory.bytes + i * item_bytes(encoder);
        b->items[i] = (mp_pack_encoded){.source = at,
                                        .out = at + out_at,
                                        .scratch = at + out_at + encoder->out_bytes};
    }
    return MOEPAGE_OK;
}

static void encode_item(pass *p, uint32_t i)
{
    const moepage_model_info *info = &p->writer->model->info;
    uint64_t key = p->encoding->first + i;
    uint32_t layer = (uint32_t)(key / info->experts), expert = (uint32_t)(key % info->experts);
    mp_pack_encoded *item = &p->encoding->items[i];
    moepage_status status =
        mp_pack_encode_read(p->writer->model, layer, expert, p->encoder.source_bytes, item);
    if (!status) {
        status = mp_pack_encode(&p->encoder, item);
        if (status)
            mp_fail_within(status, "layer %u, expert %u", layer, expert);
    }
    if (status)
        mp_pack_failure_keep(&p->failure, status);
}

static void write_batch(pass *p)
{
    for (uint32_t i = 0; i < p->writing->n && !mp_pack_failed(&p->failure); i++) {
        const mp_pack_encoded *item = &p->writing->items[i];
        moepage_status status =
            mp_pack_file_write(&p->writer->file, item->record,
                               mp_pack_round_up(item->bytes, MP_PACK_RECORD_ALIGN), item->offset);
        if (status)
            mp_pack_failure_keep(&p->failure, status);
    }
}

static void run_part(void *context, uint32_t part, uint32_t n)
{
    pass *p = context;
    uint32_t writes = n - p->encoding->n;
    if (mp_pack_failed(&p->failure))
        return;
    if (part < writes)
        write_batch(p);
    else
        encode_item(p, part - writes);
}

/* Assigns offsets to the encoded records, whose sizes are now known. */
static void place_batch(pass *p)
{
    const mp_pack_storage *storage = &p->encoder.storage;
    moepage_pack_stats *stats = p->writer->stats;
    uint64_t entry_bytes =
        (mp_pack_index_bytes(storage) - MP_PACK_INDEX_HEAD_BYTES) / storage->n_records;
    unsigned char *entry = p->index + MP_PACK_INDEX_HEAD_BYTES + p->encoding->first * entry_bytes;
    for (uint32_t i = 0; i < p->encoding->n; i++, entry += entry_bytes) {
        mp_pack_encoded *item = &p->encoding->items[i];
        item->offset = p->at;
        p->at = mp_pack_round_up(p->at + item->bytes, MP_PACK_RECORD_ALIGN);
        mp_pack_index_entry_encode(storage, item->offset, item->bytes, item->xxh3, item->parts,
                                   entry);
        stats->form_bytes[storage->form] += item->bytes;
        stats->raw_parts += item->n_raw;
    }
}

static moepage_status run_batch(pass *p)
{
    const mp_pack_options *options = p->writer->options;
    uint32_t parts = p->encoding->n + (p->writing->n ? 1 : 0);
    options->run(options->run_user, run_part, p, parts);
    moepage_status status = mp_pack_failure_raise(&p->failure);
    if (status)
        return status;
    place_batch(p);
    batch *written = p->writing;
    p->writing = p->encoding;
    p->encoding = written;
    return mp_pack_progress_add(&p->writer->progress,
                                mp_pack_experts_bytes(p->writer->model, p->writing->first,
                                                      p->writing->n));
}

static moepage_status run_pass(pass *p)
{
    uint64_t n = p->encoder.storage.n_records;
    moepage_status status = MOEPAGE_OK;
    p->writing = &p->batches[0];
    p->encoding = &p->batches[1];
    for (uint64_t first = 0; !status && first < n; first += p->batch_experts) {
        p->encoding->first = first;
        p->encoding->n = n - first < p->batch_experts ? (uint32_t)(n - first) : p->batch_experts;
        status = run_batch(p);
    }
    if (status)
        return status;
    write_batch(p);
    return mp_pack_failure_raise(&p->failure);
}

static moepage_status write_form(writer *w, uint32_t form)
{
    pass p = {.writer = w};
    moepage_status status = mp_pack_encoder_init(w->model, w->options, form, &p.encoder);
    if (status)
        return status;
    uint64_t index_bytes = mp_pack_index_bytes(&p.encoder.storage);
    uint64_t data_at = p.at = mp_pack_round_up(w->at + index_bytes, MP_PACK_PAGE);
    p.batch_experts = batch_experts(&p, w->options->threads);
    p.index = mp_alloc(index_bytes);
    if (!p.index)
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for an index of %llu experts",
                         (unsigned long long)p.encoder.storage.n_records);
    for (int i = 0; !status && i < 2; i++)
        status = alloc_batch(&p, &p.batches[i]);
    if (!status) {
        mp_pack_index_head_encode(&p.encoder.storage, p.index);
        status = run_pass(&p);
    }
    if (!status)
        status = write_section(w, MP_PACK_EXPERT_INDEX, form, p.index, index_bytes);
    if (!status)
        add_section(w, MP_PACK_EXPERT_DATA, form, p.at - data_at, 0);
    for (int i = 0; i < 2; i++) {
        mp_bounce_free(&p.batches[i].memory);
        mp_free(p.batches[i].items);
    }
    mp_free(p.index);
    return status;
}

/* ---- the whole file ---- */

static moepage_status write_head(writer *w)
{
    unsigned char head[MP_PACK_PAGE] = {0}, *table = head + MP_PACK_HEADER_BYTES;
    for (uint32_t i = 0; i < w->n_sections; i++)
        mp_pack_section_encode(&w->sections[i], table + (uint64_t)i * MP_PACK_ENTRY_BYTES);
    uint64_t table_xxh3 = XXH3_64bits(table, (uint64_t)w->n_sections * MP_PACK_ENTRY_BYTES);
    mp_pack_version version =
        mp_pack_version_of(w->model->n_layouts > 1, mp_model_metadata(w->model));
    mp_pack_header_encode(version, w->at, w->n_sections, table_xxh3, head);
    moepage_status status = mp_pack_file_write(&w->file, head, sizeof head, 0);
    return status ? status : mp_pack_file_sync(&w->file, w->at);
}

static moepage_status verify(writer *w)
{
    char path[4200];
    struct moepage_model *written;
    mp_pack_file_reading_path(&w->file, path, sizeof path);
    moepage_status status = mp_model_open_pack(path, &w->model->log, &written);
    if (!status) {
        status = mp_pack_verify(w->model, written, w->options, &w->progress);
        mp_model_free(written);
    }
    if (!status)
        return MOEPAGE_OK;
    mp_fail_within(status, "reading back the written file");
    return mp_path_fail_within(status, w->file.path);
}

static moepage_status write_all(writer *w)
{
    moepage_status status = write_shape(w);
    if (!status)
        status = write_config(w);
    if (!status)
        status = write_metadata(w);
    if (!status)
        status = write_dense(w);
    for (uint32_t form = MOEPAGE_FORM_DENSE; !status && form < MP_FORMS; form++)
        if (w->options->forms & 1u << form)
            status = write_form(w, form);
    if (!status)
        status = write_head(w);
    if (!status && w->options->verify)
        status = verify(w);
    if (!status)
        status = mp_pack_file_publish(&w->file, &w->model->log);
    return status;
}

/* Refuses forms that cannot be written, before anything is written. */
static moepage_status check_forms(const struct moepage_model *model, const mp_pack_options *options)
{
    mp_pack_encoder encoder;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t form = MOEPAGE_FORM_DENSE; !status && form < MP_FORMS; form++)
        if (options->forms & 1u << form)
            status = mp_pack_encoder_init(model, options, form, &encoder);
    return status;
}

moepage_status mp_pack_write(const struct moepage_model *model, const char *path,
                             const mp_pack_options *options, moepage_pack_stats *stats)
{
    moepage_status status = check_forms(model, options);
    if (status)
        return status;
    writer *w = mp_alloc(sizeof *w);
    if (!w)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a pack writer");
    uint64_t passes = (uint64_t)__builtin_popcount(options->forms) * (options->verify ? 2 : 1);
    *w = (writer){.model = model,
                  .options = options,
                  .file = {.fd = -1},
                  .at = MP_PACK_PAGE,
                  .progress = {.options = options,
                               .total_bytes =
                                   model->info.dense_bytes + passes * model->info.routed_bytes},
                  .stats = stats};
    stats->routed_bytes = model->info.routed_bytes;
    status = mp_pack_file_create(path, &w->file);
    if (!status)
        status = write_all(w);
    stats->file_bytes = w->at;
    mp_pack_file_discard(&w->file);
    mp_free(w);
    return status;
}
