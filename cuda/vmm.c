/* The arena in handles of virtual memory, and views: the same handles at further addresses.
 *
 * The driver maps whole handles only, so that a handle's size is the granularity of views. All handles
 * stay mapped in one range as long as the arena lives: what moves between experts and KV is ownership
 * of bytes, never a mapping. */
#include "vmm.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/thread.h"

#define MAX_HANDLE_BYTES (32ull << 20)
#define WASTE_SHARE 64u
#define ALIGNMENT 4096u

static const char arena_advice[] = "open the device with a smaller budget";

struct mp_cuda_arena {
    mp_cu_ptr base;
    uint64_t bytes;        /* as asked for */
    uint64_t mapped_bytes; /* of whole granules; without VMM, of `block` */
    mp_cu_ptr block;       /* without VMM: what the driver gave */
    uint64_t handle_bytes; /* of all handles but the last, which may be smaller; 0 without VMM */
    uint32_t n_handles;    /* that exist */
    mp_cu_handle handles[];
};

uint64_t mp_cuda_handle_bytes(uint64_t granularity, uint64_t arena_bytes)
{
    uint64_t bytes = granularity;
    while (bytes * 2 <= MAX_HANDLE_BYTES && bytes * 2 <= arena_bytes / WASTE_SHARE)
        bytes *= 2;
    return bytes;
}

static mp_cu_mem_prop property_of(const mp_cuda *cuda)
{
    return (mp_cu_mem_prop){.type = MP_CU_ALLOCATION_PINNED,
                            .location = {.type = MP_CU_LOCATION_DEVICE, .id = cuda->gpu}};
}

/* *out is 0 for a granularity that is of no use: not a power of two, or smaller than a page. */
static mp_cu_result ask_granularity(mp_cuda *cuda, uint64_t *out)
{
    const mp_cu_mem_prop property = property_of(cuda);
    size_t bytes = 0;
    mp_cu_result result = cuda->driver->granularity(&bytes, &property, MP_CU_GRANULARITY_MINIMUM);
    *out = result || bytes < ALIGNMENT || bytes & (bytes - 1) ? 0 : bytes;
    return result;
}

uint64_t mp_cuda_arena_align(mp_cuda *cuda)
{
    uint64_t granularity = 0;
    if (cuda->has_vmm)
        (void)ask_granularity(cuda, &granularity); /* the arena will be in one piece */
    return granularity ? granularity : ALIGNMENT;
}

/* ---- The arena in handles (context current) --------------------------------------------- */

static uint64_t bytes_of_handle(const mp_cuda_arena *arena, uint32_t index)
{
    uint64_t rest = arena->mapped_bytes - index * arena->handle_bytes;
    return rest < arena->handle_bytes ? rest : arena->handle_bytes;
}

static mp_cu_result create_handles(mp_cuda *cuda, mp_cuda_arena *arena, uint32_t n)
{
    const mp_cu_mem_prop property = property_of(cuda);
    mp_cu_result result = MP_CU_SUCCESS;
    while (arena->n_handles < n && !result) {
        mp_cuda_count_memory_call(cuda);
        result = cuda->driver->mem_create(&arena->handles[arena->n_handles],
                                          bytes_of_handle(arena, arena->n_handles), &property, 0);
        arena->n_handles += !result;
    }
    return result;
}

static void release_handles(mp_cuda *cuda, mp_cuda_arena *arena)
{
    while (arena->n_handles) {
        mp_cuda_count_memory_call(cuda);
        mp_cuda_log_failure(cuda, cuda->driver->mem_release(arena->handles[--arena->n_handles]),
                            "giving back the arena");
    }
}

/* Unmaps handle by handle, as they were mapped. */
static void unmap(mp_cuda *cuda, mp_cu_ptr at, uint64_t bytes, uint64_t handle_bytes)
{
    for (uint64_t done = 0; done < bytes; done += handle_bytes) {
        uint64_t rest = bytes - done;
        mp_cuda_count_memory_call(cuda);
        mp_cuda_log_failure(cuda,
                            cuda->driver->mem_unmap(at + done,
                                                    rest < handle_bytes ? rest : handle_bytes),
                            "unmapping memory of the arena");
    }
}

/* Shows handles [first, first + n) at `at` and makes them accessible; a failure has mapped none. */
static mp_cu_result map_handles(mp_cuda *cuda, const mp_cuda_arena *arena, mp_cu_ptr at,
                                uint32_t first, uint32_t n)
{
    const mp_cu_access access = {.location = {.type = MP_CU_LOCATION_DEVICE, .id = cuda->gpu},
                                 .flags = MP_CU_ACCESS_READWRITE};
    mp_cu_result result = MP_CU_SUCCESS;
    uint64_t mapped = 0;
    for (uint32_t i = first; i < first + n && !result; i++) {
        uint64_t bytes = bytes_of_handle(arena, i);
        mp_cuda_count_memory_call(cuda);
        result = cuda->driver->mem_map(at + mapped, bytes, 0, arena->handles[i], 0);
        mapped += result ? 0 : bytes;
    }
    if (!result) {
        mp_cuda_count_memory_call(cuda);
        result = cuda->driver->mem_set_access(at, mapped, &access, 1);
    }
    if (result)
        unmap(cuda, at, mapped, arena->handle_bytes);
    return result;
}

static void free_range(mp_cuda *cuda, mp_cu_ptr at, uint64_t bytes)
{
    mp_cuda_count_memory_call(cuda);
    mp_cuda_log_failure(cuda, cuda->driver->address_free(at, bytes), "giving back addresses");
}

/* Fills in the arena; a failure leaves nothing. */
static mp_cu_result build_of_handles(mp_cuda *cuda, mp_cuda_arena *arena, uint32_t n)
{
    mp_cuda_count_memory_call(cuda);
    mp_cu_result result =
        cuda->driver->address_reserve(&arena->base, arena->mapped_bytes, arena->handle_bytes, 0, 0);
    if (result)
        return result;
    result = create_handles(cuda, arena, n);
    if (result)
        goto fail;
    uint64_t before_ns = mp_clock_ns();
    result = map_handles(cuda, arena, arena->base, 0, n);
    if (result)
        goto fail;
    cuda->info.handle_ns = (mp_clock_ns() - before_ns) / n;
    return MP_CU_SUCCESS;

fail:
    release_handles(cuda, arena);
    free_range(cuda, arena->base, arena->mapped_bytes);
    return result;
}

/* *out stays NULL where the driver refuses but a plain allocation may succeed. */
static moepage_status alloc_of_handles(mp_cuda *cuda, uint64_t bytes, mp_cuda_arena **out)
{
    uint64_t granularity;
    mp_cu_result result = ask_granularity(cuda, &granularity);
    if (result)
        return mp_cuda_check(cuda, result, "asking for the granularity of memory");
    if (!granularity)
        return MOEPAGE_OK;
    const uint64_t mapped_bytes = (bytes + granularity - 1) / granularity * granularity;
    const uint64_t handle_bytes = mp_cuda_handle_bytes(granularity, bytes);
    const uint64_t n = (mapped_bytes + handle_bytes - 1) / handle_bytes;
    mp_cuda_arena *arena =
        n <= UINT32_MAX ? mp_alloc(sizeof *arena + n * sizeof *arena->handles) : NULL;
    if (!arena)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%s: no memory for the arena's %llu handles",
                       cuda->name, (unsigned long long)n);
    arena->bytes = bytes;
    arena->mapped_bytes = mapped_bytes;
    arena->handle_bytes = handle_bytes;
    result = build_of_handles(cuda, arena, (uint32_t)n);
    if (!result) {
        *out = arena;
        return MOEPAGE_OK;
    }
    mp_free(arena);
    if (result == MP_CU_OUT_OF_MEMORY)
        return mp_cuda_no_memory(cuda, "the arena", mapped_bytes, arena_advice);
    return mp_cuda_check(cuda, result, "mapping the arena");
}

/* ---- The arena in one piece ------------------------------------------------------------- */

/* Allocates the arena's bytes. Large allocations are page-aligned in practice; the driver promises
 * less, and one that is not is replaced by one of a page more. */
static mp_cu_result alloc_aligned(mp_cuda *cuda, mp_cuda_arena *arena)
{
    arena->mapped_bytes = arena->bytes;
    mp_cuda_count_memory_call(cuda);
    mp_cu_result result = cuda->driver->mem_alloc(&arena->block, arena->mapped_bytes);
    if (!result && arena->block % ALIGNMENT) {
        mp_cuda_count_memory_call(cuda);
        mp_cuda_log_failure(cuda, cuda->driver->mem_free(arena->block), "giving back the arena");
        arena->mapped_bytes = arena->bytes + ALIGNMENT;
        mp_cuda_count_memory_call(cuda);
        result = cuda->driver->mem_alloc(&arena->block, arena->mapped_bytes);
    }
    arena->base = (arena->block + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return result;
}

static moepage_status alloc_in_one_piece(mp_cuda *cuda, uint64_t bytes, mp_cuda_arena **out)
{
    mp_cuda_arena *arena = mp_alloc(sizeof *arena);
    if (!arena)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%s: no memory for the arena's description",
                       cuda->name);
    arena->bytes = bytes;
    mp_cu_result result = alloc_aligned(cuda, arena);
    if (!result) {
        *out = arena;
        return MOEPAGE_OK;
    }
    mp_free(arena);
    if (result == MP_CU_OUT_OF_MEMORY)
        return mp_cuda_no_memory(cuda, "the arena", bytes, arena_advice);
    return mp_cuda_check(cuda, result, "allocating the arena");
}

/* ---- Either ----------------------------------------------------------------------------- */

/* Refuses an arena that does not fit before any memory is taken. */
static moepage_status check_room(mp_cuda *cuda, uint64_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    moepage_status status = mp_cuda_check(cuda, cuda->driver->mem_info(&free_bytes, &total_bytes),
                                          "asking for free memory");
    if (!status && (bytes > free_bytes))
        status = mp_cuda_no_memory(cuda, "the arena", bytes, arena_advice);
    return status;
}

/* The arena's allocation, context current. */
static moepage_status alloc_arena(mp_cuda *cuda, uint64_t bytes, mp_cuda_arena **out)
{
    const char *why = "it has no virtual memory management";
    moepage_status status = check_room(cuda, bytes);
    if (status)
        return status;
    if (cuda->has_vmm) {
        status = alloc_of_handles(cuda, bytes, out);
        if (*out || status == MOEPAGE_E_NO_MEMORY || mp_cuda_check_health(cuda))
            return status;
        why = status ? "it refused to map handles" : "its granularity is of no use";
    }
    mp_log_write(
        &cuda->device.log, MOEPAGE_LOG_WARNING,
        "%s: the arena is one allocation of the driver, because %s: there will be no views",
        cuda->name, why);
    return alloc_in_one_piece(cuda, bytes, out);
}

moepage_status mp_cuda_arena_alloc(mp_cuda *cuda, uint64_t bytes, void **out)
{
    mp_cuda_arena *arena = NULL;
    if (cuda->arena)
        return mp_fail(MOEPAGE_E_STATE,
                       "%s: the device has its arena already, and can have one only", cuda->name);
    moepage_status status = mp_cuda_enter(cuda);
    if (status)
        return status;
    status = alloc_arena(cuda, bytes, &arena);
    mp_cuda_leave(cuda);
    if (status)
        return status;
    assert(arena);
    cuda->arena = arena;
    cuda->info.arena_kind =
        arena->handle_bytes ? MOEPAGE_CUDA_ARENA_VMM : MOEPAGE_CUDA_ARENA_MALLOC;
    cuda->info.handle_bytes = arena->handle_bytes;
    cuda->device.view_bytes = arena->handle_bytes;
    *out = (void *)(uintptr_t)arena->base;
    return MOEPAGE_OK;
}

void mp_cuda_arena_free(mp_cuda *cuda)
{
    mp_cuda_arena *arena = cuda->arena;
    assert(arena);
    if (mp_cuda_enter(cuda) == MOEPAGE_OK) {
        if (arena->handle_bytes) {
            unmap(cuda, arena->base, arena->mapped_bytes, arena->handle_bytes);
            release_handles(cuda, arena);
            free_range(cuda, arena->base, arena->mapped_bytes);
        } else {
            mp_cuda_count_memory_call(cuda);
            mp_cuda_log_failure(cuda, cuda->driver->mem_free(arena->block),
                                "giving back the arena");
        }
        mp_cuda_leave(cuda);
    }
    cuda->arena = NULL;
    cuda->device.view_bytes = cuda->info.handle_bytes = cuda->info.handle_ns = 0;
    cuda->info.arena_kind = 0;
    mp_free(arena);
}

/* ---- Views ------------------------------------------------------------------------------ */

static moepage_status check_views(const mp_cuda *cuda)
{
    if (cuda->device.view_bytes)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_UNSUPPORTED, "%s: there are no views without an arena in handles",
                   cuda->name);
}

/* The last handle may be smaller, or reach past the arena: then it takes part in no view. */
static moepage_status check_view(const mp_cuda *cuda, uint64_t at, uint64_t offset, uint64_t bytes)
{
    moepage_status status = check_views(cuda);
    if (status)
        return status;
    const uint64_t unit = cuda->device.view_bytes;
    const uint64_t whole = cuda->arena->bytes / unit * unit;
    if (bytes && (at | offset | bytes) % unit == 0 && bytes <= whole && offset <= whole - bytes)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT,
                   "%s: a view of %llu bytes at offset %llu must be multiples of %llu bytes within "
                   "the arena's first %llu",
                   cuda->name, (unsigned long long)bytes, (unsigned long long)offset,
                   (unsigned long long)unit, (unsigned long long)whole);
}

moepage_status mp_cuda_view_reserve(mp_device *device, uint64_t bytes, void **out)
{
    mp_cuda *cuda = mp_cuda_of(device);
    mp_cu_ptr at = 0;
    moepage_status status = check_views(cuda);
    if (!status && (!bytes || bytes % device->view_bytes))
        status =
            mp_fail(MOEPAGE_E_ARGUMENT,
                    "%s: addresses for views are reserved in multiples of %llu bytes, not %llu",
                    cuda->name, (unsigned long long)device->view_bytes, (unsigned long long)bytes);
    if (!status)
        status = mp_cuda_enter(cuda);
    if (status)
        return status;
    mp_cuda_count_memory_call(cuda);
    mp_cu_result result = cuda->driver->address_reserve(&at, bytes, device->view_bytes, 0, 0);
    status = mp_cuda_check(cuda, result, "reserving addresses for views");
    mp_cuda_leave(cuda);
    if (!status)
        *out = (void *)(uintptr_t)at;
    return status;
}

void mp_cuda_view_release(mp_device *device, void *base, uint64_t bytes)
{
    mp_cuda *cuda = mp_cuda_of(device);
    if (mp_cuda_enter(cuda))
        return;
    free_range(cuda, (mp_cu_ptr)(uintptr_t)base, bytes);
    mp_cuda_leave(cuda);
}

moepage_status mp_cuda_view_map(mp_device *device, void *at, uint64_t offset, uint64_t bytes)
{
    mp_cuda *cuda = mp_cuda_of(device);
    const mp_cu_ptr address = (mp_cu_ptr)(uintptr_t)at;
    moepage_status status = check_view(cuda, address, offset, bytes);
    if (!status)
        status = mp_cuda_enter(cuda);
    if (status)
        return status;
    const uint64_t unit = device->view_bytes;
    mp_cu_result result = map_handles(cuda, cuda->arena, address, (uint32_t)(offset / unit),
                                      (uint32_t)(bytes / unit));
    status = mp_cuda_check(cuda, result, "mapping a view of the arena");
    mp_cuda_leave(cuda);
    return status;
}

void mp_cuda_view_unmap(mp_device *device, void *at, uint64_t bytes)
{
    mp_cuda *cuda = mp_cuda_of(device);
    if (mp_cuda_enter(cuda))
        return;
    unmap(cuda, (mp_cu_ptr)(uintptr_t)at, bytes, device->view_bytes);
    mp_cuda_leave(cuda);
}
