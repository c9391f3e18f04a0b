/* The .moepack file against docs/format-moepack.md: a file put together by hand from that page has
 * the very bytes that the library writes, and one that breaks a rule of it, under checksums that are
 * right, is refused with a sentence that names the section. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>
#include <zstd.h>

#include "codec/exph.h"
#include "codec/quant.h"
#include "moe_maker.h"
#include "pack_maker.h"
#include "testing.h"

enum { SHAPE = 1, CONFIG = 2, DIRECTORY = 3, DENSE_DATA = 4, INDEX = 5, DATA = 6 };
enum { DENSE = 1, EXPH = 2, INT8 = 3, INT4 = 4, INT2 = 5 };
enum { LAYERS = 2, EXPERTS = 3, TENSORS = 2, SLOT = 9216, LEVEL = 5 };

static pack_source source;
static unsigned char *good; /* DENSE (zstd), EXPH and INT4 */
static uint64_t good_bytes;

static int make(void **state)
{
    (void)state;
    pack_source_init(&source);
    pack_source_open(&source);
    good = pack_make(source.model, PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT4), LEVEL,
                     &good_bytes);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    free(good);
    pack_source_close(&source);
    return 0;
}

/* ---- A file by hand ---------------------------------------------------------------------- */

typedef struct bytes {
    unsigned char data[1 << 18];
    uint64_t n;
} bytes;

static void put(bytes *out, const void *data, uint64_t n)
{
    assert_true(out->n + n <= sizeof out->data);
    memcpy(out->data + out->n, data, n);
    out->n += n;
}

static void put_number(bytes *out, uint64_t value, int width)
{
    pack_set_number(out->data + out->n, value, width);
    out->n += (uint64_t)width;
}

static void pad(bytes *out, uint64_t align)
{
    while (out->n % align)
        out->data[out->n++] = 0;
}

/* An entry of the section table for what has been put since `from`. */
static void end_section(bytes *out, uint32_t type, uint32_t form, uint64_t from)
{
    uint64_t n = pack_number(out->data + 32, 4);
    unsigned char *entry = out->data + 128 + 32 * n;
    bool data = type == DENSE_DATA || type == DATA;
    pack_set_number(entry, type, 4);
    pack_set_number(entry + 4, form, 4);
    pack_set_number(entry + 8, from, 8);
    pack_set_number(entry + 16, out->n - from, 8);
    pack_set_number(entry + 24, data ? 0 : XXH3_64bits(out->data + from, out->n - from), 8);
    pack_set_number(out->data + 32, n + 1, 4);
    pad(out, 4096);
}

static void put_shape(bytes *out)
{
    static const char name[64] = "made_up";
    static const uint32_t numbers[] = {3,  LAYERS, EXPERTS, 2,       64,
                                       24, 1,      11,      TENSORS, 1, /* plain SwiGLU */
                                       0,  0,      0,       0};
    static const uint64_t tensors[TENSORS][6] = {{1, 48, 64, 48 * 64 * 2, 0},
                                                 {4, 64, 24, 64 * 24 * 2, 6144}};
    uint64_t from = out->n;
    put(out, name, 64);
    for (int i = 0; i < 14; i++)
        put_number(out, numbers[i], 4);
    put_number(out, SLOT, 8);
    for (int t = 0; t < TENSORS; t++) {
        put_number(out, tensors[t][0], 4);
        put_number(out, MOEPAGE_DTYPE_BF16, 4);
        put_number(out, 2, 4);
        put_number(out, 0, 4);
        put_number(out, tensors[t][1], 8);
        put_number(out, tensors[t][2], 8);
        put_number(out, 0, 8);
        put_number(out, 0, 8);
        put_number(out, tensors[t][3], 8);
        put_number(out, tensors[t][4], 8);
    }
    put_number(out, 0, 4); /* the layers with experts */
    put_number(out, 2, 4);
    end_section(out, SHAPE, 0, from);
}

static void put_config(bytes *out)
{
    uint64_t from = out->n;
    put(out, source.banks.config_json, strlen(source.banks.config_json));
    end_section(out, CONFIG, 0, from);
}

/* embed.weight, layers.0.scale, norm.weight: the made dense tensors in the order of their names. */
static void put_dense(bytes *out)
{
    static const struct {
        int made;
        uint64_t name_at, name_bytes, dtype, rank, shape[2], offset, bytes;
    } rows[] = {
        {1, 0, 12, MOEPAGE_DTYPE_BF16, 2, {11, 13}, 0, 286},
        {2, 13, 14, MOEPAGE_DTYPE_F32, 0, {0, 0}, 512, 4},
        {0, 28, 11, MOEPAGE_DTYPE_F32, 1, {5, 0}, 768, 20},
    };
    uint64_t from = out->n;
    put_number(out, 3, 8);
    put_number(out, 40, 8);
    for (int i = 0; i < 3; i++) {
        put_number(out, rows[i].name_at, 8);
        put_number(out, rows[i].name_bytes, 4);
        put_number(out, rows[i].dtype, 4);
        put_number(out, rows[i].rank, 4);
        put_number(out, 0, 4);
        for (int d = 0; d < 4; d++)
            put_number(out, d < 2 ? rows[i].shape[d] : 0, 8);
        put_number(out, rows[i].offset, 8);
        put_number(out, rows[i].bytes, 8);
        put_number(out, XXH3_64bits(source.dense_bytes[rows[i].made], rows[i].bytes), 8);
    }
    put(out, "embed.weight\0layers.0.scale\0norm.weight", 40);
    end_section(out, DIRECTORY, 0, from);
    from = out->n;
    for (int i = 0; i < 3; i++) {
        pad(out, 256);
        put(out, source.dense_bytes[rows[i].made], rows[i].bytes);
    }
    end_section(out, DENSE_DATA, 0, from);
}

static void put_zstd(bytes *out, uint32_t layer, uint32_t expert)
{
    static unsigned char planes[SLOT];
    uint64_t at = 0;
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint64_t byte = 0; byte < 2; byte++)
            for (uint64_t i = 0; i < source.tensor_bytes[t] / 2; i++)
                planes[at++] = pack_source_bytes(&source, layer, expert, t)[2 * i + byte];
    size_t n = ZSTD_compress(out->data + out->n, sizeof out->data - out->n, planes, at, LEVEL);
    assert_false(ZSTD_isError(n));
    out->n += n;
}

static uint64_t put_part(bytes *out, uint32_t form, uint32_t layer, uint32_t expert, uint32_t t)
{
    const unsigned char *in = pack_source_bytes(&source, layer, expert, t);
    uint64_t n = source.tensor_bytes[t], rows = t ? 64 : 48, columns = t ? 24 : 64;
    mp_quant_layout layout;
    mp_quant_shape shape = {rows, columns, form == INT8 ? 8 : form == INT4 ? 4 : 2, 64};
    unsigned char *part = aligned_alloc(64, 1 << 16);
    assert_non_null(part);
    memset(part, 0, 1 << 16);
    if (form == EXPH) {
        n = mp_exph_encode(MOEPAGE_DTYPE_BF16, in, n / 2, part);
    } else {
        assert_true(mp_quant_layout_of(&shape, &layout));
        assert_int_equal(mp_quant_encode(&shape, MOEPAGE_DTYPE_BF16, in, 0, part), MOEPAGE_OK);
        n = layout.bytes;
    }
    put(out, part, n);
    free(part);
    assert_int_equal(n % 16, 0);
    return n;
}

static void put_experts(bytes *out, uint32_t form, bool zstd)
{
    bool parts = form != DENSE;
    uint64_t from = out->n, entry = parts ? 32 : 24, index_bytes = 32 + LAYERS * EXPERTS * entry;
    put_number(out, form, 4);
    put_number(out, form >= INT8 ? 64 : 0, 4);
    put_number(out, zstd ? 1 : 0, 4);
    put_number(out, parts ? TENSORS : 0, 4);
    put_number(out, LAYERS * EXPERTS, 8);
    put_number(out, 0, 8);
    uint64_t data = (from + index_bytes + 4095) / 4096 * 4096;
    memset(out->data + out->n, 0, data - out->n);
    out->n = data;
    for (uint32_t key = 0; key < LAYERS * EXPERTS; key++) {
        unsigned char *at = out->data + from + 32 + key * entry;
        uint64_t start = out->n;
        if (!parts && zstd)
            put_zstd(out, key / EXPERTS, key % EXPERTS);
        for (uint32_t t = 0; t < TENSORS && !zstd; t++) {
            if (parts) {
                uint64_t n = put_part(out, form, key / EXPERTS, key % EXPERTS, t);
                pack_set_number(at + 24 + 4 * t, n / 16, 4);
            } else {
                put(out, pack_source_bytes(&source, key / EXPERTS, key % EXPERTS, t),
                    source.tensor_bytes[t]);
            }
        }
        pack_set_number(at, start, 8);
        pack_set_number(at + 8, out->n - start, 8);
        pad(out, 64);
        pack_set_number(at + 16, XXH3_64bits(out->data + start, out->n - start), 8);
    }
    uint64_t end = out->n;
    out->n = from + index_bytes;
    uint64_t n_sections = pack_number(out->data + 32, 4);
    end_section(out, INDEX, form, from);
    assert_int_equal(out->n, data);
    assert_int_equal(n_sections + 1, pack_number(out->data + 32, 4));
    out->n = end;
    end_section(out, DATA, form, data);
}

static void put_file(bytes *out, uint32_t forms, bool zstd)
{
    memset(out, 0, sizeof *out);
    memcpy(out->data, "MOEPACK\0\1\0\0\0\200\0\0\0", 16);
    pack_set_number(out->data + 24, 128, 8);
    out->n = 4096;
    put_shape(out);
    put_config(out);
    put_dense(out);
    for (uint32_t form = DENSE; form <= INT2; form++)
        if (forms >> form & 1)
            put_experts(out, form, form == DENSE && zstd);
    pack_set_number(out->data + 16, out->n, 8);
    pack_set_number(out->data + 40,
                    XXH3_64bits(out->data + 128, 32 * pack_number(out->data + 32, 4)), 8);
    pack_set_number(out->data + 120, XXH3_64bits(out->data, 120), 8);
}

static void test_pack_has_the_bytes_that_the_format_says(void **state)
{
    (void)state;
    static bytes file;
    static const struct {
        uint32_t forms;
        int32_t level;
    } kinds[] = {
        {1u << DENSE, 0},
        {1u << DENSE, LEVEL},
        {1u << EXPH | 1u << INT8 | 1u << INT4 | 1u << INT2, 0},
        {1u << DENSE | 1u << EXPH, LEVEL},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        uint64_t n;
        unsigned char *written = pack_make(source.model, kinds[i].forms, kinds[i].level, &n);
        put_file(&file, kinds[i].forms, kinds[i].level);
        assert_int_equal(n, file.n);
        assert_memory_equal(written, file.data, n);
        moepage_model *model = pack_open(pack_memory_file(file.data, file.n));
        pack_expect_same(source.model, model);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        free(written);
    }
}

/* ---- Rules that are broken --------------------------------------------------------------- */

typedef struct damage {
    uint32_t type, form; /* section; type 0: from the start of the file */
    uint64_t at;
    int width;
    uint64_t value;
    const char *words;
} damage;

static void expect_each_refused(const damage *list, size_t n)
{
    unsigned char *copy = malloc(good_bytes);
    for (size_t i = 0; i < n; i++) {
        memcpy(copy, good, good_bytes);
        uint64_t from =
            list[i].type ? pack_find_section(good, list[i].type, list[i].form).offset : 0;
        assert_int_not_equal(pack_number(copy + from + list[i].at, list[i].width), list[i].value);
        pack_set_number(copy + from + list[i].at, list[i].value, list[i].width);
        pack_seal(copy, good_bytes);
        pack_expect_refusal(copy, good_bytes, MOEPAGE_E_FORMAT, list[i].words);
    }
    free(copy);
}

#define EXPECT_EACH_REFUSED(list) expect_each_refused(list, sizeof(list) / sizeof *(list))

static void test_pack_with_a_wrong_header_is_refused(void **state)
{
    (void)state;
    static const damage list[] = {
        {0, 0, 0, 1, 'm', "header|not a .moepack|name the directory"},
        {0, 0, 8, 2, 0, "header|version 0"},
        {0, 0, 12, 4, 256, "header: 256 bytes"},
        {0, 0, 16, 8, 4096, "header: it describes a file of 4096 bytes"},
        {0, 0, 24, 8, 256, "table at 256"},
        {0, 0, 32, 4, 125, "125 sections"},
        {0, 0, 36, 4, 1, "header: byte 36"},
        {0, 0, 48, 1, 1, "header: byte 48"},
        {0, 0, 119, 1, 1, "header: byte 119"},
        {0, 0, 4095, 1, 1, "section table: byte 4095"},
    };
    EXPECT_EACH_REFUSED(list);
}

static void test_pack_with_a_wrong_table_is_refused(void **state)
{
    (void)state;
    const uint64_t entry = 128, second = 160;
    const damage list[] = {
        {0, 0, 32, 4, 9, "section table"},
        {0, 0, 32, 4, 11, "section table"},
        {0, 0, entry, 4, 9, "section table|no section of type 9"},
        {0, 0, entry, 4, 0, "section table|no section of type 0"},
        {0, 0, entry, 4, CONFIG, "section table: section CONFIG occurs twice"},
        {0, 0, entry + 4, 4, 1, "section table"},
        {0, 0, entry + 8, 8, 8192, "section table: section SHAPE|at 8192"},
        {0, 0, entry + 16, 8, 5000, "section table: section CONFIG"},
        {0, 0, entry + 16, 8, UINT64_MAX - 4095, "section table: section SHAPE"},
        {0, 0, second, 4, DIRECTORY, "section table: section DENSE DIRECTORY occurs twice"},
        {0, 0, 128 + 3 * 32 + 24, 8, 1, "section table: section DENSE DATA has a checksum"},
        {0, 0, 128 + 4 * 32 + 4, 4, INT2, "section table: there is no section EXPERT INDEX"},
        {0, 0, 128 + 4 * 32 + 4, 4, 6, "section table"},
    };
    EXPECT_EACH_REFUSED(list);
}

static void test_pack_with_a_wrong_shape_is_refused(void **state)
{
    (void)state;
    static const damage list[] = {
        {SHAPE, 0, 0, 1, 0, "section SHAPE: the architecture has no name"},
        {SHAPE, 0, 63, 1, 1, "section SHAPE: byte 63"},
        {SHAPE, 0, 64, 4, 2, "section SHAPE: MoE layer 1 is layer 2"},
        {SHAPE, 0, 64, 4, 1, "section SHAPE: layers is 1"},
        {SHAPE, 0, 68, 4, 0, "section SHAPE: moe_layers is 0"},
        {SHAPE, 0, 68, 4, 3, "section SHAPE: it has"},
        {SHAPE, 0, 72, 4, 0, "section SHAPE: experts is 0"},
        {SHAPE, 0, 72, 4, 1u << 31, "section SHAPE: experts is 2147483648"},
        {SHAPE, 0, 72, 4, 4, "section EXPERT INDEX (dense): its head"},
        {SHAPE, 0, 76, 4, 4, "section SHAPE: top_k is 4"},
        {SHAPE, 0, 80, 4, 0, "section SHAPE: hidden is 0"},
        {SHAPE, 0, 84, 4, UINT32_MAX, "section SHAPE: expert_intermediate"},
        {SHAPE, 0, 96, 4, 9, "section SHAPE: n_tensors is 9"},
        {SHAPE, 0, 96, 4, 1, "section SHAPE: it has"},
        {SHAPE, 0, 100, 4, 2, "section SHAPE: it has"}, /* nothing for the activation's numbers */
        {SHAPE, 0, 100, 4, 3, "section SHAPE: flags are 0x3"},
        {SHAPE, 0, 100, 4, 4, "section SHAPE: flags are 0x4"},
        {SHAPE, 0, 100, 4, 5, "section SHAPE: flags are 0x5"},
        {SHAPE, 0, 100, 4, 7, "section SHAPE: flags are 0x7"},
        {SHAPE, 0, 100, 4, 8, "section SHAPE: flags are 0x8"},
        {SHAPE, 0, 104, 4, 1, "section SHAPE: block scales"},
        {SHAPE, 0, 108, 4, 1, "section SHAPE: block scales"},
        {SHAPE, 0, 116, 4, 1, "section SHAPE: the number of layouts is 1|must be 0"},
        {SHAPE, 0, 120, 8, SLOT + 256, "section SHAPE: a slot has 9472"},
        {SHAPE, 0, 128, 4, 0, "section SHAPE: tensor 0 has role 0"},
        {SHAPE, 0, 128, 4, 4, "section SHAPE: tensor 1 has role 4, which another"},
        {SHAPE, 0, 132, 4, 11, "section SHAPE: tensor 0 has dtype 11"},
        {SHAPE, 0, 132, 4, 15, "section SHAPE: tensor 0 has dtype 15|from 16 to 38 for blocks"},
        {SHAPE, 0, 132, 4, 39, "section SHAPE: tensor 0 has dtype 39"},
        {SHAPE, 0, 132, 4, MOEPAGE_DTYPE_Q4_0, "section SHAPE: tensor 0 has 6144 bytes"},
        {SHAPE, 0, 132, 4, MOEPAGE_DTYPE_Q4_K,
         "section SHAPE: tensor 0 is Q4_K and its last dimension 64|the 256 weights of a block"},
        {SHAPE, 0, 136, 4, 5, "section SHAPE: tensor 0 has rank 5"},
        {SHAPE, 0, 140, 4, 1, "section SHAPE: tensor 0 has reserved"},
        {SHAPE, 0, 144, 8, 47, "section SHAPE: tensor 0 has 6144 bytes"},
        {SHAPE, 0, 144, 8, UINT64_MAX, "section SHAPE|overflows"},
        {SHAPE, 0, 176, 8, 6145, "section SHAPE: tensor 0 has 6145 bytes"},
        {SHAPE, 0, 192 + 56, 8, 6400, "section SHAPE: tensor 1 has 3072 bytes at 6400"},
        {SHAPE, 0, 256, 4, 3, "section SHAPE: MoE layer 0 is layer 3"},
        {SHAPE, 0, 260, 4, 0, "section SHAPE: MoE layer 1 is layer 0"},
        {SHAPE, 0, 260, 4, UINT32_MAX, "section SHAPE: MoE layer 1 is layer -1"},
        {CONFIG, 0, 3, 1, 0, "section CONFIG|NUL at byte 3"},
    };
    EXPECT_EACH_REFUSED(list);
}

static void test_pack_with_a_wrong_directory_is_refused(void **state)
{
    (void)state;
    enum { FIRST = 16, SECOND = 96, NAMES = 256 };
    static const damage list[] = {
        {DIRECTORY, 0, 0, 8, 2, "section DENSE DIRECTORY: its 296 bytes"},
        {DIRECTORY, 0, 0, 8, UINT64_MAX / 80, "section DENSE DIRECTORY: its 296 bytes"},
        {DIRECTORY, 0, 8, 8, 41, "section DENSE DIRECTORY: its 296 bytes"},
        {DIRECTORY, 0, FIRST, 8, 1, "section DENSE DIRECTORY: the name of tensor 0"},
        {DIRECTORY, 0, FIRST + 8, 4, 11, "section DENSE DIRECTORY: the name of tensor 0"},
        {DIRECTORY, 0, FIRST + 8, 4, UINT32_MAX, "section DENSE DIRECTORY: the name of tensor 0"},
        {DIRECTORY, 0, SECOND + 8, 4, 0, "section DENSE DIRECTORY: the name of tensor 1"},
        {DIRECTORY, 0, NAMES, 1, 'z', "DENSE DIRECTORY: tensor \"layers.0.scale\" comes after"},
        {DIRECTORY, 0, NAMES + 5, 1, 0, "section DENSE DIRECTORY: the name of tensor 0"},
        {DIRECTORY, 0, NAMES + 39, 1, 'x', "section DENSE DIRECTORY: the name of tensor 2"},
        {DIRECTORY, 0, FIRST + 12, 4, 0, "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 12, 4, MOEPAGE_DTYPE_Q8_0,
         "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 12, 4, 77, "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 16, 4, 5, "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 16, 4, 1, "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 20, 4, 1, "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 24, 8, 12, "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 24, 8, UINT64_MAX, "DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 40, 8, 1, "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 64, 8, 288, "section DENSE DIRECTORY: tensor \"embed.weight\""},
        {DIRECTORY, 0, FIRST + 72, 8, 1, "section DENSE DATA: tensor \"embed.weight\"|checksum"},
        {DIRECTORY, 0, SECOND + 56, 8, 256, "DENSE DIRECTORY: tensor \"layers.0.scale\""},
        {DIRECTORY, 0, SECOND + 56, 8, 768, "DENSE DIRECTORY: tensor \"layers.0.scale\""},
        {DENSE_DATA, 0, 285, 1, 0xff, "section DENSE DATA: tensor \"embed.weight\"|checksum"},
        {DENSE_DATA, 0, 511, 1, 1,
         "section DENSE DATA: byte 511, before tensor \"layers.0.scale\""},
        {DENSE_DATA, 0, 788, 1, 1, "padding after section DENSE DATA"},
    };
    EXPECT_EACH_REFUSED(list);
}

static void test_pack_with_a_wrong_index_is_refused(void **state)
{
    (void)state;
    const uint64_t data = pack_find_section(good, DATA, EXPH).offset;
    const unsigned char *index = good + pack_find_section(good, INDEX, EXPH).offset;
    const uint64_t stored = pack_number(index + 40, 8), second = pack_number(index + 64, 8);
    const uint64_t part = pack_number(index + 56, 4);
    const damage list[] = {
        {INDEX, EXPH, 0, 4, DENSE, "section EXPERT INDEX (exph): its head"},
        {INDEX, EXPH, 4, 4, 64, "section EXPERT INDEX (exph): its head"},
        {INDEX, EXPH, 8, 4, 1, "section EXPERT INDEX (exph): its head"},
        {INDEX, EXPH, 12, 4, 1, "section EXPERT INDEX (exph): its head"},
        {INDEX, EXPH, 16, 8, 7, "section EXPERT INDEX (exph): its head"},
        {INDEX, EXPH, 24, 8, 1, "section EXPERT INDEX (exph): its head"},
        {INDEX, INT4, 4, 4, 48, "section EXPERT INDEX (int4): its head"},
        {INDEX, INT4, 4, 4, 32, "section EXPERT INDEX (int4): layer 0, expert 0: part 0"},
        {INDEX, DENSE, 8, 4, 2, "section EXPERT INDEX (dense): its head"},
        {INDEX, DENSE, 8, 4, 0, "section EXPERT INDEX (dense): layer 0, expert 0: its record"},
        {INDEX, EXPH, 32, 8, data + 64, "(exph): layer 0, expert 0|must start at"},
        {INDEX, EXPH, 32, 8, 0, "(exph): layer 0, expert 0|must start at"},
        {INDEX, EXPH, 40, 8, 0, "(exph): layer 0, expert 0|0 bytes at"},
        {INDEX, EXPH, 40, 8, UINT64_MAX, "(exph): layer 0, expert 0|end before"},
        {INDEX, EXPH, 40, 8, stored + 16, "(exph): layer 0, expert 0: its parts have"},
        {INDEX, EXPH, 56, 4, part | 1u << 31, "(exph): layer 0, expert 0: part 0"},
        {INDEX, EXPH, 56, 4, 0, "(exph): layer 0, expert 0: part 0"},
        {INDEX, EXPH, 56, 4, 0x7fffffff, "(exph): layer 0, expert 0: part 0"},
        {INDEX, EXPH, 56, 4, part + 1, "(exph): layer 0, expert 0: its parts have"},
        {INDEX, EXPH, 64, 8, second + 64, "(exph): layer 0, expert 1|must start at"},
        {INDEX, INT4, 56, 4, (48 * 64 * 2 / 16) | 1u << 31, "(int4): layer 0, expert 0: part 0"},
    };
    EXPECT_EACH_REFUSED(list);
}

/* A record under a checksum that is right, but that is nothing its form can be. */
static void test_pack_with_a_wrong_record_is_refused_when_it_is_read(void **state)
{
    (void)state;
    static const struct {
        uint32_t form;
        uint64_t at;
        unsigned char change;
        moepage_status status;
    } list[] = {
        {DENSE, 0, 0xff, MOEPAGE_E_FORMAT},  /* zstd's magic number */
        {DENSE, 5, 0x01, MOEPAGE_E_FORMAT},  /* the frame's content size */
        {DENSE, 7, 0x04, MOEPAGE_E_FORMAT},  /* its first block's header */
        {EXPH, 20, 0xff, MOEPAGE_E_FORMAT},  /* the stream's header */
        {EXPH, 400, 0xff, MOEPAGE_E_FORMAT}, /* under its own checksums */
        /* the first scale becomes infinite: 48 rows of 32 bytes lie before it */
        {INT4, 48 * 32 + 1, 0x7c, MOEPAGE_E_FORMAT},
    };
    unsigned char *copy = malloc(good_bytes), out[SLOT];
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        memcpy(copy, good, good_bytes);
        uint32_t form = list[i].form;
        unsigned char *entry = copy + pack_find_section(copy, INDEX, form).offset + 32;
        unsigned char *record = copy + pack_number(entry, 8);
        uint64_t n = (pack_number(entry + 8, 8) + 63) / 64 * 64;
        record[list[i].at] |= form == INT4 ? list[i].change : 0;
        record[list[i].at] ^= form == INT4 ? 0 : list[i].change;
        pack_set_number(entry + 16, XXH3_64bits(record, n), 8);
        pack_seal(copy, good_bytes);
        moepage_model *model = pack_open(pack_memory_file(copy, good_bytes));
        unsigned char *buffer = aligned_alloc(4096, 1 << 20);
        uint64_t read_bytes;
        moepage_status status =
            mp_model_read_image(model, 0, 0, form, buffer, 1 << 20, &read_bytes);
        if (status != list[i].status)
            fail_msg("damage %zu: %s", i, moepage_status_text(status));
        expect_sentence(form == DENSE  ? "EXPERT DATA (dense): layer 0, expert 0"
                        : form == EXPH ? "EXPERT DATA (exph): layer 0, expert 0: tensor 0"
                                       : "EXPERT DATA (int4): layer 0, expert 0: tensor 0");
        free(buffer);
        if (form == DENSE)
            assert_int_equal(moepage_model_read_expert(model, 0, 0, out, SLOT), list[i].status);
        assert_int_equal(moepage_model_read_expert(model, 0, 1, out, SLOT), MOEPAGE_OK);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
    free(copy);
}

static void test_pack_without_a_lossless_form_is_refused(void **state)
{
    (void)state;
    static bytes file;
    put_file(&file, 1u << INT8, false);
    pack_expect_refusal(file.data, file.n, MOEPAGE_E_FORMAT, "section table|no lossless form");
}

static void test_pack_that_lacks_a_section_is_refused(void **state)
{
    (void)state;
    static bytes file;
    memset(&file, 0, sizeof file);
    put_file(&file, 0, false);
    unsigned char *copy = malloc(file.n);
    for (uint64_t keep = 0; keep < 4; keep++) {
        static const char *const words[] = {"no section SHAPE", "no section DENSE DIRECTORY",
                                            "no section DENSE DIRECTORY", "no section DENSE DATA"};
        uint64_t n = pack_number(file.data + 128 + 32 * keep + 8, 8);
        memcpy(copy, file.data, n);
        memset(copy + 128 + 32 * keep, 0, (size_t)(4096 - 128 - 32 * keep));
        pack_set_number(copy + 32, keep, 4);
        pack_set_number(copy + 16, n, 8);
        pack_seal(copy, n);
        pack_expect_refusal(copy, n, MOEPAGE_E_FORMAT, words[keep]);
    }
    free(copy);
}

/* ---- Versions and other files ------------------------------------------------------------ */

static void test_pack_of_a_newer_major_is_refused_before_anything_else(void **state)
{
    (void)state;
    unsigned char *copy = malloc(good_bytes);
    memcpy(copy, good, good_bytes);
    copy[8] = 3;
    memset(copy + 10, 0xee, 4086); /* even its header may be another */
    pack_expect_refusal(copy, good_bytes, MOEPAGE_E_VERSION,
                        "format version 3|reads versions 1 and 2");
    free(copy);
}

/* With reserved bytes in use, and a section that nobody here knows. */
static void test_pack_of_a_newer_minor_is_read(void **state)
{
    (void)state;
    uint64_t n = good_bytes + 4096, sections = pack_number(good + 32, 4);
    unsigned char *copy = calloc(1, n), *entry = copy + 128 + 32 * sections;
    memcpy(copy, good, good_bytes);
    memcpy(copy + good_bytes, "something new", 13);
    pack_set_number(entry, 99, 4);
    pack_set_number(entry + 4, 3, 4);
    pack_set_number(entry + 8, good_bytes, 8);
    pack_set_number(entry + 16, 13, 8);
    pack_set_number(copy + 32, sections + 1, 4);
    pack_set_number(copy + 16, n, 8);
    pack_seal(copy, n);
    pack_expect_refusal(copy, n, MOEPAGE_E_FORMAT, "no section of type 99");
    copy[10] = 2;
    copy[60] = 1;
    pack_seal(copy, n);
    moepage_model *model = pack_open(pack_memory_file(copy, n));
    pack_expect_same(source.model, model);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    copy[good_bytes + 3] ^= 1;
    pack_expect_refusal(copy, n, MOEPAGE_E_FORMAT, "section of type 99|checksum");
    free(copy);
}

static void test_pack_is_not_any_other_file(void **state)
{
    (void)state;
    unsigned char *other = calloc(1, 8192);
    pack_expect_refusal(other, 0, MOEPAGE_E_FORMAT, "header|0 bytes|name the directory");
    pack_expect_refusal(other, 4095, MOEPAGE_E_FORMAT, "header|4095 bytes|name the directory");
    pack_expect_refusal(other, 8192, MOEPAGE_E_FORMAT, "header|not a .moepack|name the directory");
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack_has_the_bytes_that_the_format_says),
        cmocka_unit_test(test_pack_with_a_wrong_header_is_refused),
        cmocka_unit_test(test_pack_with_a_wrong_table_is_refused),
        cmocka_unit_test(test_pack_with_a_wrong_shape_is_refused),
        cmocka_unit_test(test_pack_with_a_wrong_directory_is_refused),
        cmocka_unit_test(test_pack_with_a_wrong_index_is_refused),
        cmocka_unit_test(test_pack_with_a_wrong_record_is_refused_when_it_is_read),
        cmocka_unit_test(test_pack_without_a_lossless_form_is_refused),
        cmocka_unit_test(test_pack_that_lacks_a_section_is_refused),
        cmocka_unit_test(test_pack_of_a_newer_major_is_refused_before_anything_else),
        cmocka_unit_test(test_pack_of_a_newer_minor_is_read),
        cmocka_unit_test(test_pack_is_not_any_other_file),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
