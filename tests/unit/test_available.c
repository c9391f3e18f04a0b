/* How much memory there is, by trees of files as the system would have them. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include <sys/stat.h>

#include "device/available.h"
#include "testing.h"

static char root[64];

static int make(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/moepage-available-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int forget(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

static int unmake(void **state)
{
    (void)state;
    return nftw(root, forget, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file of the tree, its directories first. */
static void put(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *at = whole + sizeof "/tmp"; *at; at++) {
        if (*at != '/')
            continue;
        *at = 0;
        mkdir(whole, 0700);
        *at = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void put_meminfo(void)
{
    put("/proc/meminfo", "MemTotal:       16000000 kB\n"
                         "MemFree:          200000 kB\n"
                         "MemAvailable:    8000000 kB\n"
                         "Buffers:          100000 kB\n");
}

#define SYSTEM (8000000ull * 1024)

static void expect(uint64_t bytes)
{
    assert_int_equal(mp_available_bytes(root), bytes);
}

static void test_available_is_the_systems_word_where_there_are_no_groups(void **state)
{
    (void)state;
    expect(UINT64_MAX);
    put("/proc/meminfo", "MemTotal:       16000000 kB\n");
    expect(UINT64_MAX);
    put_meminfo();
    expect(SYSTEM);
    put("/proc/self/cgroup", "0::/\n");
    expect(SYSTEM);
    put("/proc/self/cgroup", "0::/nowhere\nnonsense\n:\n3:memory:/nowhere\n");
    expect(SYSTEM);
}

static void test_available_is_the_least_of_a_chain_of_groups(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/c/memory.current", "1000\n");
    expect(SYSTEM);
    put("/sys/fs/cgroup/a/b/memory.max", "5000000\n");
    put("/sys/fs/cgroup/a/b/memory.current", "1000000\n");
    expect(4000000);
    put("/sys/fs/cgroup/a/memory.max", "9000000\n");
    put("/sys/fs/cgroup/a/memory.current", "6000000\n");
    expect(3000000);
    put("/sys/fs/cgroup/a/b/c/memory.max", "2500000\n");
    expect(2499000);
    put("/sys/fs/cgroup/a/b/c/memory.current", "2600000\n");
    expect(0);
    put("/sys/fs/cgroup/a/b/c/memory.current", "0\n");
    put("/proc/meminfo", "MemAvailable:    7 kB\n");
    expect(7 * 1024);
}

/* The limit of a container is seen at the top: its own path is the host's. */
static void test_available_heeds_the_top_group_from_inside_a_container(void **state)
{
    (void)state;
    put_meminfo();
    put("/sys/fs/cgroup/memory.max", "3000000\n");
    put("/sys/fs/cgroup/memory.current", "1000000\n");
    put("/proc/self/cgroup", "0::/\n");
    expect(2000000);
    put("/proc/self/cgroup", "0::/system.slice/host-only.scope\n");
    expect(2000000);
    put("/proc/self/cgroup", "0::/../../elsewhere\n");
    expect(2000000);
}

static void test_available_counts_page_cache_as_what_a_group_can_give(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/cgroup", "0::/a\n");
    put("/sys/fs/cgroup/a/memory.max", "1000000\n");
    put("/sys/fs/cgroup/a/memory.current", "900000\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 100000\nfile 800000\nworkingset_inactive_file 5\n"
                                        "inactive_file 500000\nactive_file 250000\n");
    expect(1000000 - 150000);
    put("/sys/fs/cgroup/a/memory.stat", "inactive_file 5000000\n"); /* counted a little later */
    expect(1000000);
}

static void test_available_reads_version_1_groups_too(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/cgroup",
        "9:name=systemd:/\n5:cpu,cpuacct:/box\n4:hugetlb,memory:/box/in\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "123456789\n");
    expect(SYSTEM);
    put("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "6000000\n");
    put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "5000000\n");
    put("/sys/fs/cgroup/memory/box/memory.stat", "inactive_file 7\nactive_file 7\n"
                                                 "total_inactive_file 1000000\n"
                                                 "total_active_file 500000\n");
    expect(2500000);
    put("/sys/fs/cgroup/memory/box/in/memory.limit_in_bytes", "1000000\n");
    put("/sys/fs/cgroup/memory/box/in/memory.usage_in_bytes", "1\n");
    expect(999999);
    put("/proc/self/cgroup", "4:memoryless:/box\n");
    expect(SYSTEM);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_available_is_the_systems_word_where_there_are_no_groups),
        CASE(test_available_is_the_least_of_a_chain_of_groups),
        CASE(test_available_heeds_the_top_group_from_inside_a_container),
        CASE(test_available_counts_page_cache_as_what_a_group_can_give),
        CASE(test_available_reads_version_1_groups_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
