/* All malloc'ed memory of the test's thread lies in one heap, grown at the start of the program and
 * registered as a whole. */
#include "gpu_reach.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena/home.h"
#include "numbers.h"
#include "testing.h"

#define HEAP_BYTES (128 << 20)
#define REACH (MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICEMAP)
#define CAN_USE_HOST_POINTER 91 /* CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */

static mp_cuda *gpu;

bool gpu_reach(void)
{
    const char *name = getenv("MP_TEST_DEVICE");
    return name && !strncmp(name, "cuda:", 5);
}

static void must(mp_cu_result result, const char *what)
{
    if (result)
        fail_msg("%s: driver error %d", what, result);
}

/* From its first byte, which may have been the dynamic linker's. */
static void find_heap(char **base, uint64_t *bytes)
{
    char line[256];
    unsigned long long from = 0, to = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (!to && fgets(line, sizeof line, maps))
        if (strstr(line, "[heap]") && sscanf(line, "%llx-%llx", &from, &to) != 2)
            to = 0;
    fclose(maps);
    assert_true(to - from >= HEAP_BYTES);
    *base = (char *)(uintptr_t)from;
    *bytes = to - from;
}

static void add(void *base, uint64_t bytes, bool added)
{
    const mp_cuda_driver *driver = gpu_reach_cuda()->driver;
    if (added)
        must(driver->host_register(base, bytes, REACH), "registering an array");
    else
        must(driver->host_unregister(base), "unregistering an array");
}

/* Before anything else: what is allocated from now on comes from one heap that does not grow. */
__attribute__((constructor)) static void grow_heap(void)
{
    if (!gpu_reach())
        return;
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_TRIM_THRESHOLD, 2 * HEAP_BYTES);
    void *volatile heap = malloc(HEAP_BYTES); /* volatile: or the pair would be optimised away */
    free(heap);
    guarded_notice = add;
}

mp_cuda *gpu_reach_cuda(void)
{
    char *base;
    uint64_t bytes;
    int reaches = 0;
    moepage_device *home = NULL;
    const moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 64u << 20};
    if (gpu)
        return gpu;
    if (moepage_device_open(getenv("MP_TEST_DEVICE"), &config, &home))
        fail_msg("%s", moepage_last_error());
    gpu = mp_cuda_of(home->device);
    assert_int_equal(mp_cuda_enter(gpu), MOEPAGE_OK);
    const char *simulated = strstr(gpu->info.name, "Simulated");
    if (!simulated)
        must(gpu->driver->device_attribute(&reaches, CAN_USE_HOST_POINTER, gpu->gpu), "attributes");
    if (!simulated && !reaches)
        fail_msg("this GPU does not reach registered memory at the CPU's addresses");
    find_heap(&base, &bytes);
    must(gpu->driver->host_register(base, bytes, REACH), "registering the heap");
    return gpu;
}

void gpu_reach_launch(const char *name, const void *args, uint32_t n_blocks, uint32_t n_threads,
                      uint32_t shared_bytes)
{
    mp_cuda *cuda = gpu_reach_cuda();
    if (mp_cuda_launch(cuda, NULL, name, n_blocks, n_threads, shared_bytes, args))
        fail_msg("%s", moepage_last_error());
    must(cuda->driver->stream_sync(NULL), name);
}
