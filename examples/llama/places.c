/* Where tensors lie in files: behind a mapping, or in a GGUF file that the process has open while it hands over bytes
 * that it has read. */
#include "plugin.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <gguf.h>

/* ---- mappings ---- */

bool place_of_mapping(const char *address, size_t bytes, char *path, uint64_t *offset)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[PATH_MAX + 128];
    const char *next = address; /* found so far */
    while (maps && next < address + bytes && fgets(line, sizeof line, maps)) {
        unsigned long from, to, at, inode;
        unsigned major, minor;
        int name = 0;
        struct stat there;
        if (sscanf(line, "%lx-%lx %*s %lx %x:%x %lu %n", &from, &to, &at, &major, &minor, &inode,
                   &name) != 6 ||
            next < (const char *)from || next >= (const char *)to)
            continue;
        line[strcspn(line, "\n")] = 0;
        if (stat(line + name, &there) || there.st_ino != inode ||
            there.st_dev != makedev(major, minor) ||
            (next != address && strcmp(path, line + name) != 0))
            break;
        if (next == address) {
            snprintf(path, PATH_MAX, "%s", line + name);
            *offset = at + (unsigned long)address - from;
        }
        next = (const char *)to;
    }
    if (maps)
        fclose(maps);
    return next >= address + bytes;
}

/* ---- open files ---- */

enum { PAGE = 4096, CHUNK = 1 << 16 };

/* The file in which a tensor was found last, read by the host's own reader. */
static struct {
    char path[PATH_MAX];
    struct gguf_context *index;
} found;

void places_forget(void)
{
    if (found.index)
        gguf_free(found.index);
    found.index = NULL;
}

static bool has_bytes(int file, uint64_t offset, const char *data, size_t bytes)
{
    static char there[CHUNK];
    for (size_t done = 0; done < bytes;) {
        const size_t left = bytes - done;
        const ssize_t n = pread(file, there, left < CHUNK ? left : CHUNK, (off_t)(offset + done));
        if (n <= 0 || memcmp(there, data + done, (size_t)n) != 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

/* True if a file has these bytes where the index says: all of them, for they are forgotten then. */
static bool has_tensor(const struct ggml_tensor *tensor, const char *data, uint64_t *offset)
{
    const size_t bytes = ggml_nbytes(tensor);
    const int64_t id = gguf_find_tensor(found.index, tensor->name);
    if (id < 0 || gguf_get_tensor_type(found.index, id) != tensor->type ||
        gguf_get_tensor_size(found.index, id) != bytes)
        return false;
    *offset = gguf_get_data_offset(found.index) + gguf_get_tensor_offset(found.index, id);
    const int file = open(found.path, O_RDONLY | O_CLOEXEC);
    const bool same = file >= 0 && has_bytes(file, *offset, data, bytes);
    if (file >= 0)
        close(file);
    return same;
}

/* Reads the index of a file that the process has open; false if it is no GGUF file. */
static bool read_index(const char *descriptor)
{
    char link[64], magic[4] = "";
    struct stat there;
    snprintf(link, sizeof link, "/proc/self/fd/%.20s", descriptor);
    const ssize_t n = readlink(link, found.path, sizeof found.path - 1);
    if (n <= 0)
        return false;
    found.path[n] = 0;
    FILE *file =
        !stat(found.path, &there) && S_ISREG(there.st_mode) ? fopen(found.path, "re") : NULL;
    const bool is_gguf =
        file && fread(magic, sizeof magic, 1, file) == 1 && !memcmp(magic, "GGUF", 4);
    if (file)
        fclose(file);
    if (is_gguf)
        found.index = gguf_init_from_file(found.path, (struct gguf_init_params){.no_alloc = true});
    return found.index != NULL;
}

bool place_of_tensor(const struct ggml_tensor *tensor, const void *data, char *path,
                     uint64_t *offset)
{
    bool has = found.index && has_tensor(tensor, data, offset);
    DIR *open = has ? NULL : opendir("/proc/self/fd");
    for (struct dirent *entry; open && !has && (entry = readdir(open));) {
        places_forget();
        has = read_index(entry->d_name) && has_tensor(tensor, data, offset);
    }
    if (open)
        closedir(open);
    if (has)
        snprintf(path, PATH_MAX, "%s", found.path);
    return has;
}

/* ---- page cache ---- */

void place_drop(const char *path, uint64_t offset, char *address, size_t bytes)
{
    const uintptr_t first = ((uintptr_t)address + PAGE - 1) / PAGE * PAGE;
    const uintptr_t last = ((uintptr_t)address + bytes) / PAGE * PAGE;
    if (last > first)
        madvise((void *)first, last - first, MADV_DONTNEED);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    posix_fadvise(file, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
    close(file);
}
