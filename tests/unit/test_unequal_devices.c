/* A pool over devices of unequal budgets: each device has experts in proportion to the slots that it has room
 * for, so that what fits all arenas together is resident in them together. */
#include <string.h>

#include "device_rig.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 12
#define KEYS (LAYERS * EXPERTS)
#define DENSE (1u << MOEPAGE_FORM_DENSE)
#define EXPH (1u << MOEPAGE_FORM_EXPH)
#define INT4 (1u << MOEPAGE_FORM_INT4)

static bank_model bank;
static pool_rig rig;

static void open_rig(uint32_t forms, const pool_rig_config *config)
{
    bank_model_open(&bank, &(bank_shape){.layers = LAYERS,
                                         .experts = EXPERTS,
                                         .top_k = 2,
                                         .hidden = 64,
                                         .intermediate = 32,
                                         .dtype = MOEPAGE_DTYPE_BF16, /* slots of three pages */
                                         .pack_forms = forms,
                                         .seed = 4});
    pool_rig_open(&rig, &bank, config);
}

static void close_rig(void)
{
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static uint32_t device_of(uint32_t layer, uint32_t expert)
{
    moepage_residency residency = {.struct_size = sizeof residency};
    assert_int_equal(moepage_expert_pool_lookup(rig.pool, layer, expert, &residency), MOEPAGE_OK);
    return residency.device;
}

/* Experts of a layer on each device, the same of every layer. */
static void count_members(uint32_t members[POOL_RIG_DEVICES])
{
    memset(members, 0, POOL_RIG_DEVICES * sizeof *members);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        members[device_of(0, e)]++;
        assert_int_equal(device_of(1, e), device_of(0, e));
    }
}

/* Every expert once, through plans whose bytes are looked at. */
static void visit_all(moepage_session *session)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int32_t e = 0; e < EXPERTS; e++) {
            moepage_plan plan = {.struct_size = sizeof plan};
            pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
            assert_int_equal(pool_rig_route(session, layer, &e, 1, &plan), MOEPAGE_OK);
            assert_int_equal(plan.experts[0].device, device_of(layer, (uint32_t)e));
            assert_true(pool_rig_holds(&rig, layer, &plan.experts[0]));
            assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
            assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        }
}

static void test_unequal_devices_hold_together_what_fits_them_together(void **state)
{
    (void)state;
    uint32_t members[POOL_RIG_DEVICES];
    open_rig(0, &(pool_rig_config){.n_devices = 2, .arena_slots = 18, .smaller_slots = 6});
    count_members(members);
    assert_int_equal(members[0], 9);
    assert_int_equal(members[1], 3);
    assert_int_equal(pool_rig_info(&rig).slots, KEYS);
    moepage_session *session = pool_rig_session(&rig, NULL);
    visit_all(session);
    visit_all(session);
    const moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.resident, KEYS);
    assert_int_equal(info.misses, KEYS);
    assert_int_equal(info.hits, KEYS);
    assert_int_equal(info.evictions, 0);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

/* Of three devices, and of so many slots as were asked for. */
static void test_unequal_devices_share_the_slots_asked_for(void **state)
{
    (void)state;
    static const uint32_t scopes[] = {MOEPAGE_SCOPE_GLOBAL, MOEPAGE_SCOPE_LAYER};
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t members[POOL_RIG_DEVICES];
        open_rig(0, &(pool_rig_config){.n_devices = 3,
                                       .arena_slots = 32,
                                       .smaller_slots = 8,
                                       .slots = 12,
                                       .scope = scopes[i]});
        count_members(members);
        assert_int_equal(members[0], 8);
        assert_int_equal(members[1], 2);
        assert_int_equal(members[2], 2);
        assert_int_equal(pool_slots(rig.pool->shards[0]), 8);
        assert_int_equal(pool_slots(rig.pool->shards[1]), 2);
        assert_int_equal(pool_slots(rig.pool->shards[2]), 2);
        moepage_session *session = pool_rig_session(&rig, NULL);
        visit_all(session);
        visit_all(session);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        close_rig();
    }
}

/* What another pool has of an arena is not there for experts. */
static void test_unequal_devices_count_what_is_left_beside_kv(void **state)
{
    (void)state;
    uint32_t members[POOL_RIG_DEVICES];
    open_rig(0, &(pool_rig_config){.n_devices = 2, .arena_slots = 18});
    count_members(members);
    assert_int_equal(members[0], 6);
    assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
    moepage_device_info device = {.struct_size = sizeof device};
    assert_int_equal(moepage_device_get_info(rig.devices[0], &device), MOEPAGE_OK);
    moepage_kv_pool *kv = NULL;
    const uint32_t bytes = 256; /* a page for a block of 16 tokens */
    const moepage_kv_pool_config config = {.struct_size = sizeof config,
                                           .layers = 1,
                                           .blocks_per_granule = 1,
                                           .bytes_per_token = &bytes,
                                           .blocks = device.arena_bytes * 2 / 3 / 4096};
    assert_int_equal(moepage_kv_pool_create(rig.devices[0], &config, &kv), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(rig.devices, 2, bank.model, NULL, &rig.pool),
                     MOEPAGE_OK);
    count_members(members);
    assert_int_equal(members[0], 3);
    assert_int_equal(members[1], 9);
    assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_OK);
    close_rig();
}

static void test_unequal_devices_pin_where_experts_are(void **state)
{
    (void)state;
    open_rig(0, &(pool_rig_config){.n_devices = 2, .arena_slots = 15, .smaller_slots = 5});
    for (uint32_t e = 0; e < 3; e++)
        assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, e), MOEPAGE_OK);
    assert_int_equal(pool_rig_info(&rig).pinned, 3);
    moepage_session *session = pool_rig_session(&rig, NULL);
    visit_all(session);
    for (uint32_t e = 0; e < 3; e++) {
        assert_int_equal(pool_rig_state(&rig, 1, e), MOEPAGE_EXPERT_RESIDENT);
        assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, e), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

/* Compressed experts and host tiers are shared out alike; every expert is decoded from where it lies. */
static void test_unequal_devices_share_tiers_and_compressed_experts(void **state)
{
    (void)state;
    open_rig(EXPH, &(pool_rig_config){.n_devices = 2,
                                      .arena_slots = 30,
                                      .smaller_slots = 10,
                                      .slots = 8,
                                      .compressed = 4,
                                      .host_experts = KEYS});
    const moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.compressed_experts, 4);
    assert_int_equal(info.host_tier_experts, KEYS);
    assert_true(mp_images_rounds(rig.pool->transfers[0]) >
                mp_images_rounds(rig.pool->transfers[1]));
    moepage_session *session = pool_rig_session(&rig, NULL);
    visit_all(session);
    visit_all(session);
    assert_true(pool_rig_info(&rig).compressed_loads > 0);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

/* The first experts of each layer begin high, on whichever device, and all have a place that is theirs. */
static void test_unequal_devices_share_high_versions(void **state)
{
    (void)state;
    for (uint32_t fetched = 0; fetched < 2; fetched++) {
        const moepage_precision_config precision = {.struct_size = sizeof precision,
                                                    .lo_form = MOEPAGE_FORM_INT4,
                                                    .hi_experts = 4,
                                                    .lo_fetched = fetched,
                                                    .interval_us = UINT32_MAX};
        uint32_t members[POOL_RIG_DEVICES], high = 0;
        bool taken[2][LAYERS * (EXPERTS + 1)] = {{false}};
        open_rig(DENSE | INT4, &(pool_rig_config){.n_devices = 2,
                                                  .arena_slots = 36,
                                                  .smaller_slots = 12,
                                                  .precision = &precision});
        count_members(members);
        assert_int_equal(members[0], 9);
        assert_int_equal(rig.pool->versions[0]->n_high, 3);
        assert_int_equal(rig.pool->versions[1]->n_high, 1);
        assert_int_equal(pool_rig_info(&rig).hi_experts, 4);
        for (uint32_t key = 0; key < KEYS; key++) {
            const uint32_t d = device_of(key / EXPERTS, key % EXPERTS);
            const uint32_t version = rig.pool->versions[d]->published[key];
            high += version >> 31;
            if (version & MP_VERSION_HIGH)
                continue;
            assert_true(version < rig.pool->versions[d]->n_places && !taken[d][version]);
            taken[d][version] = true;
        }
        assert_int_equal(high, fetched ? 4 * LAYERS : 0);
        assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
        for (uint32_t d = 0; d < rig.n_devices; d++)
            device_rig_close(rig.devices[d]);
        bank_model_close(&bank);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unequal_devices_hold_together_what_fits_them_together),
        cmocka_unit_test(test_unequal_devices_share_the_slots_asked_for),
        cmocka_unit_test(test_unequal_devices_count_what_is_left_beside_kv),
        cmocka_unit_test(test_unequal_devices_pin_where_experts_are),
        cmocka_unit_test(test_unequal_devices_share_tiers_and_compressed_experts),
        cmocka_unit_test(test_unequal_devices_share_high_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
