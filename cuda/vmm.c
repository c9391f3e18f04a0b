/* The arena in handles of virtual memory, and views: the same handles at further addresses.
 *
 * The driver maps whole handles only, so that a handle's size is the granularity of views, and of memory that a
 * smaller budget gives back. Handles stay mapped where they are, in one range: what moves between
 * experts and KV is ownership of bytes, never a mapping, but for the hole that a budget below its maximum
 * leaves between them. */
#include "vmm.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/thread.h"

#define MAX_HANDLE_BYTES (32ull << 20)
#define WASTE_SHARE 64u
#define ALIGNMENT 4096u

typedef struct arena_handle {
    mp_cu_handle handle;
    bool there;
} arena_handle;

struct mp_cuda_arena {
    mp_cu_ptr base;
    uint64_t bytes;        /* as asked for */
    uint64_t mapped_bytes; /* of whole granules, all handles there; without VMM, of `block` */
    mp_cu_ptr block;       /* without VMM: what the driver gave */
    uint64_t handle_bytes; /* of all handles but the last, which may be smaller; 0 without VMM */
    uint32_t n_handles;
    arena_handle handles[]; /* in the order of their addresses */
};

uint64_t mp_cuda_handle_bytes(uint64_t granularity, uint64_t arena_bytes)
{
    uint64_t bytes = granularity;
    while (bytes * 2 <= MAX_HANDLE_BYTES && bytes * 2 <= arena_bytes / WASTE_SHARE)
        bytes *= 2;
    return bytes;
}

static const char *arena_advice(const mp_cuda *cuda)
{
    return cuda->arena ? "ask for a smaller budget" : "open the device with a smaller budget";
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

static mp_cu_result create_handle(mp_cuda *cuda, mp_cuda_arena *arena, uint32_t index)
{
    const mp_cu_mem_prop property = property_of(cuda);
    arena_handle *handle = &arena->handles[index];
    assert(!handle->there);
    mp_cuda_count_memory_call(cuda);
    mp_cu_result result =
        cuda->driver->mem_create(&handle->handle, bytes_of_handle(arena, index), &property, 0);
    handle->there = !result;
    return result;
}

/* Releases those of handles [first, first + n) that are there. */
static void release_handles(mp_cuda *cuda, mp_cuda_arena *arena, uint32_t first, uint32_t n)
{
    for (uint32_t i = first + n; i-- > first;) {
        if (!arena->handles[i].there)
            continue;
        arena->handles[i].there = false;
        mp_cuda_count_memory_call(cuda);
        mp_cuda_log_failure(cuda, cuda->driver->mem_release(arena->handles[i].handle),
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
        result = cuda->driver->mem_map(at + mapped, bytes, 0, arena->handles[i].handle, 0);
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

/* Creates handles [first, first + n) and maps them at their places; a failure leaves none. */
static mp_cu_result fill(mp_cuda *cuda, mp_cuda_arena *arena, uint32_t first, uint32_t n)
{
    mp_cu_result result = MP_CU_SUCCESS;
    for (uint32_t i = first; i < first + n && !result; i++)
        result = create_handle(cuda, arena, i);
    uint64_t before_ns = mp_clock_ns();
    if (!result)
        result = map_handles(cuda, arena, arena->base + first * arena->handle_bytes, first, n);
    if (result)
        release_handles(cuda, arena, first, n);
    else
        atomic_store(&cuda->handle_ns, (mp_clock_ns() - before_ns) / n);
    return result;
}

/* Unmaps and releases those of handles [first, first + n) that are there. */
static void empty(mp_cuda *cuda, mp_cuda_arena *arena, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++)
        if (arena->handles[i].there)
            unmap(cuda, arena->base + i * arena->handle_bytes, bytes_of_handle(arena, i),
                  arena->handle_bytes);
    release_handles(cuda, arena, first, n);
}

static moepage_status describe_failure(mp_cuda *cuda, mp_cu_result result, uint64_t bytes)
{
    if (result == MP_CU_OUT_OF_MEMORY)
        return mp_cuda_no_memory(cuda, "the arena", bytes, arena_advice(cuda));
    return mp_cuda_check(cuda, result, "mapping the arena");
}

/* Reserves addresses for an arena in handles, none of which is there yet. *out stays NULL where the driver
 * refuses but a plain allocation may succeed. */
static moepage_status reserve_handles(mp_cuda *cuda, uint64_t bytes, mp_cuda_arena **out)
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
    arena->n_handles = (uint32_t)n;
    mp_cuda_count_memory_call(cuda);
    result = cuda->driver->address_reserve(&arena->base, mapped_bytes, handle_bytes, 0, 0);
    if (!result) {
        *out = arena;
        return MOEPAGE_OK;
    }
    mp_free(arena);
    return describe_failure(cuda, result, mapped_bytes);
}

/* Gives back an arena in handles, and those that are there. */
static void free_handles(mp_cuda *cuda, mp_cuda_arena *arena)
{
    empty(cuda, arena, 0, arena->n_handles);
    free_range(cuda, arena->base, arena->mapped_bytes);
}

static moepage_status alloc_of_handles(mp_cuda *cuda, uint64_t bytes, mp_cuda_arena **out)
{
    mp_cuda_arena *arena = NULL;
    moepage_status status = reserve_handles(cuda, bytes, &arena);
    if (!arena)
        return status;
    mp_cu_result result = fill(cuda, arena, 0, arena->n_handles);
    if (!result) {
        *out = arena;
        return MOEPAGE_OK;
    }
    status = describe_failure(cuda, result, arena->mapped_bytes);
    free_handles(cuda, arena);
    mp_free(arena);
    return status;
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
        return mp_cuda_no_memory(cuda, "the arena", bytes, arena_advice(cuda));
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
        status = mp_cuda_no_memory(cuda, "the arena", bytes, arena_advice(cuda));
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

/* Makes the context current, for a device without an arena. */
static moepage_status enter_for_arena(mp_cuda *cuda)
{
    if (!cuda->arena)
        return mp_cuda_enter(cuda);
    return mp_fail(MOEPAGE_E_STATE, "%s: the device has its arena already, and can have one only",
                   cuda->name);
}

static void begin_arena(mp_cuda *cuda, mp_cuda_arena *arena, void **out)
{
    assert(arena);
    cuda->arena = arena;
    cuda->info.arena_kind =
        arena->handle_bytes ? MOEPAGE_CUDA_ARENA_VMM : MOEPAGE_CUDA_ARENA_MALLOC;
    cuda->info.handle_bytes = arena->handle_bytes;
    cuda->device.view_bytes = cuda->device.part_bytes = arena->handle_bytes;
    *out = (void *)(uintptr_t)arena->base;
}

moepage_status mp_cuda_arena_alloc(mp_cuda *cuda, uint64_t bytes, void **out)
{
    mp_cuda_arena *arena = NULL;
    moepage_status status = enter_for_arena(cuda);
    if (status)
        return status;
    status = alloc_arena(cuda, bytes, &arena);
    mp_cuda_leave(cuda);
    if (!status)
        begin_arena(cuda, arena, out);
    return status;
}

void mp_cuda_arena_free(mp_cuda *cuda)
{
    mp_cuda_arena *arena = cuda->arena;
    assert(arena);
    if (mp_cuda_enter(cuda) == MOEPAGE_OK) {
        if (arena->handle_bytes) {
            free_handles(cuda, arena);
        } else {
            mp_cuda_count_memory_call(cuda);
            mp_cuda_log_failure(cuda, cuda->driver->mem_free(arena->block),
                                "giving back the arena");
        }
        mp_cuda_leave(cuda);
    }
    cuda->arena = NULL;
    cuda->device.view_bytes = cuda->device.part_bytes = 0;
    cuda->info.handle_bytes = 0;
    atomic_store(&cuda->handle_ns, 0);
    cuda->info.arena_kind = 0;
    mp_free(arena);
}

/* ---- Memory that comes and goes --------------------------------------------------------- */

moepage_status mp_cuda_arena_reserve(mp_device *device, uint64_t bytes, void **out)
{
    mp_cuda *cuda = mp_cuda_of(device);
    mp_cuda_arena *arena = NULL;
    moepage_status status = enter_for_arena(cuda);
    if (status)
        return status;
    if (cuda->has_vmm)
        status = reserve_handles(cuda, bytes, &arena);
    mp_cuda_leave(cuda);
    if (!status && !arena)
        status =
            mp_fail(MOEPAGE_E_UNSUPPORTED,
                    "%s: the driver has no virtual memory management, so that the arena is one "
                    "allocation and max_budget_bytes must be the budget",
                    cuda->name);
    if (!status)
        begin_arena(cuda, arena, out);
    return status;
}

/* Returns the handles of a range of the arena, which may end with it. */
static void handles_of(const mp_cuda_arena *arena, uint64_t offset, uint64_t bytes, uint32_t *first,
                       uint32_t *n)
{
    const uint64_t unit = arena->handle_bytes;
    assert(unit && offset % unit == 0 && bytes);
    assert(bytes % unit == 0 || offset + bytes == arena->bytes);
    *first = (uint32_t)(offset / unit);
    *n = (uint32_t)((bytes + unit - 1) / unit);
}

moepage_status mp_cuda_arena_back(mp_device *device, uint64_t offset, uint64_t bytes)
{
    mp_cuda *cuda = mp_cuda_of(device);
    uint32_t first, n;
    handles_of(cuda->arena, offset, bytes, &first, &n);
    moepage_status status = mp_cuda_enter(cuda);
    if (status)
        return status;
    status = check_room(cuda, bytes);
    if (!status)
        status = describe_failure(cuda, fill(cuda, cuda->arena, first, n), bytes);
    mp_cuda_leave(cuda);
    return status;
}

void mp_cuda_arena_unback(mp_device *device, uint64_t offset, uint64_t bytes)
{
    mp_cuda *cuda = mp_cuda_of(device);
    uint32_t first, n;
    handles_of(cuda->arena, offset, bytes, &first, &n);
    if (mp_cuda_enter(cuda))
        return;
    empty(cuda, cuda->arena, first, n);
    mp_cuda_leave(cuda);
}

moepage_status mp_cuda_available(mp_device *device, uint64_t *out)
{
    mp_cuda *cuda = mp_cuda_of(device);
    size_t free_bytes = 0, total_bytes = 0;
    moepage_status status = mp_cuda_enter(cuda);
    if (status)
        return status;
    status = mp_cuda_check(cuda, cuda->driver->mem_info(&free_bytes, &total_bytes),
                           "asking for free memory");
    mp_cuda_leave(cuda);
    *out = free_bytes;
    return status;
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
static bool has_memory(const mp_cuda_arena *arena, uint64_t offset, uint64_t bytes)
{
    const uint64_t unit = arena->handle_bytes;
    uint64_t i = offset / unit, end = (offset + bytes) / unit;
    while (i < end && arena->handles[i].there)
        i++;
    return i == end;
}

static moepage_status check_view(const mp_cuda *cuda, uint64_t at, uint64_t offset, uint64_t bytes)
{
    moepage_status status = check_views(cuda);
    if (status)
        return status;
    const uint64_t unit = cuda->device.view_bytes;
    const uint64_t whole = cuda->arena->bytes / unit * unit;
    if (bytes && (at | offset | bytes) % unit == 0 && bytes <= whole && offset <= whole - bytes &&
        has_memory(cuda->arena, offset, bytes))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT,
                   "%s: a view of %llu bytes at offset %llu must be multiples of %llu bytes within "
                   "the arena's first %llu, and have memory",
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
