/* The CUDA device against the conformance suite, on a machine with all that newer drivers have. */
#include "cuda_subject.h"

int main(void)
{
    static const sim_cuda_config machine = {.copy_batch = true, .seed = 1};
    return cuda_subject_run("CUDA device, newest driver", &machine);
}
