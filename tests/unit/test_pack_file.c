/* A file that is written whole or not at all: nothing of it shows beside its path until it is
 * published, whether or not the file system has files without a name, and however long its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "model/pack_file.h"
#include "pack_maker.h"
#include "testing.h"

typedef moepage_status create(const char *path, mp_pack_file *out);
static create *const ways[] = {mp_pack_file_create, mp_pack_file_create_named};
enum { WAYS = sizeof ways / sizeof *ways, LONGEST = 255 };

static char directory[64], path[400];
static const mp_log no_log;

static int make(void **state)
{
    (void)state;
    maker_dir_create(directory);
    snprintf(path, sizeof path, "%s/a.moepack", directory);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    maker_dir_remove(directory);
    return 0;
}

static void set_path(int letter, size_t name)
{
    snprintf(path, sizeof path, "%s/", directory);
    const size_t at = strlen(path);
    memset(path + at, letter, name);
    path[at + name] = 0;
}

static void expect_content(const char *name, const char *content)
{
    size_t n;
    unsigned char *bytes = maker_read(directory, name, &n);
    assert_int_equal(n, strlen(content));
    assert_memory_equal(bytes, content, n);
    free(bytes);
}

static void write_and_publish(create *begin, const char *content)
{
    mp_pack_file file;
    if (begin(path, &file) || mp_pack_file_write(&file, content, strlen(content), 0) ||
        mp_pack_file_sync(&file, strlen(content)) || mp_pack_file_publish(&file, &no_log))
        fail_msg("%s", moepage_last_error());
    mp_pack_file_discard(&file);
}

static void test_pack_file_has_its_name_when_it_is_published(void **state)
{
    (void)state;
    for (int i = 0; i < WAYS; i++) {
        write_and_publish(ways[i], i ? "the second" : "first");
        expect_content("a.moepack", i ? "the second" : "first");
        assert_int_equal(pack_files_in(directory), 1);
    }
}

static void test_pack_file_that_is_discarded_leaves_nothing(void **state)
{
    (void)state;
    maker_write_text(directory, "a.moepack", "before");
    maker_write_text(directory, "a.moepack.part0", "another's");
    for (int i = 0; i < WAYS; i++) {
        mp_pack_file file;
        char name[400];
        assert_int_equal(ways[i](path, &file), MOEPAGE_OK);
        assert_int_equal(mp_pack_file_write(&file, "half", 4, 0), MOEPAGE_OK);
        assert_int_equal(pack_files_in(directory), file.unnamed ? 2 : 3);
        mp_pack_file_reading_path(&file, name, sizeof name);
        assert_int_equal(access(name, R_OK), 0);
        mp_pack_file_discard(&file);
        mp_pack_file_discard(&file);
        assert_int_equal(pack_files_in(directory), 2);
        expect_content("a.moepack", "before");
        expect_content("a.moepack.part0", "another's");
    }
}

/* With a suffix such names would be too long; that of the passing name is not the file's. */
static void test_pack_file_may_have_the_longest_name(void **state)
{
    (void)state;
    for (size_t name = LONGEST - 8; name <= LONGEST; name++) {
        for (int i = 0; i < WAYS; i++) {
            set_path('n', name);
            write_and_publish(ways[i], "content");
            expect_content(path + strlen(directory) + 1, "content");
            assert_int_equal(pack_files_in(directory), 1);
        }
        assert_int_equal(unlink(path), 0);
    }
}

/* Two of the same first 248 bytes at once. */
static void test_pack_file_parts_of_long_names_do_not_meet(void **state)
{
    (void)state;
    mp_pack_file one, other;
    char first[400];
    set_path('n', LONGEST);
    memcpy(first, path, sizeof first);
    assert_int_equal(mp_pack_file_create_named(first, &one), MOEPAGE_OK);
    path[strlen(path) - 1] = 'x';
    assert_int_equal(mp_pack_file_create_named(path, &other), MOEPAGE_OK);
    assert_int_equal(mp_pack_file_write(&one, "one", 3, 0), MOEPAGE_OK);
    assert_int_equal(mp_pack_file_write(&other, "two", 3, 0), MOEPAGE_OK);
    assert_int_equal(mp_pack_file_publish(&other, &no_log), MOEPAGE_OK);
    assert_int_equal(mp_pack_file_publish(&one, &no_log), MOEPAGE_OK);
    mp_pack_file_discard(&one);
    mp_pack_file_discard(&other);
    expect_content(first + strlen(directory) + 1, "one");
    expect_content(path + strlen(directory) + 1, "two");
    assert_int_equal(pack_files_in(directory), 2);
}

static void expect_refused(moepage_status status, const char *words)
{
    for (int i = 0; i < WAYS; i++) {
        mp_pack_file file;
        assert_int_equal(ways[i](path, &file), status);
        assert_true(file.fd < 0);
        if (!strstr(moepage_last_error(), words))
            fail_msg("\"%s\" is not in \"%s\"", words, moepage_last_error());
        mp_pack_file_discard(&file);
        assert_int_equal(pack_files_in(directory), 0);
    }
}

/* Before a byte is written. */
static void test_pack_file_that_cannot_have_its_name_is_refused_at_once(void **state)
{
    (void)state;
    set_path('n', LONGEST + 1);
    expect_refused(MOEPAGE_E_IO, ": cannot create: File name too long");
    snprintf(path, sizeof path, "%s/none/a", directory);
    expect_refused(MOEPAGE_E_NOT_FOUND, "none/a: cannot create: No such file");
    snprintf(path, sizeof path, "%s", directory);
    expect_refused(MOEPAGE_E_ARGUMENT, "not a regular file");
}

/* A path as long as the system takes, whose last name leaves no room for another behind it. */
static void test_pack_file_at_the_end_of_the_longest_path_is_refused_at_once(void **state)
{
    (void)state;
    char deep[4096];
    size_t n = (size_t)snprintf(deep, sizeof deep, "%s", directory);
    while (n < 4093)
        n += (size_t)snprintf(deep + n, sizeof deep - n, "/.");
    snprintf(deep + n, sizeof deep - n, n < 4094 ? "/a" : "");
    for (int i = 0; i < WAYS; i++) {
        mp_pack_file file;
        assert_int_equal(ways[i](deep, &file),
                         strlen(deep) == 4095 ? MOEPAGE_E_IO : MOEPAGE_E_ARGUMENT);
        mp_pack_file_discard(&file);
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_pack_file_has_its_name_when_it_is_published),
        CASE(test_pack_file_that_is_discarded_leaves_nothing),
        CASE(test_pack_file_may_have_the_longest_name),
        CASE(test_pack_file_parts_of_long_names_do_not_meet),
        CASE(test_pack_file_that_cannot_have_its_name_is_refused_at_once),
        CASE(test_pack_file_at_the_end_of_the_longest_path_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
