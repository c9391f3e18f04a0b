/* The simulated CUDA driver's rules for several GPUs: whose memory a copy or a kernel may touch, and which
 * events and streams go together. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/phase.h"
#include "sim_rules.h"

/* ---- A kernel that writes one word -------------------------------------------------------- */

typedef struct mp_gpu_poke_args {
    uint64_t at; /* address of a uint32_t */
    uint32_t value;
    uint32_t unused; /* no padding: whatever was in it might look like an address to the driver */
} mp_gpu_poke_args;

typedef struct mp_gpu_poke_shared {
    uint32_t unused;
} mp_gpu_poke_shared;

typedef struct mp_gpu_poke_thread {
    uint32_t unused;
} mp_gpu_poke_thread;

static inline void mp_gpu_poke_block(MP_BLOCK_PARAMETERS(mp_gpu_poke_args, mp_gpu_poke_shared,
                                                         mp_gpu_poke_thread))
{
    (void)shared, (void)block, (void)n_blocks;
    MP_PHASE
        *(uint32_t *)(uintptr_t)args->at = args->value;
    MP_PHASE_END
}

MP_CPU_ENTRY(poke, mp_gpu_poke_args, mp_gpu_poke_shared, mp_gpu_poke_thread)
static const mp_cpu_kernel poke_image[] = {
    MP_CPU_BOUND_ROW(poke, mp_gpu_poke_args, mp_gpu_poke_shared, mp_gpu_poke_thread, 32), {0}};

/* ---- Two GPUs ----------------------------------------------------------------------------- */

typedef struct gpu {
    mp_cu_context context;
    mp_cu_stream stream;
    mp_cu_ptr memory;
    mp_cu_module module;
} gpu;

static gpu gpus[2];

static void open_gpus(bool no_peers)
{
    const sim_cuda_config config = {.n_gpus = 2, .no_peers = no_peers};
    begin(&config);
    for (int i = 0; i < 2; i++) {
        gpu *g = &gpus[i];
        OK(cu->context_retain(&g->context, i));
        OK(cu->context_push(g->context));
        g->stream = new_stream(NON_BLOCKING);
        g->memory = new_memory(64);
        OK(cu->module_load(&g->module, poke_image));
        OK(cu->context_pop(NULL));
    }
}

/* A context that has failed gives back what it has; `misuses` were found. */
static void close_gpus(uint32_t misuses)
{
    assert_int_equal(sim_cuda_take_misuse(), misuses);
    for (int i = 0; i < 2; i++) {
        gpu *g = &gpus[i];
        OK(cu->context_push(g->context));
        if (!cu->stream_sync(g->stream)) {
            OK(cu->stream_destroy(g->stream));
            OK(cu->mem_free(g->memory));
            OK(cu->module_unload(g->module));
        }
        OK(cu->context_pop(NULL));
        OK(cu->context_release(i));
    }
    end();
}

static void enable(int own, int peer, mp_cu_result result)
{
    OK(cu->context_push(gpus[own].context));
    IS(cu->enable_peer(gpus[peer].context, 0), result);
    OK(cu->context_pop(NULL));
}

/* What becomes of a copy on one GPU's stream. */
static void copy_on(int own, mp_cu_ptr to, mp_cu_ptr from, mp_cu_result result)
{
    OK(cu->context_push(gpus[own].context));
    OK(cu->copy(to, from, 64, gpus[own].stream));
    IS(cu->stream_sync(gpus[own].stream), result);
    OK(cu->context_pop(NULL));
}

static void poke_on(int own, mp_cu_ptr at, mp_cu_result result)
{
    mp_gpu_poke_args args = {.at = at, .value = 77};
    void *params[] = {&args};
    mp_cu_function poke;
    OK(cu->context_push(gpus[own].context));
    OK(cu->module_function(&poke, gpus[own].module, "mp_gpu_poke"));
    OK(cu->launch(poke, 1, 1, 1, 32, 1, 1, 4, gpus[own].stream, params, NULL));
    IS(cu->stream_sync(gpus[own].stream), result);
    OK(cu->context_pop(NULL));
}

/* ---- Memory ------------------------------------------------------------------------------- */

static void test_sim_cuda_peers_touch_nothing_without_access(void **state)
{
    (void)state;
    open_gpus(false);
    copy_on(1, gpus[1].memory, gpus[0].memory, MP_CU_ILLEGAL_ADDRESS);
    close_gpus(1);
    open_gpus(false);
    copy_on(0, gpus[1].memory, gpus[0].memory, MP_CU_ILLEGAL_ADDRESS);
    close_gpus(1);
    open_gpus(false);
    poke_on(0, gpus[1].memory, MP_CU_ILLEGAL_ADDRESS);
    close_gpus(1);
}

static void test_sim_cuda_peers_touch_what_they_have_access_to(void **state)
{
    (void)state;
    int can = 0;
    open_gpus(false);
    OK(cu->can_access_peer(&can, 1, 0));
    assert_int_equal(can, 1);
    OK(cu->can_access_peer(&can, 1, 1));
    assert_int_equal(can, 0);
    IS(cu->can_access_peer(&can, 1, 2), MP_CU_INVALID_DEVICE);
    enable(1, 0, MP_CU_SUCCESS);
    enable(1, 0, MP_CU_PEER_ACCESS_ALREADY_ENABLED);
    memset(at(gpus[0].memory), 5, 64);
    copy_on(1, gpus[1].memory, gpus[0].memory, MP_CU_SUCCESS);
    assert_memory_equal(at(gpus[1].memory), at(gpus[0].memory), 64);
    poke_on(1, gpus[0].memory, MP_CU_SUCCESS);
    assert_int_equal(*(uint32_t *)at(gpus[0].memory), 77);
    copy_on(0, gpus[1].memory, gpus[0].memory, MP_CU_ILLEGAL_ADDRESS); /* one way only */
    close_gpus(1);
}

static void test_sim_cuda_peers_are_not_to_be_had_everywhere(void **state)
{
    (void)state;
    int can = 1;
    open_gpus(true);
    OK(cu->can_access_peer(&can, 1, 0));
    assert_int_equal(can, 0);
    enable(1, 0, MP_CU_PEER_ACCESS_UNSUPPORTED);
    sim_cuda_allow_peers(true);
    enable(1, 0, MP_CU_SUCCESS);
    enable(1, 1, MP_CU_INVALID_CONTEXT);
    OK(cu->context_push(gpus[1].context));
    IS(cu->enable_peer(gpus[0].context, 1), MP_CU_INVALID_VALUE);
    OK(cu->context_pop(NULL));
    close_gpus(1);
}

/* Access that one context has to another's memory is no access to virtual memory: that is set by address. */
static void test_sim_cuda_peers_are_named_where_virtual_memory_is_mapped(void **state)
{
    (void)state;
    const mp_cu_mem_prop on = {.type = MP_CU_ALLOCATION_PINNED,
                               .location = {.type = MP_CU_LOCATION_DEVICE, .id = 0}};
    mp_cu_access access[2] = {{.location = {.type = MP_CU_LOCATION_DEVICE, .id = 0},
                               .flags = MP_CU_ACCESS_READWRITE},
                              {.location = {.type = MP_CU_LOCATION_DEVICE, .id = 1},
                               .flags = MP_CU_ACCESS_READWRITE}};
    for (size_t n = 1; n <= 2; n++) {
        mp_cu_ptr memory;
        mp_cu_handle handle;
        open_gpus(false);
        enable(1, 0, MP_CU_SUCCESS);
        OK(cu->address_reserve(&memory, SIM_GRANULARITY, 0, 0, 0));
        OK(cu->mem_create(&handle, SIM_GRANULARITY, &on, 0));
        OK(cu->mem_map(memory, SIM_GRANULARITY, 0, handle, 0));
        OK(cu->mem_set_access(memory, SIM_GRANULARITY, access, n));
        copy_on(0, memory, gpus[0].memory, MP_CU_SUCCESS);
        copy_on(1, gpus[1].memory, memory, n == 2 ? MP_CU_SUCCESS : MP_CU_ILLEGAL_ADDRESS);
        OK(cu->mem_unmap(memory, SIM_GRANULARITY));
        OK(cu->mem_release(handle));
        OK(cu->address_free(memory, SIM_GRANULARITY));
        close_gpus(n == 2 ? 0 : 1);
    }
}

static void test_sim_cuda_peers_share_portable_host_memory(void **state)
{
    (void)state;
    for (unsigned flags = 0; flags <= MP_CU_HOST_PORTABLE; flags += MP_CU_HOST_PORTABLE) {
        const mp_cu_result result = flags ? MP_CU_SUCCESS : MP_CU_ILLEGAL_ADDRESS;
        void *host;
        open_gpus(false);
        OK(cu->host_alloc(&host, 64, flags));
        copy_on(0, ptr(host), gpus[0].memory, MP_CU_SUCCESS);
        copy_on(1, gpus[1].memory, ptr(host), result);
        OK(cu->host_free(host));
        close_gpus(flags ? 0 : 1);
        open_gpus(false);
        host = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                    -1, 0);
        OK(cu->host_register(host, 4096, flags));
        copy_on(1, gpus[1].memory, ptr(host), result);
        OK(cu->host_unregister(host));
        munmap(host, 4096);
        close_gpus(flags ? 0 : 1);
    }
}

/* ---- Events ------------------------------------------------------------------------------- */

static void test_sim_cuda_peers_wait_for_each_other_s_events(void **state)
{
    (void)state;
    open_gpus(false);
    OK(cu->context_push(gpus[0].context));
    mp_cu_event event = new_event();
    sim_cuda_hold(gpus[0].stream);
    OK(cu->set_bytes(gpus[0].memory, 9, 64, gpus[0].stream));
    OK(cu->event_record(event, gpus[0].stream));
    OK(cu->context_pop(NULL));
    OK(cu->context_push(gpus[1].context));
    OK(cu->stream_wait(gpus[1].stream, event, 0));
    OK(cu->set_bytes(gpus[1].memory, 8, 64, gpus[1].stream));
    IS(cu->stream_query(gpus[1].stream), MP_CU_NOT_READY);
    sim_cuda_release(gpus[0].stream);
    OK(cu->stream_sync(gpus[1].stream));
    assert_int_equal(*(unsigned char *)at(gpus[0].memory), 9);
    IS(cu->event_record(event, gpus[1].stream), MP_CU_INVALID_HANDLE);
    OK(cu->event_destroy(event));
    OK(cu->context_pop(NULL));
    close_gpus(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_cuda_peers_touch_nothing_without_access),
        cmocka_unit_test(test_sim_cuda_peers_touch_what_they_have_access_to),
        cmocka_unit_test(test_sim_cuda_peers_are_not_to_be_had_everywhere),
        cmocka_unit_test(test_sim_cuda_peers_are_named_where_virtual_memory_is_mapped),
        cmocka_unit_test(test_sim_cuda_peers_share_portable_host_memory),
        cmocka_unit_test(test_sim_cuda_peers_wait_for_each_other_s_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
