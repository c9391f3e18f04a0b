/* The simulated driver's graphs: what streams were given while they were captured, with what each
 * node needs before it; and which calls a capture forbids. */
#include <stdlib.h>
#include <string.h>

#include "sim_inside.h"

/* ---- What a capture forbids ------------------------------------------------------------- */

mp_cu_result sim_capture_invalidate(sim_capture *capture, mp_cu_result result)
{
    if (capture)
        capture->invalid = true;
    return result;
}

mp_cu_result sim_capture_refuse(void)
{
    mp_cu_result result = MP_CU_SUCCESS;
    sim_capture_mode own = sim_thread_mode();
    for (sim_capture *c = sim.captures; c && own != SIM_CAPTURE_RELAXED; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self());
        if (mine ? c->mode != SIM_CAPTURE_RELAXED
                 : c->mode == SIM_CAPTURE_GLOBAL && own == SIM_CAPTURE_GLOBAL)
            result = sim_capture_invalidate(c, MP_CU_CAPTURE_UNSUPPORTED);
    }
    return result;
}

sim_capture *sim_capture_find(uint64_t id)
{
    sim_capture *capture = sim.captures;
    while (capture && capture->id != id)
        capture = capture->next;
    return capture;
}

/* Work on the NULL stream would wait for blocking streams that are captured. */
static mp_cu_result check_legacy(mp_cu_stream legacy)
{
    for (mp_cu_stream s = sim.streams; s; s = s->next) {
        if (s->capture && s->blocking && s->context == legacy->context)
            return sim_capture_invalidate(s->capture, SIM_CAPTURE_IMPLICIT);
    }
    return MP_CU_SUCCESS;
}

mp_cu_result sim_capture_check(mp_cu_stream stream)
{
    if (stream->legacy)
        return check_legacy(stream);
    return stream->capture && stream->capture->invalid ? SIM_CAPTURE_INVALIDATED : MP_CU_SUCCESS;
}

mp_cu_result sim_do_stream_capturing(mp_cu_stream handle, int *status)
{
    SIM_BEGIN(SIM_stream_capturing);
    mp_cu_stream stream = sim_stream_find(handle);
    if (!stream)
        return MP_CU_INVALID_HANDLE;
    mp_cu_result result = stream->legacy ? check_legacy(stream) : MP_CU_SUCCESS;
    *status = !stream->capture           ? MP_CU_CAPTURE_NONE
              : stream->capture->invalid ? MP_CU_CAPTURE_INVALIDATED
                                         : MP_CU_CAPTURE_ACTIVE;
    return result;
}

/* ---- Recording -------------------------------------------------------------------------- */

mp_cu_result sim_capture_add(mp_cu_stream stream, const sim_work *work)
{
    sim_capture *capture = stream->capture;
    sim_node *nodes = realloc(capture->nodes, (capture->n_nodes + 1) * sizeof *nodes);
    if (!nodes)
        abort();
    capture->nodes = nodes;
    nodes[capture->n_nodes] = (sim_node){.work = *work, .needs = stream->front};
    stream->front = (sim_front){.nodes = {capture->n_nodes++}, .n = 1};
    return MP_CU_SUCCESS;
}

static bool front_add(sim_front *front, const sim_front *more)
{
    for (uint32_t i = 0; i < more->n; i++) {
        bool known = false;
        for (uint32_t j = 0; j < front->n; j++)
            known |= front->nodes[j] == more->nodes[i];
        if (!known && front->n == SIM_MAX_FRONT)
            return false;
        if (!known)
            front->nodes[front->n++] = more->nodes[i];
    }
    return true;
}

/* A stream that waits for an event of a capture joins it; one that is captured may wait for nothing
 * else. */
mp_cu_result sim_capture_wait(mp_cu_stream stream, mp_cu_event event)
{
    if (!event->capture)
        return event->stream ? sim_capture_invalidate(stream->capture, SIM_CAPTURE_ISOLATION)
                             : MP_CU_SUCCESS;
    sim_capture *capture = sim_capture_find(event->capture);
    if (!capture || stream->legacy)
        return sim_capture_invalidate(stream->capture, SIM_CAPTURED_EVENT);
    if (stream->capture && stream->capture != capture)
        return sim_capture_invalidate(capture,
                                      sim_capture_invalidate(stream->capture, SIM_CAPTURE_MERGE));
    if (capture->invalid)
        return SIM_CAPTURE_INVALIDATED;
    stream->capture = capture;
    return front_add(&stream->front, &event->front) ? MP_CU_SUCCESS : MP_CU_OUT_OF_MEMORY;
}

mp_cu_result sim_cuda_capture_begin(mp_cu_stream handle, sim_capture_mode mode)
{
    SIM_LOCKED();
    mp_cu_stream stream = sim_stream_any(handle);
    if (!stream || stream->legacy || stream->capture)
        return stream ? MP_CU_CAPTURE_UNSUPPORTED : MP_CU_INVALID_HANDLE;
    sim_capture *capture = sim_new(sizeof *capture);
    *capture = (sim_capture){.next = sim.captures,
                             .id = ++sim.n_captures,
                             .mode = mode,
                             .thread = pthread_self(),
                             .origin = stream};
    sim.captures = capture;
    stream->capture = capture;
    return MP_CU_SUCCESS;
}

/* Whether the stream at which a capture began depends on everything in it. */
static bool is_joined(const sim_capture *capture)
{
    bool *reached = sim_new(capture->n_nodes);
    const sim_front *front = &capture->origin->front;
    bool joined = true;
    for (uint32_t i = 0; i < front->n; i++)
        reached[front->nodes[i]] = true;
    for (uint32_t i = capture->n_nodes; i-- > 0;) {
        const sim_front *needs = &capture->nodes[i].needs;
        joined &= reached[i];
        for (uint32_t j = 0; j < needs->n && reached[i]; j++)
            reached[needs->nodes[j]] = true;
    }
    free(reached);
    return joined;
}

static void free_nodes(sim_node *nodes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        free(nodes[i].work.own);
    free(nodes);
}

static void capture_forget(sim_capture *capture)
{
    for (mp_cu_stream s = sim.streams; s; s = s->next) {
        if (s->capture == capture) {
            s->capture = NULL;
            s->front.n = 0;
        }
    }
    sim_capture **link = &sim.captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free_nodes(capture->nodes, capture->n_nodes);
    free(capture);
}

void sim_captures_drop(void)
{
    while (sim.captures)
        capture_forget(sim.captures);
}

mp_cu_result sim_cuda_capture_end(mp_cu_stream handle, sim_cuda_graph **out)
{
    SIM_LOCKED();
    mp_cu_stream stream = sim_stream_any(handle);
    sim_capture *capture = stream ? stream->capture : NULL;
    *out = NULL;
    if (!capture || capture->origin != stream)
        return SIM_CAPTURE_UNMATCHED;
    mp_cu_result result = MP_CU_SUCCESS;
    if (capture->mode != SIM_CAPTURE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        result = SIM_CAPTURE_WRONG_THREAD;
    else if (capture->invalid)
        result = SIM_CAPTURE_INVALIDATED;
    else if (!is_joined(capture))
        result = SIM_CAPTURE_UNJOINED;
    if (!result) {
        sim_cuda_graph *graph = sim_new(sizeof *graph);
        *graph = (sim_cuda_graph){stream->context, capture->nodes, capture->n_nodes, 0};
        capture->nodes = NULL;
        capture->n_nodes = 0;
        sim.n_graphs++;
        *out = graph;
    }
    capture_forget(capture);
    return result;
}

/* ---- Graphs ----------------------------------------------------------------------------- */

uint32_t sim_cuda_graph_nodes(const sim_cuda_graph *graph)
{
    return graph->n_nodes;
}

mp_cu_result sim_cuda_graph_launch(sim_cuda_graph *graph, mp_cu_stream handle)
{
    SIM_LOCKED();
    mp_cu_stream stream = sim_stream_any(handle);
    mp_cu_result result = stream ? stream->context->sticky : MP_CU_INVALID_HANDLE;
    if (!result)
        result = sim_capture_check(stream);
    if (!result && (stream->capture || stream->context != graph->context))
        result = MP_CU_NOT_SUPPORTED;
    if (!result) {
        graph->pending++;
        sim_stream_submit(stream, &(sim_work){.kind = SIM_WORK_GRAPH, .graph = graph});
    }
    return result;
}

void sim_cuda_graph_destroy(sim_cuda_graph *graph)
{
    pthread_mutex_lock(&sim_lock);
    if (graph->pending) {
        sim_misuse("a graph destroyed while a launch of it runs");
        while (graph->pending)
            pthread_cond_wait(&sim_progress, &sim_lock);
    }
    free_nodes(graph->nodes, graph->n_nodes);
    free(graph);
    sim.n_graphs--;
    pthread_mutex_unlock(&sim_lock);
}

static bool is_ready(const sim_node *node, const bool *done)
{
    bool ready = true;
    for (uint32_t i = 0; i < node->needs.n; i++)
        ready &= done[node->needs.nodes[i]];
    return ready;
}

void sim_graph_run(mp_cu_stream stream, sim_cuda_graph *graph)
{
    bool *done = sim_new(graph->n_nodes);
    pthread_mutex_lock(&sim_lock);
    uint64_t random = sim_random(&stream->random);
    pthread_mutex_unlock(&sim_lock);
    for (uint32_t ran = 0; ran < graph->n_nodes; ran++) {
        uint32_t chosen = 0;
        uint64_t n = 0;
        for (uint32_t i = 0; i < graph->n_nodes; i++) {
            if (!done[i] && is_ready(&graph->nodes[i], done) && sim_random(&random) % ++n == 0)
                chosen = i;
        }
        sim_work_run(stream, &graph->nodes[chosen].work);
        done[chosen] = true;
    }
    free(done);
}
