/* What is particular to the host device: names, memory limits, which thread does what. */
#include <string.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#include "device/seam.h"
#include "device/worker.h"
#include "testing.h"

static mp_device *open_logged(uint32_t threads, moepage_log_fn log, void *user)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = threads,
                                    .budget_bytes = 1 << 20,
                                    .log = log,
                                    .log_user = user};
    mp_device *device = NULL;
    assert_int_equal(mp_device_open("host", &config, &device), MOEPAGE_OK);
    return device;
}

static mp_device *open_host(uint32_t threads)
{
    return open_logged(threads, NULL, NULL);
}

static moepage_status open_named(const char *name)
{
    moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 1 << 20};
    mp_device *device = NULL;
    moepage_status status = mp_device_open(name, &config, &device);
    if (!status)
        device->ops->close(device);
    else
        assert_non_null(strstr(moepage_last_error(), name));
    return status;
}

static void test_device_names_are_told_apart(void **state)
{
    (void)state;
    static const char *const unknown[] = {"",      "hos",  "hostt", "Host",   "host:",   "host:0",
                                          ":host", "cuda", "cuda:", "cuda:x", "cuda:1x", "cuda:-1"};
    assert_int_equal(open_named("host"), MOEPAGE_OK);
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(open_named(unknown[i]), MOEPAGE_E_NOT_FOUND);
}

static void test_host_says_what_it_is(void **state)
{
    (void)state;
    mp_device *device = open_host(3);
    assert_string_equal(device->name, "host");
    assert_int_equal(device->threads, 3);
    assert_int_equal(device->io_threads, 4);
    assert_true(strlen(device->kernels) > 0);
    assert_true(device->caps & MP_CAP_SYNC_CALLER);
    device->ops->close(device);
    device = open_host(0);
    assert_int_equal(device->threads, sysconf(_SC_NPROCESSORS_ONLN));
    device->ops->close(device);
}

static void test_host_refuses_absurd_thread_counts(void **state)
{
    (void)state;
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = 4000000000u,
                                    .budget_bytes = 1 << 20};
    mp_device *device = NULL;
    assert_int_equal(mp_device_open("host", &config, &device), MOEPAGE_E_ARGUMENT);
    config.threads = 1;
    config.io_threads = 65;
    assert_int_equal(mp_device_open("host", &config, &device), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "io_threads is 65, at most 64"));
    assert_null(device);
    config.io_threads = 64;
    assert_int_equal(mp_device_open("host", &config, &device), MOEPAGE_OK);
    assert_int_equal(device->io_threads, 64);
    device->ops->close(device);
}

static void test_host_refuses_an_arena_beyond_memory(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1ull << 44, 1ull << 62, UINT64_MAX - 4095};
    mp_device *device = open_host(1);
    void *memory = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(device->ops->alloc(device, MP_MEMORY_ARENA, sizes[i], &memory),
                         MOEPAGE_E_NO_MEMORY);
    }
    /* Room for alignment must not wrap round to a small allocation. */
    assert_int_equal(device->ops->alloc(device, MP_MEMORY_HOST, UINT64_MAX - 10, &memory),
                     MOEPAGE_E_NO_MEMORY);
    assert_null(memory);
    device->ops->close(device);
}

/* A limit that the system enforces with a signal, whose default is to end the program. */
static void test_host_refuses_an_arena_beyond_the_limit_on_files(void **state)
{
    (void)state;
    struct rlimit before;
    mp_device *device = open_host(1);
    void *memory = NULL;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit little = {1 << 20, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    moepage_status beyond = device->ops->alloc(device, MP_MEMORY_ARENA, (1 << 20) + 4096, &memory);
    bool named = strstr(moepage_last_error(), "1048576 bytes (RLIMIT_FSIZE)") != NULL;
    moepage_status within = device->ops->alloc(device, MP_MEMORY_ARENA, 1 << 20, &memory);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(beyond, MOEPAGE_E_NO_MEMORY);
    assert_true(named);
    assert_int_equal(within, MOEPAGE_OK);
    device->ops->free(device, MP_MEMORY_ARENA, memory, 1 << 20);
    device->ops->close(device);
}

static void test_host_has_one_arena(void **state)
{
    (void)state;
    mp_device *device = open_host(2);
    void *arena = NULL, *second = NULL;
    assert_int_equal(device->ops->alloc(device, MP_MEMORY_ARENA, 1 << 20, &arena), MOEPAGE_OK);
    assert_int_equal(device->ops->alloc(device, MP_MEMORY_ARENA, 1 << 20, &second),
                     MOEPAGE_E_STATE);
    device->ops->free(device, MP_MEMORY_ARENA, arena, 1 << 20);
    assert_int_equal(device->ops->alloc(device, MP_MEMORY_ARENA, 4096, &arena), MOEPAGE_OK);
    device->ops->free(device, MP_MEMORY_ARENA, arena, 4096);
    device->ops->close(device);
}

static void test_host_launches_on_compute_streams_only(void **state)
{
    (void)state;
    static const struct {
        mp_stream_class cls;
        moepage_status launch;
    } cases[] = {{MP_STREAM_COMPUTE, MOEPAGE_OK},
                 {MP_STREAM_BACKGROUND, MOEPAGE_OK},
                 {MP_STREAM_DEMAND, MOEPAGE_E_ARGUMENT},
                 {MP_STREAM_PREFETCH, MOEPAGE_E_ARGUMENT},
                 {MP_STREAM_COLD, MOEPAGE_E_ARGUMENT}};
    mp_device *device = open_host(1);
    mp_kernel_args args = {.decode = {.n_jobs = 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mp_stream *stream = NULL;
        mp_tick tick = 77;
        assert_int_equal(device->ops->stream_create(device, cases[i].cls, &stream), MOEPAGE_OK);
        assert_int_equal(device->ops->launch(stream, MP_KERNEL_DECODE, &args, &tick),
                         cases[i].launch);
        assert_int_equal(tick, cases[i].launch ? 77 : 1);
        device->ops->stream_destroy(stream);
    }
    device->ops->close(device);
}

/* ---- Who runs what ---------------------------------------------------------------------- */

static moepage_status note_thread(const mp_copy *copy, void *out)
{
    *(pthread_t *)copy->fill_user = pthread_self();
    memset(out, 0, copy->bytes);
    return 0;
}

/* A caller that waits helps, but foreign code does not run on its stack. */
static void check_fills_on_own_threads(mp_stream_class cls)
{
    mp_device *device = open_host(1);
    mp_stream *stream = NULL;
    char byte;
    assert_int_equal(device->ops->stream_create(device, cls, &stream), MOEPAGE_OK);
    for (uint32_t i = 0; i < 500; i++) {
        pthread_t ran_on = pthread_self();
        mp_copy copy = {.dst = &byte, .bytes = 1, .fill = note_thread, .fill_user = &ran_on};
        mp_tick tick = 0;
        assert_int_equal(device->ops->copy(stream, &copy, 1, &tick), MOEPAGE_OK);
        assert_int_equal(device->ops->sync(stream, tick), MOEPAGE_OK);
        assert_false(pthread_equal(ran_on, pthread_self()));
    }
    device->ops->stream_destroy(stream);
    device->ops->close(device);
}

static void test_host_fills_on_its_own_threads(void **state)
{
    (void)state;
    check_fills_on_own_threads(MP_STREAM_DEMAND);
    check_fills_on_own_threads(MP_STREAM_COLD);
}

typedef struct gate {
    sem_t begun, open;
} gate;

static moepage_status hold(const mp_copy *copy, void *out)
{
    gate *g = (gate *)copy->fill_user;
    sem_post(&g->begun);
    sem_wait(&g->open);
    memset(out, 0, copy->bytes);
    return 0;
}

/* A wait that nothing follows is no work: it does not keep its stream from being destroyed. */
static void test_host_destroys_a_stream_that_only_waits(void **state)
{
    (void)state;
    mp_device *device = open_host(1);
    mp_stream *blocked = NULL, *waiting = NULL;
    char byte;
    gate g;
    sem_init(&g.begun, 0, 0);
    sem_init(&g.open, 0, 0);
    mp_copy copy = {.dst = &byte, .bytes = 1, .fill = hold, .fill_user = &g};
    mp_tick tick = 0;
    assert_int_equal(device->ops->stream_create(device, MP_STREAM_DEMAND, &blocked), MOEPAGE_OK);
    assert_int_equal(device->ops->copy(blocked, &copy, 1, &tick), MOEPAGE_OK);
    sem_wait(&g.begun);
    for (uint32_t i = 1; i < 4; i++) {
        assert_int_equal(device->ops->stream_create(device, MP_STREAM_COMPUTE, &waiting),
                         MOEPAGE_OK);
        for (uint32_t j = 0; j < i; j++)
            assert_int_equal(device->ops->wait(waiting, blocked, tick), MOEPAGE_OK);
        device->ops->stream_destroy(waiting);
    }
    sem_post(&g.open);
    device->ops->stream_destroy(blocked);
    device->ops->close(device);
}

static moepage_status refuse(const mp_copy *copy, void *out)
{
    (void)copy;
    (void)out;
    return 42;
}

typedef struct logged {
    uint32_t n;
    int32_t level;
    char text[300];
} logged;

static void take_log(void *user, int32_t level, const char *text)
{
    logged *log = user;
    log->n++;
    log->level = level;
    strncpy(log->text, text, sizeof log->text - 1);
}

static void test_host_logs_its_poisoning_once(void **state)
{
    (void)state;
    logged log = {0};
    mp_device *device = open_logged(1, take_log, &log);
    mp_stream *stream = NULL;
    char byte;
    mp_copy copy = {.dst = &byte, .bytes = 1, .fill = refuse, .fill_key = {3, 14, 1}};
    mp_tick tick = 0;
    assert_int_equal(device->ops->stream_create(device, MP_STREAM_PREFETCH, &stream), MOEPAGE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(device->ops->copy(stream, &copy, 1, &tick), MOEPAGE_OK);
        assert_int_equal(device->ops->sync(stream, tick), MOEPAGE_E_DEVICE);
    }
    assert_non_null(strstr(moepage_last_error(), "expert 14"));
    device->ops->stream_destroy(stream);
    device->ops->close(device);
    assert_int_equal(log.n, 1);
    assert_int_equal(log.level, MOEPAGE_LOG_ERROR);
    assert_non_null(strstr(log.text, "42"));
}

/* ---- Tasks in order --------------------------------------------------------------------- */

static void test_tasks_are_kept_in_order_of_their_ticks(void **state)
{
    (void)state;
    static const mp_tick due[] = {5, 3, 9, 3, 1, 9, 5, 12};
    static const uint32_t order[] = {4, 1, 3, 0, 6, 2, 5, 7};
    enum { N = sizeof due / sizeof *due };
    mp_task tasks[N] = {0};
    mp_task_list list = {0};
    for (uint32_t i = 0; i < N; i++) {
        tasks[i].due = due[i];
        mp_task_insert(&list, &tasks[i]);
    }
    for (uint32_t i = 0; i < N; i++)
        assert_ptr_equal(mp_task_take(&list), &tasks[order[i]]);
    assert_null(mp_task_take(&list));
    mp_task_insert(&list, &tasks[0]); /* usable after it was emptied */
    assert_ptr_equal(mp_task_take(&list), &tasks[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_names_are_told_apart),
        cmocka_unit_test(test_host_says_what_it_is),
        cmocka_unit_test(test_host_refuses_absurd_thread_counts),
        cmocka_unit_test(test_host_refuses_an_arena_beyond_memory),
        cmocka_unit_test(test_host_refuses_an_arena_beyond_the_limit_on_files),
        cmocka_unit_test(test_host_has_one_arena),
        cmocka_unit_test(test_host_launches_on_compute_streams_only),
        cmocka_unit_test(test_host_fills_on_its_own_threads),
        cmocka_unit_test(test_host_destroys_a_stream_that_only_waits),
        cmocka_unit_test(test_host_logs_its_poisoning_once),
        cmocka_unit_test(test_tasks_are_kept_in_order_of_their_ticks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
