/* EXPERTS with weights in GGUF's block formats, on every instruction set that this CPU runs: the same
 * bits as with the F32 weights that the formats' decoders say they are, which test_host_kernels.c
 * compares with naive sums; and sums in double precision of those weights. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codec/blocks.h"
#include "coded_launch.h"
#include "device/host_kernel_set.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "random_blocks.h"
#include "reference.h"
#include "slow.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define BF16 MOEPAGE_DTYPE_BF16
#define FIRST MOEPAGE_DTYPE_Q4_0
#define N_FORMATS (MOEPAGE_DTYPE_NVFP4G256_F32 - MOEPAGE_DTYPE_Q4_0 + 1)

static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

/* ---- A matrix, and what it stands for ---- */

static void open_matrix(const coded_launch *l, uint32_t which, uint32_t rows, uint32_t columns,
                        coded_matrix *m)
{
    const mp_block_format *format = mp_block_format_of(l->dtypes[which]);
    const uint64_t n = (uint64_t)rows * columns, n_blocks = n / format->weights;
    assert_int_equal(columns % format->weights, 0);
    m->coded_bytes = n_blocks * format->bytes;
    m->coded = guarded_alloc(m->coded_bytes);
    m->values = malloc(n * sizeof *m->values);
    assert_non_null(m->values);
    random_blocks(format->dtype, n_blocks, m->coded);
    mp_block_decode(format, m->coded, n_blocks, m->values);
}

/* ---- A launch ---- */

static coded_launch launch_of(uint32_t hidden, uint32_t intermediate, const uint32_t *dtypes,
                              uint32_t math)
{
    coded_launch l = {.math = math,
                      .hidden = hidden,
                      .intermediate = intermediate,
                      .open_matrix = open_matrix};
    memcpy(l.dtypes, dtypes, sizeof l.dtypes);
    return l;
}

static void expect_mixed_bits(uint32_t hidden, uint32_t intermediate, const uint32_t *dtypes,
                              uint32_t math, const uint32_t *counts)
{
    coded_launch l = launch_of(hidden, intermediate, dtypes, math);
    coded_launch_open(&l, counts);
    coded_launch_run_plain(&l);
    for (size_t s = 0; s < n_kernel_sets; s++)
        coded_launch_try(&l, kernel_sets[s]);
    coded_launch_close(&l);
}

static uint32_t weights_of(uint32_t dtype)
{
    return mp_block_format_of(dtype)->weights;
}

/* Rows of gate and up that are `n` blocks of the format; down is of short blocks. */
static void expect_bits_of_gate_and_up(uint32_t dtype, uint32_t n, uint32_t math,
                                       const uint32_t *counts)
{
    const uint32_t dtypes[MP_MATRICES] = {dtype, dtype, MOEPAGE_DTYPE_Q4_1};
    expect_mixed_bits(n * weights_of(dtype), 32, dtypes, math, counts);
}

/* The same of down. */
static void expect_bits_of_down(uint32_t dtype, uint32_t n, uint32_t math, const uint32_t *counts)
{
    const uint32_t dtypes[MP_MATRICES] = {MOEPAGE_DTYPE_Q4_0, MOEPAGE_DTYPE_MXFP4, dtype};
    expect_mixed_bits(32, n * weights_of(dtype), dtypes, math, counts);
}

/* ---- Tests ---- */

/* The sums of every format are compared in all shapes by the plain build; a sanitized one, which is to see
 * what is read and written, takes a third to a half of them. */

static void test_host_blocks_sum_as_the_decoded_weights_do(void **state)
{
    static const uint32_t counts[] = {1, 7, 0};
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (size_t m = 0; m < 2; m++)
            for (uint32_t n = 1; n <= 3; n++) {
                if (slow_here() && n != 1 + (dtype + m) % 3)
                    continue;
                expect_bits_of_gate_and_up(dtype, n, maths[m], counts);
                expect_bits_of_down(dtype, n, maths[m], counts);
            }
}

static void test_host_blocks_any_number_of_rows_gives_the_same(void **state)
{
    const uint32_t each = slow_here() ? 7 : 14;
    (void)state;
    for (uint32_t rows = 1; rows <= 60; rows += rows < each ? 1 : 23) {
        const uint32_t counts[] = {rows, 0, 61 - rows};
        for (uint32_t dtype = FIRST + rows % 3; dtype < FIRST + N_FORMATS; dtype += 3)
            expect_bits_of_gate_and_up(dtype, 1, maths[rows / 2 % 2], counts);
    }
}

/* Rows longer than a piece, for one group of rows and for several. */
static void test_host_blocks_long_rows_go_on_between_pieces(void **state)
{
    static const uint32_t counts[] = {1, 9, 0}, others[] = {2, 0, 25};
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (size_t m = 0; m < 2; m++) {
            if (slow_here() && m != dtype % 2)
                continue;
            const uint32_t n = 2048 / weights_of(dtype) + 1;
            expect_bits_of_gate_and_up(dtype, n, maths[m], m ? others : counts);
            expect_bits_of_down(dtype, n, maths[m], m ? counts : others);
        }
}

static uint32_t any_dtype(void)
{
    const uint32_t random = (num_random_bits() >> 8) % (N_FORMATS + 2);
    return FIRST + random % N_FORMATS;
}

static void test_host_blocks_random_mixtures(void **state)
{
    const int rounds = getenv("MP_TEST_LONG") ? 1000 : slow_here() ? 4 : 12;
    (void)state;
    for (int i = 0; i < rounds; i++) {
        const uint32_t random = num_random_bits() >> 8, more = num_random_bits() >> 8;
        const uint32_t counts[] = {random % 3, more % 15, 1 + more % 3};
        const uint32_t dtypes[] = {any_dtype(), any_dtype(), any_dtype()};
        const uint32_t a = weights_of(dtypes[MP_GATE]), b = weights_of(dtypes[MP_UP]);
        expect_mixed_bits((1 + random % 2) * (a > b ? a : b),
                          (1 + more / 3 % 2) * weights_of(dtypes[MP_DOWN]), dtypes,
                          maths[random / 5 % 2], counts);
    }
}

/* The naive evaluation in double precision, with the bound of the devices' conformance. */
static void test_host_blocks_agree_with_double_precision(void **state)
{
    static const uint32_t counts[] = {2, 1, 9};
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (size_t m = 0; m < 2; m++) {
            const uint32_t same[MP_MATRICES] = {dtype, dtype, dtype}, h = weights_of(dtype);
            double want[256], bound[256];
            coded_launch l = launch_of(h, weights_of(dtype), same, maths[m]);
            coded_launch_open(&l, counts);
            coded_launch_run(&l, mp_host_kernels_best(), 1);
            for (uint32_t e = 0; e < CODED_EXPERTS; e++) {
                const mp_ffn_expert *expert = &l.plain[e];
                const uint32_t row = l.rows[expert->first_row];
                const char *x = (char *)l.x + (uint64_t)row / CODED_TOP_K * h * l.operand_bytes;
                reference_expert_row(expert, x, h, l.intermediate, F32, maths[m], want, bound);
                for (uint32_t i = 0; i < h; i++)
                    if (!(fabs(l.partial[row * h + i] - want[i]) <= bound[i]))
                        fail_msg("dtype %u, math %u, element %u: %.9g, it must be %.9g +- %.2g",
                                 dtype, maths[m], i, (double)l.partial[row * h + i], want[i],
                                 bound[i]);
            }
            coded_launch_close(&l);
        }
}

static void expect_values(const mp_host_kernel_set *set, const mp_block_format *format,
                          uint32_t n_blocks, const uint8_t *blocks, const float *want, float *got)
{
    const uint32_t n = n_blocks * format->weights;
    const mp_blocks in = {.blocks = blocks, .dtype = format->dtype, .n = n};
    memset(got, 0xa5, n * sizeof *got);
    set->blocks->as_f32[format->dtype - FIRST](&in, got);
    for (uint32_t i = 0; i < n; i++)
        if (!num_same(got[i], want[i]))
            fail_msg("%s: %s: weight %u of %u is %a, it must be %a", mp_host_kernels_name(set),
                     format->name, i, n, (double)got[i], (double)want[i]);
}

/* Blocks one and several at a time, up to the end of their memory, and nothing behind theirs is
 * written. */
static void test_host_blocks_have_the_values_that_their_decoders_say(void **state)
{
    enum { MOST = 9 };
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (uint32_t round = 0; round < 200; round++) {
            const mp_block_format *format = mp_block_format_of(dtype);
            const uint32_t n = 1 + round % MOST, bytes = n * format->bytes;
            const uint32_t out_bytes = n * format->weights * (uint32_t)sizeof(float);
            uint8_t *blocks = guarded_alloc(bytes);
            float *want = guarded_alloc(out_bytes), *got = guarded_alloc(out_bytes);
            random_blocks_wild(dtype, n, blocks);
            if (dtype == MOEPAGE_DTYPE_MXFP4)
                blocks[0] = (uint8_t)(round < 100 ? round : 355 - round);
            mp_block_decode(format, blocks, n, want);
            for (size_t s = 0; s < n_kernel_sets; s++)
                expect_values(kernel_sets[s], format, n, blocks, want, got);
            guarded_free(blocks, bytes);
            guarded_free(want, out_bytes);
            guarded_free(got, out_bytes);
        }
}

/* Four rows of blocks with scales of any kind, and what they stand for as an operand. */
typedef struct operands {
    uint8_t *blocks[MP_TILE_WEIGHTS];
    void *values[MP_TILE_WEIGHTS];
    uint64_t block_bytes, value_bytes;
} operands;

static void open_operands(operands *o, uint32_t dtype, uint32_t operand, uint32_t n)
{
    const mp_block_format *format = mp_block_format_of(dtype);
    const uint32_t n_blocks = n / format->weights;
    float wide[512];
    o->block_bytes = n_blocks * format->bytes;
    o->value_bytes = n * num_bytes(operand);
    for (uint32_t c = 0; c < MP_TILE_WEIGHTS; c++) {
        o->blocks[c] = guarded_alloc(o->block_bytes);
        o->values[c] = guarded_alloc(o->value_bytes);
        if (c % 2)
            random_blocks_wild(dtype, n_blocks, o->blocks[c]);
        else
            random_blocks(dtype, n_blocks, o->blocks[c]);
        mp_block_decode(format, o->blocks[c], n_blocks, wide);
        mp_host_set_portable.narrow[operand](wide, o->values[c], n);
    }
}

static void close_operands(operands *o)
{
    for (uint32_t c = 0; c < MP_TILE_WEIGHTS; c++) {
        guarded_free(o->blocks[c], o->block_bytes);
        guarded_free(o->values[c], o->value_bytes);
    }
}

/* A tile in two pieces, of which the second goes on from the first, by what reads blocks itself and by
 * the portable set on the values. */
static void try_tile(const mp_host_kernel_set *set, uint32_t dtype, bool pairs, uint32_t n_rows)
{
    enum { N = 512 };
    const mp_block_set *blocks = set->blocks;
    mp_run_tile *run_it = (pairs ? blocks->tile_dot : blocks->tile_f32)[dtype - FIRST];
    const uint32_t operand = pairs ? BF16 : F32;
    _Alignas(64) float got[MP_TILE_ROWS * 64], want[MP_TILE_ROWS * 64];
    operands o;
    if (!run_it || n_rows > blocks->tile_rows)
        return;
    open_operands(&o, dtype, operand, N);
    mp_tile tile = {.n_rows = n_rows, .acc = got}, plain = {.n_rows = n_rows, .acc = want};
    char *x = num_array(operand, MP_TILE_ROWS * N);
    for (uint32_t piece = 0; piece < 2; piece++) {
        const uint32_t from = piece * 256;
        tile.resume = plain.resume = piece > 0;
        tile.k = plain.k = 256;
        for (uint32_t r = 0; r < n_rows; r++)
            tile.x[r] = plain.x[r] = x + (r * N + from) * num_bytes(operand);
        for (uint32_t c = 0; c < MP_TILE_WEIGHTS; c++) {
            tile.w[c] = o.blocks[c] + piece * o.block_bytes / 2;
            plain.w[c] = (char *)o.values[c] + from * num_bytes(operand);
        }
        run_it(&tile);
        mp_host_set_portable.tile[pairs ? MP_TILE_DOT : MP_TILE_F32](&plain);
    }
    for (uint32_t i = 0; i < n_rows * 64; i++)
        if (!num_same(got[i], want[i]))
            fail_msg("%s: dtype %u, %u rows: lane %u is %a, it must be %a",
                     mp_host_kernels_name(set), dtype, n_rows, i, (double)got[i], (double)want[i]);
    guarded_free(x, MP_TILE_ROWS * N * num_bytes(operand));
    close_operands(&o);
}

static void test_host_blocks_tiles_sum_as_the_values_do(void **state)
{
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (size_t s = 0; s < n_kernel_sets; s++)
            for (uint32_t n_rows = 1; n_rows <= MP_TILE_ROWS; n_rows++) {
                try_tile(kernel_sets[s], dtype, false, n_rows);
                try_tile(kernel_sets[s], dtype, true, n_rows);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_blocks_sum_as_the_decoded_weights_do),
        cmocka_unit_test(test_host_blocks_any_number_of_rows_gives_the_same),
        cmocka_unit_test(test_host_blocks_long_rows_go_on_between_pieces),
        cmocka_unit_test(test_host_blocks_random_mixtures),
        cmocka_unit_test(test_host_blocks_agree_with_double_precision),
        cmocka_unit_test(test_host_blocks_have_the_values_that_their_decoders_say),
        cmocka_unit_test(test_host_blocks_tiles_sum_as_the_values_do),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
