/* The uses of libnuma: finding a node's CPUs, taking memory from a node, and checking that it
 * came from there.
 *
 * Much of libnuma prints, and its allocators end the program when memory runs out. So masks are on
 * the stack, memory is bound with the function of the system call, and a node's CPUs are asked for
 * only if the system's file of them can be read. libnuma still allocates one mask per node, once,
 * when the first device is opened. */
#include "device/numa.h"

#ifdef MP_NUMA

#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <unistd.h>

enum { WORD_BITS = 8 * sizeof(unsigned long), CPU_WORDS = 8192 / WORD_BITS, SAMPLES = 64 };

/* libnuma warns of a node whose CPUs it cannot read. An offline node has none to read. */
static bool has_cpu_map(int node)
{
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpumap", node);
    return access(path, R_OK) == 0;
}

static bool is_within(const unsigned long *part, const unsigned long *whole)
{
    unsigned long outside = 0;
    for (uint32_t i = 0; i < CPU_WORDS; i++)
        outside |= part[i] & ~whole[i];
    return !outside;
}

int32_t mp_numa_node(void)
{
    unsigned long usable[CPU_WORDS] = {0}, local[CPU_WORDS] = {0};
    struct bitmask ours = {CPU_WORDS * WORD_BITS, usable}, its = {CPU_WORDS * WORD_BITS, local};
    if (numa_available() < 0 || (unsigned)numa_num_possible_cpus() > ours.size ||
        numa_sched_getaffinity(0, &ours) < 0)
        return -1;
    for (int node = 0; node <= numa_max_node() && node < MP_NUMA_NODES; node++) {
        if (has_cpu_map(node) && !numa_node_to_cpus(node, &its) && is_within(usable, local))
            return node;
    }
    return -1;
}

bool mp_numa_prefer(void *base, uint64_t bytes, int32_t node)
{
    if (node < 0 || node >= MP_NUMA_NODES)
        return false;
    unsigned long mask[MP_NUMA_NODES / WORD_BITS] = {0};
    mask[node / WORD_BITS] = 1ul << node % WORD_BITS;
    return mbind(base, bytes, MPOL_PREFERRED, mask, MP_NUMA_NODES + 1, 0) == 0;
}

bool mp_numa_lies_on(void *base, uint64_t bytes, int32_t node)
{
    void *pages[SAMPLES];
    int nodes[SAMPLES];
    uint32_t elsewhere = 0;
    for (uint32_t i = 0; i < SAMPLES; i++)
        pages[i] = (unsigned char *)base + bytes / SAMPLES * i;
    if (move_pages(0, SAMPLES, pages, NULL, nodes, 0)) /* moves nothing, because `nodes` is NULL */
        return true;
    for (uint32_t i = 0; i < SAMPLES; i++)
        elsewhere += nodes[i] != node;
    return elsewhere <= SAMPLES / 10;
}

#else

int32_t mp_numa_node(void)
{
    return -1;
}

bool mp_numa_prefer(void *base, uint64_t bytes, int32_t node)
{
    (void)base, (void)bytes, (void)node;
    return false;
}

bool mp_numa_lies_on(void *base, uint64_t bytes, int32_t node)
{
    (void)base, (void)bytes, (void)node;
    return false;
}

#endif
