/* Reading a pack where files are not what they were when it was opened, file systems not what they
 * said, and records not what they seem. The system's calls to open and to read files are this
 * program's, which passes them on. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include "moe_maker.h"
#include "pack_maker.h"
#include "testing.h"

enum { INDEX = 5, DATA = 6, EXPERTS = 6, ENTRY = 24 };

/* ---- The system's calls ---- */

static struct {
    int direct_fd; /* the last one opened for direct reads */
    bool refused;  /* they fail, as some file systems have it */
    uint32_t refusals;
    const char *takes, *from; /* the one is renamed to the other before it is opened so */
} calls = {.direct_fd = -1};

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    const bool direct = flags & O_DIRECT;
    if (direct && calls.takes) {
        if (rename(calls.from, calls.takes))
            abort();
        calls.takes = NULL;
    }
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (direct && fd < 0) /* not on every file system */
        fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags & ~O_DIRECT, mode);
    if (direct)
        calls.direct_fd = fd;
    return fd;
}

ssize_t pread(int fd, void *out, size_t n, off_t offset)
{
    if (fd == calls.direct_fd && calls.refused) {
        calls.refusals++;
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_pread64, fd, out, n, offset);
}

/* ---- Packs ---- */

static pack_source source;
static char directory[64], path[80], other[80];

static int make(void **state)
{
    (void)state;
    pack_source_init(&source);
    maker_dir_create(directory);
    snprintf(path, sizeof path, "%s/a.moepack", directory);
    snprintf(other, sizeof other, "%s/b.moepack", directory);
    calls.direct_fd = -1;
    calls.refused = false;
    calls.refusals = 0;
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    pack_source_close(&source);
    maker_dir_remove(directory);
    return 0;
}

static void write_pack(const char *to, uint32_t forms, int32_t cold_level)
{
    const moepage_pack_config config = pack_config(forms, cold_level);
    if (moepage_pack_write(source.model, to, &config, NULL))
        fail_msg("not packed: %s", moepage_last_error());
}

/* ---- Files ---- */

static void test_pack_read_goes_on_where_direct_reads_are_refused(void **state)
{
    (void)state;
    pack_source_open(&source);
    write_pack(path, PACK_FORM(DENSE) | PACK_FORM(INT4), 0);
    moepage_model *pack = pack_open(path);
    assert_true(calls.direct_fd >= 0);
    calls.refused = true;
    pack_expect_same(source.model, pack);
    assert_int_equal(calls.refusals, 1); /* once is enough */
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

/* Whoever reads is told which way it went. */
static void test_pack_read_says_whether_the_page_cache_was_in_it(void **state)
{
    (void)state;
    static const struct {
        uint32_t forms, form;
        int32_t cold_level;
    } kinds[] = {
        {PACK_FORM(DENSE), MOEPAGE_FORM_DENSE, 0},
        {PACK_FORM(DENSE), MOEPAGE_FORM_DENSE, 3},
        {PACK_FORM(EXPH), MOEPAGE_FORM_DENSE, 0},
        {PACK_FORM(EXPH), MOEPAGE_FORM_EXPH, 0},
    };
    pack_source_open(&source);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const uint32_t form = kinds[k].form;
        calls.refused = false;
        write_pack(path, kinds[k].forms, kinds[k].cold_level);
        moepage_model *pack = pack_open(path);
        const uint64_t room = mp_model_image_room(pack, form);
        unsigned char *buffer = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
        assert_non_null(buffer);
        for (int refused = 0; refused < 2; refused++) {
            mp_image_read read;
            calls.refused = refused;
            assert_int_equal(mp_model_read_cold(pack, 1, 1, form, NULL, buffer, &read), MOEPAGE_OK);
            assert_int_equal(read.buffered, refused);
            assert_int_equal(read.bytes % 4096, 0);
        }
        free(buffer);
        assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    }
}

/* The same shape and sizes, other weights: a reader that mixes the two finds other checksums. */
static void test_pack_read_keeps_to_the_file_that_was_opened(void **state)
{
    (void)state;
    pack_source_open(&source);
    write_pack(path, PACK_FORM(DENSE), 0);
    for (uint32_t i = 0; i < EXPERTS; i++)
        source.bytes[2 * i][7] ^= 1;
    write_pack(other, PACK_FORM(DENSE), 0);
    for (uint32_t i = 0; i < EXPERTS; i++)
        source.bytes[2 * i][7] ^= 1;
    calls.takes = path;
    calls.from = other;
    moepage_model *pack = pack_open(path);
    assert_null(calls.takes);
    pack_expect_same(source.model, pack);
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

/* ---- Slots ---- */

/* Into memory that holds something else: the bytes between tensors are zeros afterwards. */
static void test_pack_read_fills_the_padding_of_slots(void **state)
{
    (void)state;
    static const struct {
        uint32_t forms;
        int32_t cold_level;
    } kinds[] = {{PACK_FORM(DENSE), 0}, {PACK_FORM(DENSE), 3}, {PACK_FORM(EXPH), 0}};
    enum { SECOND = 256, SLOT = 512, SMALL = 2 * 7 * 5 };
    source.banks.n_tensors = 0;
    pack_source_tensor(&source, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_BF16, 2, (uint64_t[]){7, 5});
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN, MOEPAGE_DTYPE_BF16, 2, (uint64_t[]){5, 7});
    pack_source_open(&source);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        write_pack(path, kinds[k].forms, kinds[k].cold_level);
        moepage_model *pack = pack_open(path);
        const uint64_t room = mp_model_image_room(pack, MOEPAGE_FORM_DENSE);
        unsigned char *buffer = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
        assert_non_null(buffer);
        for (uint32_t expert = 0; expert < 3; expert++) {
            unsigned char want[SLOT] = {0};
            uint64_t read_bytes;
            mp_image image;
            memcpy(want, pack_source_bytes(&source, 1, expert, 0), SMALL);
            memcpy(want + SECOND, pack_source_bytes(&source, 1, expert, 1), SMALL);
            memset(buffer, 0xee, room);
            mp_model_find_image(pack, 1, expert, MOEPAGE_FORM_DENSE, &image);
            assert_int_equal(image.bytes, SLOT);
            assert_int_equal(mp_model_read_image(pack, 1, expert, MOEPAGE_FORM_DENSE, buffer, room,
                                                 &read_bytes),
                             MOEPAGE_OK);
            assert_memory_equal(buffer + image.skew, want, SLOT);
        }
        free(buffer);
        assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    }
}

/* ---- Records ---- */

/* An expert whose record leaves room for n bytes more before the next one. */
static unsigned char *entry_with_room(unsigned char *file, uint64_t n, uint32_t *key)
{
    unsigned char *entry = file + pack_find_section(file, INDEX, MOEPAGE_FORM_DENSE).offset + 32;
    for (*key = 0; *key < EXPERTS; ++*key, entry += ENTRY) {
        const uint64_t bytes = pack_number(entry + 8, 8);
        if ((bytes + 63) / 64 * 64 - bytes >= n)
            return entry;
    }
    fail_msg("no record leaves room for %u bytes", (unsigned)n);
    return NULL;
}

/* zstd itself would skip an empty frame that follows. */
static void test_pack_read_refuses_a_second_frame(void **state)
{
    (void)state;
    static const unsigned char skippable[8] = {0x50, 0x2a, 0x4d, 0x18};
    unsigned char out[9216];
    uint64_t n;
    uint32_t key;
    pack_source_open(&source);
    unsigned char *file = pack_make(source.model, PACK_FORM(DENSE), 5, &n);
    unsigned char *entry = entry_with_room(file, sizeof skippable, &key);
    unsigned char *record = file + pack_number(entry, 8);
    const uint64_t bytes = pack_number(entry + 8, 8);
    memcpy(record + bytes, skippable, sizeof skippable);
    pack_set_number(entry + 8, bytes + sizeof skippable, 8);
    pack_set_number(entry + 16, XXH3_64bits(record, (bytes + 63) / 64 * 64), 8);
    pack_seal(file, n);
    moepage_model *pack = pack_open(pack_memory_file(file, n));
    assert_int_equal(moepage_model_read_expert(pack, key / 3, key % 3, out, sizeof out),
                     MOEPAGE_E_FORMAT);
    expect_sentence("EXPERT DATA (dense)|not one zstd frame of 9216 bytes");
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    free(file);
}

/* The section one record's alignment longer, into the padding of its page. */
static void test_pack_records_must_fill_their_section(void **state)
{
    (void)state;
    uint64_t n;
    pack_source_open(&source);
    unsigned char *file = pack_make(source.model, PACK_FORM(EXPH), 0, &n);
    unsigned char *entry = file + 128;
    while (pack_number(entry, 4) != DATA)
        entry += 32;
    const uint64_t bytes = pack_number(entry + 16, 8);
    assert_in_range(bytes % 4096, 1, 4096 - 64);
    pack_set_number(entry + 16, bytes + 64, 8);
    pack_seal(file, n);
    pack_expect_refusal(file, n, MOEPAGE_E_FORMAT, "EXPERT INDEX (exph): its records end at");
    free(file);
}

/* ---- Verifying ---- */

typedef struct meddler {
    unsigned char *byte;
    uint32_t calls;
} meddler;

/* Changes a tensor that is not an expert's once all of them have been written. */
static int32_t meddle(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    meddler *m = user;
    (void)done_bytes, (void)total_bytes;
    if (++m->calls == source.banks.n_dense + 1)
        *m->byte ^= 1;
    return 0;
}

static void test_pack_verify_finds_a_changed_tensor(void **state)
{
    (void)state;
    pack_source_open(&source);
    for (uint32_t i = 0; i < source.banks.n_dense; i++) {
        meddler m = {.byte = source.dense_bytes[i] + 3};
        moepage_pack_config config = pack_config(PACK_FORM(EXPH), 0);
        config.progress = meddle;
        config.progress_user = &m;
        config.verify = 1;
        assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_E_IO);
        expect_sentence("a.moepack: reading back|DENSE DATA: tensor|is not the model's");
        expect_sentence(source.dense[i].name);
        assert_int_equal(pack_files_in(directory), 0);
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_pack_read_goes_on_where_direct_reads_are_refused),
        CASE(test_pack_read_says_whether_the_page_cache_was_in_it),
        CASE(test_pack_read_keeps_to_the_file_that_was_opened),
        CASE(test_pack_read_fills_the_padding_of_slots),
        CASE(test_pack_read_refuses_a_second_frame),
        CASE(test_pack_records_must_fill_their_section),
        CASE(test_pack_verify_finds_a_changed_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
