/* Writes a file completely or not at all. */
#include "model/pack_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/errno_text.h"
#include "base/file.h"
#include "base/status.h"
#include "model/file.h"

/* The longest suffix that is appended to a name. */
#define PART_SUFFIX ".part99"
enum { PART_NAMES = 100 };

typedef struct descriptor_name {
    char path[32];
} descriptor_name;

/* Returns a path that opens the descriptor's file, named or not. */
static descriptor_name descriptor_path(int fd)
{
    descriptor_name name;
    snprintf(name.path, sizeof name.path, "/proc/self/fd/%d", fd);
    return name;
}

/* Returns the directory part of a path, "." if it has none; the caller frees it. */
static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return mp_strdup(".");
    char *copy = mp_strdup(path);
    if (copy)
        copy[slash == path ? 1 : slash - path] = 0;
    return copy;
}

/* Checks the target path: the rename must not replace a directory, a device or a pipe, and a name
 * that no file can have is reported here rather than at the end. */
static moepage_status check_target(const char *path)
{
    struct stat target;
    if (stat(path, &target))
        return errno == ENOENT ? MOEPAGE_OK : mp_file_fail(path, "create");
    if (!S_ISREG(target.st_mode))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "%.300s is not a regular file: a new one would replace it", path);
    return MOEPAGE_OK;
}

/* Returns how many bytes of the path a part's name begins with: all of it, unless the name would be
 * too long. 0: there is no room for a name. */
static uint64_t stem_of(const char *path, const char *directory)
{
    const uint64_t suffix = sizeof PART_SUFFIX - 1, whole = strlen(path);
    const uint64_t name = (uint64_t)(mp_path_name(path) - path);
    const long most = pathconf(directory, _PC_NAME_MAX);
    uint64_t end = name + (most > (long)suffix ? (uint64_t)most : NAME_MAX);
    if (end > PATH_MAX - 1)
        end = PATH_MAX - 1;
    end = end > name + suffix ? end - suffix : 0;
    return end < whole ? end : whole;
}

static bool next_part(mp_pack_file *file, int i)
{
    snprintf(file->part, file->stem + sizeof PART_SUFFIX, "%.*s.part%d", (int)file->stem,
             file->path, i);
    return i < PART_NAMES;
}

/* Creates the file under an unused name: a writer that was killed may have left one behind. */
static moepage_status create_named(mp_pack_file *file)
{
    for (int i = 0; next_part(file, i); i++) {
        file->fd =
            mp_file_keep_apart(open(file->part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (file->fd >= 0)
            return MOEPAGE_OK;
        if (errno != EEXIST)
            break;
    }
    return mp_file_fail(file->path, "create");
}

/* Creates a file without a name; returns false where the file system has none or does not allow
 * naming it later. */
static bool create_unnamed(mp_pack_file *file)
{
    file->fd = mp_file_keep_apart(open(file->directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
    if (file->fd < 0)
        return false;
    file->unnamed = access(descriptor_path(file->fd).path, F_OK) == 0;
    if (!file->unnamed) {
        close(file->fd);
        file->fd = -1;
    }
    return file->unnamed;
}

static moepage_status begin(const char *path, mp_pack_file *out)
{
    *out = (mp_pack_file){.path = path, .fd = -1};
    moepage_status status = check_target(path);
    if (status)
        return status;
    out->directory = directory_of(path);
    out->part = mp_alloc(strlen(path) + sizeof PART_SUFFIX);
    if (!out->directory || !out->part)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path");
    out->stem = stem_of(path, out->directory);
    if (out->stem == 0)
        return mp_fail(MOEPAGE_E_IO, "%.300s...: the path leaves no room for a name beside it",
                       path);
    return MOEPAGE_OK;
}

moepage_status mp_pack_file_create(const char *path, mp_pack_file *out)
{
    moepage_status status = begin(path, out);
    if (status || create_unnamed(out))
        return status;
    return create_named(out);
}

moepage_status mp_pack_file_create_named(const char *path, mp_pack_file *out)
{
    moepage_status status = begin(path, out);
    return status ? status : create_named(out);
}

moepage_status mp_pack_file_write(mp_pack_file *file, const void *bytes, uint64_t n,
                                  uint64_t offset)
{
    if (mp_file_write_at(file->fd, bytes, n, offset))
        return MOEPAGE_OK;
    int error = errno;
    return mp_fail(MOEPAGE_E_IO, "%.300s: writing %llu bytes at %llu failed: %s", file->path,
                   (unsigned long long)n, (unsigned long long)offset, mp_errno_text_of(error).text);
}

moepage_status mp_pack_file_sync(mp_pack_file *file, uint64_t bytes)
{
    unsigned char last = 0;
    /* Not ftruncate: growing past the file-size limit would raise a signal. */
    moepage_status status = MOEPAGE_OK;
    struct stat info;
    if (fstat(file->fd, &info))
        return mp_file_fail(file->path, "examine");
    if ((uint64_t)info.st_size < bytes)
        status = mp_pack_file_write(file, &last, 1, bytes - 1);
    if (!status && fsync(file->fd))
        status = mp_fail(MOEPAGE_E_IO, "%.300s: cannot write to disk: %s", file->path,
                         mp_errno_text_of(errno).text);
    return status;
}

/* Links an unnamed file to a part name first: linking cannot replace an existing file, renaming
 * can. */
static moepage_status link_part(mp_pack_file *file)
{
    descriptor_name self = descriptor_path(file->fd);
    for (int i = 0; next_part(file, i); i++) {
        if (!linkat(AT_FDCWD, self.path, AT_FDCWD, file->part, AT_SYMLINK_FOLLOW)) {
            file->unnamed = 0;
            return MOEPAGE_OK;
        }
        if (errno != EEXIST)
            break;
    }
    return mp_file_fail(file->path, "create");
}

void mp_pack_file_reading_path(const mp_pack_file *file, char *out, uint64_t capacity)
{
    snprintf(out, capacity, "%s", file->unnamed ? descriptor_path(file->fd).path : file->part);
}

static void sync_directory(const mp_pack_file *file, const mp_log *log)
{
    int fd = open(file->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd))
        mp_log_write(log, MOEPAGE_LOG_WARNING,
                     "%.300s is complete, but its directory could not be synced: a crash of the "
                     "system may lose its name",
                     file->path);
    if (fd >= 0)
        close(fd);
}

moepage_status mp_pack_file_publish(mp_pack_file *file, const mp_log *log)
{
    moepage_status status = file->unnamed ? link_part(file) : MOEPAGE_OK;
    if (status)
        return status;
    if (rename(file->part, file->path))
        return mp_file_fail(file->path, "rename a complete file to it");
    close(file->fd); /* fsync has already reported any error */
    file->fd = -1;
    sync_directory(file, log);
    return MOEPAGE_OK;
}

void mp_pack_file_discard(mp_pack_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        if (!file->unnamed)
            unlink(file->part);
        file->fd = -1;
    }
    mp_free(file->directory);
    mp_free(file->part);
    file->directory = file->part = NULL;
}
