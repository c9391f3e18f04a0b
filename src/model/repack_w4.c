/* Blocks of W4, or weights' values, from stored words, scales and zero-points. */
#include "model/repack_w4.h"

#include <string.h>

#include "base/floats.h"
#include "base/status.h"

/* Weights of which a block's bytes are taken at a time. */
#define STEP 32u
#define STEP_BYTES 16u
#define HEAD_BYTES 4u
#define PER_WORD 8u

/* The zero-point where none are stored. */
#define MIDDLE 8u

uint32_t mp_w4_block(uint64_t group)
{
    for (uint32_t block = 128; block >= 32; block /= 2)
        if (group && group % block == 0)
            return block;
    return 0;
}

/* ---- kinds ---- */

typedef struct w4_kind {
    mp_repack_kind kind; /* of this */
    mp_w4_layout layout;
    uint32_t values; /* MOEPAGE_DTYPE_*; NONE: blocks */
} w4_kind;

static const w4_kind *kind_of(const mp_repack *how)
{
    return (const w4_kind *)how->kind;
}

static bool is_packed(const mp_repack *how)
{
    return kind_of(how)->layout == MP_W4_PACKED;
}

static bool is_awq(const mp_repack *how)
{
    return kind_of(how)->layout == MP_W4_AWQ;
}

/* ---- shapes ---- */

typedef struct shape {
    uint64_t columns; /* K */
    uint64_t groups;  /* G */
    uint64_t block;   /* weights of a block */
    uint64_t blocks;  /* of a row */
    uint64_t blocks_a_group;
} shape;

static shape shape_of(const mp_repack *how)
{
    const mp_repack_source *weights = &how->sources[MP_W4_WEIGHTS];
    const mp_repack_source *scales = &how->sources[MP_W4_SCALES];
    shape out = {0};
    if (is_packed(how)) {
        out.columns = weights->row_bytes * 2;
        out.groups = scales->row_bytes / sizeof(uint16_t);
    } else {
        out.columns = is_awq(how) ? weights->rows : weights->rows * PER_WORD;
        out.groups = scales->rows;
    }
    if (kind_of(how)->values)
        return out;
    out.blocks = (how->row_bytes - out.columns / 2) / HEAD_BYTES;
    out.block = out.columns / out.blocks;
    out.blocks_a_group = out.blocks / out.groups;
    return out;
}

/* Words that hold one number each of rows [first, first + n). */
static uint64_t words_of(uint64_t first, uint64_t n)
{
    return (first + n - 1) / PER_WORD - first / PER_WORD + 1;
}

/* At most so many, wherever they begin. */
static uint64_t most_words(uint64_t n)
{
    return (n + PER_WORD - 2) / PER_WORD + 1;
}

/* ---- what is read ---- */

/* Windows of the sources with n rows of the piece, from row `first` on. */
typedef struct windows {
    uint64_t first, n;
    const unsigned char *weights, *scales;
    const uint32_t *zeros;  /* or NULL */
    const uint32_t *groups; /* or NULL */
} windows;

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* A window of `n` rows of a source's `unit` bytes each. */
typedef struct extent {
    mp_repack_range range;
    uint64_t room; /* at most, for so many rows of the piece */
} extent;

/* Of the words that hold a number of each row of the piece side by side. */
static extent across_words(uint64_t source_rows, uint64_t first, uint64_t n)
{
    return (extent){{0, source_rows, first / PER_WORD * 4, words_of(first, n) * 4},
                    source_rows * most_words(n) * 4};
}

/* Of elements side by side, one of each row of the piece. */
static extent across(uint64_t source_rows, uint64_t first, uint64_t n, uint64_t element)
{
    return (extent){{0, source_rows, first * element, n * element}, source_rows * n * element};
}

/* Of whole rows of the source. */
static extent along(const mp_repack_source *source, uint64_t first, uint64_t n)
{
    return (extent){{first, n, 0, source->row_bytes}, n * source->row_bytes};
}

static extent extent_of(const mp_repack *how, uint32_t s, uint64_t first, uint64_t n)
{
    const mp_repack_source *source = &how->sources[s];
    if (s == MP_W4_GROUPS)
        return along(source, 0, source->rows);
    if (is_packed(how) && s == MP_W4_ZEROS) {
        extent words = along(source, first / PER_WORD, words_of(first, n));
        words.room = most_words(n) * source->row_bytes;
        return words;
    }
    if (is_packed(how))
        return along(source, first, n);
    if (s == MP_W4_SCALES)
        return across(source->rows, first, n, sizeof(uint16_t));
    if (s == MP_W4_WEIGHTS && !is_awq(how))
        return across(source->rows, first, n, sizeof(uint32_t));
    return across_words(source->rows, first, n);
}

static uint64_t room_of(const mp_repack *how, uint64_t n)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < MP_W4_SOURCES; s++)
        if (how->sources[s].rows)
            bytes += aligned(extent_of(how, s, 0, n).room);
    return bytes;
}

/* In blocks, groups of columns must be runs of as many, because a scale is of weights that follow each other;
 * of values, those that there are. */
static moepage_status check_groups(const mp_repack *how, const mp_file_span *stored,
                                   const uint32_t *group_of)
{
    const shape of = shape_of(how);
    for (uint64_t k = 0; k < of.columns; k++) {
        const uint64_t in_place = k / (of.columns / of.groups);
        if (kind_of(how)->values ? group_of[k] >= of.groups : group_of[k] != in_place)
            return mp_fail(
                MOEPAGE_E_FORMAT,
                "%.200s: column %llu of a matrix is of group %u of %llu, in its place is group "
                "%llu%s",
                stored[MP_W4_GROUPS].file->name, (unsigned long long)k, group_of[k],
                (unsigned long long)of.groups, (unsigned long long)in_place,
                kind_of(how)->values ? "" : ", and config.json says nothing of act-order");
    }
    return MOEPAGE_OK;
}

static moepage_status read_windows(const mp_repack *how, const mp_file_span *stored,
                                   unsigned char *room, windows *out)
{
    const void *at[MP_W4_SOURCES] = {NULL};
    moepage_status status = MOEPAGE_OK;
    for (uint32_t s = 0; s < MP_W4_SOURCES && !status; s++) {
        if (!how->sources[s].rows)
            continue;
        const extent of = extent_of(how, s, out->first, out->n);
        status = mp_repack_window(how, stored, s, &of.range, room);
        at[s] = room;
        room += aligned(of.range.n * of.range.bytes);
    }
    if (!status && at[MP_W4_GROUPS])
        status = check_groups(how, stored, at[MP_W4_GROUPS]);
    out->weights = at[MP_W4_WEIGHTS];
    out->scales = at[MP_W4_SCALES];
    out->zeros = at[MP_W4_ZEROS];
    out->groups = at[MP_W4_GROUPS];
    return status;
}

/* ---- scales and zero-points ---- */

/* The place in an AWQ word of number i of eight. */
static uint32_t awq_place(uint64_t i)
{
    return (uint32_t)(i % 2 * 4 + i % PER_WORD / 2);
}

/* Row r of the windows, group g. */
static uint32_t zero_of(const mp_repack *how, const windows *in, const shape *of, uint64_t r,
                        uint64_t g)
{
    const uint64_t row = in->first + r, word = row / PER_WORD - in->first / PER_WORD;
    if (!in->zeros)
        return MIDDLE;
    if (is_packed(how))
        return in->zeros[word * of->groups + g] >> 4 * (row % PER_WORD) & 15;
    const uint32_t bits = in->zeros[g * words_of(in->first, in->n) + word];
    if (is_awq(how))
        return bits >> 4 * awq_place(row) & 15;
    const uint32_t stored = bits >> 4 * (row % PER_WORD) & 15;
    return kind_of(how)->layout == MP_W4_GPTQ_V1 ? stored + 1 : stored;
}

static moepage_status check_zero(const mp_file_span *stored, uint32_t zero)
{
    if (zero <= 15)
        return MOEPAGE_OK;
    return mp_fail(
        MOEPAGE_E_FORMAT,
        "%.200s: a zero-point is stored as 15: decoders of GPTQ's first layout read it as 0 or "
        "as 16",
        stored[MP_W4_ZEROS].file->name);
}

static uint16_t scale_of(const mp_repack *how, const windows *in, const shape *of, uint64_t r,
                         uint64_t g)
{
    uint16_t scale;
    memcpy(&scale,
           in->scales + (is_packed(how) ? r * of->groups + g : g * in->n + r) * sizeof scale,
           sizeof scale);
    return scale;
}

static moepage_status put_heads(const mp_repack *how, const mp_file_span *stored, const windows *in,
                                const shape *of, unsigned char *out)
{
    for (uint64_t r = 0; r < in->n; r++)
        for (uint64_t b = 0; b < of->blocks; b++) {
            const uint64_t g = b / of->blocks_a_group;
            const uint16_t scale = scale_of(how, in, of, r, g);
            const uint32_t zero = zero_of(how, in, of, r, g);
            unsigned char *head = out + r * how->row_bytes + b * (HEAD_BYTES + of->block / 2);
            moepage_status status = check_zero(stored, zero);
            if (status)
                return status;
            memcpy(head, &scale, sizeof scale);
            head[2] = (unsigned char)zero;
            head[3] = 0;
        }
    return MOEPAGE_OK;
}

/* ---- weights ---- */

/* Where in a row the bytes of weights [STEP * step, STEP * step + STEP) go. */
static uint64_t step_at(const shape *of, uint64_t step)
{
    return (step * STEP / of->block + 1) * HEAD_BYTES + step * STEP_BYTES;
}

/* Words side by side that share a cache line: their rows are filled together. */
#define LINE 16u

/* Eight nibbles to the low halves of eight bytes. */
static uint64_t spread(uint32_t word)
{
    uint64_t x = word;
    x = (x | x << 16) & 0x0000ffff0000ffffu;
    x = (x | x << 8) & 0x00ff00ff00ff00ffu;
    return (x | x << 4) & 0x0f0f0f0f0f0f0f0fu;
}

/* Four words, `stride` words apart, are 32 weights of a row. */
static void put_words(const unsigned char *from, uint64_t stride, unsigned char *out)
{
    uint32_t words[4];
    for (uint32_t i = 0; i < 4; i++)
        memcpy(&words[i], from + i * stride * sizeof *words, sizeof *words);
    const uint64_t halves[] = {spread(words[0]) | spread(words[2]) << 4,
                               spread(words[1]) | spread(words[3]) << 4};
    memcpy(out, halves, sizeof halves);
}

static void put_along(const mp_repack *how, const windows *in, const shape *of, unsigned char *out)
{
    const bool by_row = is_packed(how);
    const uint64_t words = of->columns / PER_WORD, stride = by_row ? 1 : in->n;
    for (uint64_t from = 0; from < in->n; from += LINE) {
        const uint64_t end = in->n - from < LINE ? in->n : from + LINE;
        for (uint64_t step = 0; step < of->columns / STEP; step++) {
            const uint64_t at = step_at(of, step);
            for (uint64_t r = from; r < end; r++) {
                const uint64_t word = by_row ? r * words + 4 * step : 4 * step * in->n + r;
                put_words(in->weights + word * sizeof(uint32_t), stride,
                          out + r * how->row_bytes + at);
            }
        }
    }
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));

/* Deals the first 32 of 64 bytes and the others in turn, four times: byte 4 * i + j gets to 16 * j + i. */
static void turn_words(bytes16 *v)
{
    for (int round = 0; round < 4; round++) {
        const bytes16 a = v[0], b = v[1], c = v[2], d = v[3];
        v[0] = MP_SHUFFLED(bytes16, a, c, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        v[1] = MP_SHUFFLED(bytes16, a, c, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                           31);
        v[2] = MP_SHUFFLED(bytes16, b, d, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        v[3] = MP_SHUFFLED(bytes16, b, d, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                           31);
    }
}

/* Of a word of each of 32 columns, the weights of eight rows: out[p] is of those at place p. */
static void turn_step(const uint32_t *words, bytes16 *out)
{
    bytes16 first[4], second[4];
    memcpy(first, words, sizeof first);
    memcpy(second, words + STEP / 2, sizeof second);
    turn_words(first);
    turn_words(second);
    for (uint32_t j = 0; j < 4; j++) {
        out[2 * j] = (first[j] & 15) | second[j] << 4;
        out[2 * j + 1] = first[j] >> 4 | (second[j] & 240);
    }
}

/* Word w of each column of a step: eight rows, of which some are not asked for. */
static void put_step(const mp_repack *how, const windows *in, uint64_t step, uint64_t w,
                     unsigned char *out)
{
    const uint64_t n_words = words_of(in->first, in->n), skip = in->first % PER_WORD;
    uint32_t words[STEP];
    bytes16 turned[PER_WORD];
    for (uint32_t i = 0; i < STEP; i++)
        memcpy(&words[i], in->weights + ((step * STEP + i) * n_words + w) * sizeof *words,
               sizeof *words);
    turn_step(words, turned);
    for (uint64_t i = w ? 0 : skip; i < PER_WORD && w * PER_WORD + i < skip + in->n; i++)
        memcpy(out + (w * PER_WORD + i - skip) * how->row_bytes, &turned[awq_place(i)], STEP_BYTES);
}

static void put_across(const mp_repack *how, const windows *in, const shape *of, unsigned char *out)
{
    const uint64_t n_words = words_of(in->first, in->n);
    for (uint64_t from = 0; from < n_words; from += LINE) {
        const uint64_t end = n_words - from < LINE ? n_words : from + LINE;
        for (uint64_t step = 0; step < of->columns / STEP; step++)
            for (uint64_t w = from; w < end; w++)
                put_step(how, in, step, w, out + step_at(of, step));
    }
}

static moepage_status fill_blocks(const mp_repack *how, const mp_file_span *stored,
                                  const mp_repack_rows *rows, unsigned char *room,
                                  unsigned char *out)
{
    const shape of = shape_of(how);
    windows in = {.first = rows->first, .n = rows->n};
    moepage_status status = read_windows(how, stored, room, &in);
    if (!status)
        status = put_heads(how, stored, &in, &of, out);
    if (status)
        return status;
    if (is_awq(how))
        put_across(how, &in, &of, out);
    else
        put_along(how, &in, &of, out);
    return MOEPAGE_OK;
}

/* ---- values ---- */

/* The values of a group of a row. */
typedef uint16_t levels[16];

static uint64_t levels_bytes(const mp_repack *how)
{
    return aligned(shape_of(how).groups * sizeof(levels));
}

static uint64_t values_room(const mp_repack *how, uint64_t n)
{
    return levels_bytes(how) + room_of(how, n);
}

static uint16_t value_of(uint32_t dtype, uint16_t scale, int32_t integer)
{
    if (dtype == MOEPAGE_DTYPE_BF16)
        return mp_to_bf16(mp_from_bf16(scale) * (float)integer);
    return mp_to_f16(mp_from_f16(scale) * (float)integer);
}

static moepage_status find_levels(const mp_repack *how, const mp_file_span *stored,
                                  const windows *in, const shape *of, uint64_t r, levels *out)
{
    for (uint64_t g = 0; g < of->groups; g++) {
        const uint16_t scale = scale_of(how, in, of, r, g);
        const uint32_t zero = zero_of(how, in, of, r, g);
        moepage_status status = check_zero(stored, zero);
        if (status)
            return status;
        for (int32_t q = 0; q < 16; q++)
            out[g][q] = value_of(kind_of(how)->values, scale, q - (int32_t)zero);
    }
    return MOEPAGE_OK;
}

static void put_values(const mp_repack *how, const windows *in, const shape *of, uint64_t r,
                       const levels *level, unsigned char *out)
{
    for (uint64_t k = 0; k < of->columns; k++) {
        const uint64_t at =
            is_packed(how) ? r * (of->columns / PER_WORD) + k / PER_WORD : k / PER_WORD * in->n + r;
        uint32_t word;
        memcpy(&word, in->weights + at * sizeof word, sizeof word);
        memcpy(out + k * sizeof(uint16_t), &level[in->groups[k]][word >> 4 * (k % PER_WORD) & 15],
               sizeof(uint16_t));
    }
}

static moepage_status fill_values(const mp_repack *how, const mp_file_span *stored,
                                  const mp_repack_rows *rows, unsigned char *room,
                                  unsigned char *out)
{
    const shape of = shape_of(how);
    windows in = {.first = rows->first, .n = rows->n};
    levels *level = (levels *)(void *)room;
    moepage_status status = read_windows(how, stored, room + levels_bytes(how), &in);
    for (uint64_t r = 0; r < rows->n && !status; r++) {
        status = find_levels(how, stored, &in, &of, r, level);
        if (!status)
            put_values(how, &in, &of, r, level, out + r * how->row_bytes);
    }
    return status;
}

/* ---- all kinds ---- */

const mp_repack_kind *mp_repack_w4(mp_w4_layout layout)
{
    static const w4_kind kinds[] = {
        [MP_W4_GPTQ_V1] = {{room_of, fill_blocks}, MP_W4_GPTQ_V1, MOEPAGE_DTYPE_NONE},
        [MP_W4_GPTQ_V2] = {{room_of, fill_blocks}, MP_W4_GPTQ_V2, MOEPAGE_DTYPE_NONE},
        [MP_W4_AWQ] = {{room_of, fill_blocks}, MP_W4_AWQ, MOEPAGE_DTYPE_NONE},
        [MP_W4_PACKED] = {{room_of, fill_blocks}, MP_W4_PACKED, MOEPAGE_DTYPE_NONE},
    };
    return &kinds[layout].kind;
}

const mp_repack_kind *mp_repack_w4_values(mp_w4_layout layout, bool bf16)
{
#define VALUES(layout, dtype) \
    [layout] = { {values_room, fill_values}, layout, MOEPAGE_DTYPE_##dtype }
    static const w4_kind halves[] = {VALUES(MP_W4_GPTQ_V1, F16), VALUES(MP_W4_GPTQ_V2, F16),
                                     VALUES(MP_W4_PACKED, F16)};
    static const w4_kind bf16s[] = {VALUES(MP_W4_GPTQ_V1, BF16), VALUES(MP_W4_GPTQ_V2, BF16),
                                    VALUES(MP_W4_PACKED, BF16)};
#undef VALUES
    return bf16 ? &bf16s[layout].kind : &halves[layout].kind;
}
