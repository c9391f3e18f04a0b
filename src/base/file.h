/* file.h — opening and writing files without side effects on the caller's process: nothing blocks
 * on a FIFO or a device, and exceeding the file-size limit is an error instead of a signal. */
#ifndef MP_BASE_FILE_H
#define MP_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "moepage.h"

/* Opens a regular file for reading. `name` is the file's name in error sentences. NOT_FOUND, IO, or
 * FORMAT for anything but a regular file: a FIFO or a device could block, or never end. */
moepage_status mp_file_open(const char *path, const char *name, int *out_fd, uint64_t *out_bytes);

/* Moves the descriptor of a file to be written away from the numbers of the standard streams: in a
 * process that has closed one of those, any print to it would land in the file. Returns -1 with
 * errno on failure and closes `fd`; an `fd` of -1 passes through. */
int mp_file_keep_apart(int fd);

/* Writes all `bytes`; returns false with errno on failure. Past the file-size limit errno is EFBIG,
 * and the SIGXFSZ that the system sends along, which ends a program by default, is consumed. */
bool mp_file_write(int fd, const void *bytes, size_t n_bytes);

/* Writes all `bytes` at `offset` of the file; fails as mp_file_write does. */
bool mp_file_write_at(int fd, const void *bytes, size_t n_bytes, uint64_t offset);

/* Fails for the current errno: NOT_FOUND if the path leads nowhere, else IO, with the sentence
 * "name: cannot verb: the system's text". */
moepage_status mp_file_fail(const char *name, const char *verb);

#endif
