/* What machine this is, as the device sees it. Exit status 77 when there is no GPU to ask, with the
 * reason. */
#include <stdlib.h>

#include "gpu_bench.h"

static void print(const moepage_cuda_info *i)
{
    printf("  device memory %.1f GB; arena by %s, mapping %.1f MB takes %.1f us\n",
           (double)i->device_bytes / 1e9,
           i->arena_kind == MOEPAGE_CUDA_ARENA_VMM ? "virtual memory" : "one allocation",
           (double)i->handle_bytes / 1e6, (double)i->handle_ns / 1e3);
    printf("  copy engines %u; NUMA node %d; kernels of toolkit %u; cuBLAS %u\n", i->copy_engines,
           i->numa_node, i->toolkit_version, i->cublas_version);
}

/* Only that there is none is no failure. */
static void expect_device(void)
{
    const moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 64u << 20};
    moepage_device *device = NULL;
    moepage_status status = moepage_device_open("cuda:0", &config, &device);
    if (status == MOEPAGE_E_NOT_FOUND || status == MOEPAGE_E_UNSUPPORTED) {
        printf("%s\n", moepage_last_error());
        exit(77);
    }
    gpu_must(status, "cuda:0");
    gpu_must(moepage_device_close(device), "cuda:0");
}

int main(int argc, char **argv)
{
    gpu_bench b;
    moepage_cuda_info info = {.struct_size = sizeof info};
    expect_device();
    gpu_bench_open(&b, "info", argc, argv, 1024u << 20, 64u << 20);
    gpu_must(moepage_cuda_get_info(b.home, &info), "the device's description");
    print(&info);
    const double us = (double)info.handle_ns / 1e3;
    gpu_row(&b, "mapping a handle of the arena", (gpu_spread){us, us, us, 1}, "us",
            "\"handle_bytes\": %llu, \"arena_kind\": %u, \"device_bytes\": %llu, "
            "\"copy_engines\": %u, \"numa_node\": %d",
            (unsigned long long)info.handle_bytes, info.arena_kind,
            (unsigned long long)info.device_bytes, info.copy_engines, info.numa_node);
    return gpu_bench_close(&b);
}
