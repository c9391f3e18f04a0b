/* graph_rig.h — a caller's CUDA graphs, over the simulated driver or a real one: as device_rig.h
 * says where a test runs. What fails, fails the running test. */
#ifndef MP_TESTS_GRAPH_RIG_H
#define MP_TESTS_GRAPH_RIG_H

#include "gpu.h"

typedef struct graph_rig graph_rig;

/* Captures what is submitted to `stream` of this device from now on, in the mode that frameworks
 * use (global). */
void graph_rig_begin(mp_cuda *cuda, mp_cu_stream stream);
graph_rig *graph_rig_end(mp_cuda *cuda, mp_cu_stream stream);
uint32_t graph_rig_nodes(const graph_rig *graph);
void graph_rig_launch(graph_rig *graph, mp_cu_stream stream);
/* Once its launches have finished. */
void graph_rig_destroy(graph_rig *graph);

#endif
