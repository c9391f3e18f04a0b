/* Reads that bypass the page cache give the file's bytes, whatever the range and whether the file system has them. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "model/file.h"
#include "testing.h"

#define N (2 * MP_DIRECT_CHUNK + 12345) /* ends within a page */
#define EDGE 5u

static char dir[64], path[96];
static unsigned char *bytes, *out;

static int make(void **state)
{
    (void)state;
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/a", dir);
    bytes = malloc(N);
    out = malloc(N + 2 * EDGE);
    uint32_t random = 7;
    for (uint32_t i = 0; i < N; i++)
        bytes[i] = (unsigned char)((random = random * 1664525u + 1013904223u) >> 24);
    FILE *file = fopen(path, "wbe");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, N, file), N);
    assert_int_equal(fclose(file), 0);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    free(bytes);
    free(out);
    maker_dir_remove(dir);
    return 0;
}

static void expect_range(const mp_model_file *file, const mp_direct_desk *desk, uint64_t first,
                         uint64_t n, bool from_cache)
{
    bool buffered = !from_cache;
    memset(out, 0xa5, n + 2 * EDGE);
    assert_int_equal(mp_direct_read(file, first, n, desk, out + EDGE, &buffered), MOEPAGE_OK);
    assert_memory_equal(out + EDGE, bytes + first, n);
    for (uint32_t i = 0; i < EDGE; i++) {
        assert_int_equal(out[i], 0xa5);
        assert_int_equal(out[EDGE + n + i], 0xa5);
    }
    if (n)
        assert_int_equal(buffered, from_cache);
}

static void expect_ranges(const mp_model_file *file, bool from_cache)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     MP_DIRECT_PAGE - 1,
                                     MP_DIRECT_PAGE,
                                     MP_DIRECT_PAGE + 1,
                                     MP_DIRECT_CHUNK - 1,
                                     MP_DIRECT_CHUNK,
                                     MP_DIRECT_CHUNK + 4097,
                                     N - 1,
                                     N};
    mp_direct_desk desk;
    assert_true(mp_direct_desk_open(&desk));
    for (size_t a = 0; a < sizeof edges / sizeof *edges; a++)
        for (size_t b = a; b < sizeof edges / sizeof *edges; b++)
            expect_range(file, &desk, edges[a], edges[b] - edges[a], from_cache);
    mp_direct_desk_close(&desk);
}

static void test_direct_reads_give_any_range(void **state)
{
    (void)state;
    mp_model_file file;
    assert_int_equal(mp_model_file_open(path, &file), MOEPAGE_OK);
    expect_ranges(&file, true); /* before there is a second description */
    assert_int_equal(mp_direct_open(path, &file), MOEPAGE_OK);
    if (file.direct) {
        expect_ranges(&file, false);
        atomic_store(&file.direct->works, false);
        expect_ranges(&file, true);
    }
    mp_model_file_close(&file);
}

static void test_direct_reads_past_the_end_fail(void **state)
{
    (void)state;
    mp_model_file file;
    mp_direct_desk desk;
    bool buffered;
    assert_true(mp_direct_desk_open(&desk));
    assert_int_equal(mp_model_file_open(path, &file), MOEPAGE_OK);
    assert_int_equal(mp_direct_open(path, &file), MOEPAGE_OK);
    assert_int_equal(mp_direct_read(&file, N - 10, 11, &desk, out, &buffered), MOEPAGE_E_IO);
    mp_model_file_close(&file);
    mp_direct_desk_close(&desk);
}

static void test_direct_reads_are_of_the_file_that_was_opened(void **state)
{
    (void)state;
    mp_model_file file;
    assert_int_equal(mp_model_file_open(path, &file), MOEPAGE_OK);
    assert_int_equal(unlink(path), 0);
    maker_write_text(dir, "a", "another file");
    assert_int_equal(mp_direct_open(path, &file), MOEPAGE_OK);
    assert_null(file.direct);
    expect_ranges(&file, true);
    mp_model_file_close(&file);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_direct_reads_give_any_range),
        CASE(test_direct_reads_past_the_end_fail),
        CASE(test_direct_reads_are_of_the_file_that_was_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
