/* Pieces that are computed from stored tensors: any range of one is what the kind's definition, worked out
 * byte by byte, makes it, whatever threads read it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "model/repack.h"
#include "numbers.h"
#include "testing.h"

enum { THREADS = 4 };

/* A file of stored tensors, and a piece of it. */
typedef struct computed {
    char dir[64];
    mp_model_file file;
    mp_file_span stored[MP_REPACK_SOURCES];
    mp_repack how;
    mp_repack_rooms *rooms;
    unsigned char *bytes; /* of the file */
    unsigned char *whole; /* of the piece, by its definition */
    uint64_t n;
} computed;

static void open_file(computed *of)
{
    char path[96];
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < of->how.n_sources; s++) {
        of->stored[s] = (mp_file_span){&of->file, bytes};
        bytes += of->how.sources[s].rows * of->how.sources[s].row_bytes;
    }
    of->bytes = malloc(bytes);
    for (uint64_t i = 0; i < bytes; i++)
        of->bytes[i] = (unsigned char)num_random_bits();
    maker_dir_create(of->dir);
    maker_write(of->dir, "stored", of->bytes, bytes);
    snprintf(path, sizeof path, "%s/stored", of->dir);
    assert_int_equal(mp_model_file_open(path, &of->file), MOEPAGE_OK);
}

static moepage_status read_range(const computed *of, uint64_t offset, uint64_t n, void *out)
{
    return mp_repack_read(&of->how, of->stored, of->rooms, offset, n, out);
}

/* Row r of the piece in the order of the stored ones. */
static uint64_t stored_row(const mp_repack *how, uint64_t r)
{
    const uint64_t half = how->rows / 2;
    return !how->interleaved ? r : r < half ? 2 * r : 2 * (r - half) + 1;
}

static void naive_row(const computed *of, uint64_t r, unsigned char *out)
{
    const mp_repack *how = &of->how;
    const mp_repack_source *first = &how->sources[0];
    const uint64_t row = stored_row(how, r), bytes = how->row_bytes, each = bytes / first->rows;
    for (uint64_t i = 0; i < bytes; i++)
        if (how->kind == &mp_repack_reordered)
            out[i] = of->bytes[row * bytes + i];
        else if (how->kind == &mp_repack_transposed)
            out[i] = of->bytes[i / each * first->row_bytes + row * each + i % each];
        else if (i % 17 == 0)
            out[i] = of->bytes[of->stored[1].offset + row * how->sources[1].row_bytes + i / 17];
    for (uint64_t w = 0; how->kind == &mp_repack_mxfp4 && w < bytes / 17 * 32; w++) {
        const unsigned nibble = of->bytes[row * first->row_bytes + w / 2] >> w % 2 * 4 & 15;
        unsigned char *in_block = &out[w / 32 * 17 + 1 + w % 16];
        *in_block = w % 32 < 16 ? nibble : *in_block | nibble << 4;
    }
}

static void open_computed(computed *of, const mp_repack *how)
{
    *of = (computed){.how = *how, .n = how->rows * how->row_bytes};
    open_file(of);
    assert_int_equal(mp_repack_rooms_create(mp_repack_room(how), &of->rooms), MOEPAGE_OK);
    of->whole = malloc(of->n);
    for (uint64_t r = 0; r < how->rows; r++)
        naive_row(of, r, of->whole + r * how->row_bytes);
}

static void close_computed(computed *of)
{
    mp_repack_rooms_free(of->rooms);
    mp_model_file_close(&of->file);
    maker_dir_remove(of->dir);
    free(of->bytes);
    free(of->whole);
}

/* ---- kinds and shapes ---- */

static const mp_repack hows[] = {
    {&mp_repack_reordered, 10, 6, true, 1, {{10, 6}}},
    {&mp_repack_reordered, 70000, 40, true, 1, {{70000, 40}}},
    {&mp_repack_transposed, 26, 14, true, 1, {{7, 52}}},
    {&mp_repack_transposed, 13, 99, false, 1, {{99, 13}}},
    {&mp_repack_transposed, 13, 4 * 99, false, 1, {{99, 4 * 13}}},
    {&mp_repack_transposed, 6, 8 * 70, true, 1, {{70, 8 * 6}}},
    {&mp_repack_transposed, 1200, 2 * 900, true, 1, {{900, 2 * 1200}}},
    {&mp_repack_reordered, 4, 700000, true, 1, {{4, 700000}}}, /* a row fills a room */
    {&mp_repack_mxfp4, 6, 17 * 3, true, 2, {{6, 16 * 3}, {6, 3}}},
    {&mp_repack_mxfp4, 800, 17 * 90, true, 2, {{800, 16 * 90}, {800, 90}}},
    {&mp_repack_mxfp4, 801, 17 * 90, false, 2, {{801, 16 * 90}, {801, 90}}},
};
#define N_HOWS (sizeof hows / sizeof *hows)

static void expect_range(const computed *of, uint64_t offset, uint64_t n, unsigned char *buffer)
{
    buffer[n] = 0x5a;
    assert_int_equal(read_range(of, offset, n, buffer), MOEPAGE_OK);
    assert_memory_equal(buffer, of->whole + offset, n);
    assert_int_equal(buffer[n], 0x5a);
}

static void test_repack_any_range_is_as_defined(void **state)
{
    (void)state;
    for (size_t h = 0; h < N_HOWS; h++) {
        computed of;
        open_computed(&of, &hows[h]);
        unsigned char *buffer = malloc(of.n + 1);
        expect_range(&of, 0, of.n, buffer);
        for (int i = 0; i < 12; i++) {
            const uint64_t offset = num_random_bits() % of.n;
            expect_range(&of, offset, 1 + num_random_bits() % (of.n - offset), buffer);
        }
        expect_range(&of, of.n - 1, 1, buffer);
        expect_range(&of, of.n / 2 - 1, 2, buffer);
        expect_range(&of, 3, 0, buffer);
        assert_int_equal(mp_repack_check(&of.how, of.stored, of.rooms), MOEPAGE_OK);
        free(buffer);
        close_computed(&of);
    }
}

/* ---- threads ---- */

static void *read_often(void *user)
{
    const computed *of = user;
    unsigned char *buffer = malloc(of->n);
    bool same = true;
    for (int i = 0; i < 8; i++)
        same &= !read_range(of, 0, of->n, buffer) && !memcmp(buffer, of->whole, of->n);
    free(buffer);
    return same ? user : NULL;
}

static void test_repack_threads_read_at_once(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    computed of;
    open_computed(&of, &hows[9]);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_often, &of), 0);
    for (int i = 0; i < THREADS; i++) {
        void *same;
        pthread_join(threads[i], &same);
        assert_non_null(same);
    }
    close_computed(&of);
}

/* ---- files that change ---- */

static void test_repack_of_a_changed_file_is_a_status(void **state)
{
    (void)state;
    for (size_t h = 0; h < N_HOWS; h += 2) {
        computed of;
        unsigned char out[1];
        char path[96];
        open_computed(&of, &hows[h]);
        snprintf(path, sizeof path, "%s/stored", of.dir);
        assert_int_equal(truncate(path, 1), 0);
        assert_int_equal(read_range(&of, of.n - 1, 1, out), MOEPAGE_E_IO);
        assert_non_null(strstr(moepage_last_error(), "stored was truncated"));
        assert_int_equal(mp_repack_check(&of.how, of.stored, of.rooms), MOEPAGE_E_IO);
        close_computed(&of);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repack_any_range_is_as_defined),
        cmocka_unit_test(test_repack_threads_read_at_once),
        cmocka_unit_test(test_repack_of_a_changed_file_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
