/* Views of the host's arena: its file mapped again, over address space kept for the purpose. */
#include "device/host_views.h"

#include <assert.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/status.h"

uint64_t mp_host_view_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Reserves address space that faults: at `at`, replacing what is mapped there, or anywhere. */
static void *map_nothing(void *at, uint64_t bytes)
{
    int where = at ? MAP_FIXED : 0;
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | where, -1, 0);
}

moepage_status mp_host_view_reserve(uint64_t bytes, void **out)
{
    assert(bytes > 0 && bytes % mp_host_view_bytes() == 0);
    void *base = map_nothing(NULL, bytes);
    if (base == MAP_FAILED)
        return mp_fail(MOEPAGE_E_NO_MEMORY,
                       "host: %llu bytes of address space could not be reserved for views: %s",
                       (unsigned long long)bytes, mp_errno_text_of(errno).text);
    *out = base;
    return MOEPAGE_OK;
}

void mp_host_view_release(void *base, uint64_t bytes)
{
    munmap(base, bytes);
}

moepage_status mp_host_view_map(int file, void *at, uint64_t offset, uint64_t bytes)
{
    assert((uintptr_t)at % mp_host_view_bytes() == 0 && offset % mp_host_view_bytes() == 0);
    /* Populated at once: otherwise the first reader takes a fault per page. */
    void *view =
        mmap(at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, (off_t)offset);
    if (view != MAP_FAILED)
        return MOEPAGE_OK;
    moepage_status status =
        mp_fail(MOEPAGE_E_NO_MEMORY, "host: a view of %llu bytes could not be mapped: %s",
                (unsigned long long)bytes, mp_errno_text_of(errno).text);
    /* A mapping that fails late has removed the reservation: without a new one, any other mapping of the
     * process could take the addresses. */
    (void)map_nothing(at, bytes);
    return status;
}

void mp_host_view_unmap(void *at, uint64_t bytes)
{
    /* At the limit of mappings (vm.max_map_count) a new one is refused, but one that exists can
     * still be locked. */
    if (map_nothing(at, bytes) == MAP_FAILED)
        (void)mprotect(at, bytes, PROT_NONE);
}
