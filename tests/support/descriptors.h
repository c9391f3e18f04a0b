/* descriptors.h — how many files this process has open, and whether a model's file takes a second one. */
#ifndef DESCRIPTORS_H
#define DESCRIPTORS_H

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "testing.h"

static inline uint32_t count_descriptors(void)
{
    uint32_t n = 0;
    DIR *list = opendir("/proc/self/fd");
    assert_non_null(list);
    while (readdir(list))
        n++;
    closedir(list);
    return n;
}

/* Returns true if the file system of a file has direct I/O. */
static inline bool has_direct_reads(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

#endif
