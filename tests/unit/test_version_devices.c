/* Two versions of every expert on several devices: expert e and both its versions are on device e modulo
 * their number, and each device has its share of the high ones. */
#include <sched.h>
#include <string.h>

#include "testing.h"
#include "versions_rig.h"

#define LAYERS 3
#define EXPERTS 8
#define MOST_STEPS 200000

static const int32_t all[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};

static void look(versions_rig *rig, moepage_session *session, uint8_t forms[LAYERS][EXPERTS])
{
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
    for (uint32_t l = 0; l < LAYERS; l++)
        versions_rig_layer(rig, session, l, all, EXPERTS, forms[l]);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
}

/* Every published version is where its expert's device has its own, and nothing is there twice. */
static void check_devices(versions_rig *rig)
{
    struct moepage_expert_pool *pool = rig->pool;
    uint32_t n_high = 0;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t d = 0; d < rig->n_devices; d++) {
        const mp_versions *versions = pool->versions[d];
        const mp_shard *shard = pool->shards[d];
        uint32_t high[LAYERS] = {0};
        bool taken[LAYERS * (EXPERTS + 1)] = {false};
        for (uint32_t key = 0; key < pool->keys; key++) {
            uint32_t version = versions->published[key];
            if (key % EXPERTS % rig->n_devices != d) {
                assert_false(version & MP_VERSION_HIGH);
            } else if (version & MP_VERSION_HIGH) {
                uint64_t word = atomic_load(&shard->words[version & ~MP_VERSION_HIGH]);
                assert_int_equal(MP_WORD_IDENTITY(word), MP_WORD(key, MP_SLOT_RESIDENT));
                high[key / EXPERTS]++;
            } else {
                assert_true(version < versions->n_places && !taken[version]);
                taken[version] = true;
            }
        }
        for (uint32_t l = 0; l < LAYERS; l++)
            assert_true(high[l] <= versions->n_high);
        n_high += versions->n_high;
        assert_int_equal(rig->devices[d]->arena.claimed[MP_SIDE_EXPERTS],
                         shard->all.end * pool->slot_bytes);
        assert_int_equal(pool_slots(shard), versions->n_high * LAYERS);
    }
    pthread_mutex_unlock(&pool->lock);
    assert_int_equal(versions_rig_info(rig).hi_experts, n_high);
}

/* Steps until these are high and, of the rest, as few as may be. */
static void heat(versions_rig *rig, moepage_session *session, const int32_t *ids, uint32_t n)
{
    for (uint32_t s = 0; s < MOST_STEPS; s++) {
        uint64_t low = versions_rig_step(rig, session, ids, n).low_experts;
        check_devices(rig);
        if (low == 0)
            return;
        sched_yield();
    }
    fail_msg("not all of %u experts have become high", n);
}

/* The hot sets are as many of each device as it has places for. */
static void heat_and_shift(uint32_t n_devices, const moepage_precision_config *precision,
                           const int32_t *first, const int32_t *second)
{
    versions_rig rig;
    uint8_t forms[LAYERS][EXPERTS];
    const uint32_t n = precision->hi_experts;
    versions_rig_open_on(&rig, n_devices, NULL, precision, 0);
    moepage_session *session = versions_rig_session(&rig, 1);
    assert_int_equal(versions_rig_info(&rig).slots, n * LAYERS);
    assert_int_equal(versions_rig_info(&rig).devices, n_devices);
    const int32_t *sets[] = {first, second, first};
    for (uint32_t i = 0; i < 3; i++) {
        heat(&rig, session, sets[i], n);
        look(&rig, session, forms);
        uint32_t high = 0;
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t e = 0; e < EXPERTS; e++)
                high += forms[l][e] != rig.precision.lo_form;
        assert_int_equal(high, n * LAYERS);
    }
    const moepage_expert_pool_info info = versions_rig_info(&rig);
    assert_int_equal(info.hi_published, n * LAYERS);
    assert_true(info.promotions > 0 && info.demotions > 0);
    assert_int_equal(info.transitions_failed + info.failed_loads, 0);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

static void test_version_devices_have_shares_of_the_high_versions(void **state)
{
    (void)state;
    static const int32_t first[3] = {0, 3, 4}, second[3] = {2, 5, 6};       /* two even, one odd */
    static const int32_t third[4] = {0, 3, 1, 2}, fourth[4] = {3, 6, 4, 5}; /* modulo 3: 2, 1, 1 */
    for (uint32_t fetched = 0; fetched < 2; fetched++) {
        heat_and_shift(2, &(moepage_precision_config){.hi_experts = 3, .lo_fetched = fetched},
                       first, second);
        heat_and_shift(3,
                       &(moepage_precision_config){.hi_experts = 4,
                                                   .lo_fetched = fetched,
                                                   .transitions = 1,
                                                   .lo_form = MOEPAGE_FORM_INT4},
                       third, fourth);
    }
}

static void test_version_devices_take_all_the_room_there_is(void **state)
{
    (void)state;
    versions_rig rig = {.n_devices = 2, .spare_bytes = 64u << 10};
    const bank_shape shape = {.layers = LAYERS,
                              .experts = EXPERTS,
                              .top_k = 2,
                              .hidden = 64,
                              .intermediate = 32,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT2};
    bank_model_open(&rig.bank, &shape);
    versions_rig_open_over(&rig, rig.bank.model, &(moepage_precision_config){.hi_experts = 0}, 0);
    const moepage_expert_pool_info info = versions_rig_info(&rig);
    assert_true(info.hi_experts >= 2 && info.hi_experts % 2 == 0);
    assert_int_equal(info.slots, info.hi_experts * LAYERS);
    for (uint32_t d = 0; d < 2; d++) { /* one more of each layer would not fit */
        const mp_arena *arena = &rig.devices[d]->arena;
        assert_true(arena->bytes - arena->claimed[MP_SIDE_EXPERTS] < LAYERS * info.slot_bytes);
    }
    check_devices(&rig);
    versions_rig_close(&rig);
}

static void test_version_devices_pin(void **state)
{
    (void)state;
    versions_rig rig;
    static const int32_t hot[2] = {0, 1};
    uint8_t forms[LAYERS][EXPERTS];
    versions_rig_open_on(&rig, 2, NULL, &(moepage_precision_config){.hi_experts = 3}, 0);
    moepage_session *session = versions_rig_session(&rig, 1);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 7), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 5), MOEPAGE_E_BUDGET); /* odd ones: one */
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 6), MOEPAGE_OK);
    assert_int_equal(versions_rig_info(&rig).pinned, 2);
    for (uint32_t s = 0; s < MOST_STEPS; s++) {
        (void)versions_rig_step(&rig, session, hot, 2);
        look(&rig, session, forms);
        if (forms[1][7] == MOEPAGE_FORM_DENSE && forms[1][6] == MOEPAGE_FORM_DENSE)
            break;
        sched_yield();
    }
    assert_int_equal(forms[1][7] | forms[1][6], MOEPAGE_FORM_DENSE);
    check_devices(&rig);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 7), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 6), MOEPAGE_OK);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

static void test_version_devices_are_caches_with_substitutes(void **state)
{
    (void)state;
    versions_rig rig = {.n_devices = 2};
    const bank_shape shape = {.layers = LAYERS,
                              .experts = EXPERTS,
                              .top_k = 2,
                              .hidden = 64,
                              .intermediate = 32,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT2};
    bank_model_open(&rig.bank, &shape);
    versions_rig_open_over(&rig, rig.bank.model,
                           &(moepage_precision_config){.serve = MOEPAGE_SERVE_CACHE}, 12);
    const moepage_session_config config = {.struct_size = sizeof config,
                                           .max_top_k = EXPERTS,
                                           .miss = MOEPAGE_MISS_LOW};
    moepage_session *low = NULL, *exact = versions_rig_session(&rig, 1);
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &low), MOEPAGE_OK);
    assert_int_equal(versions_rig_info(&rig).slots, 12);
    for (uint32_t turn = 0; turn < 10; turn++) {
        const int32_t ids[3] = {(int32_t)(turn % EXPERTS), (int32_t)((turn + 1) % EXPERTS),
                                (int32_t)((turn + 3) % EXPERTS)};
        uint8_t forms[3];
        uint32_t s = 0;
        while (versions_rig_step(&rig, low, ids, 3).low_experts > 0 && s++ < MOST_STEPS)
            sched_yield();
        assert_true(s < MOST_STEPS);
        const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
        assert_int_equal(moepage_session_begin(exact, &step), MOEPAGE_OK);
        versions_rig_layer(&rig, exact, turn % LAYERS, ids, 3, forms);
        assert_int_equal(moepage_session_end(exact, NULL), MOEPAGE_OK);
        assert_int_equal(forms[0] | forms[1] | forms[2], MOEPAGE_FORM_DENSE);
    }
    moepage_session_destroy(low);
    moepage_session_destroy(exact);
    versions_rig_close(&rig);
}

static void test_version_devices_refuse_what_they_cannot_share(void **state)
{
    (void)state;
    versions_rig rig;
    versions_rig_open_on(&rig, 2, NULL, &(moepage_precision_config){.hi_experts = 2}, 0);
    moepage_precision_config precision = {.struct_size = sizeof precision,
                                          .lo_form = MOEPAGE_FORM_INT2,
                                          .hi_experts = 1};
    const moepage_expert_pool_config config = {.struct_size = sizeof config,
                                               .precision = &precision};
    uint64_t workspace, arena;
    assert_int_equal(moepage_expert_pool_sizes(rig.bank.model, &config, 2, &workspace, &arena),
                     MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "hi_experts is 1"));
    assert_int_equal(moepage_split_set(rig.pool, NULL, 2 * LAYERS, 0, NULL),
                     MOEPAGE_E_UNSUPPORTED); /* as of any pool over several */
    versions_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_devices_have_shares_of_the_high_versions),
        cmocka_unit_test(test_version_devices_take_all_the_room_there_is),
        cmocka_unit_test(test_version_devices_pin),
        cmocka_unit_test(test_version_devices_are_caches_with_substitutes),
        cmocka_unit_test(test_version_devices_refuse_what_they_cannot_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
