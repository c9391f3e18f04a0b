/* The simulated driver's virtual memory: reservations that nothing backs, handles cut from one file
 * in memory, and mappings of whole handles, which none may touch before access is set. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim_inside.h"

#define FRESH_BYTE 0xcb
#define FILL_MAX (1u << 20)

static bool is_whole(uint64_t bytes)
{
    return bytes && bytes % SIM_GRANULARITY == 0;
}

static bool overlaps(uint64_t at, uint64_t bytes, uint64_t other, uint64_t other_bytes)
{
    return at < other + other_bytes && other < at + bytes;
}

/* ---- Reservations ----------------------------------------------------------------------- */

mp_cu_result sim_do_granularity(size_t *bytes, const mp_cu_mem_prop *prop, int option)
{
    SIM_BEGIN(SIM_granularity);
    if (option != MP_CU_GRANULARITY_MINIMUM && option != MP_CU_GRANULARITY_RECOMMENDED)
        return MP_CU_INVALID_VALUE;
    if (prop->type != MP_CU_ALLOCATION_PINNED || prop->location.type != MP_CU_LOCATION_DEVICE)
        return MP_CU_INVALID_VALUE;
    *bytes = SIM_GRANULARITY;
    return MP_CU_SUCCESS;
}

static void back_by_nothing(uint64_t at, uint64_t bytes)
{
    mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
}

static mp_cu_result reserve(uint64_t bytes, uint64_t alignment, mp_cu_ptr *out)
{
    int gpu = sim_current()->gpu;
    if (sim.config.gpus[gpu].no_vmm)
        return MP_CU_NOT_SUPPORTED;
    if (!is_whole(bytes) || alignment & (alignment - 1))
        return MP_CU_INVALID_VALUE;
    alignment = alignment > SIM_GRANULARITY ? alignment : SIM_GRANULARITY;
    uint64_t outer_bytes = bytes + alignment;
    void *outer =
        mmap(NULL, outer_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (outer == MAP_FAILED)
        return MP_CU_OUT_OF_MEMORY;
    uint64_t at = ((uintptr_t)outer + alignment - 1) / alignment * alignment;
    sim_range *range = sim_range_add(SIM_RANGE_RESERVED, at, bytes, gpu);
    range->outer = (uintptr_t)outer;
    range->outer_bytes = outer_bytes;
    *out = at;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_address_reserve(mp_cu_ptr *out, size_t bytes, size_t alignment, mp_cu_ptr hint,
                                    unsigned long long flags)
{
    SIM_BEGIN(SIM_address_reserve);
    (void)hint;
    return flags ? MP_CU_INVALID_VALUE : reserve(bytes, alignment, out);
}

mp_cu_result sim_do_address_free(mp_cu_ptr at, size_t bytes)
{
    SIM_BEGIN(SIM_address_free);
    sim_range *range = sim_range_find(SIM_RANGE_RESERVED, at);
    bool free = range && range->bytes == bytes;
    for (sim_mapping *m = sim.mappings; m && free; m = m->next)
        free = !overlaps(m->at, m->bytes, at, bytes);
    if (!free) {
        sim_misuse("address_free of %#llx, %zu bytes: not a reservation, or mapped", at, bytes);
        return MP_CU_INVALID_VALUE;
    }
    sim_range_remove(range);
    return MP_CU_SUCCESS;
}

/* ---- Handles ---------------------------------------------------------------------------- */

static sim_handle *handle_find(mp_cu_handle id)
{
    sim_handle *handle = sim.handles;
    while (handle && (handle->id != id || handle->released))
        handle = handle->next;
    return handle;
}

/* A released handle lives while it is mapped. */
static void handle_settle(sim_handle *handle)
{
    if (!handle->released || handle->mappings)
        return;
    sim_handle **link = &sim.handles;
    while (*link != handle)
        link = &(*link)->next;
    *link = handle->next;
    sim.used[handle->gpu] -= handle->bytes;
    fallocate(sim.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)handle->offset,
              (off_t)handle->bytes);
    free(handle);
}

/* Fresh memory is full of garbage. */
static bool file_extend(uint64_t bytes)
{
    if (sim.file < 0)
        sim.file = memfd_create("simulated-gpu", MFD_CLOEXEC);
    if (sim.file < 0 || ftruncate(sim.file, (off_t)(sim.file_end + bytes)))
        return false;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, sim.file, (off_t)sim.file_end);
    if (at == MAP_FAILED)
        return false;
    memset(at, FRESH_BYTE, bytes < FILL_MAX ? bytes : FILL_MAX);
    munmap(at, bytes);
    return true;
}

static mp_cu_result create(mp_cu_handle *out, uint64_t bytes, const mp_cu_mem_prop *prop)
{
    int gpu = prop->location.id;
    if (prop->type != MP_CU_ALLOCATION_PINNED || prop->location.type != MP_CU_LOCATION_DEVICE ||
        prop->handle_types || !is_whole(bytes))
        return MP_CU_INVALID_VALUE;
    if (gpu < 0 || (uint32_t)gpu >= sim.config.n_gpus)
        return MP_CU_INVALID_DEVICE;
    if (sim.config.gpus[gpu].no_vmm)
        return MP_CU_NOT_SUPPORTED;
    if (bytes > sim.config.gpus[gpu].bytes - sim.used[gpu] || !file_extend(bytes))
        return MP_CU_OUT_OF_MEMORY;
    sim_handle *handle = sim_new(sizeof *handle);
    *handle = (sim_handle){.next = sim.handles,
                           .id = 0x1000 + ++sim.last_handle,
                           .offset = sim.file_end,
                           .bytes = bytes,
                           .gpu = gpu};
    sim.handles = handle;
    sim.file_end += bytes;
    sim.used[gpu] += bytes;
    *out = handle->id;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_mem_create(mp_cu_handle *out, size_t bytes, const mp_cu_mem_prop *prop,
                               unsigned long long flags)
{
    SIM_BEGIN(SIM_mem_create);
    return flags ? MP_CU_INVALID_VALUE : create(out, bytes, prop);
}

mp_cu_result sim_do_mem_release(mp_cu_handle id)
{
    SIM_BEGIN(SIM_mem_release);
    sim_handle *handle = handle_find(id);
    if (!handle) {
        sim_misuse("mem_release of a handle that is not held");
        return MP_CU_INVALID_VALUE;
    }
    handle->released = true;
    handle_settle(handle);
    return MP_CU_SUCCESS;
}

/* ---- Mappings --------------------------------------------------------------------------- */

static bool lies_reserved(uint64_t at, uint64_t bytes)
{
    for (sim_range *r = sim.ranges; r; r = r->next) {
        if (r->kind == SIM_RANGE_RESERVED && sim_lies_within(at, bytes, r->at, r->bytes))
            return true;
    }
    return false;
}

static sim_mapping *mapping_around(uint64_t at)
{
    sim_mapping *mapping = sim.mappings;
    while (mapping && (at < mapping->at || at - mapping->at >= mapping->bytes))
        mapping = mapping->next;
    return mapping;
}

bool sim_mapped(int gpu, uint64_t at, uint64_t bytes)
{
    const uint32_t who = gpu == SIM_ANY_GPU ? UINT32_MAX : 1u << gpu;
    uint64_t end = at + bytes;
    do {
        sim_mapping *mapping = mapping_around(at);
        if (!mapping || !(mapping->open_to & who))
            return false;
        at = mapping->at + mapping->bytes;
    } while (at < end);
    return true;
}

static mp_cu_result map(uint64_t at, uint64_t bytes, sim_handle *handle)
{
    if (!handle || bytes != handle->bytes || at % SIM_GRANULARITY || !lies_reserved(at, bytes))
        return MP_CU_INVALID_VALUE;
    for (sim_mapping *m = sim.mappings; m; m = m->next) {
        if (overlaps(m->at, m->bytes, at, bytes))
            return MP_CU_INVALID_VALUE;
    }
    if (mmap((void *)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, sim.file,
             (off_t)handle->offset) == MAP_FAILED) {
        back_by_nothing(at, bytes);
        return MP_CU_OUT_OF_MEMORY;
    }
    sim_mapping *mapping = sim_new(sizeof *mapping);
    *mapping = (sim_mapping){.next = sim.mappings, .at = at, .bytes = bytes, .handle = handle};
    sim.mappings = mapping;
    handle->mappings++;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_mem_map(mp_cu_ptr at, size_t bytes, size_t offset, mp_cu_handle handle,
                            unsigned long long flags)
{
    SIM_BEGIN(SIM_mem_map);
    if (offset || flags)
        return MP_CU_INVALID_VALUE;
    return map(at, bytes, handle_find(handle));
}

static void mapping_remove(sim_mapping *mapping)
{
    sim_mapping **link = &sim.mappings;
    while (*link != mapping)
        link = &(*link)->next;
    *link = mapping->next;
    back_by_nothing(mapping->at, mapping->bytes);
    mapping->handle->mappings--;
    handle_settle(mapping->handle);
    free(mapping);
}

mp_cu_result sim_do_mem_unmap(mp_cu_ptr at, size_t bytes)
{
    SIM_BEGIN(SIM_mem_unmap);
    sim_mapping *mapping = mapping_around(at);
    if (!mapping || mapping->at != at || mapping->bytes != bytes) {
        sim_misuse("mem_unmap of %#llx, %zu bytes: not as it was mapped", at, bytes);
        return MP_CU_INVALID_VALUE;
    }
    mapping_remove(mapping);
    return MP_CU_SUCCESS;
}

static bool is_wholly_mapped(uint64_t at, uint64_t bytes)
{
    uint64_t end = at + bytes;
    while (at < end) {
        sim_mapping *mapping = mapping_around(at);
        if (!mapping || mapping->at != at)
            return false;
        at += mapping->bytes;
    }
    return at == end;
}

static mp_cu_result set_access(uint64_t at, uint64_t bytes, const mp_cu_access *access)
{
    if (access->location.type != MP_CU_LOCATION_DEVICE || access->location.id < 0 ||
        (uint32_t)access->location.id >= sim.config.n_gpus ||
        access->flags != MP_CU_ACCESS_READWRITE)
        return MP_CU_INVALID_VALUE;
    if (!bytes || !is_wholly_mapped(at, bytes))
        return MP_CU_INVALID_VALUE;
    mprotect((void *)at, bytes, PROT_READ | PROT_WRITE);
    for (uint64_t end = at + bytes; at < end;) {
        sim_mapping *mapping = mapping_around(at);
        mapping->open_to |= 1u << access->location.id;
        at += mapping->bytes;
    }
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_mem_set_access(mp_cu_ptr at, size_t bytes, const mp_cu_access *access,
                                   size_t count)
{
    SIM_BEGIN(SIM_mem_set_access);
    mp_cu_result result = count ? MP_CU_SUCCESS : MP_CU_INVALID_VALUE;
    for (size_t i = 0; i < count && !result; i++)
        result = set_access(at, bytes, &access[i]);
    return result;
}

/* Reservations are ranges: sim_memory_drop takes them. */
void sim_virtual_drop(int gpu)
{
    for (sim_mapping *m = sim.mappings, *next; m; m = next) {
        next = m->next;
        if (gpu < 0 || m->handle->gpu == gpu)
            mapping_remove(m);
    }
    for (sim_handle *h = sim.handles, *next; h; h = next) {
        next = h->next;
        if (gpu >= 0 && h->gpu != gpu)
            continue;
        h->released = true;
        handle_settle(h);
    }
}
