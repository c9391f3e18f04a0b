/* Random schedules of sessions that stream, cache, or choose by themselves, over one pool whose size
 * changes: whatever is served are the right bytes, and the pool's books are right at every end of a
 * step.
 *
 * One thread steps all sessions, so that a seed says everything but when background loads land. */
#include <stdio.h>
#include <stdlib.h>

#include "device_rig.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "session/inside.h"
#include "testing.h"

#define SESSIONS 3
#define MAX_EXPERTS 12
#define MAX_TOKENS 8
#define TOP_K 3

typedef struct schedule {
    uint64_t seed, random;
    bank_model bank;
    pool_rig rig;
    moepage_session *sessions[SESSIONS];
    uint32_t n_sessions, layers, experts;
    bool open[SESSIONS];
    uint32_t next_layer[SESSIONS], tokens[SESSIONS];
    uint32_t pinned[2]; /* layer, expert; layer UINT32_MAX: none */
} schedule;

#define must(condition)                                                         \
    do {                                                                        \
        if (!(condition))                                                       \
            fail_msg("seed %llu: %s", (unsigned long long)s->seed, #condition); \
    } while (0)

static uint32_t draw(schedule *s, uint32_t n)
{
    return bank_below(&s->random, n);
}

static void open_schedule(schedule *s, uint64_t seed)
{
    *s = (schedule){.seed = seed, .random = seed, .pinned = {UINT32_MAX, 0}};
    s->layers = 1 + draw(s, 8);
    s->experts = 4 + draw(s, MAX_EXPERTS - 3);
    s->n_sessions = 1 + draw(s, SESSIONS);
    uint32_t keys = s->layers * s->experts, devices = 1 + draw(s, 2);
    bank_shape shape = {.layers = s->layers,
                        .experts = s->experts,
                        .top_k = TOP_K,
                        .hidden = 4,
                        .intermediate = 3,
                        .callback = draw(s, 2),
                        .seed = seed};
    bank_model_open(&s->bank, &shape);
    pool_rig_config pool = {
        .n_devices = devices,
        .slots = 2 * SESSIONS + draw(s, keys > 2 * SESSIONS ? keys - 2 * SESSIONS : 1),
        .policy = draw(s, 2) ? "lru" : "lfu",
        .scan_percent = draw(s, 4) ? 0 : 30,
        .chunk_bytes = draw(s, 2) ? 50 : 0,
    };
    pool_rig_open(&s->rig, &s->bank, &pool);
    for (uint32_t i = 0; i < s->n_sessions; i++)
        s->sessions[i] =
            pool_rig_session(&s->rig, &(moepage_session_config){.max_tokens = MAX_TOKENS,
                                                                .regime = draw(s, 3),
                                                                .prefetch = draw(s, 3)});
}

/* The next layer of a session's step, or the first of a new one. */
static void advance(schedule *s, uint32_t i)
{
    int32_t ids[MAX_TOKENS * TOP_K];
    float weights[MAX_TOKENS * TOP_K];
    moepage_session *session = s->sessions[i];
    if (!s->open[i]) {
        s->tokens[i] = draw(s, 3) ? MAX_TOKENS : 1 + draw(s, MAX_TOKENS);
        pool_rig_begin(session, s->tokens[i],
                       draw(s, 5) ? MOEPAGE_PHASE_DECODE : MOEPAGE_PHASE_PREFILL);
        s->open[i] = true;
        s->next_layer[i] = 0;
    }
    uint32_t layer = s->next_layer[i]++;
    bank_model_route(&s->bank, &s->random, s->tokens[i], TOP_K, true, ids, weights);
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = TOP_K,
                               .ids = ids,
                               .weights = weights};
    must(!moepage_session_route(session, layer, &routing, &plan));
    for (;;) {
        for (uint32_t e = 0; e < plan.n_experts; e++)
            must(pool_rig_holds(&s->rig, layer, &plan.experts[e]));
        if (plan.group + 1 == plan.n_groups)
            break;
        must(!moepage_session_next_group(session, layer, &plan));
    }
    if (draw(s, 40) == 0) {
        must(!moepage_session_cancel(session));
        s->open[i] = false;
        return;
    }
    must(!moepage_session_retire(session, layer));
    if (s->next_layer[i] < s->layers)
        return;
    moepage_session_stats stats = {.struct_size = sizeof stats};
    must(!moepage_session_end(session, &stats));
    must(stats.hits + stats.misses + stats.late == stats.routed);
    must(stats.streamed_layers <= stats.layers);
    s->open[i] = false;
}

/* Now and then a layer goes over, as if by itself. */
static void flip(schedule *s, uint32_t i)
{
    moepage_session *session = s->sessions[i];
    uint32_t layer = draw(s, s->layers);
    if (session->step.config.regime == MOEPAGE_REGIME_AUTO)
        mp_client_stream(session->step.client, layer, draw(s, 2));
}

static void resize(schedule *s)
{
    uint32_t keys = s->layers * s->experts;
    uint64_t slots = 1 + draw(s, keys);
    moepage_status status =
        s->rig.n_devices == 1 ? moepage_split_set(s->rig.pool, NULL, slots, 0, NULL) : MOEPAGE_OK;
    must(!status || status == MOEPAGE_E_BUDGET || status == MOEPAGE_E_BUSY);
}

static void pin_or_unpin(schedule *s)
{
    if (s->pinned[0] != UINT32_MAX) {
        must(!moepage_expert_pool_unpin(s->rig.pool, s->pinned[0], s->pinned[1]));
        s->pinned[0] = UINT32_MAX;
        return;
    }
    uint32_t layer = draw(s, s->layers), expert = draw(s, s->experts);
    moepage_status status = moepage_expert_pool_pin(s->rig.pool, layer, expert);
    must(!status || status == MOEPAGE_E_BUDGET);
    if (!status)
        s->pinned[0] = layer, s->pinned[1] = expert;
}

static void close_schedule(schedule *s)
{
    moepage_session_stats sum = {0};
    if (s->pinned[0] != UINT32_MAX)
        pin_or_unpin(s);
    for (uint32_t i = 0; i < s->n_sessions; i++) {
        moepage_session_stats stats = {.struct_size = sizeof stats};
        must(!moepage_session_cancel(s->sessions[i]));
        must(!moepage_session_get_stats(s->sessions[i], &stats));
        sum.hits += stats.hits, sum.misses += stats.misses, sum.late += stats.late;
        must(!moepage_session_destroy(s->sessions[i]));
        pool_rig_check(&s->rig);
    }
    moepage_expert_pool_info info = pool_rig_info(&s->rig);
    must(info.hits == sum.hits && info.misses == sum.misses && info.late == sum.late);
    must(atomic_load(&s->rig.pool->cache->n_streamers) == 0);
    for (uint32_t l = 0; l < s->layers; l++)
        must(s->rig.pool->cache->streams[l] == 0);
    pool_rig_close(&s->rig);
    bank_model_close(&s->bank);
}

static void run_schedule(uint64_t seed)
{
    static schedule s;
    open_schedule(&s, seed);
    for (uint32_t turn = 0; turn < 400; turn++) {
        uint32_t i = draw(&s, s.n_sessions);
        advance(&s, i);
        if (draw(&s, 20) == 0)
            flip(&s, i);
        if (draw(&s, 30) == 0)
            resize(&s);
        if (draw(&s, 25) == 0)
            pin_or_unpin(&s);
        if (!s.open[i] && draw(&s, 4) == 0)
            pool_rig_wait(&s.rig);
    }
    close_schedule(&s);
}

static void test_stream_schedules_serve_the_right_bytes(void **state)
{
    (void)state;
    uint64_t seeds = getenv("MP_TEST_LONG") ? 2000 : device_rig_is_cuda() ? 10 : 40;
    for (uint64_t seed = 1; seed <= seeds; seed++)
        run_schedule(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_schedules_serve_the_right_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
