/* Preloaded into a host: while the file that FAIL_READS names exists, positioned reads of a page and more fail, as a
 * disk's do. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t read_at(int file, void *out, size_t bytes, off_t offset);

ssize_t pread64(int file, void *out, size_t bytes, off_t offset);

static ssize_t read_or_fail(const char *name, int file, void *out, size_t bytes, off_t offset)
{
    const char *trigger = getenv("FAIL_READS");
    if (trigger && bytes >= 4096 && access(trigger, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    errno = 0;
    return ((read_at *)dlsym(RTLD_NEXT, name))(file, out, bytes, offset);
}

ssize_t pread(int file, void *out, size_t bytes, off_t offset)
{
    return read_or_fail("pread", file, out, bytes, offset);
}

ssize_t pread64(int file, void *out, size_t bytes, off_t offset)
{
    return read_or_fail("pread64", file, out, bytes, offset);
}
