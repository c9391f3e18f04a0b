/* Every entry of the module's kernels, in the files of MP_TEST_PTX: the machine knows all instructions.
 * Without it, CPU forms run. */
#include <stdlib.h>

#include "ptx_launch.h"
#include "sim_cuda.h"
#include "testing.h"

static void test_ptx_knows_every_instruction_of_the_kernels(void **state)
{
    uint32_t entries = 0, instructions = 0;
    (void)state;
    if (!getenv("MP_TEST_PTX")) {
        const mp_cpu_block cpu = {0};
        assert_false(mp_cpu_elsewhere("mp_gpu_rows", "", 0, 0, 0, 1, &cpu)); /* its CPU form runs */
        return;
    }
    for (uint32_t i = 0; i < sim_n_images; i++) {
        for (const mp_cpu_kernel *k = (const void *)sim_images[i].bytes; k->name; k++) {
            const ptx_entry *entry = ptx_launch_entry(k->name);
            if (!entry)
                fail_msg("%s is in no file", k->name);
            print_message("# shared %s %u\n", k->name, k->shared_bytes); /* for tests/sass */
            entries++;
            instructions += ptx_entry_size(entry);
        }
    }
    print_message("# %u entries, %u instructions\n", entries, instructions);
    assert_true(entries > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ptx_knows_every_instruction_of_the_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
