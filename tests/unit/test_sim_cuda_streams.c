/* The simulated CUDA driver's streams, kernels and graphs: each rule from the driver's documented
 * behaviour. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/phase.h"
#include "sim_rules.h"

/* ---- Streams ---------------------------------------------------------------------------- */

static void test_sim_cuda_streams_run_by_themselves_and_in_order(void **state)
{
    (void)state;
    begin(NULL);
    sim_cuda_jitter(3);
    mp_cu_stream stream = new_stream(NON_BLOCKING);
    mp_cu_ptr memory = new_memory(4096);
    uint32_t *word = at(memory);
    for (uint32_t i = 1; i <= 50; i++) {
        OK(cu->set_bytes(memory + 64, (unsigned char)i, 64, stream));
        OK(cu->copy(memory + 128, memory + 64, 64, stream));
        OK(cu->stream_write32(stream, memory, i, 0));
        if (i % 10 == 0) {
            while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != i)
                ;
            assert_int_equal(*(unsigned char *)at(memory + 191), i);
        }
    }
    OK(cu->stream_sync(stream));
    assert_int_equal(sim_cuda_pending(stream), 0);
    IS(cu->stream_write32(stream, memory + 2, 0, 0), MP_CU_INVALID_VALUE);
    OK(cu->stream_destroy(stream));
    OK(cu->mem_free(memory));
    end();
}

static void test_sim_cuda_wait_is_for_the_record_at_the_time_of_the_call(void **state)
{
    (void)state;
    begin(NULL);
    mp_cu_stream a = new_stream(NON_BLOCKING), b = new_stream(NON_BLOCKING);
    mp_cu_event event = new_event();
    mp_cu_ptr memory = new_memory(16);
    unsigned char *bytes = at(memory);
    OK(cu->stream_wait(b, event, 0)); /* never recorded */
    OK(cu->event_query(event));
    OK(cu->set_bytes(memory, 1, 1, b));
    OK(cu->stream_sync(b));
    sim_cuda_hold(a);
    OK(cu->set_bytes(memory, 2, 1, a));
    OK(cu->event_record(event, a));
    IS(cu->event_query(event), MP_CU_NOT_READY);
    IS(cu->stream_query(a), MP_CU_NOT_READY);
    OK(cu->stream_wait(b, event, 0));
    OK(cu->event_record(event, b)); /* changes nothing for b */
    OK(cu->copy(memory + 1, memory, 1, b));
    sim_cuda_release(a);
    OK(cu->stream_sync(b));
    assert_int_equal(bytes[1], 2);
    OK(cu->event_sync(event));
    OK(cu->event_query(event));
    OK(cu->event_destroy(event));
    OK(cu->stream_destroy(a));
    OK(cu->stream_destroy(b));
    OK(cu->mem_free(memory));
    end();
}

static void test_sim_cuda_destroyed_streams_finish_their_work(void **state)
{
    (void)state;
    begin(NULL);
    mp_cu_stream stream = new_stream(NON_BLOCKING), other = new_stream(NON_BLOCKING);
    mp_cu_event event = new_event();
    mp_cu_ptr memory = new_memory(1);
    sim_cuda_hold(stream);
    OK(cu->set_bytes(memory, 7, 1, stream));
    OK(cu->event_record(event, stream));
    OK(cu->stream_wait(other, event, 0));
    OK(cu->stream_destroy(stream));
    OK(cu->event_destroy(event));
    assert_int_equal(sim_cuda_streams(), 1);
    assert_ptr_equal(sim_cuda_stream_at(0), other);
    sim_cuda_hold_all(false);
    OK(cu->stream_sync(other));
    assert_int_equal(*(unsigned char *)at(memory), 7);
    OK(cu->stream_destroy(other));
    OK(cu->mem_free(memory));
    end();
}

static void test_sim_cuda_null_stream_and_blocking_streams_wait_for_each_other(void **state)
{
    (void)state;
    begin(NULL);
    mp_cu_stream blocking = new_stream(0), free_one = new_stream(NON_BLOCKING);
    mp_cu_ptr memory = new_memory(4);
    unsigned char *bytes = at(memory);
    sim_cuda_hold(blocking);
    OK(cu->set_bytes(memory, 1, 1, blocking));
    OK(cu->copy(memory + 1, memory, 1, NULL));
    OK(cu->set_bytes(memory, 2, 1, blocking));
    OK(cu->set_bytes(memory + 2, 9, 1, free_one));
    OK(cu->stream_sync(free_one));
    assert_int_equal(bytes[2], 9);
    IS(cu->stream_query(NULL), MP_CU_NOT_READY);
    sim_cuda_release(blocking);
    OK(cu->stream_sync(blocking));
    assert_int_equal(bytes[1], 1);
    sim_cuda_manual(true);
    OK(cu->set_bytes(memory, 3, 1, NULL));
    OK(cu->set_bytes(memory, 4, 1, blocking));
    assert_false(sim_cuda_step(blocking));
    while (sim_cuda_step_any())
        ;
    assert_int_equal(bytes[0], 4);
    sim_cuda_manual(false);
    OK(cu->stream_destroy(blocking));
    OK(cu->stream_destroy(free_one));
    OK(cu->mem_free(memory));
    end();
}

static void test_sim_cuda_plain_memory_is_staged_and_counted(void **state)
{
    (void)state;
    unsigned char plain[64], *pinned;
    begin(NULL);
    mp_cu_stream stream = new_stream(NON_BLOCKING);
    mp_cu_ptr memory = new_memory(64);
    OK(cu->host_alloc((void **)&pinned, 64, 0));
    memset(plain, 1, sizeof plain);
    memset(pinned, 3, 64);
    sim_cuda_hold(stream);
    OK(cu->copy(memory, ptr(plain), 32, stream));
    OK(cu->copy(memory + 32, ptr(pinned), 32, stream));
    memset(plain, 2, sizeof plain);
    memset(pinned, 4, 64); /* a mistake that shows: nobody has read it yet */
    assert_int_equal(sim_cuda_get_stats().staged_copies, 1);
    sim_cuda_release(stream);
    OK(cu->copy(ptr(plain), memory, 64, stream)); /* done when it returns */
    assert_int_equal(plain[31], 1);
    assert_int_equal(plain[32], 4);
    assert_int_equal(sim_cuda_get_stats().staged_copies, 2);
    OK(cu->stream_destroy(stream));
    OK(cu->mem_free(memory));
    OK(cu->host_free(pinned));
    end();
}

static void test_sim_cuda_illegal_addresses_stick_to_the_context(void **state)
{
    (void)state;
    for (int what = 0; what < 4; what++) {
        begin(NULL);
        mp_cu_stream stream = new_stream(NON_BLOCKING);
        mp_cu_ptr memory = new_memory(64), reserved;
        OK(cu->address_reserve(&reserved, SIM_GRANULARITY, 0, 0, 0));
        sim_cuda_hold(stream);
        if (what == 0)
            OK(cu->copy(memory, reserved, 16, stream));
        else if (what == 1)
            OK(cu->set_bytes(memory + 1, 0, 64, stream));
        else if (what == 2)
            OK(cu->stream_write64(stream, reserved, 0, 0));
        else {
            OK(cu->set_bytes(memory, 0, 64, stream));
            OK(cu->mem_free(memory));
        }
        sim_cuda_release(stream);
        IS(cu->stream_sync(stream), MP_CU_ILLEGAL_ADDRESS);
        IS(cu->mem_alloc(&memory, 1), MP_CU_ILLEGAL_ADDRESS);
        IS(cu->stream_query(stream), MP_CU_ILLEGAL_ADDRESS);
        end(); /* what the context held goes with it */
    }
}

static void test_sim_cuda_manual_streams_run_when_stepped(void **state)
{
    (void)state;
    begin(NULL);
    sim_cuda_manual(true);
    mp_cu_stream a = new_stream(NON_BLOCKING), b = new_stream(NON_BLOCKING);
    mp_cu_event event = new_event();
    mp_cu_ptr memory = new_memory(2);
    unsigned char *bytes = at(memory);
    assert_false(sim_cuda_step(a));
    OK(cu->set_bytes(memory, 1, 1, a));
    OK(cu->set_bytes(memory, 2, 1, a));
    OK(cu->event_record(event, a));
    OK(cu->stream_wait(b, event, 0));
    OK(cu->copy(memory + 1, memory, 1, b));
    assert_false(sim_cuda_step(b));
    assert_true(sim_cuda_step(a));
    assert_int_equal(bytes[0], 1);
    assert_int_equal(sim_cuda_pending(a), 1);
    while (sim_cuda_step_any())
        ;
    assert_int_equal(bytes[1], 2);
    sim_cuda_manual(false);
    OK(cu->event_destroy(event));
    OK(cu->stream_destroy(a));
    OK(cu->stream_destroy(b));
    OK(cu->mem_free(memory));
    end();
}

typedef struct filler {
    mp_cu_stream stream;
    mp_cu_ptr memory;
    _Atomic int done;
} filler;

static void *fill_queue(void *of)
{
    filler *f = of;
    OK(cu->context_push(context));
    for (int i = 0; i < 3; i++)
        OK(cu->set_bytes(f->memory, (unsigned char)i, 1, f->stream));
    OK(cu->context_pop(NULL));
    f->done = 1;
    return NULL;
}

static void test_sim_cuda_full_queues_make_callers_wait(void **state)
{
    (void)state;
    sim_cuda_config config = {.queue_ops = 2};
    pthread_t thread;
    begin(&config);
    filler f = {.stream = new_stream(NON_BLOCKING), .memory = new_memory(1)};
    sim_cuda_manual(true);
    pthread_create(&thread, NULL, fill_queue, &f);
    while (sim_cuda_get_stats().calls[SIM_set_bytes] < 3)
        ;
    assert_int_equal(sim_cuda_pending(f.stream), 2);
    assert_int_equal(f.done, 0);
    assert_true(sim_cuda_step(f.stream));
    pthread_join(thread, NULL);
    assert_int_equal(f.done, 1);
    sim_cuda_manual(false);
    OK(cu->stream_sync(f.stream));
    OK(cu->stream_destroy(f.stream));
    OK(cu->mem_free(f.memory));
    end();
}

static void test_sim_cuda_batches_copy_and_name_what_failed(void **state)
{
    (void)state;
    sim_cuda_config config = {.copy_batch = true};
    begin(&config);
    mp_cu_stream stream = new_stream(NON_BLOCKING);
    mp_cu_ptr memory = new_memory(64);
    mp_cu_ptr dsts[] = {memory, memory + 8}, srcs[] = {memory + 32, memory + 40};
    size_t sizes[] = {8, 8}, index = 0, failed = 0;
    mp_cu_copy_attributes ordered = {.source_order = MP_CU_SOURCE_ORDER_STREAM};
    OK(cu->set_bytes(memory, 1, 32, stream));
    OK(cu->set_bytes(memory + 32, 2, 32, stream));
    OK(cu->copy_batch(dsts, srcs, sizes, 2, &ordered, &index, 1, &failed, stream));
    OK(cu->stream_sync(stream));
    assert_memory_equal(at(memory), at(memory + 32), 16);
    assert_int_equal(*(unsigned char *)at(memory + 16), 1);
    sizes[1] = 0;
    IS(cu->copy_batch(dsts, srcs, sizes, 2, &ordered, &index, 1, &failed, stream),
       MP_CU_INVALID_VALUE);
    assert_int_equal(failed, 1);
    sizes[1] = 8;
    IS(cu->copy_batch(dsts, srcs, sizes, 2, &ordered, &index, 1, &failed, NULL),
       MP_CU_INVALID_VALUE);
    OK(cu->stream_destroy(stream));
    OK(cu->mem_free(memory));
    end();
}

/* ---- Kernels ---------------------------------------------------------------------------- */

typedef struct mp_gpu_probe_args {
    uint64_t seen; /* address of uint32_t [blocks * threads], and then of their orders */
    uint64_t next; /* address of a counter */
    uint32_t value;
} mp_gpu_probe_args;

typedef struct mp_gpu_probe_shared {
    uint32_t sum;
} mp_gpu_probe_shared;

typedef struct mp_gpu_probe_thread {
    uint32_t left;
} mp_gpu_probe_thread;

static inline void mp_gpu_probe_block(MP_BLOCK_PARAMETERS(mp_gpu_probe_args, mp_gpu_probe_shared,
                                                          mp_gpu_probe_thread))
{
    uint32_t *seen = (uint32_t *)(uintptr_t)args->seen, *next = (uint32_t *)(uintptr_t)args->next;
    const uint32_t n = cpu->n_threads;
    MP_PHASE
        seen[block * n + thread] = args->value + (self->left != 0) + (shared->sum != 0);
        seen[n_blocks * n + (*next)++] = block * n + thread;
    MP_PHASE_END
}

MP_CPU_ENTRY(probe, mp_gpu_probe_args, mp_gpu_probe_shared, mp_gpu_probe_thread)
#define MOST_THREADS 512
static const mp_cpu_kernel probe_image[] = {MP_CPU_BOUND_ROW(probe, mp_gpu_probe_args,
                                                             mp_gpu_probe_shared,
                                                             mp_gpu_probe_thread, MOST_THREADS),
                                            {0}};

#define BLOCKS 5
#define THREADS 64

static mp_cu_result launch_probe(mp_cu_function probe, mp_gpu_probe_args *args, unsigned shared,
                                 mp_cu_stream stream)
{
    void *params[] = {args};
    return cu->launch(probe, BLOCKS, 1, 1, THREADS, 1, 1, shared, stream, params, NULL);
}

static void test_sim_cuda_kernels_run_on_garbage_in_random_orders(void **state)
{
    (void)state;
    const uint32_t n = BLOCKS * THREADS;
    mp_cu_module module;
    mp_cu_function probe;
    begin(NULL);
    OK(cu->module_load(&module, probe_image));
    IS(cu->module_function(&probe, module, "mp_gpu_other"), MP_CU_NOT_FOUND);
    OK(cu->module_function(&probe, module, "mp_gpu_probe"));
    mp_cu_stream stream = new_stream(NON_BLOCKING);
    mp_cu_ptr memory = new_memory(8 * n + 4);
    uint32_t *seen = at(memory), *order = seen + n, first[BLOCKS * THREADS];
    mp_gpu_probe_args args = {.seen = memory, .next = memory + 8 * n, .value = 40};
    for (int run = 0; run < 2; run++) {
        OK(cu->set_bytes(args.next, 0, 4, stream));
        args.value = 40;
        OK(launch_probe(probe, &args, 4, stream));
        args.value = 0; /* the launch has its copy */
        OK(cu->stream_sync(stream));
        uint32_t in_order = 0;
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(seen[i], 42);
            in_order += order[i] == i;
            assert_int_equal(order[i] / THREADS, order[i / THREADS * THREADS] / THREADS);
        }
        assert_true(in_order < n / 4);
        if (run)
            assert_memory_not_equal(first, order, sizeof first);
        memcpy(first, order, sizeof first);
    }
    assert_int_equal(sim_cuda_get_stats().kernels, 2);
    OK(cu->module_unload(module));
    OK(cu->stream_destroy(stream));
    OK(cu->mem_free(memory));
    end();
}

static void test_sim_cuda_launches_are_checked(void **state)
{
    (void)state;
    mp_cu_module module;
    mp_cu_function probe;
    int value;
    begin(NULL);
    OK(cu->module_load(&module, probe_image));
    OK(cu->module_function(&probe, module, "mp_gpu_probe"));
    mp_gpu_probe_args args = {0};
    void *params[] = {&args};
    IS(cu->launch(probe, 0, 1, 1, 32, 1, 1, 4, NULL, params, NULL), MP_CU_INVALID_VALUE);
    IS(cu->launch(probe, 1, 1, 1, 1025, 1, 1, 4, NULL, params, NULL), MP_CU_INVALID_VALUE);
    IS(cu->launch(probe, 1, 1, 1, 32, 1, 1, 4, NULL, NULL, NULL), MP_CU_INVALID_VALUE);
    IS(launch_probe(probe, &args, 0, NULL), MP_CU_INVALID_VALUE); /* uses 4 */
    assert_int_equal(sim_cuda_take_misuse(), 1);
    IS(launch_probe(probe, &args, 49153, NULL), MP_CU_INVALID_VALUE);
    OK(cu->occupancy(&value, probe, 256, 49153));
    assert_int_equal(value, 0);
    IS(cu->function_set_attribute(probe, MP_CU_FUNC_MAX_DYNAMIC_SHARED, 228 << 10),
       MP_CU_INVALID_VALUE);
    OK(cu->function_set_attribute(probe, MP_CU_FUNC_MAX_DYNAMIC_SHARED, 64 << 10));
    OK(cu->occupancy(&value, probe, 256, 49153));
    assert_int_equal(value, 4);
    OK(cu->function_attribute(&value, MP_CU_FUNC_SHARED_CARVEOUT, probe));
    assert_int_equal(value, -1);
    IS(cu->function_set_attribute(probe, MP_CU_FUNC_SHARED_CARVEOUT, 101), MP_CU_INVALID_VALUE);
    OK(cu->function_set_attribute(probe, MP_CU_FUNC_SHARED_CARVEOUT, 50));
    OK(cu->function_attribute(&value, MP_CU_FUNC_SHARED_CARVEOUT, probe));
    assert_int_equal(value, 50);
    IS(cu->launch(probe, 1, 1, 1, MOST_THREADS + 1, 1, 1, 4, NULL, params, NULL),
       MP_CU_LAUNCH_OUT_OF_RESOURCES);
    assert_int_equal(sim_cuda_take_misuse(), 1);
    OK(cu->module_unload(module));
    end();
}

static void test_sim_cuda_kernels_are_not_given_plain_memory(void **state)
{
    (void)state;
    mp_cu_module module;
    mp_cu_function probe;
    uint32_t plain[2 * BLOCKS * THREADS + 1] = {0};
    begin(NULL);
    OK(cu->module_load(&module, probe_image));
    OK(cu->module_function(&probe, module, "mp_gpu_probe"));
    mp_gpu_probe_args args = {.seen = ptr(plain), .next = ptr(plain + 2 * BLOCKS * THREADS)};
    OK(launch_probe(probe, &args, 4, NULL));
    IS(cu->stream_sync(NULL), MP_CU_ILLEGAL_ADDRESS);
    assert_int_equal(sim_cuda_take_misuse(), 1);
    end();
}

/* ---- Graphs ----------------------------------------------------------------------------- */

static void test_sim_cuda_graphs_replay_forks_and_joins(void **state)
{
    (void)state;
    sim_cuda_graph *graph;
    int status;
    begin(NULL);
    mp_cu_stream a = new_stream(0), b = new_stream(NON_BLOCKING);
    mp_cu_event fork = new_event(), join = new_event();
    mp_cu_ptr memory = new_memory(8);
    unsigned char *bytes = at(memory);
    OK(sim_cuda_capture_begin(a, SIM_CAPTURE_GLOBAL));
    OK(cu->copy(memory + 1, memory, 1, a));
    OK(cu->event_record(fork, a));
    OK(cu->stream_wait(b, fork, 0));
    OK(cu->stream_capturing(b, &status));
    assert_int_equal(status, MP_CU_CAPTURE_ACTIVE);
    OK(cu->copy(memory + 2, memory + 1, 1, b));
    OK(cu->copy(memory + 3, memory + 1, 1, a));
    OK(cu->event_record(join, b));
    OK(cu->stream_wait(a, join, 0));
    OK(cu->copy(memory + 4, memory + 2, 2, a));
    OK(cu->stream_write32(a, memory, 0, 0));
    OK(sim_cuda_capture_end(a, &graph));
    OK(cu->stream_capturing(b, &status));
    assert_int_equal(status, MP_CU_CAPTURE_NONE);
    assert_int_equal(sim_cuda_graph_nodes(graph), 5);
    assert_int_equal(sim_cuda_get_stats().ops, 0);
    for (unsigned char i = 1; i < 20; i++) {
        OK(cu->set_bytes(memory, 0xee, 8, a));
        OK(cu->set_bytes(memory, i, 1, a));
        OK(sim_cuda_graph_launch(graph, a));
        OK(cu->stream_sync(a));
        const unsigned char want[] = {0, 0, 0, 0, i, i, 0xee, 0xee};
        assert_memory_equal(bytes, want, 8);
    }
    IS(cu->event_query(join), SIM_CAPTURED_EVENT);
    sim_cuda_graph_destroy(graph);
    OK(cu->event_destroy(fork));
    OK(cu->event_destroy(join));
    OK(cu->stream_destroy(a));
    OK(cu->stream_destroy(b));
    OK(cu->mem_free(memory));
    end();
}

static void *query_elsewhere(void *of)
{
    OK(cu->context_push(context));
    mp_cu_result result = cu->event_query(of);
    OK(cu->context_pop(NULL));
    return (void *)(intptr_t)result;
}

static void test_sim_cuda_captures_forbid_unsafe_calls(void **state)
{
    (void)state;
    sim_cuda_graph *graph;
    mp_cu_ptr memory;
    int status;
    begin(NULL);
    mp_cu_stream stream = new_stream(NON_BLOCKING), other = new_stream(NON_BLOCKING);
    mp_cu_event event = new_event();
    for (sim_capture_mode mode = SIM_CAPTURE_GLOBAL; mode <= SIM_CAPTURE_RELAXED; mode++) {
        pthread_t thread;
        void *result;
        OK(sim_cuda_capture_begin(stream, mode));
        pthread_create(&thread, NULL, query_elsewhere, event);
        pthread_join(thread, &result);
        bool global = mode == SIM_CAPTURE_GLOBAL, relaxed = mode == SIM_CAPTURE_RELAXED;
        assert_int_equal((intptr_t)result, global ? MP_CU_CAPTURE_UNSUPPORTED : 0);
        IS(cu->stream_query(other), relaxed ? 0 : MP_CU_CAPTURE_UNSUPPORTED);
        OK(cu->stream_capturing(stream, &status));
        assert_int_equal(status, relaxed ? MP_CU_CAPTURE_ACTIVE : MP_CU_CAPTURE_INVALIDATED);
        IS(sim_cuda_capture_end(stream, &graph), relaxed ? 0 : SIM_CAPTURE_INVALIDATED);
        if (relaxed)
            sim_cuda_graph_destroy(graph);
    }
    int own = SIM_CAPTURE_RELAXED; /* a thread's choice */
    OK(cu->capture_mode(&own));
    assert_int_equal(own, SIM_CAPTURE_GLOBAL);
    OK(sim_cuda_capture_begin(stream, SIM_CAPTURE_GLOBAL));
    OK(cu->event_query(event));
    OK(sim_cuda_capture_end(stream, &graph));
    sim_cuda_graph_destroy(graph);
    assert_non_null(strstr(sim_cuda_left(), "1 threads with a capture mode"));
    OK(cu->capture_mode(&own));
    assert_int_equal(own, SIM_CAPTURE_RELAXED);
    OK(sim_cuda_capture_begin(stream, SIM_CAPTURE_RELAXED));
    IS(cu->stream_sync(stream), MP_CU_CAPTURE_UNSUPPORTED);
    IS(sim_cuda_capture_end(stream, &graph), SIM_CAPTURE_INVALIDATED);
    OK(sim_cuda_capture_begin(stream, SIM_CAPTURE_GLOBAL));
    IS(cu->mem_alloc(&memory, 1), MP_CU_CAPTURE_UNSUPPORTED);
    IS(cu->set_bytes(1, 1, 1, stream), SIM_CAPTURE_INVALIDATED);
    IS(sim_cuda_capture_end(stream, &graph), SIM_CAPTURE_INVALIDATED);
    OK(cu->event_destroy(event));
    OK(cu->stream_destroy(stream));
    OK(cu->stream_destroy(other));
    end();
}

static void test_sim_cuda_captures_are_closed_in_themselves(void **state)
{
    (void)state;
    sim_cuda_graph *graph;
    int status;
    begin(NULL);
    mp_cu_stream a = new_stream(0), b = new_stream(0);
    mp_cu_event event = new_event();
    mp_cu_ptr memory = new_memory(8);
    OK(cu->event_record(event, b));
    OK(sim_cuda_capture_begin(a, SIM_CAPTURE_RELAXED));
    IS(cu->stream_wait(a, event, 0), SIM_CAPTURE_ISOLATION);
    IS(sim_cuda_capture_end(a, &graph), SIM_CAPTURE_INVALIDATED);

    OK(sim_cuda_capture_begin(a, SIM_CAPTURE_RELAXED));
    OK(cu->event_record(event, a));
    OK(cu->stream_wait(b, event, 0));
    OK(cu->set_bytes(memory, 1, 1, b));
    IS(sim_cuda_capture_end(a, &graph), SIM_CAPTURE_UNJOINED);

    OK(sim_cuda_capture_begin(a, SIM_CAPTURE_RELAXED));
    IS(cu->stream_capturing(NULL, &status), SIM_CAPTURE_IMPLICIT);
    IS(sim_cuda_capture_end(a, &graph), SIM_CAPTURE_INVALIDATED);
    IS(sim_cuda_capture_end(a, &graph), SIM_CAPTURE_UNMATCHED);
    OK(cu->event_destroy(event));
    OK(cu->stream_destroy(a));
    OK(cu->stream_destroy(b));
    OK(cu->mem_free(memory));
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_cuda_streams_run_by_themselves_and_in_order),
        cmocka_unit_test(test_sim_cuda_wait_is_for_the_record_at_the_time_of_the_call),
        cmocka_unit_test(test_sim_cuda_destroyed_streams_finish_their_work),
        cmocka_unit_test(test_sim_cuda_null_stream_and_blocking_streams_wait_for_each_other),
        cmocka_unit_test(test_sim_cuda_plain_memory_is_staged_and_counted),
        cmocka_unit_test(test_sim_cuda_illegal_addresses_stick_to_the_context),
        cmocka_unit_test(test_sim_cuda_manual_streams_run_when_stepped),
        cmocka_unit_test(test_sim_cuda_full_queues_make_callers_wait),
        cmocka_unit_test(test_sim_cuda_batches_copy_and_name_what_failed),
        cmocka_unit_test(test_sim_cuda_kernels_run_on_garbage_in_random_orders),
        cmocka_unit_test(test_sim_cuda_launches_are_checked),
        cmocka_unit_test(test_sim_cuda_kernels_are_not_given_plain_memory),
        cmocka_unit_test(test_sim_cuda_graphs_replay_forks_and_joins),
        cmocka_unit_test(test_sim_cuda_captures_forbid_unsafe_calls),
        cmocka_unit_test(test_sim_cuda_captures_are_closed_in_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
