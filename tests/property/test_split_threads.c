/* The split and the budget move in one thread while sessions run in others, on the host device, some of which
 * stream and some of which cache, while others come and go: nothing that a plan shows is ever wrong,
 * no session is refused what it could have had, no token is lost. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/kv_pool.h"
#include "kv_tokens.h"
#include "policy/policy.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "split/split.h"
#include "testing.h"

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 3
#define BATCH 4
#define SESSIONS 3
#define TOKENS 48 /* of a sequence */
#define BLOCK_TOKENS 4
#define ARENA_SLOTS 90
#define LEAST_SLOTS 64 /* of these, under the smallest budget */
#define KV_BLOCKS (SESSIONS * 2 * TOKENS / BLOCK_TOKENS)

typedef struct world {
    uint64_t seed;
    bank_model bank;
    pool_rig rig;
    moepage_kv_pool *kv;
    kv_tokens tokens;
    uint32_t scopes;
    uint32_t steps;
    _Atomic uint32_t running;
    _Atomic uint64_t held; /* experts looked at */
    uint32_t moves, busy, guests, budgets;
    uint64_t most_budget, slot_bytes;
} world;

typedef struct actor {
    world *world;
    moepage_session *session;
    uint64_t random;
    uint32_t n_tokens; /* of the step */
    moepage_seq seq;
    uint64_t n;
    uint64_t tags[TOKENS];
} actor;

/* An assertion for any thread. */
#define must(condition)                                                                   \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s; seed %llu; last error: %s\n", __FILE__, __LINE__, \
                    #condition, (unsigned long long)w->seed, moepage_last_error());       \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

/* ---- sessions ---- */

static void attend(actor *a)
{
    world *w = a->world;
    uint64_t n = 1 + bank_below(&a->random, 4), first = a->n;
    if (a->n + n > TOKENS) {
        must(!moepage_kv_truncate(w->kv, a->seq, 0));
        a->n = first = 0;
    }
    must(!moepage_kv_append(w->kv, a->seq, n, NULL)); /* there always is room for all */
    for (uint64_t t = 0; t < n; t++)
        a->tags[a->n++] = bank_random(&a->random);
    a->n_tokens = 1 + bank_below(&a->random, BATCH);
    moepage_step_sequence named = {.seq = a->seq,
                                   .n_tokens = a->n_tokens,
                                   .phase = bank_below(&a->random, 4) == 0};
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = a->n_tokens,
                         .n_sequences = 1,
                         .sequences = &named};
    must(!moepage_session_begin(a->session, &step));
    kv_tokens_write(&w->tokens, a->seq, first, n, &a->tags[first]);
}

static void route(actor *a, uint32_t layer, moepage_plan *plan)
{
    world *w = a->world;
    int32_t ids[BATCH * TOP_K];
    float weights[BATCH * TOP_K];
    uint32_t first = bank_below(&a->random, EXPERTS), n = 1 + bank_below(&a->random, TOP_K);
    for (uint32_t r = 0; r < a->n_tokens * n; r++) {
        ids[r] = (int32_t)((first + r / n + 3 * (r % n)) % EXPERTS);
        weights[r] = 1;
    }
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = n,
                               .ids = ids,
                               .weights = weights};
    must(!moepage_session_route(a->session, layer, &routing, plan));
}

static void run_layer(actor *a, uint32_t layer)
{
    world *w = a->world;
    moepage_plan plan = {.struct_size = sizeof plan};
    route(a, layer, &plan);
    for (;;) {
        for (uint32_t e = 0; e < plan.n_experts; e++)
            must(bank_model_matches(&w->bank, layer, plan.experts[e].expert,
                                    plan.experts[e].tensors));
        atomic_fetch_add(&w->held, plan.n_experts);
        if (bank_below(&a->random, 4) == 0)
            sched_yield();
        for (uint32_t e = 0; e < plan.n_experts; e++)
            must(bank_model_matches(&w->bank, layer, plan.experts[e].expert,
                                    plan.experts[e].tensors));
        if (plan.group + 1 == plan.n_groups)
            break;
        must(!moepage_session_next_group(a->session, layer, &plan));
    }
    must(!moepage_session_retire(a->session, layer));
}

static void *act(void *arg)
{
    actor *a = arg;
    world *w = a->world;
    for (uint32_t s = 0; s < w->steps; s++) {
        attend(a);
        for (uint32_t l = 0; l < LAYERS; l++) {
            int32_t hinted = (int32_t)bank_below(&a->random, EXPERTS);
            must(!moepage_session_hint(a->session, (l + 1) % LAYERS, &hinted, 1));
            run_layer(a, l);
        }
        must(kv_tokens_match(&w->tokens, a->seq, a->n, a->tags));
        must(!moepage_session_end(a->session, NULL));
    }
    atomic_fetch_sub(&w->running, 1);
    return NULL;
}

/* ---- the mover ---- */

/* A session that comes, perhaps while a fence stands, wants something, and goes. It routes nothing:
 * what the others hold in open plans they hold by their shares without it. */
static void receive_guest(world *w, uint64_t *random)
{
    moepage_session_config config = {.struct_size = sizeof config,
                                     .prefetch = MOEPAGE_PREFETCH_HINT,
                                     .regime = MOEPAGE_REGIME_STREAM};
    moepage_session *guest = NULL;
    moepage_status status = moepage_session_create(w->rig.pool, w->kv, &config, &guest);
    must(!status || status == MOEPAGE_E_BUDGET);
    if (status)
        return;
    int32_t hinted = (int32_t)bank_below(random, EXPERTS);
    must(!moepage_session_hint(guest, bank_below(random, LAYERS), &hinted, 1));
    sched_yield();
    must(!moepage_session_destroy(guest));
    w->guests++;
}

static void move(world *w, uint64_t *random)
{
    uint32_t compress = bank_below(random, 3) == 0, per_layer = bank_below(random, 4);
    uint64_t slots = (SESSIONS + bank_below(random, 16 / w->scopes)) * w->scopes;
    uint64_t blocks = KV_BLOCKS + bank_below(random, 40);
    for (uint32_t attempt = 0; attempt < 30; attempt++) {
        moepage_status status = compress ? mp_split_compress(w->rig.pool, per_layer, slots)
                                         : mp_split_move(w->rig.pool, w->kv, slots, blocks, NULL);
        must(!status || status == MOEPAGE_E_BUSY || status == MOEPAGE_E_BUDGET);
        w->moves += !status;
        w->busy += status == MOEPAGE_E_BUSY;
        if (status != MOEPAGE_E_BUSY)
            return;
        if (attempt == 2 && bank_below(random, 4) == 0)
            receive_guest(w, random);
        sched_yield();
    }
    mp_split_abandon(w->rig.pool);
}

/* To no less than the KV that sessions rely on and the slots that they need, beside what is compressed. */
static void move_budget(world *w, uint64_t *random)
{
    uint64_t less = bank_below(random, (ARENA_SLOTS - LEAST_SLOTS) * (uint32_t)w->slot_bytes);
    for (uint32_t attempt = 0; attempt < 30; attempt++) {
        moepage_device_info info = {.struct_size = sizeof info};
        moepage_status status =
            moepage_device_set_budget(w->rig.devices[0], w->most_budget - less, NULL);
        must(!status || status == MOEPAGE_E_BUSY);
        must(!moepage_device_get_info(w->rig.devices[0], &info));
        must(status || info.budget_bytes == w->most_budget - less);
        must(info.peak_bytes <= info.budget_bytes);
        w->budgets += !status;
        if (!status)
            return;
        sched_yield();
    }
}

static void open_world(world *w, uint64_t seed)
{
    moepage_device_info info = {.struct_size = sizeof info};
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 16,
                        .intermediate = 8,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = 1u << MOEPAGE_FORM_EXPH,
                        .seed = seed};
    const uint32_t bytes_per_token[2] = {40, 24};
    moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                 .block_tokens = BLOCK_TOKENS,
                                 .layers = 2,
                                 .bytes_per_token = bytes_per_token,
                                 .blocks_per_granule = 2,
                                 .blocks = KV_BLOCKS};
    *w = (world){.seed = seed,
                 .scopes = seed % 4 == 3 ? LAYERS : 1,
                 .steps = getenv("MP_TEST_LONG") ? 1000 : 60};
    bank_model_open(&w->bank, &shape);
    pool_rig_open(&w->rig, &w->bank,
                  &(pool_rig_config){.slots = w->scopes == 1 ? 8 : 4 * LAYERS,
                                     .arena_slots = ARENA_SLOTS,
                                     .chunk_bytes = 300,
                                     .scope =
                                         w->scopes > 1 ? MOEPAGE_SCOPE_LAYER : MOEPAGE_SCOPE_GLOBAL,
                                     .policy = mp_policy_name((uint32_t)seed % 6),
                                     .scan_percent = seed % 3 ? 0 : 40});
    assert_int_equal(moepage_kv_pool_create(w->rig.devices[0], &kv, &w->kv), MOEPAGE_OK);
    kv_tokens_open(&w->tokens, w->kv, 2, bytes_per_token);
    assert_int_equal(moepage_device_get_info(w->rig.devices[0], &info), MOEPAGE_OK);
    w->most_budget = info.budget_bytes;
    w->slot_bytes = w->rig.pool->slot_bytes;
    atomic_store(&w->running, SESSIONS);
}

static void run(uint64_t seed)
{
    static world w;
    static actor actors[SESSIONS];
    pthread_t threads[SESSIONS];
    uint64_t random = seed;
    open_world(&w, seed);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        moepage_session_config config = {.struct_size = sizeof config,
                                         .max_tokens = BATCH,
                                         .prefetch =
                                             i ? MOEPAGE_PREFETCH_HINT : MOEPAGE_PREFETCH_PREVIOUS,
                                         .regime = (uint32_t)(seed + i) % 3};
        actors[i] = (actor){.world = &w, .random = seed * 8 + i};
        assert_int_equal(moepage_session_create(w.rig.pool, w.kv, &config, &actors[i].session),
                         MOEPAGE_OK);
        assert_int_equal(moepage_kv_create(w.kv, &actors[i].seq), MOEPAGE_OK);
    }
    for (uint32_t i = 0; i < SESSIONS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
    while (atomic_load(&w.running) > 0)
        (bank_below(&random, 3) ? move : move_budget)(&w, &random);
    for (uint32_t i = 0; i < SESSIONS; i++)
        pthread_join(threads[i], NULL);
    mp_split_abandon(w.rig.pool);
    pool_rig_wait(&w.rig);
    assert_int_equal(moepage_device_set_budget(w.rig.devices[0], w.most_budget, NULL), MOEPAGE_OK);
    assert_true(w.budgets > 0);
    /* Nobody and nothing is left: any move that there is room for goes through. */
    assert_int_equal(mp_split_move(w.rig.pool, w.kv, 4 * w.scopes, KV_BLOCKS, NULL), MOEPAGE_OK);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        assert_true(kv_tokens_match(&w.tokens, actors[i].seq, actors[i].n, actors[i].tags));
        assert_int_equal(moepage_session_destroy(actors[i].session), MOEPAGE_OK);
    }
    assert_true(atomic_load(&w.held) > 0);
    assert_int_equal(moepage_kv_pool_destroy(w.kv), MOEPAGE_OK);
    pool_rig_close(&w.rig);
    bank_model_close(&w.bank);
}

static void test_split_threads_take_nothing_from_each_other(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++)
        run(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_threads_take_nothing_from_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
