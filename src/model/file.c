/* Mapping and reading a model's files. */
#include "model/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"

/* No madvise: experts are read whole, megabytes in a row, which suits the kernel's default
 * read-ahead. MADV_RANDOM would make every page a separate disk read, and MADV_WILLNEED would read
 * in a checkpoint that may be larger than memory. */
moepage_status mp_file_map_open(const char *path, mp_file_map *out)
{
    int fd;
    uint64_t n_bytes;
    moepage_status status = mp_file_open(path, mp_path_name(path), &fd, &n_bytes);
    if (status)
        return status;
    if (n_bytes == 0) {
        close(fd);
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s is empty", mp_path_name(path));
    }
    void *bytes = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        status = mp_file_fail(mp_path_name(path), "map");
    close(fd);
    if (status)
        return status;
    out->bytes = bytes;
    out->n_bytes = n_bytes;
    return MOEPAGE_OK;
}

void mp_file_map_close(mp_file_map *map)
{
    if (map->bytes)
        munmap((void *)(uintptr_t)map->bytes, map->n_bytes);
    map->bytes = NULL;
    map->n_bytes = 0;
}

static moepage_status read_all(const char *path, int fd, char *text, size_t n_bytes)
{
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = read(fd, text + done, n_bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return mp_file_fail(mp_path_name(path), "read");
        if (n == 0)
            return mp_fail(MOEPAGE_E_IO, "%.200s ended after %zu of its %zu bytes",
                           mp_path_name(path), done, n_bytes);
        done += (size_t)n;
    }
    text[n_bytes] = 0;
    return MOEPAGE_OK;
}

moepage_status mp_file_read_text(const char *path, size_t max_bytes, char **out, size_t *out_bytes)
{
    int fd;
    uint64_t n_bytes;
    moepage_status status = mp_file_open(path, mp_path_name(path), &fd, &n_bytes);
    if (status)
        return status;
    char *text = NULL;
    if (n_bytes > max_bytes)
        status = mp_fail(MOEPAGE_E_FORMAT, "%.200s is %llu bytes long, at most %zu are read",
                         mp_path_name(path), (unsigned long long)n_bytes, max_bytes);
    else if (!(text = mp_alloc(n_bytes + 1)))
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "%.200s: no memory for its %llu bytes",
                         mp_path_name(path), (unsigned long long)n_bytes);
    else
        status = read_all(path, fd, text, n_bytes);
    close(fd);
    if (status) {
        mp_free(text);
        return status;
    }
    *out = text;
    *out_bytes = n_bytes;
    return MOEPAGE_OK;
}

char *mp_path_join(const char *dir, const char *name)
{
    size_t bytes = strlen(dir) + 1 + strlen(name) + 1;
    char *path = mp_alloc(bytes);
    if (path)
        snprintf(path, bytes, "%s/%s", dir, name);
    return path;
}

const char *mp_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

moepage_status mp_path_fail_within(moepage_status status, const char *path)
{
    const size_t room = 160;
    size_t n = strlen(path);
    if (n > room)
        return mp_fail_within(status, "...%s", path + n - room);
    return mp_fail_within(status, "%s", path);
}
