/* Host memory for a tier: what it says of its pages and its node is what the system says. */
#include <string.h>

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/seam.h"
#include "testing.h"

#define MIB (1u << 20)

static mp_device *open_host(uint32_t threads)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = threads,
                                    .budget_bytes = MIB};
    mp_device *device = NULL;
    assert_int_equal(mp_device_open("host", &config, &device), MOEPAGE_OK);
    return device;
}

static mp_host_memory map(mp_device *device, uint64_t bytes)
{
    mp_host_memory memory = {0};
    assert_int_equal(device->ops->host_map(device, bytes, &memory), MOEPAGE_OK);
    assert_true(memory.bytes >= bytes);
    return memory;
}

/* Odd sizes, shared by teams of several sizes: no page is forgotten. */
static void test_host_memory_is_all_present(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4096, 4097, 2 * MIB - 1, 2 * MIB + 1, 7 * MIB + 12345};
    static unsigned char present[10 * MIB / 4096];
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        mp_device *device = open_host(threads);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            mp_host_memory memory = map(device, sizes[i]);
            assert_int_equal(mincore(memory.base, memory.bytes, present), 0);
            for (uint64_t p = 0; p < memory.bytes / page; p++)
                assert_true(present[p] & 1);
            device->ops->host_unmap(device, &memory);
        }
        device->ops->close(device);
    }
}

/* Bytes in huge pages of either kind that this process has. */
static uint64_t huge_bytes(void)
{
    char line[256];
    unsigned long long kib;
    uint64_t total = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "AnonHugePages: %llu kB", &kib) == 1 ||
            sscanf(line, "Private_Hugetlb: %llu kB", &kib) == 1)
            total += kib * 1024;
    }
    if (file)
        fclose(file);
    return total;
}

static void check_page_size(uint64_t bytes)
{
    mp_device *device = open_host(2);
    uint64_t before = huge_bytes();
    mp_host_memory memory = map(device, bytes);
    uint64_t after = huge_bytes(), huge = after > before ? after - before : 0;
    if (memory.page_bytes > (uint64_t)sysconf(_SC_PAGESIZE))
        assert_true(huge >= memory.bytes / 10 * 8);
    else
        assert_true(huge < memory.bytes);
    device->ops->host_unmap(device, &memory);
    device->ops->close(device);
}

static void test_host_memory_names_the_pages_that_it_has(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {4096, 3 * MIB, 4 * MIB, 32 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_page_size(sizes[i]);
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
        return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_page_size(sizes[i]);
    assert_int_equal(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
}

/* Bound wherever that means something and is allowed, by a library built with libnuma: to the one
 * node there is, if there is one. */
static void test_host_memory_is_on_the_node_that_it_names(void **state)
{
    (void)state;
    mp_device *device = open_host(1);
    mp_host_memory memory = map(device, 3 * MIB);
    int node = -1;
    unsigned long mask = 1;
    bool can_ask =
        syscall(SYS_get_mempolicy, &node, NULL, 0, memory.base, MPOL_F_NODE | MPOL_F_ADDR) == 0;
    bool can_bind = syscall(SYS_mbind, memory.base, memory.bytes, MPOL_PREFERRED, &mask,
                            8 * sizeof mask + 1, 0) == 0;
    bool one_node = access("/sys/devices/system/node/node0", F_OK) == 0 &&
                    access("/sys/devices/system/node/node1", F_OK) != 0;
    if (memory.node >= 0 && can_ask)
        assert_int_equal(memory.node, node);
#ifdef MP_NUMA
    if (one_node && can_bind)
        assert_int_equal(memory.node, 0);
#else
    assert_int_equal(memory.node, -1);
    (void)one_node;
#endif
    if (!can_bind && errno == EPERM)
        assert_int_equal(memory.node, -1);
    device->ops->host_unmap(device, &memory);
    device->ops->close(device);
}

static void test_host_memory_refuses_more_than_there_is(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1ull << 44, 1ull << 62, UINT64_MAX - 4095, UINT64_MAX};
    mp_device *device = open_host(1);
    mp_host_memory memory = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char size[32];
        snprintf(size, sizeof size, "%llu bytes", (unsigned long long)sizes[i]);
        assert_int_equal(device->ops->host_map(device, sizes[i], &memory), MOEPAGE_E_NO_MEMORY);
        assert_non_null(strstr(moepage_last_error(), size));
        assert_null(memory.base);
    }
    device->ops->close(device);
}

static void test_host_memory_is_given_back(void **state)
{
    (void)state;
    mp_device *device = open_host(1);
    mp_host_memory memory = map(device, 5 * MIB);
    unsigned char present[1];
    assert_int_equal(mincore(memory.base, 1, present), 0);
    device->ops->host_unmap(device, &memory);
    assert_int_equal(mincore(memory.base, 1, present), -1);
    assert_int_equal(errno, ENOMEM);
    device->ops->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_memory_is_all_present),
        cmocka_unit_test(test_host_memory_names_the_pages_that_it_has),
        cmocka_unit_test(test_host_memory_is_on_the_node_that_it_names),
        cmocka_unit_test(test_host_memory_refuses_more_than_there_is),
        cmocka_unit_test(test_host_memory_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
