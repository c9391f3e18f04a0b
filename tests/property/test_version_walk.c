/* Sessions that come and go in the middle of everything, over pools with two versions of every expert:
 * whatever happens, what an open plan shows stays as it is, nothing that an open step sees is given
 * away, and no layer has more high versions than the budget has room for. */
#include <sched.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack_maker.h"
#include "pool_inside.h"
#include "session/inside.h"
#include "split/split.h"
#include "testing.h"
#include "versions_rig.h"

#define SESSIONS 3
#define MOST_LAYERS 3
#define TOKENS 2

typedef struct seat {
    moepage_session *session;
    bool step_open;
    bool planned[MOST_LAYERS];
    moepage_plan plans[MOST_LAYERS];
    uint8_t forms[MOST_LAYERS]
                 [64]; /* of an open step: 1 + what an expert was seen in; 0 = not yet */
} seat;

typedef struct walk {
    versions_rig rig;
    seat seats[SESSIONS];
    uint64_t random;
    uint32_t hot; /* where the choices gather */
    bool moves;   /* so does the split */
    uint32_t moved, waited, kept;
    uint8_t pins[MOST_LAYERS * 64]; /* 1: pinned, 2: and seen high since */
} walk;

/* ---- what must hold ---- */

/* Every byte of every open plan, and that a step computes an expert in one form only. */
static void check_plans(walk *w)
{
    for (uint32_t i = 0; i < SESSIONS; i++)
        for (uint32_t l = 0; l < MOST_LAYERS; l++) {
            seat *at = &w->seats[i];
            for (uint32_t e = 0; at->planned[l] && e < at->plans[l].n_experts; e++) {
                const moepage_plan_expert *expert = &at->plans[l].experts[e];
                uint8_t seen = (uint8_t)(1 + versions_rig_check(&w->rig, l, expert));
                uint8_t *known = &at->forms[l][expert->expert];
                assert_true(*known == 0 || *known == seen);
                *known = seen;
            }
        }
}

static bool is_free(const mp_versions *versions, uint32_t place)
{
    for (uint32_t i = 0; i < versions->n_free; i++)
        if (versions->free_places[i] == place)
            return true;
    for (uint32_t i = 0; i < versions->config.transitions; i++)
        if (versions->swaps[i].state == MP_SWAP_FETCH && versions->swaps[i].place == place)
            return true; /* is being written */
    return false;
}

/* The versions that a session with an open step may read are whole, belong to their experts, and
 * are not being written. */
static void check_seen(const walk *w, const mp_client *client)
{
    const struct moepage_expert_pool *pool = w->rig.pool;
    bool *taken = calloc(pool->versions[0]->n_places, sizeof *taken);
    assert_non_null(taken);
    for (uint32_t key = 0; key < pool->keys; key++) {
        uint32_t version = pool_version_seen(pool, client, key);
        if (version & MP_VERSION_HIGH) {
            uint64_t word = atomic_load(&pool->cache->shards[0].words[version & ~MP_VERSION_HIGH]);
            assert_int_equal(MP_WORD_IDENTITY(word), MP_WORD(key, MP_SLOT_RESIDENT));
            continue;
        }
        assert_true(version < pool->versions[0]->n_places && !taken[version]);
        taken[version] = true;
        assert_false(is_free(pool->versions[0], version));
    }
    free(taken);
}

static void check_books(walk *w)
{
    struct moepage_expert_pool *pool = w->rig.pool;
    mp_shard *shard = &pool->cache->shards[0];
    pthread_mutex_lock(&pool->lock);
    uint32_t n_high = pool_slots(shard) / pool->layers; /* until a move ends, those it began with */
    assert_int_equal(n_high * pool->layers, pool_slots(shard));
    assert_int_equal(w->rig.device->arena.claimed[MP_SIDE_EXPERTS],
                     shard->all.end * pool->slot_bytes);
    assert_int_equal(shard->all.first, pool->low_slots[0]);
    assert_true(pool->move.slots ? pool->versions[0]->n_high <= n_high
                                 : pool->versions[0]->n_high == n_high);
    for (uint32_t l = 0; l < pool->layers; l++) {
        uint32_t slots = 0, high = 0;
        for (uint32_t key = l * pool->experts; key < (l + 1) * pool->experts; key++) {
            slots += atomic_load(&pool->cache->entry[key]) != MP_NO_SLOT;
            high += pool->versions[0]->high[key];
        }
        assert_true(slots <= n_high && high <= n_high);
    }
    for (uint32_t key = 0; key < pool->keys; key++) { /* a pinned expert stays high */
        bool is_high = pool->versions[0]->published[key] & MP_VERSION_HIGH;
        assert_true(w->pins[key] < 2 || is_high);
        w->kept += w->pins[key] == 2;
        if (w->pins[key] && is_high && pool->versions[0]->high[key])
            w->pins[key] = 2;
    }
    assert_true(shard->free[0].n <= pool_slots(shard));
    for (uint32_t i = 0; i < SESSIONS; i++)
        if (w->seats[i].step_open)
            check_seen(w, w->seats[i].session->step.client);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- what happens ---- */

static void join(walk *w, seat *at)
{
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = TOKENS,
                                     .max_top_k = w->rig.pool->experts < 3 ? 1 : 3,
                                     .max_group_experts = bank_below(&w->random, 4),
                                     .grouping = MOEPAGE_GROUP_EXPERTS};
    *at = (seat){0};
    assert_int_equal(moepage_session_create(w->rig.pool, NULL, &config, &at->session), MOEPAGE_OK);
}

static void leave(seat *at)
{
    assert_int_equal(moepage_session_destroy(at->session), MOEPAGE_OK);
    *at = (seat){0};
}

static void begin(seat *at)
{
    moepage_step step = {.struct_size = sizeof step, .n_tokens = TOKENS};
    memset(at->forms, 0, sizeof at->forms);
    assert_int_equal(moepage_session_begin(at->session, &step), MOEPAGE_OK);
    at->step_open = true;
}

static void route(walk *w, seat *at, uint32_t layer)
{
    uint32_t experts = w->rig.pool->experts, k = experts < 3 ? 1 : 3;
    int32_t ids[TOKENS * 3];
    float weights[TOKENS * 3];
    for (uint32_t r = 0; r < TOKENS * k; r++) {
        bool strays = bank_below(&w->random, 4) == 0;
        ids[r] = (int32_t)((w->hot + bank_below(&w->random, strays ? experts : 3)) % experts);
        if (bank_below(&w->random, 16) == 0)
            ids[r] = MOEPAGE_NO_EXPERT;
        weights[r] = 0.5f;
    }
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = k,
                               .ids = ids,
                               .weights = weights};
    at->plans[layer] = (moepage_plan){.struct_size = sizeof(moepage_plan)};
    assert_int_equal(moepage_session_route(at->session, layer, &routing, &at->plans[layer]),
                     MOEPAGE_OK);
    at->planned[layer] = true;
}

/* An open layer goes on to its next group, or ends. */
static void go_on(walk *w, seat *at, uint32_t layer)
{
    moepage_plan *plan = &at->plans[layer];
    if (plan->group + 1 < plan->n_groups && bank_below(&w->random, 3) > 0) {
        assert_int_equal(moepage_session_next_group(at->session, layer, plan), MOEPAGE_OK);
        return;
    }
    assert_int_equal(moepage_session_retire(at->session, layer), MOEPAGE_OK);
    at->planned[layer] = false;
}

static void end(walk *w, seat *at)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    for (uint32_t l = 0; l < MOST_LAYERS; l++)
        if (at->planned[l] && bank_below(&w->random, 4) > 0)
            return; /* stays open for a while */
    if (bank_below(&w->random, 4) == 0) {
        assert_int_equal(moepage_session_cancel(at->session), MOEPAGE_OK);
    } else {
        for (uint32_t l = 0; l < MOST_LAYERS; l++)
            if (at->planned[l])
                assert_int_equal(moepage_session_retire(at->session, l), MOEPAGE_OK);
        assert_int_equal(moepage_session_end(at->session, &stats), MOEPAGE_OK);
        assert_int_equal(stats.stall_ns, 0);
        assert_int_equal(stats.misses + stats.late + stats.demand_bytes, 0);
        assert_int_equal(stats.hits + stats.low_experts, stats.routed);
    }
    memset(at->planned, 0, sizeof at->planned);
    at->step_open = false;
}

/* The split moves, or goes on moving; a move may be called off. */
static void move(walk *w)
{
    struct moepage_expert_pool *pool = w->rig.pool;
    uint32_t least = mp_versions_least(pool->versions[0]), most = pool->experts;
    uint64_t slots = (least + bank_below(&w->random, most - least + 1)) * pool->layers;
    bool once = bank_below(&w->random, 4) == 0;
    if (bank_below(&w->random, 8) == 0) {
        mp_split_abandon(pool);
        return;
    }
    if (pool->move.slots && bank_below(&w->random, 16) > 0)
        slots = pool->move.slots;
    moepage_status status = once ? moepage_split_set(pool, NULL, slots, 0, NULL)
                                 : mp_split_move(pool, NULL, slots, 0, NULL);
    assert_true(status == MOEPAGE_OK || status == MOEPAGE_E_BUSY);
    w->moved += status == MOEPAGE_OK;
    w->waited += status == MOEPAGE_E_BUSY;
    if (!status)
        assert_int_equal(pool_slots(&pool->cache->shards[0]), slots);
}

static void set_pin(walk *w, uint32_t key, bool on)
{
    struct moepage_expert_pool *pool = w->rig.pool;
    uint32_t layer = key / pool->experts, expert = key % pool->experts;
    moepage_status status = on ? moepage_expert_pool_pin(pool, layer, expert)
                               : moepage_expert_pool_unpin(pool, layer, expert);
    assert_true(status == MOEPAGE_OK || (on && status == MOEPAGE_E_BUDGET));
    if (!status)
        w->pins[key] = on;
}

static void turn_pin(walk *w, uint32_t key)
{
    set_pin(w, key, w->pins[key] == 0);
}

static void happen(walk *w)
{
    seat *at = &w->seats[bank_below(&w->random, SESSIONS)];
    uint32_t what = bank_below(&w->random, 32);
    uint32_t layer = bank_below(&w->random, w->rig.pool->layers);
    if (w->moves && bank_below(&w->random, 6) == 0)
        move(w);
    else if (w->moves && bank_below(&w->random, 30) == 0)
        turn_pin(w, bank_below(&w->random, w->rig.pool->keys));
    else if (!at->session)
        join(w, at);
    else if (what == 0)
        leave(at);
    else if (!at->step_open)
        begin(at);
    else if (what < 6)
        end(w, at);
    else if (at->planned[layer])
        go_on(w, at, layer);
    else
        route(w, at, layer);
}

static void run(walk *w)
{
    uint32_t events = getenv("MP_TEST_LONG") ? 50000 : 2000;
    for (uint32_t i = 0; i < events; i++) {
        w->hot = i / 256 * 3;
        happen(w);
        if (i % 4 == 0)
            check_plans(w);
        check_books(w);
        if (i % 32 == 0)
            sched_yield(); /* for whoever copies */
    }
    for (uint32_t i = 0; i < SESSIONS; i++)
        if (w->seats[i].session)
            leave(&w->seats[i]);
    check_books(w);
    for (uint32_t key = 0; key < w->rig.pool->keys; key++)
        if (w->pins[key])
            set_pin(w, key, false);
    while (w->rig.pool->move.slots) /* nothing is open: it goes through, unless it was called off */
        move(w);
    check_books(w);
}

/* ---- over which pools ---- */

static void walk_with(uint32_t layers, uint32_t experts, const moepage_precision_config *precision)
{
    walk w = {.random = 17 + experts};
    bank_shape shape = {.layers = layers, .experts = experts, .top_k = 1};
    versions_rig_open(&w.rig, &shape, precision);
    run(&w);
    moepage_expert_pool_info info = versions_rig_info(&w.rig);
    if (precision->hi_experts < experts || !precision->lo_fetched)
        assert_true(info.promotions > 0);
    assert_int_equal(info.transitions_failed + info.failed_loads, 0);
    assert_int_equal(info.demand_bytes + info.misses + info.late, 0);
    versions_rig_close(&w.rig);
}

static void test_version_walk_low_versions_are_always_there(void **state)
{
    (void)state;
    walk_with(3, 8, &(moepage_precision_config){.hi_experts = 3});
    walk_with(2, 9, &(moepage_precision_config){.hi_experts = 2, .window_steps = 5});
    walk_with(2, 8,
              &(moepage_precision_config){.hi_experts = 4, .transitions = 1024, .margin = -1});
}

static void test_version_walk_low_versions_are_fetched(void **state)
{
    (void)state;
    walk_with(3, 8, &(moepage_precision_config){.hi_experts = 3, .lo_fetched = 1});
    walk_with(2, 9,
              &(moepage_precision_config){
                  .hi_experts = 8, .lo_fetched = 1, .window_steps = 3, .margin = -1});
    walk_with(2, 8,
              &(moepage_precision_config){.hi_experts = 4,
                                          .lo_fetched = 1,
                                          .transitions = 64,
                                          .hi_form = MOEPAGE_FORM_INT8,
                                          .lo_form = MOEPAGE_FORM_INT4});
}

static void walk_and_move(uint32_t layers, uint32_t experts,
                          const moepage_precision_config *precision)
{
    walk w = {.random = 29 + experts, .moves = true};
    bank_shape shape = {.layers = layers, .experts = experts, .top_k = 1};
    versions_rig_open_wide(&w.rig, &shape, precision, 1u << 20);
    run(&w);
    moepage_expert_pool_info info = versions_rig_info(&w.rig);
    assert_true(w.moved > 20 && w.waited > 20 && w.kept > 20 && info.promotions > 0 &&
                info.demotions > 0);
    assert_int_equal(info.transitions_failed + info.failed_loads, 0);
    assert_int_equal(info.demand_bytes + info.misses + info.late + info.hits, 0);
    versions_rig_close(&w.rig);
}

static void test_version_walk_while_the_split_moves(void **state)
{
    (void)state;
    for (uint32_t fetched = 0; fetched < 2; fetched++) {
        walk_and_move(3, 8, &(moepage_precision_config){.hi_experts = 3, .lo_fetched = fetched});
        walk_and_move(2, 9,
                      &(moepage_precision_config){.hi_experts = 2,
                                                  .lo_fetched = fetched,
                                                  .window_steps = 3,
                                                  .transitions = 1});
        walk_and_move(3, 7,
                      &(moepage_precision_config){.hi_experts = 1,
                                                  .lo_fetched = fetched,
                                                  .transitions = 64,
                                                  .margin = -1,
                                                  .hi_form = MOEPAGE_FORM_INT8,
                                                  .lo_form = MOEPAGE_FORM_INT4});
    }
}

/* Room for every expert's high version, and layers of one expert. */
static void test_version_walk_extremes(void **state)
{
    (void)state;
    for (uint32_t fetched = 0; fetched < 2; fetched++) {
        walk_with(2, 6, &(moepage_precision_config){.hi_experts = 6, .lo_fetched = fetched});
        walk_with(2, 1, &(moepage_precision_config){.hi_experts = 1, .lo_fetched = fetched});
    }
}

/* Of each layer of three experts one cannot become high; in one layer one can become nothing else. */
static void test_version_walk_sources_that_fail(void **state)
{
    (void)state;
    for (uint32_t fetched = 0; fetched < 2; fetched++) {
        pack_source source;
        uint64_t bytes;
        pack_source_init(&source);
        pack_source_open(&source);
        unsigned char *file =
            pack_make(source.model, PACK_FORM(DENSE) | PACK_FORM(INT2), 0, &bytes);
        pack_find_record(file, MOEPAGE_FORM_DENSE, 0, 2)[5] ^= 1;
        pack_find_record(file, MOEPAGE_FORM_DENSE, 1, 1)[7] ^= 1;
        if (fetched) /* it begins high, and so its low version is not looked at before */
            pack_find_record(file, MOEPAGE_FORM_INT2, 1, 0)[9] ^= 1;
        walk w = {.random = 23};
        moepage_model *model = pack_open(pack_memory_file(file, bytes));
        free(file);
        pack_source_close(&source);
        versions_rig_open_over(&w.rig, model,
                               &(moepage_precision_config){.hi_experts = 1,
                                                           .lo_fetched = fetched,
                                                           .margin = -1,
                                                           .alpha = 0.01},
                               0);
        run(&w);
        moepage_expert_pool_info info = versions_rig_info(&w.rig);
        assert_true(info.promotions > 0 && info.transitions_failed > 0);
        versions_rig_close(&w.rig);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_walk_low_versions_are_always_there),
        cmocka_unit_test(test_version_walk_low_versions_are_fetched),
        cmocka_unit_test(test_version_walk_while_the_split_moves),
        cmocka_unit_test(test_version_walk_extremes),
        cmocka_unit_test(test_version_walk_sources_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
