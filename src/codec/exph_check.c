/* Checking a stream: everything that a decoder relies on, then every byte against its checksum.
 *
 * A stream has exactly one valid layout: a part that starts elsewhere or is longer than necessary
 * is refused. Codes are not decoded and padding is not inspected: the checksums cover both. */
#include "base/status.h"
#include "codec/exph_code.h"

#define NUMBER(x) ((unsigned long long)(x))

/* ---- The front ---- */

static moepage_status check_header(const uint8_t *stream, uint64_t bytes, uint32_t dtype,
                                   uint64_t n)
{
    if (bytes < MP_EXPH_AT_TABLE)
        return mp_fail(MOEPAGE_E_FORMAT, "the stream has %llu bytes, its header alone has %d",
                       NUMBER(bytes), MP_EXPH_AT_TABLE);
    if (stream[MP_EXPH_AT_VERSION] !=
        MP_EXPH_VERSION) /* before the checksum, whose place may differ in another version */
        return mp_fail(MOEPAGE_E_VERSION, "the stream has format version %u, this library reads %u",
                       stream[MP_EXPH_AT_VERSION], MP_EXPH_VERSION);
    if (stream[MP_EXPH_AT_DTYPE] != dtype)
        return mp_fail(MOEPAGE_E_FORMAT, "the stream holds dtype %u, the tensor's is %u",
                       stream[MP_EXPH_AT_DTYPE], dtype);
    if (mp_exph_get40(stream + MP_EXPH_AT_ELEMENTS) != n)
        return mp_fail(MOEPAGE_E_FORMAT, "the stream holds %llu elements, the tensor has %llu",
                       NUMBER(mp_exph_get40(stream + MP_EXPH_AT_ELEMENTS)), NUMBER(n));
    if (stream[MP_EXPH_AT_RESERVED])
        return mp_fail(MOEPAGE_E_FORMAT, "the header's reserved byte is %u, it must be 0",
                       stream[MP_EXPH_AT_RESERVED]);
    const uint64_t front = mp_exph_front_bytes(n);
    if (bytes < front || bytes % MP_EXPH_ALIGN)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the stream has %llu bytes, it must have at least %llu and a multiple of %u",
                       NUMBER(bytes), NUMBER(front), MP_EXPH_ALIGN);
    if (mp_exph_front_checksum(stream, front) != mp_exph_get32(stream + MP_EXPH_AT_CHECKSUM))
        return mp_fail(MOEPAGE_E_FORMAT, "the stream's header does not match its checksum");
    return MOEPAGE_OK;
}

static bool all_zero(const uint8_t *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (bytes[i])
            return false;
    }
    return true;
}

/* Accepts an empty codebook, or a complete code over distinct exponents of the type. */
static moepage_status check_book(const uint8_t *stream, mp_exph_type type, mp_exph_book *book)
{
    bool seen[256] = {false};
    const uint32_t exponents = 1u << type.exponent_bits;
    mp_exph_book_read(stream, book);
    if (all_zero(stream + MP_EXPH_AT_EXPONENTS, MP_EXPH_AT_TABLE - MP_EXPH_AT_EXPONENTS))
        return MOEPAGE_OK;
    if (!book->valid)
        return mp_fail(MOEPAGE_E_FORMAT, "the code lengths are not those of a complete code");
    if (stream[MP_EXPH_AT_EXPONENTS + MP_EXPH_ESCAPE])
        return mp_fail(MOEPAGE_E_FORMAT, "the escape has exponent %u, it must have none",
                       stream[MP_EXPH_AT_EXPONENTS + MP_EXPH_ESCAPE]);
    for (uint32_t s = 0; s < MP_EXPH_ESCAPE; s++) {
        const uint32_t e = book->exponent[s];
        if (book->length[s] ? e >= exponents || seen[e] : e != 0)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "symbol %u has exponent %u, it must be unique and below %u", s, e,
                           exponents);
        seen[e] = seen[e] || book->length[s];
    }
    return MOEPAGE_OK;
}

/* ---- A chunk ---- */

typedef struct range {
    const uint8_t *base;
    uint64_t bytes; /* from `base` to the stream's end */
    uint32_t value;
    uint32_t n;
    mp_exph_type type;
} range;

static moepage_status check_escapes(const range *in)
{
    const uint8_t *positions = in->base + mp_exph_index_bytes(in->n, 0);
    const uint8_t *exponents = positions + in->value * 2;
    uint32_t least = 0;
    for (uint32_t i = 0; i < in->value; i++) {
        const uint32_t position = mp_exph_get16(positions + i * 2);
        if (position < least || position >= in->n)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "escape %u is at element %u, it must be in order and below %u", i,
                           position, in->n);
        if (exponents[i] >> in->type.exponent_bits)
            return mp_fail(MOEPAGE_E_FORMAT, "escape %u has exponent %u, it must be below %u", i,
                           exponents[i], 1u << in->type.exponent_bits);
        least = position + 1;
    }
    return MOEPAGE_OK;
}

/* Returns the bytes that a tile's bits take. */
static uint32_t tile_bytes(const uint8_t *head, const uint8_t *lengths)
{
    const uint32_t shape = mp_exph_get16(head + 2), shift = shape >> MP_EXPH_SHORTEST_BITS;
    uint32_t sum = (shape & ((1u << MP_EXPH_SHORTEST_BITS) - 1)) * MP_EXPH_LANES;
    for (uint32_t lane = 0; lane < MP_EXPH_LANES; lane++)
        sum += (uint32_t)lengths[lane] << shift;
    return (sum + 7) / 8;
}

/* Sets *bytes to the size that a coded chunk must have. */
static moepage_status measure_coded(const range *in, const mp_exph_book *book, uint64_t *bytes)
{
    const uint32_t tiles = mp_exph_tiles(in->n);
    const uint64_t index = mp_exph_index_bytes(in->n, in->value);
    if (!book->valid)
        return mp_fail(MOEPAGE_E_FORMAT, "the chunk is coded, but the stream has no code");
    if (in->bytes < index)
        return mp_fail(MOEPAGE_E_FORMAT, "the chunk has %llu bytes, its index alone has %llu",
                       NUMBER(in->bytes), NUMBER(index));
    uint64_t offset = 0;
    for (uint32_t t = 0; t < tiles; t++) {
        const uint8_t *head = in->base + t * MP_EXPH_HEAD_BYTES;
        if (mp_exph_get16(head) != offset)
            return mp_fail(MOEPAGE_E_FORMAT, "tile %u begins at byte %u, it must begin at %llu", t,
                           mp_exph_get16(head), NUMBER(offset));
        offset +=
            tile_bytes(head, in->base + tiles * MP_EXPH_HEAD_BYTES + (size_t)t * MP_EXPH_LANES);
    }
    *bytes = mp_exph_align(index + offset) + mp_exph_rest_bytes(&in->type, in->n);
    return check_escapes(in);
}

static moepage_status measure(const range *in, uint32_t mode, const mp_exph_book *book,
                              uint64_t *bytes)
{
    switch (mode) {
    case MP_EXPH_CODED: return measure_coded(in, book, bytes);
    case MP_EXPH_CONSTANT:
        *bytes = mp_exph_rest_bytes(&in->type, in->n);
        if (in->value >> in->type.exponent_bits)
            return mp_fail(MOEPAGE_E_FORMAT, "the constant exponent is %u, it must be below %u",
                           in->value, 1u << in->type.exponent_bits);
        return MOEPAGE_OK;
    case MP_EXPH_RAW:
        *bytes = mp_exph_align((uint64_t)in->n * in->type.bytes);
        if (in->value)
            return mp_fail(MOEPAGE_E_FORMAT, "the value of a raw chunk is %u, it must be 0",
                           in->value);
        return MOEPAGE_OK;
    default: return mp_fail(MOEPAGE_E_FORMAT, "the chunk's mode is %u, it must be 0 to 2", mode);
    }
}

/* Checks the chunk that must begin at *offset; advances *offset to the start of the next one. */
static moepage_status check_chunk(const uint8_t *stream, uint64_t bytes, const mp_exph_book *book,
                                  range *in, const uint8_t *entry, uint64_t *offset)
{
    const uint64_t begin = mp_exph_get40(entry + MP_EXPH_ENTRY_OFFSET) * MP_EXPH_ALIGN;
    uint64_t size = 0;
    if (begin != *offset || begin > bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "it begins at byte %llu, it must begin at %llu of %llu",
                       NUMBER(begin), NUMBER(*offset), NUMBER(bytes));
    in->base = stream + begin;
    in->bytes = bytes - begin;
    in->value = mp_exph_get16(entry + MP_EXPH_ENTRY_VALUE);
    moepage_status status = measure(in, entry[MP_EXPH_ENTRY_MODE], book, &size);
    if (status)
        return status;
    if (size > in->bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "it takes %llu bytes, the stream has %llu left",
                       NUMBER(size), NUMBER(in->bytes));
    if (mp_exph_chunk_checksum(in->base, size) != mp_exph_get32(entry + MP_EXPH_ENTRY_CHECKSUM))
        return mp_fail(MOEPAGE_E_FORMAT, "its bytes do not match their checksum");
    *offset += size;
    return MOEPAGE_OK;
}

moepage_status mp_exph_check(const void *stream, uint64_t bytes, uint32_t dtype, uint64_t n)
{
    mp_exph_book book;
    range in = {.type = mp_exph_type_of(dtype)};
    if (!in.type.bytes || n > MP_EXPH_MAX_ELEMENTS)
        return mp_fail(MOEPAGE_E_FORMAT, "no stream holds %llu elements of dtype %u", NUMBER(n),
                       dtype);
    moepage_status status = check_header(stream, bytes, dtype, n);
    if (!status)
        status = check_book(stream, in.type, &book);
    uint64_t offset = mp_exph_front_bytes(n);
    const uint8_t *entry = (const uint8_t *)stream + MP_EXPH_AT_TABLE;
    for (uint64_t i = 0; !status && i < mp_exph_chunks(n); i++, entry += MP_EXPH_ENTRY_BYTES) {
        in.n = mp_exph_chunk_elements(n, i);
        status = check_chunk(stream, bytes, &book, &in, entry, &offset);
        if (status)
            return mp_fail_within(status, "chunk %llu", NUMBER(i));
    }
    if (!status && offset != bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "the stream has %llu bytes, its chunks end at %llu",
                       NUMBER(bytes), NUMBER(offset));
    return status;
}
