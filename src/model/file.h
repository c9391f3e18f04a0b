/* file.h — a model's files: mapped whole for tensors, read whole for JSON. Read-only throughout.
 *
 * Errors name the file by its last path component; who knows the directory adds it. */
#ifndef MP_MODEL_FILE_H
#define MP_MODEL_FILE_H

#include <stddef.h>

#include "moepage.h"

typedef struct mp_file_map {
    const unsigned char *bytes; /* page-aligned */
    uint64_t n_bytes;
} mp_file_map;

/* Maps a regular, non-empty file. NOT_FOUND, IO, or FORMAT for one that is empty or no file. A
 * file that another process truncates later faults (SIGBUS) where it is read. */
moepage_status mp_file_map_open(const char *path, mp_file_map *out);

/* Safe on a zero-filled struct. */
void mp_file_map_close(mp_file_map *map);

/* The whole file and a NUL after it; the caller frees it. FORMAT beyond max_bytes. */
moepage_status mp_file_read_text(const char *path, size_t max_bytes, char **out, size_t *out_bytes);

/* "dir/name", or NULL when memory is short; the caller frees it. */
char *mp_path_join(const char *dir, const char *name);

/* The part after the last '/'. */
const char *mp_path_name(const char *path);

/* Puts the path before the sentence of a failure, or its end where it is long: the sentence inside
 * matters more. */
moepage_status mp_path_fail_within(moepage_status status, const char *path);

#endif
