/* Reads a trace file back without trusting its contents: every frame is checked before any byte of
 * it is used, and every field is checked against the file's shape and the bytes present.
 *
 * The read position moves only after a successful read, so a failed call can be repeated and fails
 * in the same way. */
#include "trace/trace.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/errno_text.h"
#include "base/file.h"
#include "base/status.h"
#include "trace/trace_format.h"

/* A block of memory that grows to the largest size requested so far. */
typedef struct buffer {
    void *memory;
    uint64_t capacity;
} buffer;

/* One step's arrays as moepage_trace_step hands them out. */
typedef struct step_arrays {
    buffer sequences, layer_present, ids, weights, probabilities, semantic;
} step_arrays;

struct mp_trace_reader {
    moepage_trace_info info;
    int fd;
    uint64_t file_bytes;
    uint64_t offset; /* of the next frame or trailer in the file */
    uint64_t chain;
    uint64_t steps;    /* steps read so far */
    buffer frame, raw; /* the frame as stored in the file, and its raw records */
    uint64_t raw_bytes, raw_at;
    uint32_t frame_left; /* unread records of the current frame */
    ZSTD_DCtx *zstd;
    step_arrays arrays;
};

/* A record whose fields have been checked. */
typedef struct record {
    uint32_t bytes, n_tokens, n_sequences, n_layers, top_k;
    bool has_probabilities;
    const unsigned char *sequences, *semantic, *layers;
} record;

/* One layer of a record. */
typedef struct layer_part {
    uint32_t layer, top_k;
    const unsigned char *ids, *weights, *probabilities; /* probabilities or NULL */
} layer_part;

typedef struct cursor {
    const unsigned char *at, *end;
} cursor;

/* Advances over `bytes` bytes and returns their start; NULL if fewer are left. */
static const unsigned char *take(cursor *in, uint64_t bytes)
{
    if (bytes > (uint64_t)(in->end - in->at))
        return NULL;
    const unsigned char *at = in->at;
    in->at += bytes;
    return at;
}

static moepage_status reserve(buffer *block, uint64_t bytes)
{
    if (block->memory && bytes <= block->capacity)
        return MOEPAGE_OK;
    void *memory = mp_alloc(bytes);
    if (!memory)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %llu bytes of a trace",
                       (unsigned long long)bytes);
    mp_free(block->memory);
    block->memory = memory;
    block->capacity = bytes;
    return MOEPAGE_OK;
}

static moepage_status read_at(const mp_trace_reader *reader, uint64_t offset, void *out,
                              uint64_t bytes)
{
    unsigned char *at = out;
    while (bytes) {
        ssize_t done = pread(reader->fd, at, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return mp_fail(MOEPAGE_E_IO, "reading the trace at byte %llu failed: %s",
                           (unsigned long long)offset, mp_errno_text_of(errno).text);
        if (done == 0)
            return mp_fail(MOEPAGE_E_FORMAT, "the trace is truncated: it ends at byte %llu",
                           (unsigned long long)offset);
        at += done;
        offset += (uint64_t)done;
        bytes -= (uint64_t)done;
    }
    return MOEPAGE_OK;
}

/* ---- Frames ------------------------------------------------------------------------------ */

/* Checks the bytes where the next frame could be: END if they are a trailer that matches everything
 * read so far. */
static moepage_status check_trailer(const mp_trace_reader *reader)
{
    unsigned char trailer[MP_TRACE_TRAILER_BYTES];
    moepage_status status = read_at(reader, reader->offset, trailer, sizeof trailer);
    if (status)
        return status;
    if (XXH3_64bits(trailer, 24) != mp_trace_get64(trailer + 24))
        return mp_fail(MOEPAGE_E_FORMAT, "the trace's trailer does not match its checksum");
    uint64_t steps = mp_trace_get64(trailer + 8);
    if (steps != reader->steps)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the trace's trailer counts %llu steps, its frames have "
                       "%llu",
                       (unsigned long long)steps, (unsigned long long)reader->steps);
    if (mp_trace_get64(trailer + 16) != reader->chain)
        return mp_fail(MOEPAGE_E_FORMAT, "the trace's frames are not those that its trailer seals");
    if (mp_trace_get32(trailer + 4) != 0 ||
        reader->offset + MP_TRACE_TRAILER_BYTES != reader->file_bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "the trace goes on behind its trailer, or the trailer is "
                                         "malformed");
    return mp_fail(MOEPAGE_E_END, "the trace has no more steps: all %llu have been read",
                   (unsigned long long)steps);
}

/* Checks a frame's head for contradictions before reading its body. */
static moepage_status check_frame_head(const mp_trace_reader *reader, const unsigned char *head)
{
    uint32_t packed = mp_trace_get32(head + 4), raw = mp_trace_get32(head + 8);
    uint32_t n_steps = mp_trace_get32(head + 12);
    const uint64_t begun = reader->offset + MP_TRACE_FRAME_HEAD_BYTES;
    const uint64_t left = reader->file_bytes > begun ? reader->file_bytes - begun : 0;
    if (packed + (uint64_t)MP_TRACE_CHECKSUM_BYTES > left)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the trace is truncated: the frame at byte %llu needs %u "
                       "bytes, %llu are left",
                       (unsigned long long)reader->offset, packed + MP_TRACE_CHECKSUM_BYTES,
                       (unsigned long long)left);
    if (raw > MP_TRACE_MAX_FRAME_BYTES || !n_steps || n_steps > raw / MP_TRACE_RECORD_HEAD_BYTES ||
        mp_trace_get64(head + 16) != reader->steps)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the trace's frame at byte %llu claims %u steps in %u "
                       "bytes, from step %llu on; step %llu comes next",
                       (unsigned long long)reader->offset, n_steps, raw,
                       (unsigned long long)mp_trace_get64(head + 16),
                       (unsigned long long)reader->steps);
    return MOEPAGE_OK;
}

static moepage_status unpack(mp_trace_reader *reader, const unsigned char *packed,
                             uint32_t packed_bytes, uint32_t raw_bytes)
{
    /* Both checks precede the allocation: the body must be one whole zstd frame of exactly this
     * content size. */
    if (ZSTD_findFrameCompressedSize(packed, packed_bytes) != packed_bytes ||
        ZSTD_getFrameContentSize(packed, packed_bytes) != raw_bytes)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the trace's frame at byte %llu is not one zstd frame of "
                       "%u bytes",
                       (unsigned long long)reader->offset, raw_bytes);
    moepage_status status = reserve(&reader->raw, raw_bytes);
    if (status)
        return status;
    size_t done =
        ZSTD_decompressDCtx(reader->zstd, reader->raw.memory, raw_bytes, packed, packed_bytes);
    if (done != raw_bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "the trace's frame at byte %llu does not decompress: %s",
                       (unsigned long long)reader->offset, ZSTD_getErrorName(done));
    return MOEPAGE_OK;
}

/* Makes the next frame the current one; END after the last frame. */
static moepage_status load_frame(mp_trace_reader *reader)
{
    unsigned char head[MP_TRACE_FRAME_HEAD_BYTES];
    moepage_status status = read_at(reader, reader->offset, head, sizeof head);
    if (status)
        return status;
    if (mp_trace_get32(head) == MP_TRACE_TRAILER_MAGIC)
        return check_trailer(reader);
    if (mp_trace_get32(head) != MP_TRACE_FRAME_MAGIC)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "byte %llu of the trace begins neither a frame nor the "
                       "trailer",
                       (unsigned long long)reader->offset);
    status = check_frame_head(reader, head);
    if (status)
        return status;
    uint32_t packed_bytes = mp_trace_get32(head + 4), raw_bytes = mp_trace_get32(head + 8);
    uint64_t sealed = MP_TRACE_FRAME_HEAD_BYTES + (uint64_t)packed_bytes;
    status = reserve(&reader->frame, sealed + MP_TRACE_CHECKSUM_BYTES);
    if (status)
        return status;
    unsigned char *frame = reader->frame.memory;
    status = read_at(reader, reader->offset, frame, sealed + MP_TRACE_CHECKSUM_BYTES);
    if (status)
        return status;
    uint64_t checksum = mp_trace_get64(frame + sealed);
    if (XXH3_64bits(frame, sealed) != checksum || memcmp(frame, head, sizeof head) != 0)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the trace's frame at byte %llu does not match its "
                       "checksum",
                       (unsigned long long)reader->offset);
    status = unpack(reader, frame + MP_TRACE_FRAME_HEAD_BYTES, packed_bytes, raw_bytes);
    if (status)
        return status;
    reader->offset += sealed + MP_TRACE_CHECKSUM_BYTES;
    reader->chain = mp_trace_chain(reader->chain, checksum);
    reader->raw_bytes = raw_bytes;
    reader->raw_at = 0;
    reader->frame_left = mp_trace_get32(head + 12);
    return MOEPAGE_OK;
}

/* ---- Records ----------------------------------------------------------------------------- */

static moepage_status bad_record(const mp_trace_reader *reader, const char *what)
{
    return mp_fail(MOEPAGE_E_FORMAT, "step %llu of the trace is malformed: %s",
                   (unsigned long long)reader->steps, what);
}

static bool take_layer(cursor *in, const moepage_trace_info *info, uint32_t n_tokens,
                       layer_part *part)
{
    const unsigned char *head = take(in, MP_TRACE_LAYER_HEAD_BYTES);
    if (!head)
        return false;
    part->layer = mp_trace_get32(head);
    part->top_k = mp_trace_get32(head + 4);
    uint32_t flags = mp_trace_get32(head + 8);
    if (part->layer >= info->moe_layers || !part->top_k || part->top_k > info->max_top_k ||
        flags & ~(info->has_probabilities ? MP_TRACE_LAYER_PROBABILITIES : UINT32_C(0)))
        return false;
    uint64_t n = (uint64_t)n_tokens * part->top_k;
    part->ids = take(in, n * sizeof(uint16_t));
    part->weights = part->ids ? take(in, n * sizeof(float)) : NULL;
    part->probabilities = NULL;
    if (part->weights && flags)
        return (part->probabilities = take(in, (uint64_t)n_tokens * info->experts * sizeof(float)));
    return part->weights != NULL;
}

static bool ids_in_range(const layer_part *part, uint64_t n, uint32_t experts)
{
    bool good = true;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t id = mp_trace_get16(part->ids + i * sizeof id);
        good &= id < experts || id == MP_TRACE_NO_EXPERT;
    }
    return good;
}

/* Checks all layers once: no layer missing, surplus, out of range or
 * repeated. Fills layer_present. */
static moepage_status check_layers(mp_trace_reader *reader, record *rec, cursor in)
{
    moepage_status status = reserve(&reader->arrays.layer_present, reader->info.moe_layers);
    if (status)
        return status;
    uint8_t *present = reader->arrays.layer_present.memory;
    memset(present, 0, reader->info.moe_layers);
    for (uint32_t i = 0; i < rec->n_layers; i++) {
        layer_part part;
        if (!take_layer(&in, &reader->info, rec->n_tokens, &part))
            return bad_record(reader, "a layer is out of range or does not fit the record");
        if (present[part.layer]++)
            return bad_record(reader, "a layer comes twice");
        if (!ids_in_range(&part, (uint64_t)rec->n_tokens * part.top_k, reader->info.experts))
            return bad_record(reader, "an expert id is out of range");
        rec->has_probabilities |= part.probabilities != NULL;
        if (part.top_k > rec->top_k)
            rec->top_k = part.top_k;
    }
    if (in.at != in.end)
        return bad_record(reader, "bytes are left over behind its layers");
    return MOEPAGE_OK;
}

static bool sequences_add_up(const record *rec)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < rec->n_sequences; i++) {
        moepage_step_sequence sequence;
        memcpy(&sequence, rec->sequences + i * sizeof sequence, sizeof sequence);
        if (sequence.phase > MOEPAGE_PHASE_PREFILL)
            return false;
        total += sequence.n_tokens;
    }
    return total == rec->n_tokens;
}

/* Checks the next record of the current frame. */
static moepage_status parse_record(mp_trace_reader *reader, record *rec)
{
    const unsigned char *raw = reader->raw.memory;
    cursor in = {raw + reader->raw_at, raw + reader->raw_bytes};
    const unsigned char *head = take(&in, MP_TRACE_RECORD_HEAD_BYTES);
    if (!head)
        return bad_record(reader, "its frame ends before it");
    *rec = (record){.bytes = mp_trace_get32(head),
                    .n_tokens = mp_trace_get32(head + 4),
                    .n_sequences = mp_trace_get32(head + 8),
                    .n_layers = mp_trace_get32(head + 12)};
    uint32_t flags = mp_trace_get32(head + 16);
    if (rec->bytes < MP_TRACE_RECORD_HEAD_BYTES || rec->bytes > (uint64_t)(in.end - head) ||
        (reader->frame_left == 1) != (rec->bytes == (uint64_t)(in.end - head)))
        return bad_record(reader, "its size does not fit its frame");
    in.end = head + rec->bytes;
    if (!rec->n_tokens || rec->n_tokens > MP_TRACE_MAX_TOKENS || !rec->n_sequences ||
        rec->n_sequences > MP_TRACE_MAX_TOKENS || rec->n_layers > reader->info.moe_layers ||
        flags & ~(reader->info.semantic_dim ? MP_TRACE_RECORD_SEMANTIC : UINT32_C(0)))
        return bad_record(reader, "a count or flag in its head is out of range");
    rec->sequences = take(&in, rec->n_sequences * (uint64_t)sizeof(moepage_step_sequence));
    if (!rec->sequences || !sequences_add_up(rec))
        return bad_record(reader, "its sequences do not add up to its tokens");
    if (flags && !(rec->semantic = take(&in, rec->n_sequences * (uint64_t)sizeof(float) *
                                                 reader->info.semantic_dim)))
        return bad_record(reader, "its semantic embeddings do not fit");
    rec->layers = in.at;
    moepage_status status = check_layers(reader, rec, in);
    if (!status && mp_trace_step_bytes(&reader->info, rec->n_tokens, rec->top_k, rec->n_sequences,
                                       rec->has_probabilities) > MP_TRACE_MAX_STEP_BYTES)
        return bad_record(reader, "it is larger than a step may be");
    return status;
}

static moepage_status reserve_arrays(mp_trace_reader *reader, const record *rec)
{
    step_arrays *arrays = &reader->arrays;
    uint64_t tokens = (uint64_t)reader->info.moe_layers * rec->n_tokens;
    uint64_t sequences = rec->n_sequences;
    moepage_status status = reserve(&arrays->sequences, sequences * sizeof(moepage_step_sequence));
    if (!status)
        status = reserve(&arrays->ids, tokens * rec->top_k * sizeof(int32_t));
    if (!status)
        status = reserve(&arrays->weights, tokens * rec->top_k * sizeof(float));
    if (!status && rec->has_probabilities)
        status = reserve(&arrays->probabilities, tokens * reader->info.experts * sizeof(float));
    if (!status && rec->semantic)
        status = reserve(&arrays->semantic, sequences * reader->info.semantic_dim * sizeof(float));
    return status;
}

/* Copies one layer's rows into rows of the step's top-k. The rest of each row keeps its padding. */
static void fill_layer(mp_trace_reader *reader, const record *rec, const layer_part *part)
{
    uint64_t first = (uint64_t)part->layer * rec->n_tokens;
    int32_t *ids = (int32_t *)reader->arrays.ids.memory + first * rec->top_k;
    float *weights = (float *)reader->arrays.weights.memory + first * rec->top_k;
    for (uint64_t t = 0; t < rec->n_tokens; t++) {
        const unsigned char *row = part->ids + t * part->top_k * sizeof(uint16_t);
        for (uint32_t k = 0; k < part->top_k; k++) {
            uint16_t id = mp_trace_get16(row + k * sizeof id);
            ids[t * rec->top_k + k] = id == MP_TRACE_NO_EXPERT ? MOEPAGE_NO_EXPERT : id;
        }
        memcpy(weights + t * rec->top_k, part->weights + t * part->top_k * sizeof(float),
               part->top_k * sizeof(float));
    }
    if (part->probabilities)
        memcpy((float *)reader->arrays.probabilities.memory + first * reader->info.experts,
               part->probabilities, (uint64_t)rec->n_tokens * reader->info.experts * sizeof(float));
}

/* Marks every layer absent and every slot empty. */
static void clear_arrays(mp_trace_reader *reader, const record *rec)
{
    uint64_t tokens = (uint64_t)reader->info.moe_layers * rec->n_tokens;
    int32_t *ids = reader->arrays.ids.memory;
    for (uint64_t i = 0; i < tokens * rec->top_k; i++)
        ids[i] = MOEPAGE_NO_EXPERT;
    memset(reader->arrays.weights.memory, 0, tokens * rec->top_k * sizeof(float));
    if (rec->has_probabilities)
        memset(reader->arrays.probabilities.memory, 0,
               tokens * reader->info.experts * sizeof(float));
}

static void fill_arrays(mp_trace_reader *reader, const record *rec)
{
    step_arrays *arrays = &reader->arrays;
    uint64_t sequences = rec->n_sequences;
    memcpy(arrays->sequences.memory, rec->sequences, sequences * sizeof(moepage_step_sequence));
    if (rec->semantic)
        memcpy(arrays->semantic.memory, rec->semantic,
               sequences * reader->info.semantic_dim * sizeof(float));
    clear_arrays(reader, rec);
    const unsigned char *raw = reader->raw.memory;
    cursor in = {rec->layers, raw + reader->raw_at + rec->bytes};
    layer_part part;
    for (uint32_t i = 0; i < rec->n_layers && take_layer(&in, &reader->info, rec->n_tokens, &part);
         i++)
        fill_layer(reader, rec, &part);
}

moepage_status mp_trace_reader_next(mp_trace_reader *reader, moepage_trace_step *step)
{
    moepage_status status = MOEPAGE_OK;
    record rec = {0};
    if (!reader->frame_left)
        status = load_frame(reader);
    if (!status)
        status = parse_record(reader, &rec);
    if (!status)
        status = reserve_arrays(reader, &rec);
    if (status)
        return status;
    fill_arrays(reader, &rec);
    *step = (moepage_trace_step){
        .struct_size = sizeof *step,
        .n_tokens = rec.n_tokens,
        .n_sequences = rec.n_sequences,
        .top_k = rec.top_k,
        .step = reader->steps,
        .sequences = reader->arrays.sequences.memory,
        .layer_present = reader->arrays.layer_present.memory,
        .ids = reader->arrays.ids.memory,
        .weights = reader->arrays.weights.memory,
        .probabilities = rec.has_probabilities ? reader->arrays.probabilities.memory : NULL,
        .semantic = rec.semantic ? reader->arrays.semantic.memory : NULL,
    };
    reader->raw_at += rec.bytes;
    reader->frame_left--;
    reader->steps++;
    return MOEPAGE_OK;
}

/* ---- The file ---------------------------------------------------------------------------- */

void mp_trace_reader_close(mp_trace_reader *reader)
{
    if (!reader)
        return;
    buffer *buffers[] = {&reader->frame,
                         &reader->raw,
                         &reader->arrays.sequences,
                         &reader->arrays.layer_present,
                         &reader->arrays.ids,
                         &reader->arrays.weights,
                         &reader->arrays.probabilities,
                         &reader->arrays.semantic};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        mp_free(buffers[i]->memory);
    ZSTD_freeDCtx(reader->zstd);
    if (reader->fd >= 0)
        close(reader->fd);
    mp_free(reader);
}

static moepage_status read_header(mp_trace_reader *reader)
{
    unsigned char header[MP_TRACE_HEADER_BYTES];
    if (reader->file_bytes < sizeof header)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "not a trace file, or truncated: it has %llu bytes, the "
                       "header alone %zu",
                       (unsigned long long)reader->file_bytes, sizeof header);
    moepage_status status = read_at(reader, 0, header, sizeof header);
    if (!status)
        status = mp_trace_header_decode(header, &reader->info);
    if (status)
        return status;
    reader->offset = sizeof header;
    reader->chain = mp_trace_chain(0, XXH3_64bits(header, sizeof header));
    return MOEPAGE_OK;
}

moepage_status mp_trace_reader_open(const char *path, moepage_trace_info *info,
                                    mp_trace_reader **out)
{
    mp_trace_reader *reader = mp_alloc(sizeof *reader);
    if (!reader)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a trace reader");
    reader->fd = -1;
    moepage_status status = mp_file_open(path, path, &reader->fd, &reader->file_bytes);
    if (status)
        goto fail;
    status = read_header(reader);
    if (status) {
        mp_fail_within(status, "%s", path);
        goto fail;
    }
    reader->zstd = ZSTD_createDCtx();
    if (!reader->zstd) {
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a trace reader");
        goto fail;
    }
    *info = reader->info;
    *out = reader;
    return MOEPAGE_OK;
fail:
    mp_trace_reader_close(reader);
    return status;
}
