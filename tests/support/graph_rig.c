/* Capture, instantiation and replay, by the driver that the device is on. */
#include "graph_rig.h"

#include <stdlib.h>

#include "cuda_more.h"
#include "device_rig.h"
#include "sim_cuda.h"
#include "testing.h"

struct graph_rig {
    mp_cuda *cuda;
    sim_cuda_graph *simulated; /* of the test's own machine; or */
    cuda_graph graph;
    cuda_graph_exec exec;
    uint32_t n_nodes;
};

static const cuda_more *more(void)
{
    const char *why;
    const cuda_more *found = cuda_more_load(&why);
    if (!found)
        fail_msg("the driver lacks %s", why);
    return found;
}

/* A driver's call with the device's context current. */
#define CALL(cuda, call)                                    \
    do {                                                    \
        assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);  \
        mp_cu_result result = (call);                       \
        mp_cuda_leave(cuda);                                \
        if (result)                                         \
            fail_msg("%s: driver error %d", #call, result); \
    } while (0)

void graph_rig_begin(mp_cuda *cuda, mp_cu_stream stream)
{
    if (device_rig_is_simulated())
        assert_int_equal(sim_cuda_capture_begin(stream, SIM_CAPTURE_GLOBAL), MP_CU_SUCCESS);
    else
        CALL(cuda, more()->capture_begin(stream, CUDA_CAPTURE_GLOBAL));
}

graph_rig *graph_rig_end(mp_cuda *cuda, mp_cu_stream stream)
{
    graph_rig *graph = calloc(1, sizeof *graph);
    size_t n = 0;
    assert_non_null(graph);
    graph->cuda = cuda;
    if (device_rig_is_simulated()) {
        assert_int_equal(sim_cuda_capture_end(stream, &graph->simulated), MP_CU_SUCCESS);
        graph->n_nodes = sim_cuda_graph_nodes(graph->simulated);
        return graph;
    }
    CALL(cuda, more()->capture_end(stream, &graph->graph));
    CALL(cuda, more()->graph_nodes(graph->graph, NULL, &n));
    CALL(cuda, more()->graph_instantiate(&graph->exec, graph->graph, 0));
    graph->n_nodes = (uint32_t)n;
    return graph;
}

uint32_t graph_rig_nodes(const graph_rig *graph)
{
    return graph->n_nodes;
}

void graph_rig_launch(graph_rig *graph, mp_cu_stream stream)
{
    if (graph->simulated)
        assert_int_equal(sim_cuda_graph_launch(graph->simulated, stream), MP_CU_SUCCESS);
    else
        CALL(graph->cuda, more()->graph_launch(graph->exec, stream));
}

void graph_rig_destroy(graph_rig *graph)
{
    if (graph->simulated) {
        sim_cuda_graph_destroy(graph->simulated);
    } else {
        CALL(graph->cuda, more()->graph_exec_destroy(graph->exec));
        CALL(graph->cuda, more()->graph_destroy(graph->graph));
    }
    free(graph);
}
