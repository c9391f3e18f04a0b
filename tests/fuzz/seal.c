/* Making checksums right. */
#include "seal.h"

#include <string.h>
#include <xxhash.h>

#include "moepage.h"

static uint64_t get(const uint8_t *at, unsigned n_bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, n_bytes);
    return value;
}

static void put(uint8_t *at, uint64_t value, unsigned n_bytes)
{
    memcpy(at, &value, n_bytes);
}

/* ---- Exponent-Huffman streams ------------------------------------------------------------ */

enum { UNIT = 16, CHUNK = 32768, TABLE = 36, CHUNK_ENTRY = 12 };

static uint64_t chunk_at(const uint8_t *stream, size_t n_bytes, uint64_t chunk, uint64_t chunks)
{
    return chunk == chunks ? n_bytes : get(stream + TABLE + chunk * CHUNK_ENTRY, 5) * UNIT;
}

void seal_exph(uint8_t *stream, size_t n_bytes, uint64_t n)
{
    uint64_t chunks = n / CHUNK + (n % CHUNK != 0);
    if (n_bytes < TABLE || chunks > n_bytes / CHUNK_ENTRY)
        return;
    uint64_t front = (TABLE + chunks * CHUNK_ENTRY + UNIT - 1) / UNIT * UNIT;
    if (front > n_bytes)
        return;
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t from = chunk_at(stream, n_bytes, i, chunks);
        uint64_t to = chunk_at(stream, n_bytes, i + 1, chunks);
        if (from <= to && to <= n_bytes)
            put(stream + TABLE + i * CHUNK_ENTRY + 8, XXH3_64bits(stream + from, to - from), 4);
    }
    put(stream + 8, XXH3_64bits_withSeed(stream + 12, front - 12, get(stream, 8)), 4);
}

/* ---- Packs ------------------------------------------------------------------------------- */

enum {
    HEADER = 128,
    SECTION_ENTRY = 32,
    DENSE_DIRECTORY = 3,
    DENSE_DATA = 4,
    EXPERT_INDEX = 5,
    EXPERT_DATA = 6,
    DENSE_HEAD = 16,
    DENSE_ENTRY = 80,
    INDEX_HEAD = 32,
    RECORD_HEAD = 24,
    RECORD_ALIGN = 64,
    RAW = 31 /* the bit of a part's size */
};

typedef struct pack {
    uint8_t *bytes;
    size_t n_bytes;
    unsigned leave;
} pack;

/* A range of the file, or NULL. */
static uint8_t *range(const pack *file, uint64_t offset, uint64_t n_bytes)
{
    if (offset > file->n_bytes || n_bytes > file->n_bytes - offset)
        return NULL;
    return file->bytes + offset;
}

/* The i-th entry of the section table, or NULL behind the last. */
static uint8_t *section(const pack *file, uint32_t i)
{
    if (i >= get(file->bytes + 32, 4))
        return NULL;
    return range(file, HEADER + (uint64_t)i * SECTION_ENTRY, SECTION_ENTRY);
}

static const uint8_t *find_section(const pack *file, uint32_t type)
{
    const uint8_t *entry;
    for (uint32_t i = 0; (entry = section(file, i)); i++)
        if (get(entry, 4) == type)
            return entry;
    return NULL;
}

/* The streams of one image: its parts lie back to back. */
static void seal_parts(const pack *file, const uint8_t *sizes, uint32_t n_parts, uint64_t offset)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        uint32_t size = (uint32_t)get(sizes + 4 * i, 4);
        uint64_t n_bytes = (uint64_t)(size & ~(1u << RAW)) * UNIT;
        uint8_t *part = range(file, offset, n_bytes);
        if (part && !(size >> RAW) && n_bytes >= TABLE)
            seal_exph(part, n_bytes, get(part + 2, 5));
        offset += n_bytes;
    }
}

static void seal_record(const pack *file, uint8_t *entry, uint32_t form, uint32_t n_parts)
{
    uint64_t offset = get(entry, 8), n_bytes = get(entry + 8, 8);
    if (n_bytes > file->n_bytes)
        return;
    if (form == MOEPAGE_FORM_EXPH && !(file->leave & SEAL_LEAVE_STREAMS))
        seal_parts(file, entry + RECORD_HEAD, n_parts, offset);
    n_bytes = (n_bytes + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
    const uint8_t *record = range(file, offset, n_bytes);
    if (record)
        put(entry + 16, XXH3_64bits(record, n_bytes), 8);
}

static void seal_index(const pack *file, uint8_t *index, uint64_t n_bytes)
{
    if (n_bytes < INDEX_HEAD)
        return;
    uint32_t form = (uint32_t)get(index, 4), n_parts = (uint32_t)get(index + 12, 4);
    if (n_parts > MOEPAGE_MAX_EXPERT_TENSORS)
        return;
    uint64_t entry = (RECORD_HEAD + 4 * n_parts + 7) / 8 * 8;
    for (uint64_t at = INDEX_HEAD; at <= n_bytes && entry <= n_bytes - at; at += entry)
        seal_record(file, index + at, form, n_parts);
}

static void seal_dense(const pack *file, uint8_t *directory, uint64_t n_bytes)
{
    const uint8_t *data = find_section(file, DENSE_DATA);
    if (!data || n_bytes < DENSE_HEAD)
        return;
    uint64_t n = get(directory, 8), first = get(data + 8, 8);
    for (uint64_t i = 0; i < n && i < (n_bytes - DENSE_HEAD) / DENSE_ENTRY; i++) {
        uint8_t *entry = directory + DENSE_HEAD + i * DENSE_ENTRY;
        uint64_t size = get(entry + 64, 8);
        const uint8_t *tensor = range(file, first + get(entry + 56, 8), size);
        if (tensor)
            put(entry + 72, XXH3_64bits(tensor, size), 8);
    }
}

static void seal_sections(const pack *file)
{
    uint8_t *entry;
    for (uint32_t i = 0; (entry = section(file, i)); i++) {
        uint32_t type = (uint32_t)get(entry, 4);
        uint64_t n_bytes = get(entry + 16, 8);
        uint8_t *bytes = range(file, get(entry + 8, 8), n_bytes);
        if (!bytes)
            continue;
        if (type == EXPERT_INDEX && !(file->leave & SEAL_LEAVE_RECORDS))
            seal_index(file, bytes, n_bytes);
        if (type == DENSE_DIRECTORY && !(file->leave & SEAL_LEAVE_RECORDS))
            seal_dense(file, bytes, n_bytes);
        if (type != DENSE_DATA && type != EXPERT_DATA && !(file->leave & SEAL_LEAVE_SECTIONS))
            put(entry + 24, XXH3_64bits(bytes, n_bytes), 8);
    }
}

void seal_pack(uint8_t *file, size_t n_bytes, unsigned leave)
{
    pack of = {file, n_bytes, leave};
    if (n_bytes < HEADER)
        return;
    if (!(leave & SEAL_LEAVE_SIZE))
        put(file + 16, n_bytes, 8);
    seal_sections(&of);
    uint64_t table = get(file + 32, 4) * SECTION_ENTRY;
    if (!(leave & SEAL_LEAVE_TABLE) && table <= n_bytes - HEADER)
        put(file + 40, XXH3_64bits(file + HEADER, table), 8);
    if (!(leave & SEAL_LEAVE_HEADER))
        put(file + 120, XXH3_64bits(file, 120), 8);
}
