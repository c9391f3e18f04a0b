/* The driver's functions by name: its binary interface is stable. */
#include "decode/machine.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

typedef unsigned long long device_ptr;

/* X(field, exported symbol, parameters): each function returns an int that is 0 on success. */
#define FUNCTIONS(X)                                                                           \
    X(init, "cuInit", (unsigned flags))                                                        \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                   \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                           \
    X(context_push, "cuCtxPushCurrent_v2", (void *context))                                    \
    X(context_pop, "cuCtxPopCurrent_v2", (void **context))                                     \
    X(error_name, "cuGetErrorName", (int error, const char **text))                            \
    X(alloc, "cuMemAlloc_v2", (device_ptr * out, size_t bytes))                                \
    X(release, "cuMemFree_v2", (device_ptr memory))                                            \
    X(alloc_pinned, "cuMemHostAlloc", (void **out, size_t bytes, unsigned flags))              \
    X(free_pinned, "cuMemFreeHost", (void *memory))                                            \
    X(copy, "cuMemcpyAsync", (device_ptr to, device_ptr from, size_t bytes, void *stream))     \
    X(stream_create, "cuStreamCreateWithPriority", (void **out, unsigned flags, int priority)) \
    X(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                    \
    X(stream_sync, "cuStreamSynchronize", (void *stream))                                      \
    X(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                      \
    X(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                         \
    X(instantiate, "cuGraphInstantiateWithFlags",                                              \
      (void **exec, void *graph, unsigned long long flags))                                    \
    X(launch, "cuGraphLaunch", (void *exec, void *stream))                                     \
    X(exec_destroy, "cuGraphExecDestroy", (void *exec))                                        \
    X(graph_destroy, "cuGraphDestroy", (void *graph))

#define STREAM_NON_BLOCKING 1u
#define HOST_PORTABLE 1u
#define CAPTURE_GLOBAL 0

struct machine {
    bool cuda;
#define FIELD(field, symbol, parameters) int(*field) parameters;
    FUNCTIONS(FIELD)
#undef FIELD
    int device;
    void *context;
    void *stream;
};

struct machine_graph {
    void *graph, *exec;
};

static int fail_driver(const machine *m, int error, const char *what)
{
    const char *name = NULL;
    if (m->error_name(error, &name) || !name)
        name = "unknown";
    return fail(RUN_FAILED, "%s: the driver says %s (%d)", what, name, error);
}

/* Finds all functions; prints one line if one is missing. */
static bool find_functions(machine *m)
{
    void *symbol, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fail(RUN_REFUSED, "there is no NVIDIA driver: %s", dlerror());
        return false;
    }
#define FIND(field, name, parameters)                               \
    symbol = dlsym(library, name);                                  \
    if (!symbol) {                                                  \
        fail(RUN_REFUSED, "libcuda.so.1 has no function %s", name); \
        return false;                                               \
    }                                                               \
    memcpy(&m->field, &symbol, sizeof symbol);
    FUNCTIONS(FIND)
#undef FIND
    return true;
}

static int open_cuda(machine *m, int ordinal)
{
    int error = 0;
    if (!find_functions(m))
        return RUN_REFUSED;
    if ((error = m->init(0)) || (error = m->device_get(&m->device, ordinal)) ||
        (error = m->context_retain(&m->context, m->device)))
        return fail_driver(m, error, "opening the GPU");
    m->cuda = true;
    if ((error = m->context_push(m->context)) ||
        (error = m->stream_create(&m->stream, STREAM_NON_BLOCKING, 0)))
        return fail_driver(m, error, "opening a stream");
    return RUN_OK;
}

int machine_open(const char *device, machine **out)
{
    machine *m = calloc(1, sizeof *m);
    int code = RUN_OK;
    if (!m)
        return fail_memory();
    if (!strncmp(device, "cuda:", 5))
        code = open_cuda(m, atoi(device + 5));
    if (code)
        machine_close(m);
    else
        *out = m;
    return code;
}

void machine_close(machine *m)
{
    if (!m)
        return;
    if (m->stream)
        m->stream_destroy(m->stream);
    if (m->cuda) {
        m->context_pop(&m->context);
        m->context_release(m->device);
    }
    free(m);
}

void *machine_stream(const machine *m)
{
    return m->stream;
}

/* ---- Memory ------------------------------------------------------------------------------ */

int machine_alloc(machine *m, size_t bytes, void **out)
{
    device_ptr memory = 0;
    int error = 0;
    *out = NULL;
    if (!m->cuda) {
        *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
        return *out ? RUN_OK : fail_memory();
    }
    error = m->alloc(&memory, bytes);
    if (error)
        return fail_driver(m, error, "device memory");
    *out = (void *)(uintptr_t)memory;
    return RUN_OK;
}

void machine_free(machine *m, void *memory)
{
    if (!m->cuda)
        free(memory);
    else if (memory)
        m->release((device_ptr)(uintptr_t)memory);
}

int machine_alloc_pinned(machine *m, size_t bytes, void **out)
{
    *out = NULL;
    if (!m->cuda)
        return machine_alloc(m, bytes, out);
    int error = m->alloc_pinned(out, bytes, HOST_PORTABLE);
    return error ? fail_driver(m, error, "pinned memory") : RUN_OK;
}

void machine_free_pinned(machine *m, void *memory)
{
    if (!m->cuda)
        free(memory);
    else if (memory)
        m->free_pinned(memory);
}

int machine_copy(machine *m, void *to, const void *from, size_t bytes)
{
    if (!m->cuda) {
        memcpy(to, from, bytes);
        return RUN_OK;
    }
    int error = m->copy((device_ptr)(uintptr_t)to, (device_ptr)(uintptr_t)from, bytes, m->stream);
    return error ? fail_driver(m, error, "a copy") : RUN_OK;
}

int machine_wait(machine *m)
{
    int error = m->cuda ? m->stream_sync(m->stream) : 0;
    return error ? fail_driver(m, error, "waiting for the GPU") : RUN_OK;
}

/* ---- Graphs ------------------------------------------------------------------------------ */

int machine_capture_begin(machine *m)
{
    int error = m->capture_begin(m->stream, CAPTURE_GLOBAL);
    return error ? fail_driver(m, error, "capturing") : RUN_OK;
}

int machine_capture_end(machine *m, machine_graph **out)
{
    machine_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return fail_memory();
    int error = m->capture_end(m->stream, &graph->graph);
    if (!error)
        error = m->instantiate(&graph->exec, graph->graph, 0);
    if (error) {
        free(graph);
        return fail_driver(m, error, "making a graph");
    }
    *out = graph;
    return RUN_OK;
}

int machine_replay(machine *m, machine_graph *graph)
{
    int error = m->launch(graph->exec, m->stream);
    return error ? fail_driver(m, error, "a graph") : RUN_OK;
}

void machine_graph_free(machine *m, machine_graph *graph)
{
    if (!graph)
        return;
    m->exec_destroy(graph->exec);
    m->graph_destroy(graph->graph);
    free(graph);
}
