/* Memory besides the arena: workspace, host memory that the GPU reaches, and the GPU's NUMA node. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "device/host_memory.h"
#include "device/numa.h"
#include "vmm.h"

static const char workspace_advice[] = "leave the GPU more room beside the budget";

/* ---- Workspace and pinned host memory (context current) --------------------------------- */

static moepage_status alloc_workspace(mp_cuda *cuda, uint64_t bytes, void **out)
{
    mp_cu_ptr memory = 0;
    mp_cuda_count_memory_call(cuda);
    mp_cu_result result = cuda->driver->mem_alloc(&memory, bytes);
    if (result == MP_CU_OUT_OF_MEMORY)
        return mp_cuda_no_memory(cuda, "a workspace", bytes, workspace_advice);
    if (result)
        return mp_cuda_check(cuda, result, "allocating a workspace");
    *out = (void *)(uintptr_t)memory;
    return MOEPAGE_OK;
}

static moepage_status alloc_pinned(mp_cuda *cuda, uint64_t bytes, void **out)
{
    mp_cuda_count_memory_call(cuda);
    mp_cu_result result =
        cuda->driver->host_alloc(out, bytes, MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICEMAP);
    if (result == MP_CU_OUT_OF_MEMORY)
        return mp_fail(MOEPAGE_E_NO_MEMORY,
                       "%s: the system has no %llu bytes of host memory to pin", cuda->name,
                       (unsigned long long)bytes);
    return mp_cuda_check(cuda, result, "pinning host memory");
}

static void free_pinned(mp_cuda *cuda, void *memory)
{
    mp_cuda_count_memory_call(cuda);
    mp_cuda_log_failure(cuda, cuda->driver->host_free(memory), "giving back pinned host memory");
}

moepage_status mp_cuda_alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes, void **out)
{
    mp_cuda *cuda = mp_cuda_of(device);
    void *memory = NULL;
    assert(bytes > 0);
    if (kind == MP_MEMORY_ARENA)
        return mp_cuda_arena_alloc(cuda, bytes, out);
    moepage_status status = mp_cuda_enter(cuda);
    if (status)
        return status;
    status = kind == MP_MEMORY_WORKSPACE ? alloc_workspace(cuda, bytes, &memory)
                                         : alloc_pinned(cuda, bytes, &memory);
    mp_cuda_leave(cuda);
    if (!status)
        *out = memory;
    return status;
}

void mp_cuda_free(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes)
{
    mp_cuda *cuda = mp_cuda_of(device);
    (void)bytes;
    if (kind == MP_MEMORY_ARENA) {
        mp_cuda_arena_free(cuda);
        return;
    }
    if (mp_cuda_enter(cuda))
        return;
    if (kind == MP_MEMORY_WORKSPACE) {
        mp_cuda_count_memory_call(cuda);
        mp_cuda_log_failure(cuda, cuda->driver->mem_free((mp_cu_ptr)(uintptr_t)memory),
                            "giving back a workspace");
    } else {
        free_pinned(cuda, memory);
    }
    mp_cuda_leave(cuda);
}

moepage_status mp_cuda_shared_alloc(mp_device *device, uint64_t bytes, mp_cuda_shared *out)
{
    mp_cuda *cuda = mp_cuda_of(device);
    mp_cuda_shared memory = {.bytes = bytes};
    mp_cu_ptr address = 0;
    moepage_status status = mp_cuda_enter(cuda);
    if (status)
        return status;
    status = alloc_pinned(cuda, bytes, &memory.host);
    if (status)
        goto done;
    status = mp_cuda_check(cuda, cuda->driver->host_device_pointer(&address, memory.host, 0),
                           "finding shared memory's device address");
    if (status) {
        free_pinned(cuda, memory.host);
        goto done;
    }
    memset(memory.host, 0, bytes);
    memory.device = address;
    *out = memory;
done:
    mp_cuda_leave(cuda);
    return status;
}

void mp_cuda_shared_free(mp_device *device, const mp_cuda_shared *memory)
{
    mp_cuda *cuda = mp_cuda_of(device);
    if (!memory->host || mp_cuda_enter(cuda))
        return;
    free_pinned(cuda, memory->host);
    mp_cuda_leave(cuda);
}

/* ---- Host tiers ------------------------------------------------------------------------- */

static uint64_t piece_bytes(const mp_cuda *cuda, const mp_host_memory *memory, uint64_t done)
{
    uint64_t at = (uintptr_t)memory->base + done, to_end = mp_cuda_pin_end(cuda, at) - at;
    return to_end < memory->bytes - done ? to_end : memory->bytes - done;
}

/* Unregisters the pieces in the first `bytes` of a tier. */
static void unregister(mp_cuda *cuda, const mp_host_memory *memory, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes; done += piece_bytes(cuda, memory, done)) {
        mp_cuda_count_memory_call(cuda);
        mp_cuda_log_failure(cuda, cuda->driver->host_unregister(memory->base + done),
                            "unpinning a host tier");
    }
}

/* Returns true for refusals that are due to the system: limits on locked memory, and platforms that
 * pin none. */
static bool cannot_pin(mp_cu_result result)
{
    return result == MP_CU_OUT_OF_MEMORY || result == MP_CU_OPERATING_SYSTEM ||
           result == MP_CU_NOT_PERMITTED || result == MP_CU_NOT_SUPPORTED;
}

/* Registers a tier piece by piece: see mp_cuda_pin_end. A tier that cannot be pinned stays pageable: its
 * copies go through the feeders' rings (feed.c). */
static moepage_status register_tier(mp_cuda *cuda, mp_host_memory *memory)
{
    mp_cu_result result = MP_CU_SUCCESS;
    uint64_t done = 0;
    while (done < memory->bytes && !result) {
        uint64_t bytes = piece_bytes(cuda, memory, done);
        mp_cuda_count_memory_call(cuda);
        result = cuda->driver->host_register(memory->base + done, bytes,
                                             MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICEMAP);
        done += result ? 0 : bytes;
    }
    if (result)
        unregister(cuda, memory, done);
    if (!cannot_pin(result))
        return mp_cuda_check(cuda, result, "pinning a host tier");
    memory->pageable = true;
    atomic_fetch_add(&cuda->device.pageable_bytes, memory->bytes);
    mp_log_write(&cuda->device.log, MOEPAGE_LOG_WARNING,
                 "%s: the driver cannot pin a host tier of %llu bytes (code %d): loads out of it "
                 "are copied twice",
                 cuda->name, (unsigned long long)memory->bytes, (int)result);
    return MOEPAGE_OK;
}

moepage_status mp_cuda_host_map(mp_device *device, uint64_t bytes, mp_host_memory *out)
{
    mp_cuda *cuda = mp_cuda_of(device);
    mp_host_memory memory;
    assert(bytes > 0);
    moepage_status status =
        mp_host_memory_map(cuda->executor, device->threads, cuda->info.numa_node, bytes, &memory);
    if (status)
        return status;
    status = mp_cuda_enter(cuda);
    if (!status) {
        status = register_tier(cuda, &memory);
        mp_cuda_leave(cuda);
    }
    if (status) {
        mp_host_memory_unmap(&memory);
        return status;
    }
    *out = memory;
    return MOEPAGE_OK;
}

void mp_cuda_host_unmap(mp_device *device, const mp_host_memory *memory)
{
    mp_cuda *cuda = mp_cuda_of(device);
    if (memory->pageable) {
        atomic_fetch_sub(&cuda->device.pageable_bytes, memory->bytes);
    } else if (mp_cuda_enter(cuda) == MOEPAGE_OK) {
        unregister(cuda, memory, memory->bytes);
        mp_cuda_leave(cuda);
    }
    mp_host_memory_unmap(memory);
}

/* ---- NUMA ------------------------------------------------------------------------------- */

/* Drivers before 12.2 do not know the node; the system does, by the GPU's place on the bus. */
static int32_t node_by_system(mp_cuda *cuda, const char *root)
{
    static const int attributes[] = {MP_CU_ATTR_PCI_DOMAIN, MP_CU_ATTR_PCI_BUS,
                                     MP_CU_ATTR_PCI_DEVICE};
    int place[3], node = -1;
    char path[256];
    for (uint32_t i = 0; i < 3; i++) {
        if (cuda->driver->device_attribute(&place[i], attributes[i], cuda->gpu))
            return -1;
    }
    int n = snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node", root,
                     (unsigned)place[0], (unsigned)place[1], (unsigned)place[2]);
    FILE *file = n < (int)sizeof path ? fopen(path, "re") : NULL;
    if (!file)
        return -1;
    if (fscanf(file, "%d", &node) != 1)
        node = -1;
    fclose(file);
    return node;
}

int32_t mp_cuda_numa_node(mp_cuda *cuda, const char *root)
{
    int node = -1;
    if (cuda->driver->device_attribute(&node, MP_CU_ATTR_HOST_NUMA, cuda->gpu))
        node = node_by_system(cuda, root);
    return node >= 0 && node < MP_NUMA_NODES ? node : -1;
}
