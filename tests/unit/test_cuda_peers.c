/* CUDA devices beside each other: streams of one that wait for another's, whatever holds those up and
 * whichever thread lets them go on; access to another's memory; and what becomes of one when another has
 * failed. */
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "issue.h"
#include "sim_cuda.h"
#include "testing.h"

enum { GPUS = 3, BYTES = 64 };

static mp_device *gpus[GPUS];
static const mp_device_ops *ops;
static unsigned char *pinned; /* [16][BYTES], of the first, which all reach */

#define MUST(call) assert_int_equal((call), MOEPAGE_OK)

static moepage_status open_gpu(const mp_cuda_driver *driver, uint32_t ordinal, mp_device **out)
{
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .threads = 1,
                                          .io_threads = 2};
    return mp_cuda_device_open(driver, NULL, "not here", sim_images, sim_n_images, ordinal, &config,
                               out);
}

static void open_machine(sim_cuda_config config)
{
    config.n_gpus = GPUS;
    config.copy_batch = true;
    config.seed = 1;
    const mp_cuda_driver *driver = sim_cuda_open(&config);
    for (uint32_t i = 0; i < GPUS; i++)
        MUST(open_gpu(driver, i, &gpus[i]));
    ops = gpus[0]->ops;
    void *memory;
    MUST(ops->alloc(gpus[0], MP_MEMORY_HOST, 16 * BYTES, &memory));
    pinned = memory;
    memset(pinned, 0, 16 * BYTES);
}

static void open_gpus(bool no_peers)
{
    open_machine((sim_cuda_config){.no_peers = no_peers});
}

static void close_gpus(void)
{
    ops->free(gpus[0], MP_MEMORY_HOST, pinned, 16 * BYTES);
    for (uint32_t i = 0; i < GPUS; i++)
        ops->close(gpus[i]);
    sim_cuda_close();
}

static mp_stream *new_stream(uint32_t gpu, mp_stream_class cls)
{
    mp_stream *stream = NULL;
    MUST(ops->stream_create(gpus[gpu], cls, &stream));
    return stream;
}

static void *new_memory(uint32_t gpu)
{
    void *memory = NULL;
    MUST(ops->alloc(gpus[gpu], MP_MEMORY_WORKSPACE, BYTES, &memory));
    return memory;
}

static void free_memory(uint32_t gpu, void *memory)
{
    ops->free(gpus[gpu], MP_MEMORY_WORKSPACE, memory, BYTES);
}

static mp_tick copy(mp_stream *stream, void *to, const void *from)
{
    const mp_copy c = {.dst = to, .src = from, .bytes = BYTES};
    mp_tick tick = 0;
    MUST(ops->copy(stream, &c, 1, &tick));
    return tick;
}

static mp_cu_stream handle_of(const mp_stream *stream)
{
    return mp_cuda_stream_of(stream)->handle;
}

/* A transfer whose bytes are there once a test says so. */
typedef struct gate {
    sem_t open;
    unsigned char value;
} gate;

static moepage_status fill_from_gate(const mp_copy *c, void *out)
{
    gate *g = (gate *)(uintptr_t)c->fill_user;
    while (sem_wait(&g->open))
        ;
    memset(out, g->value, c->bytes);
    return MOEPAGE_OK;
}

static mp_tick copy_through(mp_stream *stream, void *to, gate *g)
{
    const mp_copy c = {.dst = to, .bytes = BYTES, .fill = fill_from_gate, .fill_user = g};
    mp_tick tick = 0;
    MUST(ops->copy(stream, &c, 1, &tick));
    return tick;
}

static bool all_are(const unsigned char *bytes, unsigned char value)
{
    bool same = true;
    for (uint32_t i = 0; i < BYTES; i++)
        same &= bytes[i] == value;
    return same;
}

/* ---- Waiting ------------------------------------------------------------------------------ */

static void test_cuda_peers_wait_on_the_gpu(void **state)
{
    (void)state;
    open_gpus(false);
    mp_stream *a = new_stream(0, MP_STREAM_COMPUTE), *b = new_stream(1, MP_STREAM_COMPUTE);
    unsigned char *on_a = new_memory(0), *on_b = new_memory(1);
    memset(pinned, 5, BYTES);
    sim_cuda_hold(handle_of(a));
    copy(a, on_a, pinned);
    mp_tick there = copy(a, pinned + BYTES, on_a), last;
    MUST(ops->wait(b, a, there));
    last = copy(b, on_b, pinned + BYTES);
    MUST(ops->settle(b, last)); /* the GPU waits, and no thread */
    assert_true(sim_cuda_pending(handle_of(b)) > 0);
    assert_int_equal(ops->completed(b), 0);
    sim_cuda_release(handle_of(a));
    MUST(ops->sync(b, last));
    assert_true(all_are(on_b, 5));
    ops->stream_destroy(a);
    ops->stream_destroy(b);
    free_memory(0, on_a);
    free_memory(1, on_b);
    close_gpus();
}

/* What is waited for waits for the host itself; then its device's thread issues for the other device. */
static void test_cuda_peers_wait_for_what_is_not_issued(void **state)
{
    (void)state;
    open_gpus(false);
    for (uint32_t cold = 0; cold < 2; cold++) {
        gate g = {.value = (unsigned char)(7 + cold)};
        sem_init(&g.open, 0, 0);
        mp_stream *a = new_stream(0, cold ? MP_STREAM_COLD : MP_STREAM_DEMAND);
        mp_stream *b = new_stream(1, MP_STREAM_COMPUTE), *c = new_stream(2, MP_STREAM_DEMAND);
        unsigned char *on_b = new_memory(1);
        mp_tick there = copy_through(a, pinned, &g);
        MUST(ops->wait(b, a, there));
        mp_tick next = copy(b, on_b, pinned);
        next = copy(b, pinned + BYTES, on_b);
        MUST(ops->wait(c, b, next));
        mp_tick last = copy(c, pinned + 2 * BYTES, pinned + BYTES);
        assert_int_equal(ops->completed(b) + ops->completed(c), 0);
        sem_post(&g.open);
        MUST(ops->sync(c, last));
        assert_true(all_are(pinned + 2 * BYTES, g.value));
        ops->stream_destroy(a);
        ops->stream_destroy(b);
        ops->stream_destroy(c);
        free_memory(1, on_b);
        sem_destroy(&g.open);
    }
    close_gpus();
}

/* A wait that nothing follows is given up, whosoever list the stream is in. */
static void test_cuda_peers_waits_that_nothing_follows_are_dropped(void **state)
{
    (void)state;
    open_gpus(false);
    gate g = {.value = 1};
    sem_init(&g.open, 0, 0);
    mp_stream *a = new_stream(0, MP_STREAM_DEMAND), *cold = new_stream(1, MP_STREAM_COLD);
    mp_tick there = copy_through(a, pinned, &g);
    MUST(ops->wait(cold, a, there));
    ops->stream_destroy(cold); /* returns, though the gate is shut */
    sem_post(&g.open);
    MUST(ops->sync(a, there));
    ops->stream_destroy(a);
    sem_destroy(&g.open);
    close_gpus();
}

/* ---- A random program --------------------------------------------------------------------- */

enum { STREAMS = 7, OPS = 160, MOST_DEPS = 3 };

typedef struct op {
    uint32_t stream;
    mp_tick tick;
    uint32_t deps[MOST_DEPS], n_deps; /* of its stream before it, and of others that it waits for */
    uint32_t *written, *seen[MOST_DEPS]; /* 1 once it has run, pinned; what it saw of those */
} op;

static uint32_t below(uint64_t *random, uint32_t n)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % n;
}

static moepage_status write_one(const mp_copy *c, void *out)
{
    const uint32_t one = 1;
    for (uint32_t i = 0; i < c->fill_key[0]; i++)
        sched_yield();
    memcpy(out, &one, sizeof one);
    return MOEPAGE_OK;
}

static void run_program(uint64_t seed)
{
    static const mp_stream_class classes[] = {MP_STREAM_COMPUTE, MP_STREAM_DEMAND, MP_STREAM_COLD};
    static op program[OPS];
    mp_stream *streams[STREAMS];
    uint32_t last[STREAMS];
    uint64_t random = seed;
    const uint64_t bytes = OPS * (MOST_DEPS + 2) * sizeof(uint32_t);
    void *memory[GPUS + 1]; /* of each GPU, and pinned */
    uint32_t *cells[GPUS + 1];
    open_gpus(false);
    sim_cuda_jitter(seed);
    for (uint32_t m = 0; m <= GPUS; m++) {
        MUST(ops->alloc(gpus[m % GPUS], m < GPUS ? MP_MEMORY_WORKSPACE : MP_MEMORY_HOST, bytes,
                        &memory[m]));
        memset(memory[m], 0, bytes);
        cells[m] = memory[m];
        cells[m][OPS * (MOST_DEPS + 1)] = 1;
    }
    for (uint32_t s = 0; s < STREAMS; s++) {
        streams[s] = new_stream(s % GPUS, s == 6 ? MP_STREAM_COLD : classes[s / 3]);
        last[s] = UINT32_MAX;
    }
    for (uint32_t i = 0; i < OPS; i++) {
        op *o = &program[i];
        *o = (op){.stream = below(&random, STREAMS), .written = &cells[GPUS][i]};
        const uint32_t own =
            o->stream == 6 ? GPUS : o->stream % GPUS; /* COLD streams fill host memory */
        if (last[o->stream] != UINT32_MAX)
            o->deps[o->n_deps++] = last[o->stream];
        while (i > 0 && o->n_deps < MOST_DEPS && below(&random, 2)) {
            const op *other = &program[o->deps[o->n_deps++] = below(&random, i)];
            MUST(ops->wait(streams[o->stream], streams[other->stream], other->tick));
        }
        const bool fills = o->stream == 6 || below(&random, 4) == 0;
        mp_copy copies[MOST_DEPS + 1] = {{0}};
        for (uint32_t d = 0; d < o->n_deps; d++) {
            o->seen[d] = &cells[own][OPS + i * MOST_DEPS + d];
            copies[d] = (mp_copy){.dst = o->seen[d],
                                  .src = program[o->deps[d]].written,
                                  .bytes = sizeof(uint32_t)};
        }
        copies[o->n_deps] = (mp_copy){.dst = o->written,
                                      .bytes = sizeof(uint32_t),
                                      .src = &cells[own][OPS * (MOST_DEPS + 1)]};
        if (fills)
            copies[o->n_deps] = (mp_copy){.dst = o->written,
                                          .bytes = sizeof(uint32_t),
                                          .fill = write_one,
                                          .fill_key = {below(&random, 20)}};
        MUST(ops->copy(streams[o->stream], copies, o->n_deps + 1, &o->tick));
        last[o->stream] = i;
    }
    for (uint32_t s = 0; s < STREAMS; s++)
        ops->stream_destroy(streams[s]);
    for (uint32_t i = 0; i < OPS; i++)
        for (uint32_t d = 0; d < program[i].n_deps; d++)
            if (!*program[i].seen[d])
                fail_msg("seed %llu: op %u ran before op %u", (unsigned long long)seed, i,
                         program[i].deps[d]);
    for (uint32_t m = 0; m <= GPUS; m++)
        ops->free(gpus[m % GPUS], m < GPUS ? MP_MEMORY_WORKSPACE : MP_MEMORY_HOST, memory[m],
                  bytes);
    close_gpus();
}

static void test_cuda_peers_run_in_the_order_of_their_waits(void **state)
{
    (void)state;
    const uint64_t rounds = getenv("MP_TEST_LONG") ? 300 : 12;
    for (uint64_t seed = 1; seed <= rounds; seed++)
        run_program(seed);
}

/* ---- Memory ------------------------------------------------------------------------------- */

static void test_cuda_peers_reach_each_other_s_workspaces(void **state)
{
    (void)state;
    for (uint32_t none = 0; none < 2; none++) {
        bool can = none;
        mp_device *twin = NULL;
        open_gpus(none);
        MUST(ops->cuda->reach(gpus[1], gpus[0], &can));
        assert_int_equal(can, !none);
        can = none;
        MUST(ops->cuda->reach(gpus[1], gpus[0], &can)); /* again */
        assert_int_equal(can, !none);
        MUST(open_gpu(mp_cuda_of(gpus[0])->driver, 0, &twin)); /* the same GPU */
        can = false;
        MUST(ops->cuda->reach(twin, gpus[0], &can));
        assert_true(can);
        ops->close(twin);
        mp_stream *b = new_stream(1, MP_STREAM_COMPUTE);
        unsigned char *on_a = new_memory(0), *on_b = new_memory(1);
        memset(pinned, 3, BYTES);
        mp_tick last = copy(b, on_b, pinned);
        if (!none)
            copy(b, on_a, on_b);
        last = copy(b, pinned + BYTES, none ? on_b : on_a);
        MUST(ops->sync(b, last));
        assert_true(all_are(pinned + BYTES, 3));
        ops->stream_destroy(b);
        free_memory(0, on_a);
        free_memory(1, on_b);
        close_gpus();
    }
}

static void test_cuda_peers_say_why_they_do_not_reach(void **state)
{
    (void)state;
    bool can = true;
    open_gpus(false);
    sim_cuda_fail(SIM_enable_peer, 1, MP_CU_TOO_MANY_PEERS, false);
    MUST(ops->cuda->reach(gpus[1], gpus[0], &can));
    assert_false(can);
    sim_cuda_fail(SIM_enable_peer, 1, MP_CU_OUT_OF_MEMORY, false);
    assert_int_equal(ops->cuda->reach(gpus[1], gpus[0], &can), MOEPAGE_E_NO_MEMORY);
    assert_non_null(strstr(moepage_last_error(), "cuda:1: taking access to another GPU's memory"));
    sim_cuda_fail(SIM_can_access_peer, 1, MP_CU_INVALID_DEVICE, false);
    assert_int_equal(ops->cuda->reach(gpus[1], gpus[0], &can), MOEPAGE_E_DEVICE);
    MUST(ops->cuda->reach(gpus[1], gpus[0], &can));
    assert_true(can);
    close_gpus();
}

/* ---- Failure ------------------------------------------------------------------------------ */

/* A GPU that waits for one that fails goes on, is well, and whoever asks after the other is told. */
static void test_cuda_peers_outlive_one_that_fails(void **state)
{
    (void)state;
    for (uint32_t issued = 0; issued < 2; issued++) {
        gate g = {.value = 1};
        sem_init(&g.open, 0, 0);
        open_gpus(false);
        mp_stream *a = new_stream(0, MP_STREAM_COMPUTE), *b = new_stream(1, MP_STREAM_COMPUTE);
        sim_cuda_hold(handle_of(b));
        if (!issued)
            copy_through(b, pinned, &g);
        mp_tick there = copy(b, pinned + BYTES, pinned + 2 * BYTES), last;
        MUST(ops->wait(a, b, there));
        last = copy(a, pinned + 3 * BYTES, pinned + 4 * BYTES);
        sim_cuda_break(1, MP_CU_LAUNCH_FAILED);
        sem_post(&g.open);
        MUST(ops->sync(a, last));
        assert_int_equal(ops->sync(b, there), MOEPAGE_E_DEVICE);
        assert_non_null(strstr(moepage_last_error(), "cuda:1"));
        MUST(ops->settle(a, last));
        last = copy(a, pinned + 3 * BYTES, pinned + 4 * BYTES);
        MUST(ops->sync(a, last));
        ops->stream_destroy(a);
        ops->stream_destroy(b);
        close_gpus();
        sem_destroy(&g.open);
    }
}

/* So it is if the driver tells the one that waits, and nobody has asked after the other yet. A wait that fails
 * for a reason of its own is the waiting GPU's failure. */
static void test_cuda_peers_blame_the_one_that_fails(void **state)
{
    (void)state;
    for (uint32_t own = 0; own < 2; own++) {
        open_machine((sim_cuda_config){.waits_tell = true});
        mp_stream *a = new_stream(0, MP_STREAM_COMPUTE), *b = new_stream(1, MP_STREAM_COMPUTE);
        sim_cuda_hold(handle_of(b));
        mp_tick there = copy(b, pinned + BYTES, pinned + 2 * BYTES), last;
        const uint64_t waits = sim_cuda_get_stats().calls[SIM_stream_wait];
        if (own)
            sim_cuda_fail(SIM_stream_wait, 1, MP_CU_OUT_OF_MEMORY, false);
        else
            sim_cuda_break(1, MP_CU_LAUNCH_FAILED);
        MUST(ops->wait(a, b, there));
        last = copy(a, pinned + 3 * BYTES, pinned + 4 * BYTES);
        while (own && sim_cuda_get_stats().calls[SIM_stream_wait] == waits)
            sched_yield(); /* where b is done there is nothing to wait for */
        sim_cuda_release(handle_of(b));
        for (uint32_t gpu = 0; gpu < 2; gpu++) {
            const bool fails = gpu != own;
            assert_int_equal(ops->sync(gpu ? b : a, gpu ? there : last),
                             fails ? MOEPAGE_E_DEVICE : MOEPAGE_OK);
            if (fails)
                assert_non_null(strstr(moepage_last_error(), gpu ? "cuda:1" : "cuda:0"));
        }
        sim_cuda_fail_none();
        ops->stream_destroy(a);
        ops->stream_destroy(b);
        close_gpus();
    }
}

/* A device goes as soon as its streams have gone, though another's thread may just have issued for it. */
static void test_cuda_peers_close_while_others_issue_for_them(void **state)
{
    (void)state;
    const uint32_t rounds = getenv("MP_TEST_LONG") ? 2000 : 100;
    open_gpus(false);
    for (uint32_t i = 0; i < rounds; i++) {
        gate g = {.value = 1};
        mp_device *twin = NULL;
        mp_stream *a = new_stream(0, MP_STREAM_DEMAND), *b = NULL;
        sem_init(&g.open, 0, 0);
        MUST(open_gpu(mp_cuda_of(gpus[0])->driver, 1, &twin));
        MUST(ops->stream_create(twin, MP_STREAM_COMPUTE, &b));
        MUST(ops->wait(b, a, copy_through(a, pinned, &g)));
        mp_tick last = copy(b, pinned + BYTES, pinned);
        sem_post(&g.open);
        MUST(ops->sync(b, last));
        ops->stream_destroy(b);
        ops->close(twin);
        ops->stream_destroy(a);
        sem_destroy(&g.open);
    }
    close_gpus();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_peers_wait_on_the_gpu),
        cmocka_unit_test(test_cuda_peers_wait_for_what_is_not_issued),
        cmocka_unit_test(test_cuda_peers_waits_that_nothing_follows_are_dropped),
        cmocka_unit_test(test_cuda_peers_run_in_the_order_of_their_waits),
        cmocka_unit_test(test_cuda_peers_reach_each_other_s_workspaces),
        cmocka_unit_test(test_cuda_peers_say_why_they_do_not_reach),
        cmocka_unit_test(test_cuda_peers_outlive_one_that_fails),
        cmocka_unit_test(test_cuda_peers_blame_the_one_that_fails),
        cmocka_unit_test(test_cuda_peers_close_while_others_issue_for_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
