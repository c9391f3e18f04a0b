/* cuda_more.h — functions of the CUDA driver that the library has no use for but a caller does:
 * graphs, and times of events. Out of the libcuda.so.1 of the process, be it real or simulated. */
#ifndef MP_TESTS_CUDA_MORE_H
#define MP_TESTS_CUDA_MORE_H

#include "driver.h"

typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphExec_st *cuda_graph_exec;
typedef struct CUgraphNode_st *cuda_graph_node;

/* X(field, exported symbol, parameters) */
#define CUDA_MORE(X)                                                                           \
    X(capture_begin, "cuStreamBeginCapture_v2", (mp_cu_stream stream, int mode))               \
    X(capture_end, "cuStreamEndCapture", (mp_cu_stream stream, cuda_graph * out))              \
    X(graph_nodes, "cuGraphGetNodes", (cuda_graph graph, cuda_graph_node * nodes, size_t * n)) \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                        \
      (cuda_graph_exec * out, cuda_graph graph, unsigned long long flags))                     \
    X(graph_launch, "cuGraphLaunch", (cuda_graph_exec exec, mp_cu_stream stream))              \
    X(graph_exec_destroy, "cuGraphExecDestroy", (cuda_graph_exec exec))                        \
    X(graph_destroy, "cuGraphDestroy", (cuda_graph graph))                                     \
    X(event_elapsed, "cuEventElapsedTime", (float *ms, mp_cu_event start, mp_cu_event end))

enum { CUDA_CAPTURE_GLOBAL = 0, CUDA_CAPTURE_THREAD = 1, CUDA_CAPTURE_RELAXED = 2 };

typedef struct cuda_more {
#define CUDA_MORE_FIELD(field, symbol, parameters) mp_cu_result(*field) parameters;
    CUDA_MORE(CUDA_MORE_FIELD)
#undef CUDA_MORE_FIELD
} cuda_more;

/* NULL, with what is missing in *why, when there is no driver or it lacks one of them. Filled once
 * per process. */
const cuda_more *cuda_more_load(const char **why);

#endif
