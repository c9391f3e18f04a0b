/* The CUDA device against the conformance suite, on a machine that lacks what may be lacking: the
 * oldest driver, without virtual memory, without batches of copies, with queues that fill up, on a
 * GPU that lies on no node. */
#include "cuda_subject.h"

int main(void)
{
    static const sim_cuda_config machine = {
        .gpus[0] = {.multiprocessors = 2, .major = 8, .numa_node = -1, .no_vmm = true},
        .driver_version = 12000,
        .queue_ops = 64,
        .seed = 2,
    };
    return cuda_subject_run("CUDA device, oldest driver", &machine);
}
