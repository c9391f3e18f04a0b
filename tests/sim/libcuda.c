/* A libcuda.so.1 over the simulated driver: with its directory on LD_LIBRARY_PATH, the shipped
 * libmoepage.so, libmoepage-cuda.so and tools run on "cuda:0" as they would on a machine with a
 * GPU, kernels in their CPU form.
 *
 * Every exported symbol passes its arguments on as they came: all are integers or pointers, and
 * none has more than eleven. Whatever image a program loads, it gets the kernels of sim_kernels.c
 * and sim_generate.c. */
#include <stdlib.h>
#include <string.h>

#include "kernels/phase.h"
#include "sim_cuda.h"
#include "sim_generate.h"

#define MAX_KERNELS 128

static mp_cuda_driver table;
static mp_cu_result (*load)(mp_cu_module *out, const void *image);
static mp_cpu_kernel kernels[MAX_KERNELS + 1];

static mp_cu_result load_kernels(mp_cu_module *out, const void *image)
{
    (void)image;
    return load(out, kernels);
}

static uint32_t add_kernels(uint32_t n, const mp_cpu_kernel *k)
{
    for (; k->name && n < MAX_KERNELS; k++)
        kernels[n++] = *k;
    return n;
}

__attribute__((constructor)) static void open_machine(void)
{
    uint32_t n = add_kernels(0, sim_generate_kernels);
    for (uint32_t i = 0; i < sim_n_images; i++)
        n = add_kernels(n, sim_images[i].bytes);
    const char *strict =
        getenv("SIM_CUDA_STRICT"); /* complain of kernels that reach plain memory */
    table = *sim_cuda_open(
        &(sim_cuda_config){.copy_batch = true, .kernels_reach_host = !strict || !*strict});
    load = table.module_load;
    table.module_load = load_kernels;
}

typedef mp_cu_result any_call(long, long, long, long, long, long, long, long, long, long, long);

#define FORWARD(field, symbol, parameters)                                                      \
    mp_cu_result export_##field(long a, long b, long c, long d, long e, long f, long g, long h, \
                                long i, long j, long k) __asm__(symbol)                         \
        __attribute__((visibility("default")));                                                 \
    mp_cu_result export_##field(long a, long b, long c, long d, long e, long f, long g, long h, \
                                long i, long j, long k)                                         \
    {                                                                                           \
        any_call *call;                                                                         \
        memcpy(&call, &table.field, sizeof call);                                               \
        return call(a, b, c, d, e, f, g, h, i, j, k);                                           \
    }

MP_CU_FUNCTIONS(FORWARD)

/* ---- What callers use besides ----------------------------------------------------------- */

#define EXPORTED __attribute__((visibility("default")))

EXPORTED mp_cu_result cuStreamBeginCapture_v2(mp_cu_stream stream, int mode);
EXPORTED mp_cu_result cuStreamEndCapture(mp_cu_stream stream, sim_cuda_graph **out);
EXPORTED mp_cu_result cuGraphGetNodes(sim_cuda_graph *graph, void **nodes, size_t *n);
EXPORTED mp_cu_result cuGraphInstantiateWithFlags(sim_cuda_graph **out, sim_cuda_graph *graph,
                                                  unsigned long long flags);
EXPORTED mp_cu_result cuGraphLaunch(sim_cuda_graph *exec, mp_cu_stream stream);
EXPORTED mp_cu_result cuGraphExecDestroy(sim_cuda_graph *exec);
EXPORTED mp_cu_result cuGraphDestroy(sim_cuda_graph *graph);
EXPORTED mp_cu_result cuEventElapsedTime(float *ms, mp_cu_event start, mp_cu_event end);

mp_cu_result cuStreamBeginCapture_v2(mp_cu_stream stream, int mode)
{
    return sim_cuda_capture_begin(stream, (sim_capture_mode)mode);
}

mp_cu_result cuStreamEndCapture(mp_cu_stream stream, sim_cuda_graph **out)
{
    return sim_cuda_capture_end(stream, out);
}

mp_cu_result cuGraphGetNodes(sim_cuda_graph *graph, void **nodes, size_t *n)
{
    if (nodes)
        return MP_CU_NOT_SUPPORTED;
    *n = sim_cuda_graph_nodes(graph);
    return MP_CU_SUCCESS;
}

/* The graph itself: it is instantiated once, and its nodes live as long as what is launched. */
mp_cu_result cuGraphInstantiateWithFlags(sim_cuda_graph **out, sim_cuda_graph *graph,
                                         unsigned long long flags)
{
    (void)flags;
    *out = graph;
    return MP_CU_SUCCESS;
}

mp_cu_result cuGraphLaunch(sim_cuda_graph *exec, mp_cu_stream stream)
{
    return sim_cuda_graph_launch(exec, stream);
}

mp_cu_result cuGraphExecDestroy(sim_cuda_graph *exec)
{
    sim_cuda_graph_destroy(exec);
    return MP_CU_SUCCESS;
}

mp_cu_result cuGraphDestroy(sim_cuda_graph *graph)
{
    (void)graph;
    return MP_CU_SUCCESS;
}

/* The simulation has no time: every measurement is a millisecond, since callers divide by it. */
mp_cu_result cuEventElapsedTime(float *ms, mp_cu_event start, mp_cu_event end)
{
    (void)start;
    (void)end;
    *ms = 1;
    return MP_CU_SUCCESS;
}

/* Of what is asked for by name it has one. */
mp_cu_result cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                 int *found) __attribute__((visibility("default")));
mp_cu_result cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                 int *found)
{
    (void)flags;
    (void)found;
    *out = NULL;
    if (strcmp(symbol, "cuMemcpyBatchAsync") || version < 12080)
        return MP_CU_NOT_FOUND;
    memcpy(out, &table.copy_batch, sizeof *out);
    return MP_CU_SUCCESS;
}
