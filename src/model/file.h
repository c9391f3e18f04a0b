/* file.h — a model's files: mapped whole for tensors, read whole for JSON. Read-only throughout.
 *
 * Errors name the file by its last path component; the caller that knows the directory adds it. */
#ifndef MP_MODEL_FILE_H
#define MP_MODEL_FILE_H

#include <stddef.h>

#include "moepage.h"

typedef struct mp_file_map {
    const unsigned char *bytes; /* page-aligned */
    uint64_t n_bytes;
} mp_file_map;

/* Maps a regular, non-empty file. NOT_FOUND, IO, or FORMAT for an empty file or anything but a
 * regular file. Reading faults (SIGBUS) if another process truncates the file later. */
moepage_status mp_file_map_open(const char *path, mp_file_map *out);

/* Unmaps the file; safe on a zero-filled struct. */
void mp_file_map_close(mp_file_map *map);

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
