/* direct.h — reads of a model's files that bypass the page cache, where the file system has them.
 *
 * What a host tier keeps need not be kept by the system, too; and a process whose memory is limited
 * pays for the page cache that it fills. */
#ifndef MP_MODEL_DIRECT_H
#define MP_MODEL_DIRECT_H

#include "model/file.h"

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

#endif
