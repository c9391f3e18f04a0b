/* Reading a model's files, through the system's page cache or past it, and noticing that they have
 * changed. */
#include "model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"

/* ---- fingerprints ---- */

bool mp_file_print_take(int fd, mp_file_print *out)
{
    struct stat found;
    if (fstat(fd, &found))
        return false;
    *out = (mp_file_print){
        .device = found.st_dev,
        .inode = found.st_ino,
        .bytes = (uint64_t)found.st_size,
        .changed = {found.st_mtim.tv_sec, found.st_mtim.tv_nsec},
        .described = {found.st_ctim.tv_sec, found.st_ctim.tv_nsec},
        .links = found.st_nlink,
        .mode = found.st_mode,
        .user = found.st_uid,
        .group = found.st_gid,
    };
    return true;
}

/* Returns true if the contents are the same. The time of the last change of any kind catches a
 * writer that has set the time of the contents back; it says nothing once the file has lost or got
 * a name, an owner or a mode, which leave the contents alone. */
static bool is_same(const mp_file_print *a, const mp_file_print *b)
{
    if (a->device != b->device || a->inode != b->inode || a->bytes != b->bytes ||
        a->changed[0] != b->changed[0] || a->changed[1] != b->changed[1])
        return false;
    const bool redescribed =
        a->links != b->links || a->mode != b->mode || a->user != b->user || a->group != b->group;
    return redescribed ||
           (a->described[0] == b->described[0] && a->described[1] == b->described[1]);
}

moepage_status mp_model_file_check(const mp_model_file *file)
{
    mp_file_print now;
    if (!mp_file_print_take(file->fd, &now))
        return mp_file_fail(file->name, "examine");
    if (is_same(&file->print, &now))
        return MOEPAGE_OK;
    if (now.bytes < file->bytes)
        return mp_fail(MOEPAGE_E_IO,
                       "%.200s was truncated since it was opened: it had %llu bytes, it has %llu",
                       file->name, (unsigned long long)file->bytes, (unsigned long long)now.bytes);
    return mp_fail(MOEPAGE_E_IO, "%.200s was changed since it was opened: open the model again",
                   file->name);
}

/* ---- life ---- */

moepage_status mp_model_file_open(const char *path, mp_model_file *out)
{
    const char *name = mp_path_name(path);
    mp_model_file file = {0};
    moepage_status status = mp_file_open(path, name, &file.fd, &file.bytes);
    if (status)
        return status;
    file.name = mp_strdup(name);
    if (!file.name) {
        close(file.fd);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a file name");
    }
    if (!mp_file_print_take(file.fd, &file.print))
        status = mp_file_fail(name, "examine");
    file.bytes = file.print.bytes;
    if (status)
        mp_model_file_close(&file);
    else
        *out = file;
    return status;
}

void mp_model_file_close(mp_model_file *file)
{
    if (file->name)
        close(file->fd);
    if (file->direct)
        close(file->direct->fd);
    mp_free(file->direct);
    file->direct = NULL;
    mp_free(file->name);
    file->name = NULL;
}

/* ---- reads ---- */

/* Reads without looking for a change. */
static moepage_status read_unchecked(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                                     void *out)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n =
            pread(file->fd, (unsigned char *)out + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return mp_file_fail(file->name, "read");
        if (n == 0)
            return mp_fail(MOEPAGE_E_IO,
                           "%.200s was truncated since it was opened: it had %llu bytes, it ends "
                           "at or before %llu",
                           file->name, (unsigned long long)file->bytes,
                           (unsigned long long)(offset + done));
        done += (uint64_t)n;
    }
    return MOEPAGE_OK;
}

moepage_status mp_model_file_read(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                                  void *out)
{
    moepage_status status = read_unchecked(file, offset, bytes, out);
    return status ? status : mp_model_file_check(file);
}

/* Ranges that one call of the system reads, the gaps between them too: copying a narrow gap takes less time
 * than another call. */
#define BATCH 128u
#define GAP_BYTES 4096u

/* Returns true if all of n ranges, at most BATCH, were read. */
static bool read_batch(const mp_model_file *file, uint64_t offset, uint64_t gap, uint64_t bytes,
                       uint64_t n, unsigned char *out)
{
    unsigned char unwanted[GAP_BYTES];
    struct iovec parts[2 * BATCH];
    for (uint64_t i = 0; i < n; i++) {
        parts[2 * i] = (struct iovec){out + i * bytes, bytes};
        parts[2 * i + 1] = (struct iovec){unwanted, gap};
    }
    const ssize_t wanted = (ssize_t)(n * bytes + (n - 1) * gap);
    return preadv(file->fd, parts, (int)(2 * n - 1), (off_t)offset) == wanted;
}

moepage_status mp_model_file_read_strided(const mp_model_file *file, uint64_t offset,
                                          uint64_t stride, uint64_t bytes, uint64_t n, void *out)
{
    const bool narrow = stride - bytes <= GAP_BYTES && stride / 4 <= bytes;
    moepage_status status = MOEPAGE_OK;
    for (uint64_t i = 0; i < n && !status;) {
        const uint64_t some = !narrow ? 1 : n - i < BATCH ? n - i : BATCH;
        const uint64_t at = offset + i * stride;
        unsigned char *to = (unsigned char *)out + i * bytes;
        const bool whole = some > 1 && read_batch(file, at, stride - bytes, bytes, some, to);
        for (uint64_t j = 0; j < some && !whole && !status; j++)
            status = read_unchecked(file, at + j * stride, bytes, to + j * bytes);
        i += some;
    }
    return status ? status : mp_model_file_check(file);
}

moepage_status mp_model_file_load(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                                  unsigned char **out)
{
    *out = mp_realloc(NULL, bytes);
    if (!*out)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%.200s: no memory to read %llu of its bytes",
                       file->name, (unsigned long long)bytes);
    moepage_status status = mp_model_file_read(file, offset, bytes, *out);
    if (status) {
        mp_free(*out);
        *out = NULL;
    }
    return status;
}

/* ---- reads past the page cache ---- */

static bool is_of(const mp_model_file *file, int fd)
{
    mp_file_print opened;
    return mp_file_print_take(fd, &opened) && opened.device == file->print.device &&
           opened.inode == file->print.inode;
}

moepage_status mp_direct_open(const char *path, mp_model_file *file)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    if (fd < 0)
        return MOEPAGE_OK;
    const bool same = is_of(file, fd);
    mp_direct *direct = same ? mp_alloc(sizeof *direct) : NULL;
    if (!direct) {
        close(fd);
        return same ? mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for direct reads") : MOEPAGE_OK;
    }
    direct->fd = fd;
    atomic_init(&direct->works, true);
    file->direct = direct;
    return MOEPAGE_OK;
}

bool mp_direct_desk_open(mp_direct_desk *out)
{
    out->block =
        mp_realloc(NULL, MP_DIRECT_CHUNK + MP_DIRECT_PAGE); /* not cleared: is written first */
    out->bytes = NULL;
    if (out->block)
        out->bytes =
            (unsigned char *)out->block + MP_DIRECT_PAGE - (uintptr_t)out->block % MP_DIRECT_PAGE;
    return out->block;
}

void mp_direct_desk_close(mp_direct_desk *desk)
{
    mp_free(desk->block);
    *desk = (mp_direct_desk){0};
}

/* Reads up to n bytes of whole pages, and says how many: fewer where the file ends, and 0 where there are no
 * direct reads. A file system may still refuse one, which tells it apart from a failure. */
static moepage_status read_direct(const mp_model_file *file, uint64_t offset, uint64_t n,
                                  unsigned char *out, uint64_t *done)
{
    mp_direct *direct = file->direct;
    *done = 0;
    if (!direct || !atomic_load_explicit(&direct->works, memory_order_relaxed))
        return MOEPAGE_OK;
    ssize_t got;
    do
        got = pread(direct->fd, out, n, (off_t)offset);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno != EINVAL)
        return mp_file_fail(file->name, "read");
    if (got < 0)
        atomic_store_explicit(&direct->works, false, memory_order_relaxed);
    else
        *done = (uint64_t)got;
    return MOEPAGE_OK;
}

moepage_status mp_direct_read_pages(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                                    unsigned char *out, bool *buffered)
{
    uint64_t done;
    moepage_status status = read_direct(file, offset, bytes, out, &done);
    if (status)
        return status;
    *buffered = done < bytes;
    return mp_model_file_read(file, offset + done, bytes - done, out + done);
}

moepage_status mp_direct_read(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                              const mp_direct_desk *desk, void *out, bool *buffered)
{
    uint64_t done = 0;
    while (done < bytes) {
        /* The pages around the next bytes. */
        const uint64_t at = offset + done, skew = at % MP_DIRECT_PAGE;
        uint64_t take = MP_DIRECT_CHUNK - skew, got;
        take = take < bytes - done ? take : bytes - done;
        const uint64_t whole = (skew + take + MP_DIRECT_PAGE - 1) / MP_DIRECT_PAGE * MP_DIRECT_PAGE;
        moepage_status status = read_direct(file, at - skew, whole, desk->bytes, &got);
        if (status)
            return status;
        if (got <= skew)
            break;
        take = got - skew < take ? got - skew : take;
        memcpy((unsigned char *)out + done, desk->bytes + skew, take);
        done += take;
    }
    *buffered = done < bytes;
    return done == bytes
               ? mp_model_file_check(file)
               : mp_model_file_read(file, offset + done, bytes - done, (unsigned char *)out + done);
}

/* ---- whole files, and paths ---- */

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
