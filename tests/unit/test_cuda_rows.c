/* Rows moved by index, byte for byte, at every alignment. */

#include <stdlib.h>
#include <string.h>

#include "kernel_rig.h"
#include "numbers.h"
#include "testing.h"

typedef struct move {
    uint32_t n, limit, row_bytes;
    uint64_t in_stride, out_stride; /* 0 = row_bytes */
    uint32_t in_shift, out_shift;   /* bytes past a multiple of 16 */
    uint32_t blocks;                /* at most */
} move;

static uint64_t stride_of(uint64_t stride, uint32_t row_bytes)
{
    return stride ? stride : row_bytes;
}

/* `n` rows, the last without what its stride leaves free; ends at an inaccessible page as nearly as
 * the shift allows. */
static uint64_t bytes_of(uint64_t n, uint64_t stride, uint32_t row_bytes)
{
    return n ? (n - 1) * stride_of(stride, row_bytes) + row_bytes : 0;
}

static unsigned char *rows_make(uint64_t bytes, uint32_t shift, void **memory, uint64_t *size)
{
    *size = (bytes + shift + 15) / 16 * 16;
    *memory = guarded_alloc(*size ? *size : 16);
    for (uint64_t i = 0; i < *size; i++)
        ((unsigned char *)*memory)[i] = (unsigned char)num_random_bits();
    return (unsigned char *)*memory + shift;
}

/* Valid, negative and too large ones; each valid one at most once, as a scatter wants. */
static int32_t *indices_make(const move *m)
{
    int32_t *index = malloc((m->n + 1) * sizeof *index);
    int32_t *free_rows = malloc((m->limit + 1) * sizeof *free_rows);
    uint32_t n_free = m->limit;
    for (uint32_t i = 0; i < m->limit; i++)
        free_rows[i] = (int32_t)i;
    for (uint32_t i = 0; i < m->n; i++) {
        const uint32_t kind = num_random_bits() % 8;
        if (kind == 0 || !n_free) {
            index[i] = kind % 2 ? -1 : (int32_t)(m->limit + num_random_bits() % 3);
        } else if (kind == 1) {
            index[i] = INT32_MIN + (int32_t)(num_random_bits() % 5);
        } else {
            const uint32_t at = num_random_bits() % n_free;
            index[i] = free_rows[at];
            free_rows[at] = free_rows[--n_free];
        }
    }
    free(free_rows);
    return index;
}

static void expect_moved(const move *m, int scatter)
{
    const uint64_t in_stride = stride_of(m->in_stride, m->row_bytes);
    const uint64_t out_stride = stride_of(m->out_stride, m->row_bytes);
    void *in_memory, *out_memory;
    uint64_t in_size, out_size;
    unsigned char *in = rows_make(bytes_of(scatter ? m->n : m->limit, m->in_stride, m->row_bytes),
                                  m->in_shift, &in_memory, &in_size);
    unsigned char *out = rows_make(bytes_of(scatter ? m->limit : m->n, m->out_stride, m->row_bytes),
                                   m->out_shift, &out_memory, &out_size);
    int32_t *index = indices_make(m);
    unsigned char *want = malloc(out_size + 1);
    if (out_size)
        memcpy(want, out_memory, out_size);
    for (uint32_t i = 0; i < m->n; i++) {
        if (index[i] < 0 || index[i] >= (int64_t)m->limit)
            continue;
        const uint64_t from = scatter ? i : (uint32_t)index[i];
        const uint64_t to = scatter ? (uint32_t)index[i] : i;
        memcpy(want + m->out_shift + to * out_stride, in + from * in_stride, m->row_bytes);
    }
    const moepage_cuda_rows args = {
        .struct_size = sizeof args,
        .n = m->n,
        .limit = m->limit,
        .row_bytes = m->row_bytes,
        .index = index,
        .in = in,
        .out = out,
        .in_stride = m->in_stride,
        .out_stride = m->out_stride,
    };
    mp_cuda *gpu = kernel_rig(4);
    kernel_rig_cut(m->blocks);
    assert_int_equal(scatter ? mp_cuda_call_scatter(gpu, NULL, &args)
                             : mp_cuda_call_gather(gpu, NULL, &args),
                     MOEPAGE_OK);
    if (out_size)
        assert_memory_equal(out_memory, want, out_size);
    free(want);
    free(index);
    guarded_free(in_memory, in_size ? in_size : 16);
    guarded_free(out_memory, out_size ? out_size : 16);
}

static void test_cuda_rows_move_at_every_alignment(void **state)
{
    static const uint32_t sizes[] = {2, 4, 6, 8, 16, 24, 50, 64, 256, 1024, 4096, 9000, 20016};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint32_t shift = 0; shift < 4; shift++) {
            move m = {.n = 9, .limit = 12, .row_bytes = sizes[s], .blocks = 1000};
            m.in_shift = shift & 1 ? 2u << s % 3 : 0;
            m.out_shift = shift & 2 ? 2u << (s + 1) % 3 : 0;
            expect_moved(&m, 0);
            expect_moved(&m, 1);
        }
}

static void test_cuda_rows_leave_what_lies_between_strides(void **state)
{
    static const move cases[] = {
        {20, 30, 96, 128, 112, 0, 0, 1000},
        {20, 5, 96, 98, 0, 0, 0, 1000},
        {7, 7, 32, 0, 36, 0, 4, 1000},
        {33, 64, 2, 16, 6, 2, 0, 1000},
        {5, 9, 1000, 1008, 2048, 8, 8, 1000},
        /* A thread's fourth vector is the first past the row: in vectors of 2, 4, 8, 16 bytes. */
        {11, 12, 202, 206, 210, 0, 0, 1000},
        {11, 12, 404, 412, 420, 0, 0, 1000},
        {11, 12, 808, 824, 840, 0, 0, 1000},
        {11, 12, 1616, 1648, 1680, 0, 0, 1000},
        {11, 12, 1602, 1606, 1610, 0, 0, 1000},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_moved(&cases[i], 0);
        expect_moved(&cases[i], 1);
    }
}

static void test_cuda_rows_are_the_same_in_one_turn_and_in_several(void **state)
{
    (void)state;
    for (uint32_t blocks = 1; blocks <= 4; blocks++) {
        const move small = {.n = 3000, .limit = 4000, .row_bytes = 32, .blocks = blocks};
        const move large = {.n = 21, .limit = 23, .row_bytes = 16384, .blocks = blocks};
        expect_moved(&small, 0);
        expect_moved(&small, 1);
        expect_moved(&large, 0);
        expect_moved(&large, 1);
    }
}

static void test_cuda_rows_without_a_row_to_index_move_nothing(void **state)
{
    (void)state;
    const move none = {.n = 17, .limit = 0, .row_bytes = 64, .blocks = 1000};
    expect_moved(&none, 0);
    expect_moved(&none, 1);
    const moepage_cuda_rows empty = {.struct_size = sizeof empty, .row_bytes = 2};
    assert_int_equal(mp_cuda_call_gather(kernel_rig(4), NULL, &empty), MOEPAGE_OK);
    assert_int_equal(mp_cuda_call_scatter(kernel_rig(4), NULL, &empty), MOEPAGE_OK);
    assert_int_equal(kernel_rig_launches(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_rows_move_at_every_alignment),
        cmocka_unit_test(test_cuda_rows_leave_what_lies_between_strides),
        cmocka_unit_test(test_cuda_rows_are_the_same_in_one_turn_and_in_several),
        cmocka_unit_test(test_cuda_rows_without_a_row_to_index_move_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
