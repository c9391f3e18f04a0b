/* NUMA on a machine that stands in for this one: its nodes, what it grants, and what it is asked for.
 * Each device's host tier lies on that device's node, and one that does not says so. */
#include <stdio.h>
#include <string.h>

#ifdef MP_NUMA

#include <errno.h>
#include <numa.h>
#include <numaif.h>

#include "arena/home.h"
#include "bank_model.h"
#include "device/numa.h"
#include "gpu.h"
#include "pool_inside.h"
#include "sim_cuda.h"
#include "testing.h"

/* ---- The machine ---- */

enum { MAX_BINDS = 8, OFFLINE = -1 };

typedef struct cpu_range {
    int first, last; /* a node without CPUs: last < first */
} cpu_range;

typedef struct bind {
    unsigned char *base;
    uint64_t bytes;
    int mode;
    unsigned long mask, maxnode;
    unsigned flags;
} bind;

static struct {
    bool no_numa;
    int possible_cpus;
    int n_nodes;
    cpu_range nodes[MP_NUMA_NODES + 1]; /* first OFFLINE: the node is not there */
    cpu_range usable;                   /* that the calling thread may run on */
    int unreadable;                     /* the node whose CPUs cannot be parsed */
    int refused;                        /* the node that nothing may be bound to */
    int stray_every;                    /* of the pages bound to node 1, one in so many lies on 0 */
    bool mute;                          /* does not say where pages lie */
    bind binds[MAX_BINDS];
    uint32_t n_binds;
} machine;

/* CPUs 0 to 3 are node 0's, 4 to 7 node 1's. */
static void build_machine(void)
{
    memset(&machine, 0, sizeof machine);
    machine.possible_cpus = 256;
    machine.n_nodes = 2;
    machine.nodes[0] = (cpu_range){0, 3};
    machine.nodes[1] = (cpu_range){4, 7};
    machine.usable = (cpu_range){0, 7};
    machine.unreadable = machine.refused = -1;
}

static void fill_mask(struct bitmask *mask, cpu_range cpus)
{
    assert_true(mask->size >= (unsigned long)machine.possible_cpus);
    memset(mask->maskp, 0, mask->size / 8);
    for (int cpu = cpus.first; cpu <= cpus.last; cpu++)
        mask->maskp[(size_t)cpu / (8 * sizeof(long))] |= 1ul << (size_t)cpu % (8 * sizeof(long));
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_numa_available(void);
int __wrap_numa_max_node(void);
int __wrap_numa_num_possible_cpus(void);
int __wrap_numa_sched_getaffinity(pid_t pid, struct bitmask *mask);
int __wrap_numa_node_to_cpus(int node, struct bitmask *mask);
long __wrap_mbind(void *base, unsigned long bytes, int mode, const unsigned long *mask,
                  unsigned long maxnode, unsigned flags);
long __wrap_move_pages(int pid, unsigned long n, void **pages, const int *to, int *at, int flags);

int __wrap_access(const char *path, int mode)
{
    int node = -1;
    if (sscanf(path, "/sys/devices/system/node/node%d/cpumap", &node) != 1)
        return __real_access(path, mode);
    return node < machine.n_nodes && machine.nodes[node].first != OFFLINE ? 0 : -1;
}

int __wrap_numa_available(void)
{
    return machine.no_numa ? -1 : 0;
}

int __wrap_numa_max_node(void)
{
    return machine.n_nodes - 1;
}

int __wrap_numa_num_possible_cpus(void)
{
    return machine.possible_cpus;
}

int __wrap_numa_sched_getaffinity(pid_t pid, struct bitmask *mask)
{
    assert_int_equal(pid, 0);
    assert_false(machine.no_numa);
    fill_mask(mask, machine.usable);
    return (int)(mask->size / 8);
}

int __wrap_numa_node_to_cpus(int node, struct bitmask *mask)
{
    assert_false(machine.no_numa);
    if (machine.nodes[node].first == OFFLINE)
        fail_msg("libnuma prints when it is asked for node %d", node);
    bool readable = node != machine.unreadable;
    fill_mask(mask, readable ? machine.nodes[node] : (cpu_range){0, machine.possible_cpus - 1});
    return readable ? 0 : -1;
}

/* Binds nothing: there may be one node here. */
long __wrap_mbind(void *base, unsigned long bytes, int mode, const unsigned long *mask,
                  unsigned long maxnode, unsigned flags)
{
    assert_true(machine.n_binds < MAX_BINDS);
    machine.binds[machine.n_binds++] = (bind){base, bytes, mode, *mask, maxnode, flags};
    if (machine.refused < 0 || *mask != 1ul << machine.refused)
        return 0;
    errno = EPERM;
    return -1;
}

static const bind *bind_of(const void *address)
{
    const unsigned char *at = address;
    const bind *found = NULL;
    for (uint32_t i = 0; i < machine.n_binds; i++) {
        if (at >= machine.binds[i].base && at < machine.binds[i].base + machine.binds[i].bytes)
            found = &machine.binds[i];
    }
    return found;
}

/* Each page where it was bound to, but for the strays. */
long __wrap_move_pages(int pid, unsigned long n, void **pages, const int *to, int *at, int flags)
{
    assert_int_equal(pid, 0);
    assert_int_equal(flags, 0);
    assert_null(to);
    for (unsigned long i = 0; i < n; i++) {
        const bind *bound = bind_of(pages[i]);
        assert_non_null(bound);
        at[i] = __builtin_ctzl(bound->mask);
        if (at[i] == 1 && machine.stray_every && i % (unsigned)machine.stray_every == 0)
            at[i] = 0;
    }
    if (!machine.mute)
        return 0;
    errno = ENOSYS;
    return -1;
}

/* ---- The node of a thread's CPUs ---- */

static int32_t node_of(int first, int last)
{
    machine.usable = (cpu_range){first, last};
    return mp_numa_node();
}

static void test_numa_node_has_all_of_the_cpus(void **state)
{
    (void)state;
    build_machine();
    assert_int_equal(node_of(0, 3), 0);
    assert_int_equal(node_of(3, 3), 0);
    assert_int_equal(node_of(4, 7), 1);
    assert_int_equal(node_of(5, 6), 1);
    assert_int_equal(node_of(3, 4), -1);
    assert_int_equal(node_of(0, 7), -1);
    assert_int_equal(node_of(7, 8), -1); /* CPU 8 is of no node */
    machine.nodes[1] = (cpu_range){60, 200};
    assert_int_equal(node_of(130, 140), 1);
    assert_int_equal(node_of(64, 201), -1);
    assert_int_equal(machine.n_binds, 0);
}

static void test_numa_node_passes_over_nodes_that_are_offline_or_have_no_cpus(void **state)
{
    (void)state;
    build_machine();
    machine.n_nodes = 4;
    machine.nodes[1] = (cpu_range){OFFLINE, OFFLINE};
    machine.nodes[2] = (cpu_range){0, -1};
    machine.nodes[3] = (cpu_range){4, 7};
    assert_int_equal(node_of(0, 0), 0);
    assert_int_equal(node_of(4, 7), 3);
    machine.nodes[3] = (cpu_range){OFFLINE, OFFLINE};
    assert_int_equal(node_of(4, 7), -1);
}

static void test_numa_node_is_unknown_where_the_machine_is_too_large_or_does_not_say(void **state)
{
    (void)state;
    build_machine();
    machine.no_numa = true;
    assert_int_equal(node_of(0, 3), -1);
    machine.no_numa = false;
    machine.unreadable = 0;
    assert_int_equal(node_of(0, 3), -1);
    assert_int_equal(node_of(4, 7), 1);
    machine.possible_cpus = 1 << 20;
    assert_int_equal(node_of(4, 7), -1);
    machine.unreadable = -1;
    machine.possible_cpus = 256;
    machine.n_nodes = MP_NUMA_NODES + 1;
    for (int node = 0; node < machine.n_nodes; node++)
        machine.nodes[node] = (cpu_range){node, node};
    assert_int_equal(node_of(MP_NUMA_NODES - 1, MP_NUMA_NODES - 1), MP_NUMA_NODES - 1);
    assert_int_equal(node_of(MP_NUMA_NODES, MP_NUMA_NODES), -1);
}

static void test_numa_binds_to_the_nodes_that_a_mask_has(void **state)
{
    (void)state;
    char byte = 0;
    build_machine();
    assert_false(mp_numa_prefer(&byte, 1, -1));
    assert_false(mp_numa_prefer(&byte, 1, MP_NUMA_NODES));
    assert_int_equal(machine.n_binds, 0);
    assert_true(mp_numa_prefer(&byte, 1, MP_NUMA_NODES - 1));
    assert_int_equal(machine.binds[0].mask, 1ul << (MP_NUMA_NODES - 1));
}

/* ---- Pools over two devices ---- */

#define MIB (1u << 20)

static const moepage_device_config device_config = {.struct_size = sizeof device_config,
                                                    .threads = 1,
                                                    .budget_bytes = 8 * MIB,
                                                    .workspace_bytes = 4 * MIB};

typedef moepage_device *open_fn(uint32_t ordinal);

/* The ordinal-th is opened by a thread that is bound to that node's CPUs. */
static moepage_device *open_host(uint32_t ordinal)
{
    moepage_device *device = NULL;
    machine.usable = machine.nodes[ordinal];
    assert_int_equal(moepage_device_open("host", &device_config, &device), MOEPAGE_OK);
    return device;
}

static moepage_device *open_gpu(uint32_t ordinal)
{
    static const mp_cuda_driver *driver;
    const sim_cuda_config config = {.n_gpus = 2,
                                    .gpus = {{.numa_node = 0}, {.numa_node = 1}},
                                    .copy_batch = true,
                                    .seed = 1};
    mp_device *device = NULL;
    moepage_device *home = NULL;
    if (ordinal == 0)
        driver = sim_cuda_open(&config);
    assert_int_equal(mp_cuda_device_open(driver, NULL, "there is none", sim_images, sim_n_images,
                                         ordinal, &device_config, &device),
                     MOEPAGE_OK);
    assert_int_equal(mp_home_open(device, &device_config, &home), MOEPAGE_OK);
    return home;
}

static moepage_device *devices[2];
static moepage_expert_pool *pool;
static bank_model bank;

static void open_pool(open_fn *open)
{
    const moepage_expert_pool_config config = {.struct_size = sizeof config,
                                               .slots = 8,
                                               .host_tier_bytes = 4 * MIB};
    bank_model_open(&bank, &(bank_shape){.layers = 2,
                                         .experts = 8,
                                         .top_k = 2,
                                         .hidden = 48,
                                         .intermediate = 40,
                                         .dtype = MOEPAGE_DTYPE_BF16,
                                         .pack_forms = 1u << MOEPAGE_FORM_DENSE});
    for (uint32_t d = 0; d < 2; d++)
        devices[d] = open(d);
    assert_int_equal(moepage_expert_pool_create(devices, 2, bank.model, &config, &pool),
                     MOEPAGE_OK);
}

static void close_pool(open_fn *open)
{
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(moepage_device_close(devices[d]), MOEPAGE_OK);
    if (open == open_gpu)
        sim_cuda_close();
    bank_model_close(&bank);
}

/* All of a device's tier was bound once, to its own node and no other. */
static void check_bound_to_own_node(uint32_t device)
{
    const mp_host_memory *memory = &pool->cache->shards[device].transfer->tier->memory;
    uint32_t n = 0;
    for (uint32_t i = 0; i < machine.n_binds; i++) {
        const bind *bound = &machine.binds[i];
        if (memory->base + memory->bytes <= bound->base ||
            bound->base + bound->bytes <= memory->base)
            continue;
        assert_ptr_equal(bound->base, memory->base);
        assert_int_equal(bound->bytes, memory->bytes);
        assert_int_equal(bound->mode, MPOL_PREFERRED);
        assert_int_equal(bound->mask, 1ul << device);
        assert_int_equal(bound->maxnode, MP_NUMA_NODES + 1);
        assert_int_equal(bound->flags, 0);
        n++;
    }
    assert_int_equal(n, 1);
}

/* The nodes that the two tiers say, and the one that the pool says for both. */
static void check_pool(open_fn *open, int32_t first, int32_t second, int32_t both)
{
    open_pool(open);
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_expert_pool_get_info(pool, &info), MOEPAGE_OK);
    for (uint32_t d = 0; d < 2; d++)
        check_bound_to_own_node(d);
    assert_int_equal(pool->cache->shards[0].transfer->tier->memory.node, first);
    assert_int_equal(pool->cache->shards[1].transfer->tier->memory.node, second);
    assert_int_equal(info.host_node, both);
    assert_true(info.host_tier_bytes > 0);
    close_pool(open);
}

static open_fn *const kinds[] = {open_host, open_gpu};

static void test_numa_tiers_lie_on_the_nodes_of_their_devices(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        build_machine();
        check_pool(kinds[i], 0, 1, 0);
    }
}

static void test_numa_tiers_say_when_binding_was_refused(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        build_machine();
        machine.refused = (int)(i / 2);
        check_pool(kinds[i % 2], machine.refused == 0 ? -1 : 0, machine.refused == 1 ? -1 : 1, -1);
    }
}

/* A preferred node may have no memory left: nine tenths have to be there. */
static void test_numa_tiers_say_when_their_pages_lie_elsewhere(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        build_machine();
        machine.stray_every = 8;
        check_pool(kinds[i], 0, -1, -1);
        build_machine();
        machine.stray_every = 16;
        check_pool(kinds[i], 0, 1, 0);
    }
}

static void test_numa_tiers_are_believed_where_pages_cannot_be_asked_for(void **state)
{
    (void)state;
    build_machine();
    machine.mute = true;
    machine.stray_every = 1;
    check_pool(open_host, 0, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numa_node_has_all_of_the_cpus),
        cmocka_unit_test(test_numa_node_passes_over_nodes_that_are_offline_or_have_no_cpus),
        cmocka_unit_test(test_numa_node_is_unknown_where_the_machine_is_too_large_or_does_not_say),
        cmocka_unit_test(test_numa_binds_to_the_nodes_that_a_mask_has),
        cmocka_unit_test(test_numa_tiers_lie_on_the_nodes_of_their_devices),
        cmocka_unit_test(test_numa_tiers_say_when_binding_was_refused),
        cmocka_unit_test(test_numa_tiers_say_when_their_pages_lie_elsewhere),
        cmocka_unit_test(test_numa_tiers_are_believed_where_pages_cannot_be_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("this build is without libnuma");
    return 77;
}

#endif
