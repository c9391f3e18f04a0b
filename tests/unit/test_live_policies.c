/* Every eviction policy in a live pool: the same hits, misses and evictions, and the same experts
 * resident, as a model that knows nothing of slots. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "naive_cache.h"
#include "policy/policy.h"
#include "pool_rig.h"
#include "testing.h"

enum { LAYERS = 4, EXPERTS = 12, TOP_K = 3, STEPS = 400 };

typedef struct live {
    bank_model bank;
    pool_rig rig;
    moepage_session *session;
    naive_cache caches[LAYERS]; /* of layers, or the first of all */
    bool by_layer;
    uint32_t capacity; /* of a cache */
    uint64_t hits, misses, evictions;
} live;

static void live_open(live *p, const char *policy, uint32_t scope, uint32_t slots)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 2,
                        .intermediate = 2,
                        .seed = 3};
    memset(p, 0, sizeof *p);
    p->by_layer = scope == MOEPAGE_SCOPE_LAYER;
    p->capacity = p->by_layer ? slots / LAYERS : slots;
    for (uint32_t i = 0; i < LAYERS; i++)
        naive_open(&p->caches[i], policy, p->by_layer ? EXPERTS : LAYERS * EXPERTS, EXPERTS);
    bank_model_open(&p->bank, &shape);
    pool_rig_open(&p->rig, &p->bank,
                  &(pool_rig_config){.slots = slots, .scope = scope, .policy = policy});
    p->session =
        pool_rig_session(&p->rig, &(moepage_session_config){.max_tokens = 1,
                                                            .regime = MOEPAGE_REGIME_CACHE});
}

/* Experts are drawn unevenly, as routers do. */
static void draw(uint64_t *random, int32_t *ids)
{
    for (uint32_t k = 0; k < TOP_K; k++) {
        bool again;
        do {
            uint32_t among = bank_below(random, 3) ? EXPERTS / 3 : EXPERTS;
            ids[k] = (int32_t)bank_below(random, among);
            again = (k > 0 && ids[0] == ids[k]) || (k > 1 && ids[1] == ids[k]);
        } while (again);
    }
}

static void live_route(live *p, uint32_t layer, const int32_t *ids)
{
    uint32_t set[TOP_K], victims[TOP_K], evicted;
    moepage_plan plan = {.struct_size = sizeof plan};
    for (uint32_t k = 0; k < TOP_K; k++)
        set[k] = (uint32_t)ids[k] + (p->by_layer ? 0 : layer * EXPERTS);
    uint32_t missed = naive_serve(&p->caches[p->by_layer ? layer : 0], p->capacity, set, TOP_K,
                                  victims, &evicted);
    p->misses += missed;
    p->hits += TOP_K - missed;
    p->evictions += evicted;
    assert_int_equal(pool_rig_route(p->session, layer, ids, TOP_K, &plan), MOEPAGE_OK);
    assert_int_equal(plan.n_experts, TOP_K);
    assert_int_equal(moepage_session_retire(p->session, layer), MOEPAGE_OK);
}

static void live_close(live *p)
{
    moepage_expert_pool_info info = pool_rig_info(&p->rig);
    assert_int_equal(info.hits, p->hits);
    assert_int_equal(info.misses, p->misses);
    assert_int_equal(info.evictions, p->evictions);
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        uint32_t state = pool_rig_state(&p->rig, i / EXPERTS, i % EXPERTS);
        bool here = p->by_layer ? p->caches[i / EXPERTS].here[i % EXPERTS] : p->caches[0].here[i];
        assert_int_equal(state == MOEPAGE_EXPERT_RESIDENT, here);
    }
    assert_int_equal(moepage_session_destroy(p->session), MOEPAGE_OK);
    pool_rig_close(&p->rig);
    bank_model_close(&p->bank);
}

static void test_live_policies_evict_what_their_definitions_say(void **state)
{
    (void)state;
    static const uint32_t slots[] = {LAYERS * TOP_K, 20, 36};
    static live p;
    uint64_t random = 99;
    for (uint32_t i = 0; mp_policy_name(i); i++)
        for (uint32_t s = 0; s < 6; s++) {
            live_open(&p, mp_policy_name(i), s % 2 ? MOEPAGE_SCOPE_LAYER : MOEPAGE_SCOPE_GLOBAL,
                      slots[s / 2]);
            for (uint32_t step = 0; step < STEPS; step++) {
                pool_rig_begin(p.session, 1, MOEPAGE_PHASE_DECODE);
                for (uint32_t layer = 0; layer < LAYERS; layer++) {
                    int32_t ids[TOP_K];
                    draw(&random, ids);
                    live_route(&p, layer, ids);
                }
                assert_int_equal(moepage_session_end(p.session, NULL), MOEPAGE_OK);
            }
            assert_true(p.evictions > 0);
            live_close(&p);
        }
}

/* The sentence names what there is. */
static void test_live_policies_are_named_when_one_is_not_there(void **state)
{
    (void)state;
    bank_model bank;
    pool_rig rig;
    bank_shape shape = {.layers = 1, .experts = 4, .top_k = 1, .hidden = 2, .intermediate = 2};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 1});
    moepage_expert_pool_config config = {.struct_size = sizeof config, .policy = "fifo"};
    moepage_expert_pool *pool;
    moepage_device *devices[1] = {rig.devices[0]};
    assert_int_equal(moepage_expert_pool_create(devices, 1, bank.model, &config, &pool),
                     MOEPAGE_E_NOT_FOUND);
    for (uint32_t i = 0; mp_policy_name(i); i++) {
        char quoted[32];
        snprintf(quoted, sizeof quoted, "\"%s\"", mp_policy_name(i));
        assert_non_null(strstr(moepage_last_error(), quoted));
    }
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_live_policies_evict_what_their_definitions_say),
        cmocka_unit_test(test_live_policies_are_named_when_one_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
