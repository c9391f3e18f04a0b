/* Trace files that are cut, changed or contradict themselves: always found, never read out of
 * bounds, and never a wrong step handed out before the damage is found.
 *
 * Files are built here by hand from docs/format-trace.md, with checksums that are right, so that
 * the checks behind the checksums are reached too. No byte of a file is exempt. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "moepage.h"
#include "testing.h"
#include "trace/trace.h"

static char directory[256], path[300]; /* for a file that the writer makes */
static int image;                      /* a file in memory: damaged files are many */
static char image_path[64];

static int make_files(void **state)
{
    (void)state;
    image = memfd_create("moepage-trace", MFD_CLOEXEC);
    snprintf(image_path, sizeof image_path, "/proc/self/fd/%d", image);
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/moepage-trace-XXXXXX", parent ? parent : P_tmpdir);
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/written.moetrace", directory);
    return image < 0 ? -1 : 0;
}

static int remove_files(void **state)
{
    (void)state;
    close(image);
    unlink(path);
    return rmdir(directory);
}

/* ---- Files by hand ----------------------------------------------------------------------- */

typedef struct bytes {
    unsigned char data[1 << 14];
    size_t n;
} bytes;

static void put(bytes *out, const void *data, size_t n)
{
    assert_true(out->n + n <= sizeof out->data);
    memcpy(out->data + out->n, data, n);
    out->n += n;
}

static void put_number(bytes *out, uint64_t value, int width)
{
    for (int i = 0; i < width; i++) {
        unsigned char byte = (unsigned char)(value >> (8 * i));
        put(out, &byte, 1);
    }
}

static void set_number(bytes *out, size_t at, uint64_t value, int width)
{
    for (int i = 0; i < width; i++)
        out->data[at + (size_t)i] = (unsigned char)(value >> (8 * i));
}

enum { LAYERS = 3, EXPERTS = 5, TOP_K = 2, DIM = 2, TOKENS = 3 };

static void put_header(bytes *out)
{
    static const char model[64] = "hand_made";
    put(out, "MOETRACE", 8);
    put_number(out, 1, 2);
    put_number(out, 0, 2);
    put_number(out, 128, 4);
    put_number(out, LAYERS, 4);
    put_number(out, EXPERTS, 4);
    put_number(out, TOP_K, 4);
    put_number(out, DIM, 4);
    put_number(out, 1, 4);
    put_number(out, 0, 4);
    put(out, model, sizeof model);
    put_number(out, 0, 8);
    put_number(out, 0, 8);
    put_number(out, XXH3_64bits(out->data, 120), 8);
}

static float value_of(uint32_t step, uint32_t a, uint32_t b)
{
    return (float)(step * 1000 + a * 50 + b) + 0.25f;
}

/* Offsets in a record by put_record. */
enum {
    AT_TOKENS = 4,
    AT_SEQUENCES = 8,
    AT_LAYERS = 12,
    AT_FLAGS = 16,
    AT_SEQ0_TOKENS = 28,
    AT_SEQ0_PHASE = 32,
    AT_LAYER2 = 20 + 2 * 16 + 2 * DIM * 4,
    AT_IDS2 = AT_LAYER2 + 12,
    LAYER2_BYTES = 12 + TOKENS * (2 * 2 + 2 * 4 + EXPERTS * 4),
    AT_LAYER0 = AT_LAYER2 + LAYER2_BYTES,
    RECORD_BYTES = AT_LAYER0 + 12 + TOKENS * (2 + 4)
};

/* Two sequences of 1 and 2 tokens; layer 2 with top-k 2 and probabilities, then layer 0 with top-k
 * 1 and none. */
static void put_record(bytes *out, uint32_t step)
{
    put_number(out, RECORD_BYTES, 4);
    put_number(out, TOKENS, 4);
    put_number(out, 2, 4);
    put_number(out, 2, 4);
    put_number(out, 1, 4);
    for (uint32_t s = 0; s < 2; s++) {
        put_number(out, UINT64_C(0x100000000) * step + s, 8);
        put_number(out, s + 1, 4);
        put_number(out, s, 4);
    }
    for (uint32_t i = 0; i < 2 * DIM; i++)
        put(out, &(float){value_of(step, 9, i)}, 4);
    for (uint32_t layer = 2, k = 2; k >= 1; layer = 0, k--) {
        put_number(out, layer, 4);
        put_number(out, k, 4);
        put_number(out, layer ? 1 : 0, 4);
        for (uint32_t i = 0; i < TOKENS * k; i++)
            put_number(out, i == 1 ? 0xFFFF : (i + step) % EXPERTS, 2);
        for (uint32_t i = 0; i < TOKENS * k; i++)
            put(out, &(float){value_of(step, layer, i)}, 4);
        for (uint32_t i = 0; layer && i < TOKENS * EXPERTS; i++)
            put(out, &(float){value_of(step, 5, i)}, 4);
    }
}

static uint64_t fold(uint64_t seed, uint64_t x)
{
    unsigned char lsb_first[8];
    for (int i = 0; i < 8; i++)
        lsb_first[i] = (unsigned char)(x >> (8 * i));
    return XXH3_64bits_withSeed(lsb_first, 8, seed);
}

static void put_frame(bytes *out, const bytes *records, uint32_t n, uint64_t first, uint64_t *chain)
{
    unsigned char packed[1 << 14];
    size_t n_packed = ZSTD_compress(packed, sizeof packed, records->data, records->n, 1);
    assert_false(ZSTD_isError(n_packed));
    size_t at = out->n;
    put(out, "MFRM", 4);
    put_number(out, n_packed, 4);
    put_number(out, records->n, 4);
    put_number(out, n, 4);
    put_number(out, first, 8);
    put(out, packed, n_packed);
    uint64_t checksum = XXH3_64bits(out->data + at, out->n - at);
    put_number(out, checksum, 8);
    *chain = fold(*chain, checksum);
}

static void put_trailer(bytes *out, uint64_t steps, uint64_t chain)
{
    size_t at = out->n;
    put(out, "MEND", 4);
    put_number(out, 0, 4);
    put_number(out, steps, 8);
    put_number(out, chain, 8);
    put_number(out, XXH3_64bits(out->data + at, 24), 8);
}

/* A file of two frames: `first` holds `n_first` steps, the second one step of put_record. */
static void put_file(bytes *out, const bytes *first, uint32_t n_first)
{
    static bytes second;
    second.n = out->n = 0;
    put_header(out);
    uint64_t chain = fold(0, XXH3_64bits(out->data, 128));
    put_frame(out, first, n_first, 0, &chain);
    put_record(&second, n_first);
    put_frame(out, &second, 1, n_first, &chain);
    put_trailer(out, n_first + 1u, chain);
}

static void put_good_file(bytes *out)
{
    static bytes records;
    records.n = 0;
    put_record(&records, 0);
    put_record(&records, 1);
    put_file(out, &records, 2);
}

/* ---- Reading ----------------------------------------------------------------------------- */

static void save(const unsigned char *data, size_t n)
{
    assert_int_equal(ftruncate(image, (off_t)n), 0);
    assert_int_equal(pwrite(image, data, n, 0), n);
}

/* Is this the step that put_record made? */
static void assert_true_step(const moepage_trace_step *step)
{
    uint32_t s = (uint32_t)step->step;
    assert_int_equal(step->n_tokens, TOKENS);
    assert_int_equal(step->n_sequences, 2);
    assert_int_equal(step->top_k, TOP_K);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(step->sequences[i].seq == UINT64_C(0x100000000) * s + i);
        assert_int_equal(step->sequences[i].n_tokens, i + 1);
        assert_int_equal(step->sequences[i].phase, i);
    }
    for (uint32_t i = 0; i < 2 * DIM; i++)
        assert_true(step->semantic[i] == value_of(s, 9, i));
    assert_memory_equal(step->layer_present, ((uint8_t[]){1, 0, 1}), LAYERS);
    for (uint32_t t = 0; t < TOKENS; t++) {
        const size_t row0 = t * TOP_K, row1 = (TOKENS + t) * TOP_K, row2 = (2 * TOKENS + t) * TOP_K;
        assert_int_equal(step->ids[row0],
                         t == 1 ? MOEPAGE_NO_EXPERT : (int32_t)((t + s) % EXPERTS));
        assert_int_equal(step->ids[row0 + 1], MOEPAGE_NO_EXPERT);
        assert_true(step->weights[row0] == value_of(s, 0, t) && step->weights[row0 + 1] == 0);
        for (uint32_t k = 0; k < TOP_K; k++) {
            uint32_t i = t * TOP_K + k;
            assert_int_equal(step->ids[row1 + k], MOEPAGE_NO_EXPERT);
            assert_true(step->weights[row1 + k] == 0);
            assert_int_equal(step->ids[row2 + k],
                             i == 1 ? MOEPAGE_NO_EXPERT : (int32_t)((i + s) % EXPERTS));
            assert_true(step->weights[row2 + k] == value_of(s, 2, i));
        }
    }
    const float *probabilities = step->probabilities;
    for (uint32_t i = 0; i < TOKENS * EXPERTS; i++) {
        assert_true(probabilities[i] == 0 && probabilities[TOKENS * EXPERTS + i] == 0);
        assert_true(probabilities[2 * TOKENS * EXPERTS + i] == value_of(s, 5, i));
    }
}

/* Touches every element: the sanitiser sees what lies outside, and values are in range. */
static void assert_sound_step(const moepage_trace_step *step)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++)
        tokens += step->sequences[i].n_tokens;
    assert_int_equal(tokens, step->n_tokens);
    volatile float sink = 0;
    for (size_t i = 0; i < (size_t)LAYERS * step->n_tokens * step->top_k; i++) {
        assert_in_range(step->ids[i] + 1, 0, EXPERTS);
        sink += step->weights[i];
    }
    for (size_t i = 0; step->probabilities && i < (size_t)LAYERS * step->n_tokens * EXPERTS; i++)
        sink += step->probabilities[i];
    for (size_t i = 0; step->semantic && i < (size_t)step->n_sequences * DIM; i++)
        sink += step->semantic[i];
    (void)sink;
}

/* Reads a whole file; returns how that ended. Every step on the way is passed to `check`. */
static moepage_status read_through(const unsigned char *data, size_t n, uint32_t *n_steps,
                                   void (*check)(const moepage_trace_step *))
{
    moepage_trace *trace;
    moepage_trace_step step = {.struct_size = sizeof step};
    *n_steps = 0;
    save(data, n);
    moepage_status status = moepage_trace_open(image_path, &trace);
    if (status)
        return status;
    while (!(status = moepage_trace_next(trace, &step))) {
        check(&step);
        ++*n_steps;
    }
    assert_int_equal(moepage_trace_next(trace, &step), status); /* and it stays so */
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    return status;
}

static moepage_status read_file(const bytes *file, uint32_t *n_steps)
{
    return read_through(file->data, file->n, n_steps, assert_true_step);
}

/* ---- Claims ------------------------------------------------------------------------------ */

static void test_trace_made_by_hand_reads_back(void **state)
{
    (void)state;
    static bytes file;
    uint32_t n_steps;
    put_good_file(&file);
    assert_int_equal(read_file(&file, &n_steps), MOEPAGE_E_END);
    assert_int_equal(n_steps, 3);
}

/* The writer's file, taken apart by the specification. */
static void test_trace_writer_writes_what_the_format_says(void **state)
{
    (void)state;
    static bytes file, header, record;
    moepage_trace_info info = {.struct_size = sizeof info,
                               .moe_layers = LAYERS,
                               .experts = EXPERTS,
                               .max_top_k = TOP_K,
                               .semantic_dim = DIM,
                               .has_probabilities = 1,
                               .model = "hand_made"};
    moepage_step_sequence sequences[2] = {{0, 1, 0}, {1, 2, 1}};
    int32_t ids[TOKENS * 2];
    float semantic[2 * DIM], weights[TOKENS * 2], probabilities[TOKENS * EXPERTS];
    for (uint32_t i = 0; i < 2 * DIM; i++)
        semantic[i] = value_of(0, 9, i);
    for (uint32_t i = 0; i < TOKENS * EXPERTS; i++)
        probabilities[i] = value_of(0, 5, i);
    moepage_trace *trace;
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    mp_trace_step_begin(trace, TOKENS, sequences, 2, semantic, DIM);
    for (uint32_t layer = 2, k = 2; k >= 1; layer = 0, k--) {
        for (uint32_t i = 0; i < TOKENS * k; i++) {
            ids[i] = i == 1 ? MOEPAGE_NO_EXPERT : (int32_t)(i % EXPERTS);
            weights[i] = value_of(0, layer, i);
        }
        mp_trace_step_layer(trace, layer, k, ids, weights, layer ? probabilities : NULL);
    }
    mp_trace_step_end(trace);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);

    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    file.n = fread(file.data, 1, sizeof file.data, in);
    fclose(in);
    put_header(&header);
    put_record(&record, 0);
    assert_memory_equal(file.data, header.data, 128);
    uint32_t packed;
    memcpy(&packed, file.data + 132, 4);
    unsigned char raw[RECORD_BYTES + 1];
    assert_int_equal(ZSTD_decompress(raw, sizeof raw, file.data + 152, packed), RECORD_BYTES);
    assert_memory_equal(raw, record.data, RECORD_BYTES);

    static bytes tail; /* all but the compressed bytes, made by hand */
    put(&tail, "MFRM", 4);
    put_number(&tail, packed, 4);
    put_number(&tail, RECORD_BYTES, 4);
    put_number(&tail, 1, 4);
    put_number(&tail, 0, 8);
    assert_memory_equal(file.data + 128, tail.data, 24);
    uint64_t checksum = XXH3_64bits(file.data + 128, 24 + packed);
    tail.n = 0;
    put_number(&tail, checksum, 8);
    put_trailer(&tail, 1, fold(fold(0, XXH3_64bits(header.data, 128)), checksum));
    assert_int_equal(file.n, 152 + packed + tail.n);
    /* put_trailer hashed its 24 bytes at their place in `tail` */
    assert_memory_equal(file.data + 152 + packed, tail.data, tail.n);
}

static void test_trace_cut_anywhere_is_found(void **state)
{
    (void)state;
    static bytes file;
    uint32_t n_steps;
    put_good_file(&file);
    for (size_t n = 0; n < file.n; n++) {
        moepage_status status = read_through(file.data, n, &n_steps, assert_true_step);
        assert_int_equal(status, MOEPAGE_E_FORMAT);
    }
    assert_int_equal(n_steps, 3); /* a cut in the trailer loses no step */
}

static void test_trace_with_any_byte_changed_is_found(void **state)
{
    (void)state;
    static bytes file;
    uint32_t n_steps;
    put_good_file(&file);
    for (size_t at = 0; at < file.n; at++)
        for (int flip = 0; flip < 9; flip++) {
            unsigned char change = flip < 8 ? (unsigned char)(1 << flip) : 0xFF;
            file.data[at] ^= change;
            moepage_status status = read_file(&file, &n_steps);
            if (status != (at == 8 || at == 9 ? MOEPAGE_E_VERSION : MOEPAGE_E_FORMAT))
                fail_msg("byte %zu changed by %#x: %s", at, change, moepage_status_text(status));
            file.data[at] ^= change;
        }
    assert_int_equal(read_file(&file, &n_steps), MOEPAGE_E_END);
}

static void test_trace_with_bytes_behind_its_trailer_is_found(void **state)
{
    (void)state;
    static bytes file;
    uint32_t n_steps;
    put_good_file(&file);
    put_number(&file, 0, 1);
    assert_int_equal(read_file(&file, &n_steps), MOEPAGE_E_FORMAT);
}

/* Each field of the trailer changed, under a checksum that is right. */
static void test_trace_with_a_lying_trailer_is_found(void **state)
{
    (void)state;
    static bytes file;
    uint32_t n_steps;
    put_good_file(&file);
    const size_t at = file.n - 32;
    for (size_t field = 0; field < 24; field++) {
        file.data[at + field] ^= 1;
        set_number(&file, at + 24, XXH3_64bits(file.data + at, 24), 8);
        assert_int_equal(read_file(&file, &n_steps), MOEPAGE_E_FORMAT);
        assert_int_equal(n_steps, 3);
        file.data[at + field] ^= 1;
    }
}

/* Whole frames dropped, doubled, swapped, or taken from another file of the same shape: each has
 * the right checksum in itself. */
static void test_trace_with_frames_moved_is_found(void **state)
{
    (void)state;
    static bytes good, file, records, other;
    uint32_t n_steps, packed;
    put_good_file(&good);
    memcpy(&packed, good.data + 132, 4);
    const size_t a = 128, b = 128 + 24 + packed + 8, end = good.n - 32;
    const struct {
        size_t at[3], to[3];
    } plans[] = {
        {{a}, {b}},
        {{b}, {end}},
        {{b, a}, {end, b}},
        {{a, a, b}, {b, b, end}},
        {{a, b, b}, {b, end, end}},
        {{0}, {0}},
    };
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        file.n = 0;
        put(&file, good.data, 128);
        for (int i = 0; i < 3; i++)
            put(&file, good.data + plans[p].at[i], plans[p].to[i] - plans[p].at[i]);
        put(&file, good.data + end, 32);
        assert_int_equal(read_file(&file, &n_steps), MOEPAGE_E_FORMAT);
    }
    records.n = 0;
    put_record(&records, 1);
    put_record(&records, 0);
    put_file(&other, &records, 2);
    memcpy(&packed, other.data + 132, 4);
    file.n = 0; /* its step numbers and counts are those of the frame that it stands for */
    put(&file, other.data, 128 + 24 + packed + 8);
    put(&file, good.data + b, good.n - b);
    assert_int_equal(read_through(file.data, file.n, &n_steps, assert_sound_step),
                     MOEPAGE_E_FORMAT);
    assert_int_equal(n_steps, 3); /* only the chain tells */
}

static void seal_header(bytes *file)
{
    set_number(file, 120, XXH3_64bits(file->data, 120), 8);
}

static void test_trace_versions_are_told_apart(void **state)
{
    (void)state;
    static bytes file;
    uint32_t n_steps;
    static const struct {
        size_t at;
        uint64_t value;
        int width;
        moepage_status status;
    } changes[] = {
        {8, 0, 2, MOEPAGE_E_VERSION},      /* an older major version */
        {8, 2, 2, MOEPAGE_E_VERSION},      /* a newer one */
        {10, 7, 2, MOEPAGE_E_END},         /* a newer minor version: a trace like any other */
        {104, 99, 8, MOEPAGE_E_END},       /* that uses reserved bytes */
        {32, 3, 4, MOEPAGE_E_UNSUPPORTED}, /* that has a new flag */
        {12, 136, 4, MOEPAGE_E_FORMAT},
        {16, 0, 4, MOEPAGE_E_FORMAT}, /* shapes that no trace has */
        {16, 4097, 4, MOEPAGE_E_FORMAT},
        {20, 65536, 4, MOEPAGE_E_FORMAT},
        {24, 0, 4, MOEPAGE_E_FORMAT},
        {24, 5000, 4, MOEPAGE_E_FORMAT},
        {28, UINT32_MAX, 4, MOEPAGE_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        put_good_file(&file);
        uint64_t chain = 0;
        static bytes records;
        records.n = 0;
        set_number(&file, changes[i].at, changes[i].value, changes[i].width);
        seal_header(&file);
        file.n = 128;
        chain = fold(0, XXH3_64bits(file.data, 128));
        put_record(&records, 0);
        put_frame(&file, &records, 1, 0, &chain);
        put_trailer(&file, 1, chain);
        moepage_status status = read_file(&file, &n_steps);
        if (status != changes[i].status)
            fail_msg("header change %zu: %s", i, moepage_status_text(status));
    }
    put_good_file(&file);
    memset(file.data + 40, 'x', 64); /* a name without an end */
    seal_header(&file);
    assert_int_equal(read_file(&file, &n_steps), MOEPAGE_E_FORMAT);
}

/* One field of a record changed to contradict the rest, under checksums that are right. */
static void test_trace_records_that_contradict_themselves_are_found(void **state)
{
    (void)state;
    static bytes file, records;
    uint32_t n_steps;
    static const struct {
        size_t at;
        uint64_t value;
        int width;
    } changes[] = {
        {0, 0, 4},
        {0, 19, 4},
        {0, RECORD_BYTES - 1, 4},
        {0, RECORD_BYTES + 1, 4},
        {0, 2 * RECORD_BYTES, 4},
        {0, UINT32_MAX, 4},
        {AT_TOKENS, 0, 4},
        {AT_TOKENS, TOKENS + 1, 4},
        {AT_TOKENS, 1 << 24, 4},
        {AT_TOKENS, UINT32_MAX, 4},
        {AT_SEQUENCES, 0, 4},
        {AT_SEQUENCES, 1, 4},
        {AT_SEQUENCES, 3, 4},
        {AT_SEQUENCES, 1 << 24, 4},
        {AT_SEQUENCES, UINT32_MAX, 4},
        {AT_LAYERS, 0, 4},
        {AT_LAYERS, 1, 4},
        {AT_LAYERS, 3, 4},
        {AT_LAYERS, UINT32_MAX, 4},
        {AT_FLAGS, 0, 4},
        {AT_FLAGS, 2, 4},
        {AT_FLAGS, 3, 4},
        {AT_SEQ0_TOKENS, 2, 4},
        {AT_SEQ0_TOKENS, UINT32_MAX, 4},
        {AT_SEQ0_PHASE, 2, 4},
        {AT_LAYER2, 0, 4},
        {AT_LAYER2, LAYERS, 4},
        {AT_LAYER2, UINT32_MAX, 4},
        {AT_LAYER2 + 4, 0, 4},
        {AT_LAYER2 + 4, 1, 4},
        {AT_LAYER2 + 4, 3, 4},
        {AT_LAYER2 + 4, UINT32_MAX, 4},
        {AT_LAYER2 + 8, 0, 4},
        {AT_LAYER2 + 8, 2, 4},
        {AT_LAYER2 + 8, 3, 4},
        {AT_IDS2, EXPERTS, 2},
        {AT_IDS2, 0xFFFE, 2},
        {AT_LAYER0, 2, 4},
        {AT_LAYER0 + 4, 2, 4},
        {AT_LAYER0 + 8, 1, 4},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        for (uint32_t which = 0; which < 2; which++) { /* the first or the last of its frame */
            records.n = 0;
            put_record(&records, 0);
            put_record(&records, 1);
            set_number(&records, which * RECORD_BYTES + changes[i].at, changes[i].value,
                       changes[i].width);
            put_file(&file, &records, 2);
            moepage_status status = read_file(&file, &n_steps);
            if (status != MOEPAGE_E_FORMAT || n_steps != which)
                fail_msg("record change %zu: %s after %u steps", i, moepage_status_text(status),
                         n_steps);
        }
}

static void test_trace_frames_that_contradict_themselves_are_found(void **state)
{
    (void)state;
    static bytes file, records;
    uint32_t n_steps;
    records.n = 0;
    put_record(&records, 0);
    put_record(&records, 1);
    for (uint32_t n = 0; n < 5; n++) { /* a count of records that is not 2 */
        put_file(&file, &records, n);
        assert_int_equal(read_file(&file, &n_steps), n == 2 ? MOEPAGE_E_END : MOEPAGE_E_FORMAT);
    }
    static const uint64_t sizes[] = {0,       1,         2 * RECORD_BYTES - 1, 2 * RECORD_BYTES + 1,
                                     1 << 30, UINT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) { /* a raw size that is not so */
        uint32_t packed;
        put_file(&file, &records, 2);
        memcpy(&packed, file.data + 132, 4);
        set_number(&file, 136, sizes[i], 4);
        set_number(&file, 152 + packed, XXH3_64bits(file.data + 128, 24 + packed), 8);
        assert_int_equal(read_file(&file, &n_steps), MOEPAGE_E_FORMAT);
        assert_int_equal(n_steps, 0);
    }
}

/* Noise under right checksums: any answer but a crash, and what is handed out is sound. */
static void test_trace_of_noise_is_never_unsound(void **state)
{
    (void)state;
    static bytes file, records;
    uint64_t seed = 99;
    uint32_t n_steps, rejected = 0;
    for (int round = 0; round < 3000; round++) {
        records.n = 0;
        put_record(&records, 0);
        put_record(&records, 1);
        for (int i = 0; i <= round % 4; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size_t at = (seed >> 33) % records.n;
            records.data[at] = (unsigned char)(seed >> 24);
        }
        if (round % 16 == 0)
            records.n -= 1 + (seed >> 40) % records.n / 2;
        put_file(&file, &records, 2);
        moepage_status status = read_through(file.data, file.n, &n_steps, assert_sound_step);
        assert_true(status == MOEPAGE_E_FORMAT || status == MOEPAGE_E_END);
        rejected += status == MOEPAGE_E_FORMAT;
    }
    assert_in_range(rejected, 300, 2900); /* both answers were reached */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_made_by_hand_reads_back),
        cmocka_unit_test(test_trace_writer_writes_what_the_format_says),
        cmocka_unit_test(test_trace_cut_anywhere_is_found),
        cmocka_unit_test(test_trace_with_any_byte_changed_is_found),
        cmocka_unit_test(test_trace_with_bytes_behind_its_trailer_is_found),
        cmocka_unit_test(test_trace_with_a_lying_trailer_is_found),
        cmocka_unit_test(test_trace_with_frames_moved_is_found),
        cmocka_unit_test(test_trace_versions_are_told_apart),
        cmocka_unit_test(test_trace_records_that_contradict_themselves_are_found),
        cmocka_unit_test(test_trace_frames_that_contradict_themselves_are_found),
        cmocka_unit_test(test_trace_of_noise_is_never_unsound),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
