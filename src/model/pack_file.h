/* pack_file.h — a file without a name, or with a provisional one, until it is complete and on
 * disk. */
#ifndef MP_MODEL_PACK_FILE_H
#define MP_MODEL_PACK_FILE_H

#include "base/log.h"
#include "moepage.h"

typedef struct mp_pack_file {
    const char *path; /* the final path; borrowed */
    char *directory;  /* directory of `path` */
    char *part;       /* provisional name; if `unnamed`, only for the final rename */
    uint64_t stem;    /* bytes of `path` that `part` begins with */
    int fd;
    uint32_t unnamed; /* 1: the system deletes the file if this process dies */
} mp_pack_file;

/* Begins the file that will become `path`; the caller keeps `path` valid. ARGUMENT if `path` exists
 * and is not a regular file; NOT_FOUND, IO, NO_MEMORY. Call mp_pack_file_discard in any case. */
moepage_status mp_pack_file_create(const char *path, mp_pack_file *out);

/* Begins a file with a provisional name, for file systems without unnamed files. */
moepage_status mp_pack_file_create_named(const char *path, mp_pack_file *out);

moepage_status mp_pack_file_write(mp_pack_file *file, const void *bytes, uint64_t n,
                                  uint64_t offset);

/* Sets the file's exact size and waits until it is on disk. */
moepage_status mp_pack_file_sync(mp_pack_file *file, uint64_t bytes);

/* Gives a path under which the file can be opened now. */
void mp_pack_file_reading_path(const mp_pack_file *file, char *out, uint64_t capacity);

/* Gives the file its final name, replacing any file there, and ends it. A problem that endangers
 * only the name, not the contents, is logged as a warning. */
moepage_status mp_pack_file_publish(mp_pack_file *file, const mp_log *log);

/* Deletes a file that has not been published. Safe on a zero-filled struct whose fd is -1, and
 * after publishing. */
void mp_pack_file_discard(mp_pack_file *file);

#endif
