/* The handshake of a path on simulated GPUs with few hardware queues and with many. */
#include <string.h>

#include "cpu_clock.h"
#include "gpu.h"
#include "sim_cuda.h"
#include "testing.h"

typedef struct rig {
    mp_device *device;
    mp_stream *answers;
    mp_cuda_shared marks;
    void *word;
} rig;

static void open_rig(rig *r, uint32_t connections)
{
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .threads = 1,
                                          .budget_bytes = 1 << 20};
    const mp_cuda_driver *driver = sim_cuda_open(&(sim_cuda_config){.connections = connections});
    if (mp_cuda_device_open(driver, NULL, "not here", sim_images, sim_n_images, 0, &config,
                            &r->device))
        fail_msg("%s", moepage_last_error());
    const mp_device_ops *ops = r->device->ops;
    assert_int_equal(ops->stream_create(r->device, MP_STREAM_DEMAND, &r->answers), MOEPAGE_OK);
    assert_int_equal(ops->cuda->shared_alloc(r->device, 4096, &r->marks), MOEPAGE_OK);
    assert_int_equal(ops->alloc(r->device, MP_MEMORY_WORKSPACE, 4096, &r->word), MOEPAGE_OK);
    memset(r->word, 0, 4096);
    memset(r->marks.host, 0, 4096);
}

static void close_rig(rig *r)
{
    const mp_device_ops *ops = r->device->ops;
    ops->stream_destroy(r->answers);
    ops->free(r->device, MP_MEMORY_WORKSPACE, r->word, 4096);
    ops->cuda->shared_free(r->device, &r->marks);
    ops->close(r->device);
    sim_cuda_close();
}

static moepage_status shake(rig *r, bool *is_shared)
{
    const mp_cuda_handshake handshake = {.marks = r->marks.host,
                                         .marks_gpu = r->marks.device,
                                         .word = (uint64_t)(uintptr_t)r->word};
    return r->device->ops->cuda->shake_hands(r->answers, &handshake, is_shared);
}

/* A clock on which no time passes: a wait ends with its word alone. */
static uint64_t still(void *user)
{
    (void)user;
    return 0;
}
static void rest(void *user)
{
    (void)user;
}

static void test_handshake_finds_streams_that_share_a_queue(void **state)
{
    (void)state;
    for (uint32_t connections = 1; connections <= 8; connections += 7) {
        rig r;
        bool is_shared = false;
        open_rig(&r, connections);
        assert_int_equal(shake(&r, &is_shared), MOEPAGE_OK);
        assert_true(is_shared);
        close_rig(&r);
    }
}

static void test_handshake_finds_nothing_where_every_stream_has_a_queue(void **state)
{
    (void)state;
    static const cpu_clock clock = {.now_ns = still, .pause = rest};
    for (uint32_t connections = 0; connections <= 32; connections += 32) {
        rig r;
        bool is_shared = true;
        uint32_t streams;
        open_rig(&r, connections);
        streams = sim_cuda_streams();
        cpu_clock_set(&clock);
        assert_int_equal(shake(&r, &is_shared), MOEPAGE_OK);
        cpu_clock_set(NULL);
        assert_false(is_shared);
        assert_int_equal(sim_cuda_streams(), streams);
        close_rig(&r);
    }
}

static void test_handshake_gives_its_streams_back_when_the_driver_refuses(void **state)
{
    (void)state;
    static const sim_cuda_call calls[] = {SIM_stream_create, SIM_launch};
    for (uint32_t i = 0; i < 2; i++) {
        for (uint64_t nth = 1; nth <= MP_CUDA_PROBES; nth += MP_CUDA_PROBES - 1) {
            rig r;
            bool is_shared = true;
            open_rig(&r, 0);
            uint32_t streams = sim_cuda_streams();
            sim_cuda_fail(calls[i], nth, MP_CU_OUT_OF_MEMORY, false);
            assert_int_equal(shake(&r, &is_shared), MOEPAGE_E_NO_MEMORY);
            assert_false(is_shared);
            assert_int_equal(sim_cuda_streams(), streams);
            sim_cuda_fail_none();
            close_rig(&r);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake_finds_streams_that_share_a_queue),
        cmocka_unit_test(test_handshake_finds_nothing_where_every_stream_has_a_queue),
        cmocka_unit_test(test_handshake_gives_its_streams_back_when_the_driver_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
