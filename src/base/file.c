/* Opening regular files, writing without signals, and reporting failures. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/status.h"

moepage_status mp_file_fail(const char *name, const char *verb)
{
    int error = errno;
    bool absent = error == ENOENT || error == ENOTDIR;
    return mp_fail(absent ? MOEPAGE_E_NOT_FOUND : MOEPAGE_E_IO, "%.300s: cannot %s: %s", name, verb,
                   mp_errno_text_of(error).text);
}

moepage_status mp_file_open(const char *path, const char *name, int *out_fd, uint64_t *out_bytes)
{
    /* O_NONBLOCK, so that a FIFO is refused at once instead of waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return mp_file_fail(name, "open");
    struct stat info;
    moepage_status status = MOEPAGE_OK;
    if (fstat(fd, &info))
        status = mp_file_fail(name, "examine");
    else if (!S_ISREG(info.st_mode))
        status = mp_fail(MOEPAGE_E_FORMAT, "%.300s is not a regular file", name);
    if (status) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)info.st_size;
    return MOEPAGE_OK;
}

int mp_file_keep_apart(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int apart = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int error = errno;
    close(fd);
    errno = error;
    return apart;
}

/* Stands for the file's current position where an offset is expected. */
#define HERE UINT64_MAX

static bool write_all(int fd, const unsigned char *bytes, size_t n_bytes, uint64_t offset)
{
    while (n_bytes) {
        ssize_t done =
            offset == HERE ? write(fd, bytes, n_bytes) : pwrite(fd, bytes, n_bytes, (off_t)offset);
        if (done < 0 && errno != EINTR)
            return false;
        if (done > 0) {
            bytes += done;
            n_bytes -= (size_t)done;
            offset += offset == HERE ? 0 : (uint64_t)done;
        }
    }
    return true;
}

bool mp_file_write_at(int fd, const void *bytes, size_t n_bytes, uint64_t offset)
{
    sigset_t limit, before, pending;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    sigpending(&pending);
    bool written = write_all(fd, bytes, n_bytes, offset);
    int error = written ? 0 : errno;
    /* A SIGXFSZ that was already pending belongs to the caller. The system sends this signal to the
     * writing thread, so no other thread can have taken it. */
    if (error == EFBIG && !sigismember(&pending, SIGXFSZ))
        sigtimedwait(&limit, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return written;
}

bool mp_file_write(int fd, const void *bytes, size_t n_bytes)
{
    return mp_file_write_at(fd, bytes, n_bytes, HERE);
}
