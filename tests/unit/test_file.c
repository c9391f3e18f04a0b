/* Files that the library writes, in a process that has closed its standard streams. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "moepage.h"
#include "testing.h"

static void test_file_is_kept_apart_from_standard_streams(void **state)
{
    (void)state;
    int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    close(STDIN_FILENO);
    int low = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int fd = mp_file_keep_apart(low);
    bool freed = fcntl(STDIN_FILENO, F_GETFD) < 0;
    if (saved >= 0)
        dup2(saved, STDIN_FILENO);
    assert_int_equal(low, STDIN_FILENO);
    assert_true(fd > STDERR_FILENO);
    assert_true(freed);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(mp_file_keep_apart(fd), fd);
    close(fd);
    close(saved);
    errno = ENOENT;
    assert_int_equal(mp_file_keep_apart(-1), -1);
    assert_int_equal(errno, ENOENT);
}

/* The arena is a file in memory: a program's prints must not land in it. */
static void test_file_of_an_arena_is_no_standard_stream(void **state)
{
    (void)state;
    moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 1u << 20};
    moepage_device *device = NULL;
    int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    close(STDIN_FILENO);
    moepage_status status = moepage_device_open("host", &config, &device);
    bool is_free = fcntl(STDIN_FILENO, F_GETFD) < 0;
    if (saved >= 0)
        dup2(saved, STDIN_FILENO);
    close(saved);
    assert_int_equal(status, MOEPAGE_OK);
    assert_true(is_free);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_is_kept_apart_from_standard_streams),
        cmocka_unit_test(test_file_of_an_arena_is_no_standard_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
