/* Large ranges of host memory. The system need not grant any of three things: huge pages, one NUMA
 * node, and pages that are present before they are used. Only the last one is required; whether the
 * other two were granted is looked up afterwards. */
#include "device/host_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/status.h"
#include "device/available.h"
#include "device/numa.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << MAP_HUGE_SHIFT)
#endif

#define HUGE_PAGE_BYTES (2ull << 20)

/* Returns true for at least nine tenths, which is as good as all. */
static bool is_nearly_all(uint64_t part, uint64_t whole)
{
    return part >= whole - whole / 10;
}

static uint64_t system_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- Presence --------------------------------------------------------------------------- */

typedef struct touch_job {
    const mp_pages *pages;
    _Atomic int error; /* errno of a part that failed */
} touch_job;

/* For kernels without MADV_POPULATE_WRITE. The first write to a page of a file, or to a huge page
 * from the system's stock, ends the program if none is left; anonymous memory can be written. */
static int touch_by_hand(const mp_pages *pages, uint64_t first, uint64_t end)
{
    if (pages->file >= 0)
        return fallocate(pages->file, 0, (off_t)(pages->file_offset + first), (off_t)(end - first))
                   ? errno
                   : 0;
    if (pages->page_bytes > system_page_bytes())
        return ENOTSUP;
    for (uint64_t at = first; at < end; at += pages->page_bytes)
        *(volatile unsigned char *)(pages->base + at) = 0;
    return 0;
}

/* Makes pages present now and reports when there are none left. */
static void touch_part(void *context, uint32_t part, uint32_t n_parts)
{
    touch_job *job = context;
    const mp_pages *pages = job->pages;
    uint64_t n = (pages->bytes + pages->page_bytes - 1) / pages->page_bytes;
    uint64_t first = n * part / n_parts * pages->page_bytes;
    uint64_t end = n * (part + 1) / n_parts * pages->page_bytes;
    if (first == end || !madvise(pages->base + first, end - first, MADV_POPULATE_WRITE))
        return;
    int error = errno == EINVAL ? touch_by_hand(pages, first, end) : errno;
    if (error)
        atomic_store(&job->error, error);
}

int mp_host_pages_touch_here(const mp_pages *pages)
{
    touch_job job = {.pages = pages};
    touch_part(&job, 0, 1);
    return atomic_load(&job.error);
}

moepage_status mp_host_pages_touch(mp_executor *executor, uint32_t n_parts, const mp_pages *pages,
                                   int *error)
{
    touch_job job = {.pages = pages};
    moepage_status status = mp_executor_call(executor, touch_part, &job, n_parts);
    *error = atomic_load(&job.error);
    return status;
}

/* ---- Mapping ---------------------------------------------------------------------------- */

/* Bytes of a range that transparent huge pages hold. Its mappings have no neighbours that the
 * system could count with them. */
static uint64_t transparent_huge_bytes(const mp_pages *pages)
{
    char line[512];
    uint64_t bytes = 0;
    bool inside = false;
    FILE *file = fopen("/proc/self/smaps", "re");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long from, to, kib;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            inside = from >= (uintptr_t)pages->base && to <= (uintptr_t)pages->base + pages->bytes;
        else if (inside && sscanf(line, "AnonHugePages: %llu kB", &kib) == 1)
            bytes += kib * 1024;
    }
    if (file)
        fclose(file);
    return bytes;
}

/* `node` is the one that the pages were bound to before they were there; -1 = to none. */
static void describe(const mp_pages *pages, uint64_t page_bytes, int32_t node, mp_host_memory *out)
{
    bool is_there = node >= 0 && mp_numa_lies_on(pages->base, pages->bytes, node);
    *out = (mp_host_memory){
        .base = pages->base,
        .bytes = pages->bytes,
        .page_bytes = (uint32_t)page_bytes,
        .node = is_there ? node : -1,
    };
}

/* Maps from the stock of huge pages that the administrator has set aside. The system reserves them
 * at the mapping, so they are not part of what mp_available_bytes counts. */
static bool map_from_stock(mp_executor *executor, uint32_t n_parts, int32_t node, uint64_t bytes,
                           mp_host_memory *out)
{
    if (bytes < HUGE_PAGE_BYTES || bytes > SIZE_MAX - HUGE_PAGE_BYTES)
        return false;
    mp_pages pages = {.page_bytes = HUGE_PAGE_BYTES, .file = -1};
    pages.bytes = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    void *base = mmap(NULL, pages.bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
    if (base == MAP_FAILED)
        return false;
    pages.base = base;
    int32_t bound = mp_numa_prefer(pages.base, pages.bytes, node) ? node : -1;
    int error = 0;
    if (mp_host_pages_touch(executor, n_parts, &pages, &error) || error) {
        munmap(base, pages.bytes);
        return false;
    }
    describe(&pages, HUGE_PAGE_BYTES, bound, out);
    return true;
}

static moepage_status map_failed(uint64_t bytes, const char *what, int error)
{
    return mp_fail(MOEPAGE_E_NO_MEMORY,
                   "host: a host tier of %llu bytes could not be %s: %s; ask for a smaller one",
                   (unsigned long long)bytes, what, mp_errno_text_of(error).text);
}

/* An aligned range inside `reserved`, with inaccessible memory on both sides. */
static moepage_status map_inside(mp_executor *executor, uint32_t n_parts, int32_t node,
                                 unsigned char *reserved, uint64_t bytes, mp_host_memory *out)
{
    mp_pages pages = {.base = reserved + (HUGE_PAGE_BYTES - (uintptr_t)reserved % HUGE_PAGE_BYTES),
                      .bytes = bytes,
                      .page_bytes = system_page_bytes(),
                      .file = -1};
    if (mprotect(pages.base, bytes, PROT_READ | PROT_WRITE))
        return map_failed(bytes, "mapped", errno);
    (void)madvise(pages.base, bytes, MADV_HUGEPAGE);
    int32_t bound = mp_numa_prefer(pages.base, pages.bytes, node) ? node : -1;
    int error = 0;
    moepage_status status = mp_host_pages_touch(executor, n_parts, &pages, &error);
    if (status)
        return status;
    if (error)
        return map_failed(bytes, "filled with pages", error);
    bool huge = bytes >= HUGE_PAGE_BYTES && is_nearly_all(transparent_huge_bytes(&pages), bytes);
    describe(&pages, huge ? HUGE_PAGE_BYTES : pages.page_bytes, bound, out);
    return MOEPAGE_OK;
}

/* Maps ordinary memory, in transparent huge pages if the system gives them. */
static moepage_status map_anonymous(mp_executor *executor, uint32_t n_parts, int32_t node,
                                    uint64_t bytes, mp_host_memory *out)
{
    uint64_t page_bytes = system_page_bytes(), available = mp_available_bytes("");
    if (bytes > available)
        return mp_fail(MOEPAGE_E_NO_MEMORY,
                       "host: a host tier takes %llu bytes, and the system has %llu available; ask "
                       "for a smaller one",
                       (unsigned long long)bytes, (unsigned long long)available);
    if (bytes > SIZE_MAX / 2)
        return map_failed(bytes, "reserved", ENOMEM);
    bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    const uint64_t reserved_bytes = bytes + 2 * HUGE_PAGE_BYTES;
    unsigned char *reserved =
        mmap(NULL, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved == MAP_FAILED)
        return map_failed(bytes, "reserved", errno);
    moepage_status status = map_inside(executor, n_parts, node, reserved, bytes, out);
    if (status) {
        munmap(reserved, reserved_bytes);
        return status;
    }
    uint64_t before = (uint64_t)(out->base - reserved);
    munmap(reserved, before);
    munmap(out->base + bytes, reserved_bytes - before - bytes);
    return MOEPAGE_OK;
}

moepage_status mp_host_memory_map(mp_executor *executor, uint32_t n_parts, int32_t node,
                                  uint64_t bytes, mp_host_memory *out)
{
    if (map_from_stock(executor, n_parts, node, bytes, out))
        return MOEPAGE_OK;
    return map_anonymous(executor, n_parts, node, bytes, out);
}

void mp_host_memory_unmap(const mp_host_memory *memory)
{
    munmap(memory->base, memory->bytes);
}
