/* Reads that bypass the page cache. */
#include "model/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"

/* ---- Life ---- */

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

/* ---- Reads ---- */

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
    return mp_model_file_read(file, offset + done, bytes - done, (unsigned char *)out + done);
}
