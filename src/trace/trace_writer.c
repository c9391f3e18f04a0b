/* Writes a trace file: steps accumulate raw in memory and are compressed frame by frame into a file
 * beside the final one, which takes the final name once everything is on disk. */
#include "trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/errno_text.h"
#include "base/file.h"
#include "base/status.h"
#include "trace/trace_format.h"

enum { ZSTD_LEVEL = 3, PART_NAMES = 100, ERROR_BYTES = 256 };

/* The step being recorded; its bytes are the tail of the batch. */
typedef struct open_step {
    bool open, probabilities;
    uint32_t n_tokens, n_sequences, n_layers;
    uint32_t top_k; /* the largest top-k so far in this step */
    uint64_t at;    /* offset of its record in the batch */
} open_step;

struct mp_trace_writer {
    moepage_trace_info info;
    char *path, *part; /* the final name, and the name until completion */
    int fd;
    uint64_t frame_bytes;
    unsigned char *batch; /* raw records of the next frame */
    uint64_t batch_bytes, batch_capacity;
    unsigned char *frame; /* one frame as stored in the file */
    uint64_t frame_capacity;
    unsigned char *layer_seen; /* [moe_layers] recorded in the open step */
    open_step step;
    uint32_t batch_steps;
    uint64_t steps; /* in the frames written so far */
    uint64_t chain;
    ZSTD_CCtx *zstd;
    moepage_status status; /* the first failure */
    char error[ERROR_BYTES];
};

static void discard_file(mp_trace_writer *writer)
{
    if (writer->fd >= 0) {
        close(writer->fd);
        unlink(writer->part);
        writer->fd = -1;
    }
}

/* Keeps the first failure, and frees the disk space at once. Not mp_fail: the thread's last error
 * belongs to failed calls, and recording makes no call fail. */
__attribute__((format(printf, 3, 4))) static void
keep_failure(mp_trace_writer *writer, moepage_status status, const char *format, ...)
{
    if (writer->status)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(writer->error, sizeof writer->error, format, args);
    va_end(args);
    writer->status = status;
    writer->step.open = false;
    discard_file(writer);
}

/* ---- Recording --------------------------------------------------------------------------- */

/* Extends the batch by `bytes`; returns their address, valid until the next call, or NULL
 * after a failure. */
static unsigned char *extend(mp_trace_writer *writer, uint64_t bytes)
{
    uint64_t needed = writer->batch_bytes + bytes;
    if (needed - writer->step.at > MP_TRACE_MAX_STEP_BYTES) {
        keep_failure(writer, MOEPAGE_E_UNSUPPORTED,
                     "a step takes over %llu bytes, the most that a "
                     "trace can hold: record fewer tokens per step, or no probabilities",
                     (unsigned long long)MP_TRACE_MAX_STEP_BYTES);
        return NULL;
    }
    if (needed > writer->batch_capacity) {
        uint64_t capacity = needed + needed / 2;
        unsigned char *grown = mp_realloc(writer->batch, capacity);
        if (!grown) {
            keep_failure(writer, MOEPAGE_E_NO_MEMORY, "no memory to record a step of %llu bytes",
                         (unsigned long long)needed);
            return NULL;
        }
        writer->batch = grown;
        writer->batch_capacity = capacity;
    }
    unsigned char *at = writer->batch + writer->batch_bytes;
    writer->batch_bytes = needed;
    return at;
}

static bool check_sequences(mp_trace_writer *writer, uint32_t n_tokens,
                            const moepage_step_sequence *sequences, uint32_t n_sequences)
{
    uint64_t total = 0;
    bool phases = true;
    for (uint32_t i = 0; i < n_sequences; i++) {
        total += sequences[i].n_tokens;
        phases = phases && sequences[i].phase <= MOEPAGE_PHASE_PREFILL;
    }
    if (phases && n_tokens && n_tokens <= MP_TRACE_MAX_TOKENS && n_sequences &&
        n_sequences <= MP_TRACE_MAX_TOKENS && total == n_tokens)
        return true;
    keep_failure(writer, MOEPAGE_E_ARGUMENT,
                 "a step of %u tokens in %u sequences, which have %llu "
                 "tokens together, cannot be recorded",
                 n_tokens, n_sequences, (unsigned long long)total);
    return false;
}

void mp_trace_step_begin(moepage_trace *trace, uint32_t n_tokens,
                         const moepage_step_sequence *sequences, uint32_t n_sequences,
                         const float *semantic, uint32_t semantic_dim)
{
    mp_trace_writer *writer = trace->writer;
    if (writer->status || !check_sequences(writer, n_tokens, sequences, n_sequences))
        return;
    if (writer->step.open) {
        keep_failure(writer, MOEPAGE_E_STATE,
                     "two steps were recorded at once: one session at a "
                     "time may record to a trace");
        return;
    }
    if (!writer->info.semantic_dim)
        semantic = NULL;
    if (semantic && semantic_dim != writer->info.semantic_dim) {
        keep_failure(writer, MOEPAGE_E_ARGUMENT, "a step's semantic_dim is %u, the trace's is %u",
                     semantic_dim, writer->info.semantic_dim);
        return;
    }
    uint64_t sequence_bytes = n_sequences * (uint64_t)sizeof *sequences;
    uint64_t semantic_bytes = semantic ? n_sequences * (uint64_t)semantic_dim * sizeof(float) : 0;
    writer->step =
        (open_step){.n_tokens = n_tokens, .n_sequences = n_sequences, .at = writer->batch_bytes};
    unsigned char *at =
        extend(writer, MP_TRACE_RECORD_HEAD_BYTES + sequence_bytes + semantic_bytes);
    if (!at)
        return;
    mp_trace_put32(at + 4, n_tokens); /* the size (at 0) and the layers (at 12) are not known yet */
    mp_trace_put32(at + 8, n_sequences);
    mp_trace_put32(at + 16, semantic ? MP_TRACE_RECORD_SEMANTIC : 0);
    memcpy(at + MP_TRACE_RECORD_HEAD_BYTES, sequences, sequence_bytes);
    if (semantic)
        memcpy(at + MP_TRACE_RECORD_HEAD_BYTES + sequence_bytes, semantic, semantic_bytes);
    memset(writer->layer_seen, 0, writer->info.moe_layers);
    writer->step.open = true;
}

static bool check_layer(mp_trace_writer *writer, uint32_t layer, uint32_t top_k)
{
    if (layer >= writer->info.moe_layers || !top_k || top_k > writer->info.max_top_k)
        keep_failure(writer, MOEPAGE_E_ARGUMENT,
                     "layer %u with top-k %u was recorded to a trace "
                     "of %u layers and top-k up to %u",
                     layer, top_k, writer->info.moe_layers, writer->info.max_top_k);
    else if (writer->layer_seen[layer])
        keep_failure(writer, MOEPAGE_E_STATE,
                     "layer %u was routed twice in one step: a trace "
                     "holds one routing per layer and step",
                     layer);
    return !writer->status;
}

/* Stores ids as u16; returns false if an id is outside the trace's shape. */
static bool put_ids(unsigned char *at, const int32_t *ids, uint64_t n, uint32_t experts)
{
    bool good = true;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t id = ids[i] == MOEPAGE_NO_EXPERT ? MP_TRACE_NO_EXPERT : (uint16_t)ids[i];
        good &= ids[i] == MOEPAGE_NO_EXPERT || (uint32_t)ids[i] < experts;
        memcpy(at + i * sizeof id, &id, sizeof id);
    }
    return good;
}

void mp_trace_step_layer(moepage_trace *trace, uint32_t layer, uint32_t top_k, const int32_t *ids,
                         const float *weights, const float *probabilities)
{
    mp_trace_writer *writer = trace->writer;
    if (!writer->step.open || !check_layer(writer, layer, top_k))
        return;
    if (!writer->info.has_probabilities)
        probabilities = NULL;
    uint64_t n = (uint64_t)writer->step.n_tokens * top_k;
    uint64_t id_bytes = n * sizeof(uint16_t), weight_bytes = n * sizeof(float);
    uint64_t probability_bytes = 0;
    if (probabilities)
        probability_bytes = (uint64_t)writer->step.n_tokens * writer->info.experts * sizeof(float);
    unsigned char *at =
        extend(writer, MP_TRACE_LAYER_HEAD_BYTES + id_bytes + weight_bytes + probability_bytes);
    if (!at)
        return;
    mp_trace_put32(at, layer);
    mp_trace_put32(at + 4, top_k);
    mp_trace_put32(at + 8, probabilities ? MP_TRACE_LAYER_PROBABILITIES : 0);
    at += MP_TRACE_LAYER_HEAD_BYTES;
    if (!put_ids(at, ids, n, writer->info.experts)) {
        keep_failure(writer, MOEPAGE_E_ARGUMENT,
                     "an expert id of layer %u is not one of the "
                     "trace's %u experts",
                     layer, writer->info.experts);
        return;
    }
    memcpy(at + id_bytes, weights, weight_bytes);
    if (probabilities)
        memcpy(at + id_bytes + weight_bytes, probabilities, probability_bytes);
    writer->layer_seen[layer] = 1;
    writer->step.n_layers++;
    writer->step.probabilities |= probabilities != NULL;
    if (top_k > writer->step.top_k)
        writer->step.top_k = top_k;
}

static bool reserve_frame(mp_trace_writer *writer, uint64_t bytes)
{
    if (bytes <= writer->frame_capacity)
        return true;
    unsigned char *grown = mp_realloc(writer->frame, bytes);
    if (!grown) {
        keep_failure(writer, MOEPAGE_E_NO_MEMORY, "no memory for a trace frame of %llu bytes",
                     (unsigned long long)bytes);
        return false;
    }
    writer->frame = grown;
    writer->frame_capacity = bytes;
    return true;
}

/* Compresses the batch into one frame and writes it. */
static void flush(mp_trace_writer *writer)
{
    uint64_t bound = ZSTD_compressBound(writer->batch_bytes);
    if (writer->status || !writer->batch_steps ||
        !reserve_frame(writer, MP_TRACE_FRAME_HEAD_BYTES + bound + MP_TRACE_CHECKSUM_BYTES))
        return;
    size_t packed = ZSTD_compressCCtx(writer->zstd, writer->frame + MP_TRACE_FRAME_HEAD_BYTES,
                                      bound, writer->batch, writer->batch_bytes, ZSTD_LEVEL);
    if (ZSTD_isError(packed)) {
        keep_failure(writer, MOEPAGE_E_NO_MEMORY,
                     "zstd could not compress a trace frame of %llu "
                     "bytes: %s",
                     (unsigned long long)writer->batch_bytes, ZSTD_getErrorName(packed));
        return;
    }
    mp_trace_put32(writer->frame, MP_TRACE_FRAME_MAGIC);
    mp_trace_put32(writer->frame + 4, (uint32_t)packed);
    mp_trace_put32(writer->frame + 8, (uint32_t)writer->batch_bytes);
    mp_trace_put32(writer->frame + 12, writer->batch_steps);
    mp_trace_put64(writer->frame + 16, writer->steps);
    uint64_t bytes = MP_TRACE_FRAME_HEAD_BYTES + packed;
    uint64_t checksum = XXH3_64bits(writer->frame, bytes);
    mp_trace_put64(writer->frame + bytes, checksum);
    if (!mp_file_write(writer->fd, writer->frame, bytes + MP_TRACE_CHECKSUM_BYTES)) {
        keep_failure(writer, MOEPAGE_E_IO, "writing %s failed: %s", writer->part,
                     mp_errno_text_of(errno).text);
        return;
    }
    writer->chain = mp_trace_chain(writer->chain, checksum);
    writer->steps += writer->batch_steps;
    writer->batch_steps = 0;
    writer->batch_bytes = 0;
}

void mp_trace_step_end(moepage_trace *trace)
{
    mp_trace_writer *writer = trace->writer;
    open_step *step = &writer->step;
    if (!step->open)
        return;
    uint64_t bytes = mp_trace_step_bytes(&writer->info, step->n_tokens, step->top_k,
                                         step->n_sequences, step->probabilities);
    if (bytes > MP_TRACE_MAX_STEP_BYTES) {
        keep_failure(writer, MOEPAGE_E_UNSUPPORTED,
                     "a step of %u tokens takes %llu bytes read "
                     "back, at most %llu can be: record fewer tokens per step, or no probabilities",
                     step->n_tokens, (unsigned long long)bytes,
                     (unsigned long long)MP_TRACE_MAX_STEP_BYTES);
        return;
    }
    unsigned char *record = writer->batch + step->at;
    mp_trace_put32(record, (uint32_t)(writer->batch_bytes - step->at));
    mp_trace_put32(record + 12, step->n_layers);
    step->open = false;
    writer->batch_steps++;
    if (writer->batch_bytes >= writer->frame_bytes)
        flush(writer);
}

void mp_trace_step_cancel(moepage_trace *trace)
{
    mp_trace_writer *writer = trace->writer;
    if (!writer->step.open)
        return;
    writer->batch_bytes = writer->step.at;
    writer->step.open = false;
}

/* ---- The file ---------------------------------------------------------------------------- */

static void writer_free(mp_trace_writer *writer)
{
    if (!writer)
        return;
    discard_file(writer);
    ZSTD_freeCCtx(writer->zstd);
    mp_free(writer->layer_seen);
    mp_free(writer->frame);
    mp_free(writer->batch);
    mp_free(writer->part);
    mp_free(writer->path);
    mp_free(writer);
}

/* Creates the file beside `path` under an unused name: a writer that was killed may have
 * left one behind. */
static moepage_status create_part(mp_trace_writer *writer)
{
    size_t bytes = strlen(writer->path) + sizeof ".part00";
    writer->part = mp_alloc(bytes);
    if (!writer->part)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a trace writer");
    for (int i = 0; i < PART_NAMES && writer->fd < 0; i++) {
        snprintf(writer->part, bytes, "%s.part%d", writer->path, i);
        writer->fd =
            mp_file_keep_apart(open(writer->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (writer->fd < 0 && errno != EEXIST)
            break;
    }
    if (writer->fd >= 0)
        return MOEPAGE_OK;
    return mp_file_fail(writer->part, "create");
}

/* Checks the target: closing renames a file over `path`, which must not replace a device
 * or a pipe. */
static moepage_status check_target(const char *path)
{
    struct stat target;
    if (!stat(path, &target) && !S_ISREG(target.st_mode))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is not a regular file: a trace would replace it",
                       path);
    return MOEPAGE_OK;
}

moepage_status mp_trace_writer_create(const char *path, const moepage_trace_info *info,
                                      uint64_t frame_bytes, mp_trace_writer **out)
{
    unsigned char header[MP_TRACE_HEADER_BYTES];
    moepage_status status = check_target(path);
    if (status)
        return status;
    mp_trace_writer *writer = mp_alloc(sizeof *writer);
    if (!writer)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a trace writer");
    writer->fd = -1;
    writer->info = *info;
    writer->frame_bytes = frame_bytes < MP_TRACE_FRAME_BYTES ? frame_bytes : MP_TRACE_FRAME_BYTES;
    writer->path = mp_strdup(path);
    writer->layer_seen = mp_alloc(info->moe_layers);
    writer->zstd = ZSTD_createCCtx();
    if (!writer->path || !writer->layer_seen || !writer->zstd) {
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a trace writer");
        goto fail;
    }
    status = create_part(writer);
    if (status)
        goto fail;
    mp_trace_header_encode(info, header);
    writer->chain = mp_trace_chain(0, XXH3_64bits(header, sizeof header));
    if (!mp_file_write(writer->fd, header, sizeof header)) {
        status = mp_file_fail(writer->part, "write");
        goto fail;
    }
    *out = writer;
    return MOEPAGE_OK;
fail:
    writer_free(writer);
    return status;
}

static void write_trailer(mp_trace_writer *writer)
{
    unsigned char trailer[MP_TRACE_TRAILER_BYTES] = {0};
    mp_trace_put32(trailer, MP_TRACE_TRAILER_MAGIC);
    mp_trace_put64(trailer + 8, writer->steps);
    mp_trace_put64(trailer + 16, writer->chain);
    mp_trace_put64(trailer + 24, XXH3_64bits(trailer, 24));
    if (!mp_file_write(writer->fd, trailer, sizeof trailer) || fsync(writer->fd))
        keep_failure(writer, MOEPAGE_E_IO, "writing %s failed: %s", writer->part,
                     mp_errno_text_of(errno).text);
}

static void take_final_name(mp_trace_writer *writer)
{
    if (rename(writer->part, writer->path)) {
        keep_failure(writer, MOEPAGE_E_IO, "%s cannot be renamed to %s: %s", writer->part,
                     writer->path, mp_errno_text_of(errno).text);
        return;
    }
    close(writer->fd); /* fsync has already reported any error */
    writer->fd = -1;
}

moepage_status mp_trace_writer_close(mp_trace_writer *writer)
{
    if (writer->step.open) {
        writer->batch_bytes = writer->step.at;
        writer->step.open = false;
    }
    flush(writer);
    if (!writer->status)
        write_trailer(writer);
    if (!writer->status)
        take_final_name(writer);
    moepage_status status = writer->status;
    if (status)
        mp_fail(status, "%s", writer->error);
    writer_free(writer);
    return status;
}
