/* Layers that the device runs by itself: the same bits as a session's, whatever room there is, in a
 * graph or not, while experts come and go, and while others use the pool. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "device_rig.h"
#include "graph_rig.h"
#include "path_rig.h"
#include "sim_cuda.h"
#include "split/split.h"
#include "testing.h"

static uint32_t rounds(void)
{
    return getenv("MP_TEST_LONG") ? 30 : 3;
}

static void expect_same_bits(const path_rig_config *config)
{
    path_rig r;
    uint64_t layers = 0, routed = 0;
    bool seen[PATH_EXPERTS];
    path_rig_open(&r, config, 3 * rounds());
    for (uint32_t i = 0; i < r.n_steps; i++) {
        path_rig_run(&r, &r.steps[i], PATH_LAYERS);
        for (uint32_t l = 0; l < PATH_LAYERS; l++) {
            routed += path_step_distinct(&r.steps[i], l, seen);
            layers++;
        }
    }
    moepage_cuda_path_stats stats = path_rig_stats(&r);
    assert_int_equal(stats.status, MOEPAGE_OK);
    assert_int_equal(stats.layers, layers);
    assert_int_equal(stats.routed, routed);
    uint32_t slots = config->slots        ? config->slots
                     : config->pool.slots ? config->pool.slots
                                          : PATH_KEYS;
    assert_true(stats.misses <= stats.evictions + slots);
    assert_true(stats.misses >= stats.evictions);
    path_rig_close(&r);
}

static void test_cuda_path_gives_a_session_s_bits_at_every_budget(void **state)
{
    (void)state;
    static const uint32_t budgets[] = {PATH_EXPERTS, PATH_EXPERTS + 1, PATH_EXPERTS * 2, PATH_KEYS};
    for (uint32_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        expect_same_bits(
            &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32, .pool = {.slots = budgets[i]}});
        expect_same_bits(
            &(path_rig_config){.dtype = MOEPAGE_DTYPE_BF16, .slots = budgets[i], .callback = true});
    }
    expect_same_bits(&(path_rig_config){.dtype = MOEPAGE_DTYPE_BF16, .max_tokens = 2, .slots = 6});
}

static void test_cuda_path_gives_a_session_s_bits_in_every_way_to_load(void **state)
{
    (void)state;
    expect_same_bits(&(path_rig_config){.dtype = MOEPAGE_DTYPE_BF16,
                                        .math = MOEPAGE_MATH_BF16,
                                        .pool = {.slots = 20, .chunk_bytes = 4096}});
    expect_same_bits(
        &(path_rig_config){.dtype = MOEPAGE_DTYPE_F16,
                           .max_tokens = 3,
                           .pool = {.slots = 10 * PATH_LAYERS, .scope = MOEPAGE_SCOPE_LAYER}});
    expect_same_bits(&(path_rig_config){.dtype = MOEPAGE_DTYPE_BF16,
                                        .callback = true,
                                        .pool = {.slots = 18, .host_experts = 24}});
}

/* Integers in slots, and gpt-oss's activation. */
static void test_cuda_path_gives_a_session_s_bits_of_every_kind_of_experts(void **state)
{
    static const uint32_t forms[] = {MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2};
    static const uint32_t budgets[] = {PATH_EXPERTS, PATH_KEYS};
    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        expect_same_bits(
            &(path_rig_config){.dtype = MOEPAGE_DTYPE_BF16,
                               .math = i % 2 ? MOEPAGE_MATH_BF16 : MOEPAGE_MATH_FP32,
                               .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << forms[i % 3],
                               .pool = {.slots = budgets[i / 3], .slot_form = forms[i % 3]}});
    expect_same_bits(&(path_rig_config){.dtype = MOEPAGE_DTYPE_BF16,
                                        .clamped = true,
                                        .pool = {.slots = PATH_EXPERTS + 1}});
}

/* By the CPU for the device; unknown on a real one. */
static uint64_t words_written(void)
{
    return device_rig_is_simulated() ? sim_cuda_get_stats().calls[SIM_stream_write32] : 0;
}

static void test_cuda_path_leaves_the_cpu_alone_when_all_is_resident(void **state)
{
    (void)state;
    path_rig r;
    path_rig_open(&r, &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32}, 2 * rounds());
    for (uint32_t i = 0; i < r.n_steps; i++)
        path_rig_run(&r, &r.steps[i], PATH_LAYERS);
    moepage_cuda_path_stats before = path_rig_stats(&r);
    uint64_t writes = words_written();
    for (uint32_t i = 0; i < r.n_steps; i++)
        path_rig_run(&r, &r.steps[i], PATH_LAYERS);
    moepage_cuda_path_stats after = path_rig_stats(&r);
    assert_int_equal(after.all_hit - before.all_hit, r.n_steps * PATH_LAYERS);
    assert_int_equal(after.misses, before.misses);
    assert_int_equal(words_written(), writes);
    path_rig_close(&r);
}

static void hear(void *user, int32_t level, const char *text)
{
    if (level == MOEPAGE_LOG_WARNING && strstr(text, "CUDA_DEVICE_MAX_CONNECTIONS=32"))
        ++*(uint32_t *)user;
}

static void test_cuda_path_warns_when_streams_share_queues(void **state)
{
    (void)state;
    path_rig r;
    uint32_t warnings = 0;
    if (!device_rig_is_simulated())
        skip();
    path_rig_open(&r, &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32}, 1);
    r.pool.devices[0]->device->log = (mp_log){hear, &warnings};
    assert_int_equal(moepage_cuda_path_destroy(r.path), MOEPAGE_OK);
    sim_cuda_connect(1);
    r.path = path_rig_create(&r, 0);
    assert_int_equal(warnings, 1);
    sim_cuda_connect(0);
    path_rig_run(&r, &r.steps[0], PATH_LAYERS); /* the path is as good as any */
    path_rig_close(&r);
}

/* One expert per layer and step: no two were last needed at the same time, so that there is one
 * right victim. */
static void test_cuda_path_lets_go_of_the_least_recently_needed(void **state)
{
    (void)state;
    enum { SLOTS = 7 };
    path_rig r;
    uint64_t random = 5, last[PATH_KEYS] = {0}, clock = 0, misses = 0;
    uint32_t held = 0;
    bool there[PATH_KEYS] = {false};
    path_rig_open(&r,
                  &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32, .max_tokens = 2, .slots = SLOTS},
                  1);
    for (uint32_t i = 0; i < 10 * rounds(); i++) {
        path_step s = {.n_tokens = 1};
        for (uint32_t l = 0; l < PATH_LAYERS; l++) {
            int32_t id = (int32_t)bank_below(&random, 5);
            for (uint32_t k = 0; k < PATH_TOP_K; k++)
                s.ids[l][k] = k ? MOEPAGE_NO_EXPERT : id;
            uint32_t key = l * PATH_EXPERTS + (uint32_t)id, oldest = UINT32_MAX;
            for (uint32_t other = 0; other < PATH_KEYS; other++)
                if (there[other] && (oldest == UINT32_MAX || last[other] < last[oldest]))
                    oldest = other;
            if (!there[key] && held == SLOTS)
                there[oldest] = false;
            else
                held += !there[key];
            misses += !there[key];
            there[key] = true;
            last[key] = ++clock;
        }
        path_caller_write(&r.caller, &s);
        path_rig_submit(&r, 1);
        path_caller_sync(&r.caller);
    }
    moepage_cuda_path_stats stats = path_rig_stats(&r);
    assert_int_equal(stats.misses, misses);
    assert_int_equal(stats.evictions, misses - held);
    path_rig_close(&r);
}

static void test_cuda_path_replays_a_step_while_experts_come_and_go(void **state)
{
    (void)state;
    static const uint32_t budgets[] = {PATH_EXPERTS, 20, PATH_KEYS};
    for (uint32_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
        path_rig r;
        path_rig_open(&r, &(path_rig_config){.dtype = MOEPAGE_DTYPE_BF16, .slots = budgets[b]},
                      3 * rounds());
        mp_cuda *cuda = mp_cuda_of(r.caller.home->device);
        for (uint32_t i = 0; i < r.n_steps; i++) /* one shape: its last tokens go to no expert */
            for (uint32_t l = 0; l < PATH_LAYERS; l++)
                for (uint32_t row = r.steps[i].n_tokens * PATH_TOP_K; row < PATH_ROWS; row++)
                    r.steps[i].ids[l][row] = MOEPAGE_NO_EXPERT;
        graph_rig_begin(cuda, r.caller.stream);
        path_rig_submit(&r, PATH_TOKENS);
        graph_rig *graph = graph_rig_end(cuda, r.caller.stream);
        assert_int_equal(path_rig_stats(&r).layers, 0);
        for (uint32_t i = 0; i < r.n_steps; i++) {
            path_caller_write(&r.caller, &r.steps[i]);
            graph_rig_launch(graph, r.caller.stream);
            graph_rig_launch(graph, r.caller.stream);
            path_caller_sync(&r.caller);
            path_rig_expect(&r, &r.steps[i], PATH_LAYERS);
        }
        moepage_cuda_path_stats stats = path_rig_stats(&r);
        assert_int_equal(stats.status, MOEPAGE_OK);
        assert_int_equal(stats.layers, 2 * r.n_steps * PATH_LAYERS);
        assert_true(budgets[b] == PATH_KEYS || stats.evictions > 0);
        graph_rig_destroy(graph);
        path_rig_close(&r);
    }
}

/* ---- others on the same pool ---- */

typedef struct bystander {
    path_caller caller;
    moepage_session *session;
    const path_step *steps;
    uint32_t n_steps;
    _Atomic bool stop;
    uint64_t done;
    const char *wrong;
} bystander;

static bool bystander_layer(bystander *b, const path_step *s, uint32_t l)
{
    moepage_routing routing = {.struct_size = sizeof routing, .top_k = PATH_TOP_K};
    routing.ids = s->ids[l];
    routing.weights = s->weights[l];
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = b->caller.x};
    ffn.y = b->caller.y + l * PATH_Y;
    ffn.stream = b->caller.stream;
    return !moepage_session_route(b->session, l, &routing, NULL) &&
           !moepage_session_ffn(b->session, l, &ffn) && !moepage_session_retire(b->session, l);
}

/* Runs steps of its own; it asserts nothing, for it is not the test's thread. */
static void *bystander_run(void *user)
{
    bystander *b = user;
    while (!atomic_load(&b->stop) && !b->wrong) {
        const path_step *s = &b->steps[b->done++ % b->n_steps];
        moepage_step begin = {.struct_size = sizeof begin, .n_tokens = s->n_tokens};
        path_caller_write(&b->caller, s);
        if (moepage_session_begin(b->session, &begin))
            b->wrong = "begin";
        for (uint32_t l = 0; l < PATH_LAYERS && !b->wrong; l++)
            b->wrong = bystander_layer(b, s, l) ? NULL : "layer";
        if (moepage_session_end(b->session, NULL))
            b->wrong = "end";
        path_caller_sync(&b->caller);
        float y[PATH_LAYERS][PATH_Y];
        path_caller_read(&b->caller, y);
        for (uint32_t l = 0; l < PATH_LAYERS && !b->wrong; l++)
            if (memcmp(y[l], s->y[l], s->n_tokens * PATH_HIDDEN * sizeof(float)))
                b->wrong = "bits";
    }
    return NULL;
}

/* A step of one expert in each layer. */
static void run_narrow(path_rig *r, int32_t expert)
{
    path_step s = {.n_tokens = 1};
    for (uint32_t l = 0; l < PATH_LAYERS; l++)
        for (uint32_t k = 0; k < PATH_TOP_K; k++)
            s.ids[l][k] = k ? MOEPAGE_NO_EXPERT : expert;
    path_caller_write(&r->caller, &s);
    path_rig_submit(r, 1);
    path_caller_sync(&r->caller);
}

/* Its experts lie where the pool is to end, and it has slots enough: it lets go of them when it next
 * asks for another expert, and brings them anew. */
static void test_cuda_path_makes_way_for_a_smaller_pool(void **state)
{
    (void)state;
    path_rig r;
    path_rig_open(&r,
                  &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32,
                                     .max_tokens = 2,
                                     .slots = 20,
                                     .pool = {.slots = 40}},
                  1);
    moepage_session *other = pool_rig_session(&r.pool, NULL);
    for (int32_t key = 0; key < 20; key++) /* takes the lower slots */
        pool_rig_visit(other, (uint32_t)key / PATH_EXPERTS, (int32_t[]){key % PATH_EXPERTS}, 1);
    assert_int_equal(moepage_session_destroy(other), MOEPAGE_OK);
    for (int32_t expert = 10; expert < 15; expert++)
        run_narrow(&r, expert); /* 15 of 20, some of them above the new end */
    assert_int_equal(mp_split_move(r.pool.pool, NULL, 24, 0, NULL), MOEPAGE_E_BUSY);
    run_narrow(&r, 12); /* all there: nobody is asked for anything */
    assert_int_equal(mp_split_move(r.pool.pool, NULL, 24, 0, NULL), MOEPAGE_E_BUSY);
    run_narrow(&r, 9);
    assert_int_equal(mp_split_move(r.pool.pool, NULL, 24, 0, NULL), MOEPAGE_OK);
    assert_int_equal(pool_rig_info(&r.pool).slots, 24);
    path_rig_run(&r, &r.steps[0], PATH_LAYERS);
    path_rig_close(&r);
}

static void test_cuda_path_shares_its_pool_with_sessions(void **state)
{
    (void)state;
    path_rig r;
    pthread_t thread;
    path_rig_open(&r,
                  &(path_rig_config){.dtype = MOEPAGE_DTYPE_BF16,
                                     .callback = true,
                                     .pool = {.slots = PATH_EXPERTS + 8},
                                     .slots = PATH_EXPERTS},
                  3 * rounds());
    bystander b = {.steps = r.steps, .n_steps = r.n_steps};
    b.session = pool_rig_session(&r.pool, &(moepage_session_config){.max_tokens = PATH_TOKENS});
    path_caller_open(&b.caller, r.pool.devices[0]);
    sim_cuda_jitter(1);
    assert_int_equal(pthread_create(&thread, NULL, bystander_run, &b), 0);
    for (uint32_t i = r.n_steps; i-- > 0;)
        path_rig_run(&r, &r.steps[i], PATH_LAYERS);
    atomic_store(&b.stop, true);
    pthread_join(thread, NULL);
    if (b.wrong)
        fail_msg("the bystander: %s: %s", b.wrong, moepage_last_error());
    assert_int_equal(moepage_cuda_path_check(r.path, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(b.session), MOEPAGE_OK);
    path_caller_close(&b.caller);
    path_rig_close(&r);
}

int main(void)
{
    setenv("MP_TEST_DEVICE", "sim", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_path_gives_a_session_s_bits_at_every_budget),
        cmocka_unit_test(test_cuda_path_gives_a_session_s_bits_in_every_way_to_load),
        cmocka_unit_test(test_cuda_path_gives_a_session_s_bits_of_every_kind_of_experts),
        cmocka_unit_test(test_cuda_path_leaves_the_cpu_alone_when_all_is_resident),
        cmocka_unit_test(test_cuda_path_warns_when_streams_share_queues),
        cmocka_unit_test(test_cuda_path_lets_go_of_the_least_recently_needed),
        cmocka_unit_test(test_cuda_path_replays_a_step_while_experts_come_and_go),
        cmocka_unit_test(test_cuda_path_makes_way_for_a_smaller_pool),
        cmocka_unit_test(test_cuda_path_shares_its_pool_with_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
