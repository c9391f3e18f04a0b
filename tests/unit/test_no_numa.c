/* The library as it is built without libnuma: no CPU has a node, no memory is bound, and the pool
 * says so. What is compiled here takes the place of the archive's own. */

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pool_inside.h"
#include "pool_rig.h"

#undef MP_NUMA
#include "device/numa.c"
#include "testing.h"

static void test_no_numa_knows_no_node_and_binds_nothing(void **state)
{
    (void)state;
    char byte = 0;
    assert_int_equal(mp_numa_node(), -1);
    assert_false(mp_numa_prefer(&byte, 1, 0));
    assert_false(mp_numa_lies_on(&byte, 1, 0));
}

static void test_no_numa_tiers_are_unbound_and_say_so(void **state)
{
    (void)state;
    bank_model bank;
    pool_rig rig;
    bank_model_open(&bank, &(bank_shape){.layers = 2,
                                         .experts = 8,
                                         .top_k = 2,
                                         .hidden = 48,
                                         .intermediate = 40,
                                         .dtype = MOEPAGE_DTYPE_BF16,
                                         .pack_forms = 1u << MOEPAGE_FORM_DENSE});
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 4, .n_devices = 2, .host_experts = 16});
    assert_true(pool_rig_info(&rig).host_tier_bytes > 0);
    assert_int_equal(pool_rig_info(&rig).host_node, -1);
    for (uint32_t d = 0; d < rig.n_devices; d++) {
        const mp_host_memory *memory = &rig.pool->cache->shards[d].transfer->tier->memory;
        int mode = -1;
        assert_int_equal(memory->node, -1);
        if (syscall(SYS_get_mempolicy, &mode, NULL, 0, memory->base, MPOL_F_ADDR) == 0)
            assert_int_equal(mode, MPOL_DEFAULT);
    }
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_numa_knows_no_node_and_binds_nothing),
        cmocka_unit_test(test_no_numa_tiers_are_unbound_and_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
