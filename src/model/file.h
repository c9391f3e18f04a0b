/* file.h — a model's files: read by position for tensors, read whole for JSON. Read-only throughout.
 *
 * Nothing is mapped: a mapping shows every later change of the file, and reading one that has become
 * shorter ends the process. What has been read is private, and what is read later must come from the
 * file as it was when it was opened.
 *
 * Errors name the file by its last path component; the caller that knows the directory adds it. */
#ifndef MP_MODEL_FILE_H
#define MP_MODEL_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "moepage.h"

/* What the system records when a file changes. */
typedef struct mp_file_print {
    uint64_t device, inode, bytes;
    int64_t changed[2];   /* contents: seconds, nanoseconds */
    int64_t described[2]; /* the same of contents, names, owner and mode */
    uint64_t links, mode, user, group;
} mp_file_print;

/* A second description, for reads that bypass the page cache. */
typedef struct mp_direct {
    int fd;
    _Atomic bool works; /* cleared once the file system refuses such a read */
} mp_direct;

typedef struct mp_model_file {
    char *name; /* last component of the path; NULL = not open */
    int fd;
    uint64_t bytes;
    mp_file_print print; /* when it was opened */
    mp_direct *direct;   /* or NULL */
} mp_model_file;

/* A range of a file. */
typedef struct mp_file_span {
    const mp_model_file *file;
    uint64_t offset;
} mp_file_span;

/* Opens a regular file, and keeps one descriptor. NOT_FOUND, IO, or FORMAT for anything but a regular
 * file. */
moepage_status mp_model_file_open(const char *path, mp_model_file *out);

/* Closes the file; safe on a zero-filled struct. */
void mp_model_file_close(mp_model_file *file);

/* Reads bytes that were in the file when it was opened. IO, with a sentence, if the file has been
 * truncated or changed since then, even while it was read: the bytes are then worth nothing. Blocks;
 * any thread. */
moepage_status mp_model_file_read(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                                  void *out);

/* Reads n ranges of `bytes` each, `stride` apart, back to back to `out`, as mp_model_file_read does. */
moepage_status mp_model_file_read_strided(const mp_model_file *file, uint64_t offset,
                                          uint64_t stride, uint64_t bytes, uint64_t n, void *out);

/* Reads a range to memory of its own, which the caller frees. NO_MEMORY, IO. */
moepage_status mp_model_file_load(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                                  unsigned char **out);

/* Says whether the file's contents are still those that were opened: OK or IO. One call of the
 * system. Replacing the file by renaming another one, and deleting it, leave the opened one as it
 * is. After a read, never before: a change of the contents is recorded before the first of its
 * bytes can be read. */
moepage_status mp_model_file_check(const mp_model_file *file);

/* ---- reads past the page cache, where the file system has them ----
 *
 * What a host tier keeps need not be kept by the system, too; and a process whose memory is limited
 * pays for the page cache that it fills. */

#define MP_DIRECT_PAGE 4096u
#define MP_DIRECT_CHUNK \
    (1u << 20) /* most bytes of one call of the system that passes through a desk */

/* Opens a second description of an open file, which closes it. There is none afterwards if another file
 * has taken the name, or the file system has no such reads. Fails for want of memory alone. */
moepage_status mp_direct_open(const char *path, mp_model_file *file);

/* Reads whole pages to aligned memory. *buffered tells whether the page cache served, which is the case
 * where direct reads are not to be had. Errors as mp_model_file_read has them. */
moepage_status mp_direct_read_pages(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                                    unsigned char *out, bool *buffered);

/* Page-aligned memory of MP_DIRECT_CHUNK bytes, through which reads of any range pass. */
typedef struct mp_direct_desk {
    void *block; /* NULL: none */
    unsigned char *bytes;
} mp_direct_desk;

bool mp_direct_desk_open(mp_direct_desk *out);
void mp_direct_desk_close(mp_direct_desk *desk); /* safe on a zero-filled struct */

/* Reads any range; otherwise as mp_direct_read_pages. */
moepage_status mp_direct_read(const mp_model_file *file, uint64_t offset, uint64_t bytes,
                              const mp_direct_desk *desk, void *out, bool *buffered);

/* ---- fingerprints, whole files, paths ---- */

/* Takes the fingerprint of an open file; false with errno. */
bool mp_file_print_take(int fd, mp_file_print *out);

/* Reads the whole file and appends a NUL; the caller frees the text. FORMAT beyond max_bytes. */
moepage_status mp_file_read_text(const char *path, size_t max_bytes, char **out, size_t *out_bytes);

/* Returns "dir/name", or NULL if memory is short; the caller frees it. */
char *mp_path_join(const char *dir, const char *name);

/* Returns the part after the last '/'. */
const char *mp_path_name(const char *path);

/* Puts the path before a failure's sentence, shortened to its end if it is long: the sentence
 * inside matters more. */
moepage_status mp_path_fail_within(moepage_status status, const char *path);

#endif
