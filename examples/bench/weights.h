/* weights.h — 16-bit tensors for the codec benchmark: random ones, or those of a model's
 * experts. */
#ifndef EXAMPLE_BENCH_WEIGHTS_H
#define EXAMPLE_BENCH_WEIGHTS_H

#include <stdint.h>

typedef struct bench_tensor {
    unsigned char *data;
    uint64_t elements;
    uint32_t dtype; /* BF16 or F16 */
} bench_tensor;

typedef struct bench_weights {
    unsigned char *memory;
    uint64_t bytes; /* of all tensors */
    bench_tensor *tensors;
    uint32_t n_tensors;
    uint64_t longest; /* elements */
} bench_weights;

/* Collects about `bytes` bytes. `model` NULL: Gaussian BF16, standard deviation 0.02, in matrices
 * of the size of Qwen3-30B-A3B's. One line and an exit code on failure. *out is always safe to
 * close. */
int bench_weights_open(const char *model, uint64_t bytes, bench_weights *out);
void bench_weights_close(bench_weights *w);

#endif
