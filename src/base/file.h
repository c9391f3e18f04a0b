/* file.h — opening and writing files so that the caller's process is left alone: nothing here
 * blocks on what only looks like a file, and a limit on the size of files is an error, no signal.
 */
#ifndef MP_BASE_FILE_H
#define MP_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "moepage.h"

/* Opens a regular file for reading. `name` is what the sentence calls it. NOT_FOUND, IO, or FORMAT
 * for what is no regular file: a FIFO or a device could block, or never end. */
moepage_status mp_file_open(const char *path, const char *name, int *out_fd, uint64_t *out_bytes);

/* A descriptor of a file that is about to be written, moved off the numbers of the standard streams:
 * in a process that has closed one, whoever prints to it would print into the file. -1 with errno,
 * and `fd` closed. -1 passes through. */
int mp_file_keep_apart(int fd);

/* Writes all `bytes`; false with errno. Past the limit on the size of files errno is EFBIG; the
 * SIGXFSZ that the system sends along, which ends a program by default, is taken back. */
bool mp_file_write(int fd, const void *bytes, size_t n_bytes);

/* The same, at a place of the file. */
bool mp_file_write_at(int fd, const void *bytes, size_t n_bytes, uint64_t offset);

/* Fails for what errno says: NOT_FOUND where the path leads nowhere, else IO, with the sentence
 * "name: cannot verb: the system's words". */
moepage_status mp_file_fail(const char *name, const char *verb);

#endif
