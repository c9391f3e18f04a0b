/* pack_file.h — a file that has no name, or one that nobody takes for the file itself, until it is
 * complete and on disk. */
#ifndef MP_MODEL_PACK_FILE_H
#define MP_MODEL_PACK_FILE_H

#include "base/log.h"
#include "moepage.h"

typedef struct mp_pack_file {
    const char *path; /* the final one; borrowed */
    char *directory;  /* that it is in */
    char *part;       /* a name beside it: used until the end, or in passing where `unnamed` */
    uint64_t stem;    /* bytes of `path` that `part` begins with: all that fit into a name */
    int fd;
    uint32_t unnamed; /* 1: the system deletes the file if this process dies */
} mp_pack_file;

/* Begins a file that is to be `path`, which must stay. ARGUMENT if that is there and no regular file;
 * NOT_FOUND, IO, NO_MEMORY. Discard it in any case. */
moepage_status mp_pack_file_create(const char *path, mp_pack_file *out);

/* The same where the file system has no files without a name. */
moepage_status mp_pack_file_create_named(const char *path, mp_pack_file *out);

moepage_status mp_pack_file_write(mp_pack_file *file, const void *bytes, uint64_t n,
                                  uint64_t offset);

/* Makes the file exactly so long and waits until it is on disk. */
moepage_status mp_pack_file_sync(mp_pack_file *file, uint64_t bytes);

/* A path under which the file can be opened now. */
void mp_pack_file_reading_path(const mp_pack_file *file, char *out, uint64_t capacity);

/* Gives the file its name, in place of what had it, and ends it. What only endangers the name, not
 * the file, is a warning. */
moepage_status mp_pack_file_publish(mp_pack_file *file, const mp_log *log);

/* Ends a file that has not been published, of which nothing is left. Safe on a zero-filled struct
 * whose fd is -1, and after publishing. */
void mp_pack_file_discard(mp_pack_file *file);

#endif
