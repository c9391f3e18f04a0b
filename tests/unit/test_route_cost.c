/* What routing costs when everything is resident: no allocation, no lock, no system call.
 *
 * Allocation and lock functions are defined here, so that the library's calls come through this
 * file on their way to libc, and are counted while this thread is armed. System calls are not
 * counted but forbidden: a child process puts a filter on its thread that kills at the first. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#define LAYERS 8
#define EXPERTS 16
#define TOP_K 4
#define TOKENS 6

/* ---- the meter ---- */

static __thread bool armed;
static __thread uint32_t allocations, locks;

#ifndef SANITIZED

/* Looked up once: the loader has a lock of its own, which other threads may hold just then. */
#define NEXT(name)                                                      \
    (__extension__({                                                    \
        static __typeof__(&name) _Atomic next;                          \
        if (!atomic_load(&next))                                        \
            atomic_store(&next, (__typeof__(&name))next_symbol(#name)); \
        atomic_load(&next);                                             \
    }))

static void *next_symbol(const char *name)
{
    bool was_armed = armed;
    armed = false; /* dlsym may allocate */
    void *symbol = dlsym(RTLD_NEXT, name);
    armed = was_armed;
    return symbol;
}

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *block, size_t bytes);
extern void __libc_free(void *block);
extern void *__libc_memalign(size_t align, size_t bytes);

void *malloc(size_t bytes)
{
    allocations += armed;
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    allocations += armed;
    return __libc_calloc(n, bytes);
}

void *realloc(void *block, size_t bytes)
{
    allocations += armed;
    return __libc_realloc(block, bytes);
}

void free(void *block)
{
    allocations += armed;
    __libc_free(block);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    allocations += armed;
    *out = __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}

void *aligned_alloc(size_t align, size_t bytes)
{
    allocations += armed;
    return __libc_memalign(align, bytes);
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks += armed;
    return NEXT(pthread_mutex_lock)(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    locks += armed;
    return NEXT(pthread_mutex_trylock)(mutex);
}

int pthread_rwlock_rdlock(pthread_rwlock_t *lock)
{
    locks += armed;
    return NEXT(pthread_rwlock_rdlock)(lock);
}

int pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
    locks += armed;
    return NEXT(pthread_rwlock_wrlock)(lock);
}

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    locks += armed;
    return NEXT(pthread_cond_wait)(condition, mutex);
}

int pthread_cond_signal(pthread_cond_t *condition)
{
    locks += armed;
    return NEXT(pthread_cond_signal)(condition);
}

int pthread_cond_broadcast(pthread_cond_t *condition)
{
    locks += armed;
    return NEXT(pthread_cond_broadcast)(condition);
}

int sem_wait(sem_t *semaphore)
{
    locks += armed;
    return NEXT(sem_wait)(semaphore);
}

int sem_post(sem_t *semaphore)
{
    locks += armed;
    return NEXT(sem_post)(semaphore);
}

#endif

/* ---- the workload ---- */

static bank_model bank;
static pool_rig rig;

static moepage_session *open_session(uint32_t prefetch, uint32_t regime,
                                     const pool_rig_config *config)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 4,
                        .intermediate = 4,
                        .seed = 1};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, config);
    return pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS,
                                                            .prefetch = prefetch,
                                                            .regime = regime});
}

static void close_session(moepage_session *session)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static void load_everything(moepage_session *session)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; e < EXPERTS; e += TOP_K)
            pool_rig_visit(session, l, (int32_t[]){e, e + 1, e + 2, e + 3}, TOP_K);
}

/* Timings of the last loads end on another thread, under the lock that a step's end takes. */
static void await_probes(void)
{
    for (bool busy = true; busy;) {
        busy = false;
        pthread_mutex_lock(&rig.pool->lock);
        for (uint32_t d = 0; d < rig.pool->n_devices; d++)
            for (uint32_t i = 0; i < MP_PROBES; i++)
                busy = busy || rig.pool->cache->shards[d].transfer->probes[i].busy;
        pthread_mutex_unlock(&rig.pool->lock);
        sched_yield();
    }
}

/* The layers of a step of several tokens; routing and retiring, and nothing else, is metered. */
static bool metered_layers(moepage_session *session, uint64_t *random, bool with_plan)
{
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_step step = {.struct_size = sizeof step, .n_tokens = TOKENS};
    bool ok = moepage_session_begin(session, &step) == MOEPAGE_OK;
    for (uint32_t l = 0; l < LAYERS && ok; l++) {
        bank_model_route(&bank, random, TOKENS, TOP_K, false, ids, weights);
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = TOP_K,
                                   .ids = ids,
                                   .weights = weights};
        armed = true;
        ok = moepage_session_route(session, l, &routing, with_plan ? &plan : NULL) == MOEPAGE_OK;
        ok = ok && moepage_session_retire(session, l) == MOEPAGE_OK;
        armed = false;
    }
    return ok;
}

static bool metered_step(moepage_session *session, uint64_t *random, bool with_plan)
{
    return metered_layers(session, random, with_plan) &&
           moepage_session_end(session, NULL) == MOEPAGE_OK;
}

/* ---- counting ---- */

static void skip_if_sanitized(const char *test)
{
#ifdef SANITIZED
    print_message("%s: skipped, a sanitizer owns the allocator and the locks\n", test);
    skip();
#else
    (void)test;
#endif
}

static void test_route_cost_is_metered(void **state)
{
    (void)state;
    skip_if_sanitized(__func__);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    allocations = locks = 0;
    armed = true;
    void *volatile block = malloc(10);
    free(block);
    pthread_mutex_lock(&mutex);
    armed = false;
    pthread_mutex_unlock(&mutex);
    assert_int_equal(allocations, 2);
    assert_int_equal(locks, 1);

    /* The library's calls come by, too: loading an expert takes the lock. */
    moepage_session *session = open_session(MOEPAGE_PREFETCH_OFF, 0, &(pool_rig_config){0});
    uint64_t random = 1;
    locks = 0;
    assert_true(metered_step(session, &random, true));
    assert_true(locks > 0);
    close_session(session);
}

static void test_route_cost_has_no_allocation_and_no_lock(void **state)
{
    (void)state;
    skip_if_sanitized(__func__);
    for (uint32_t variant = 0; variant < 3 * 2 * 2 * 3; variant++) {
        pool_rig_config pool = {.n_devices = 1 + variant / 6 % 2,
                                .scan_percent = 10,
                                .scope = variant % 2};
        moepage_session *session = open_session(variant % 3, variant / 12, &pool);
        uint64_t random = variant;
        load_everything(session);
        allocations = locks = 0;
        for (uint32_t step = 0; step < 100; step++)
            assert_true(metered_step(session, &random, step % 2));
        assert_int_equal(allocations, 0);
        assert_int_equal(locks, 0);
        moepage_expert_pool_info info = pool_rig_info(&rig);
        assert_int_equal(info.misses, LAYERS * EXPERTS);
        close_session(session);
    }
}

/* While its log of hits is less than half full, which it is when the log has just been read. */
static void test_route_cost_of_a_steps_end_is_no_lock_either(void **state)
{
    (void)state;
    skip_if_sanitized(__func__);
    pool_rig_config pool = {0};
    moepage_session *session = open_session(MOEPAGE_PREFETCH_OFF, 0, &pool);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    uint64_t random = 5;
    load_everything(session);
    allocations = locks = 0;
    for (uint32_t step = 0; step < 100; step++) {
        (void)pool_rig_info(&rig);
        assert_true(metered_layers(session, &random, step % 2));
        armed = true;
        moepage_status status = moepage_session_end(session, &stats);
        armed = false;
        assert_int_equal(status, MOEPAGE_OK);
    }
    assert_int_equal(allocations, 0);
    assert_int_equal(locks, 0);
    assert_int_equal(moepage_expert_pool_get_stats(rig.pool, &stats), MOEPAGE_OK);
    assert_true(stats.steps >= 100);
    close_session(session);
}

/* ---- system calls ---- */

/* Kills at any system call but those to report, to end, and to read the clock, which a machine
 * without a vDSO needs to begin and end a step. False where filters cannot be had. */
static bool forbid_system_calls(void)
{
#define ALLOW(number)                                    \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write),
        ALLOW(SYS_exit_group),
        ALLOW(SYS_clock_gettime),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

enum { NO_FILTER = 'f', DONE = 'd', WRONG = 'w' };

/* Ends the process: `report` is what the parent reads. */
static void end_child(int pipe_end, char report)
{
    ssize_t written = write(pipe_end, &report, 1);
    syscall(SYS_exit_group, written == 1 ? 0 : 1);
}

static void route_in_child(int pipe_end, uint32_t prefetch, bool misbehave)
{
    moepage_session *session = open_session(prefetch, MOEPAGE_REGIME_STREAM, &(pool_rig_config){0});
    uint64_t random = 5;
    load_everything(session);
    await_probes();
    bool ok = metered_step(session, &random, true);
    if (!forbid_system_calls())
        end_child(pipe_end, NO_FILTER);
    if (misbehave)
        syscall(SYS_getppid);
    for (uint32_t step = 0; step < 100 && ok; step++)
        ok = metered_step(session, &random, step % 2);
    end_child(pipe_end, ok ? DONE : WRONG);
}

/* What the child reported, or 0 if it was killed for a system call. */
static char run_child(uint32_t prefetch, bool misbehave)
{
    int ends[2], status = 0;
    char report = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        route_in_child(ends[1], prefetch, misbehave);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], &report, 1);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (got == 1)
        return report;
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    return 0;
}

static void test_route_cost_has_no_system_call(void **state)
{
    (void)state;
    skip_if_sanitized(__func__);
    if (run_child(MOEPAGE_PREFETCH_OFF, false) == NO_FILTER) {
        print_message("%s: skipped, this system has no system call filters\n", __func__);
        skip();
    }
    assert_int_equal(run_child(MOEPAGE_PREFETCH_OFF, true), 0); /* the filter bites */
    assert_int_equal(run_child(MOEPAGE_PREFETCH_OFF, false), DONE);
    assert_int_equal(run_child(MOEPAGE_PREFETCH_HINT, false), DONE);
    assert_int_equal(run_child(MOEPAGE_PREFETCH_PREVIOUS, false), DONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route_cost_is_metered),
        cmocka_unit_test(test_route_cost_has_no_allocation_and_no_lock),
        cmocka_unit_test(test_route_cost_of_a_steps_end_is_no_lock_either),
        cmocka_unit_test(test_route_cost_has_no_system_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
