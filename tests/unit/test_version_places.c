/* The low place of an expert that has become high is not reused while an open step still computes
 * with it. */
#include <sched.h>

#include "pool_inside.h"
#include "session/inside.h"
#include "testing.h"
#include "versions_rig.h"

#define LAYERS 3
#define MOST_STEPS 200000

static const int32_t all[8] = {0, 1, 2, 3, 4, 5, 6, 7};

/* A swap whose high version has been given a slot, and is not published yet. */
static const mp_swap *find_loading(versions_rig *rig)
{
    const mp_versions *versions = rig->pool->versions[0];
    for (uint32_t i = 0; i < versions->config.transitions; i++) {
        const mp_swap *swap = &versions->swaps[i];
        if ((swap->state == MP_SWAP_LOAD && swap->slot != MP_NO_SLOT) ||
            swap->state == MP_SWAP_PUBLISH)
            return swap;
    }
    return NULL;
}

static bool is_high(versions_rig *rig, uint32_t key)
{
    return rig->pool->versions[0]->published[key] & MP_VERSION_HIGH;
}

/* Two experts that are low in layer 0 now: hot steps make them high. */
static void find_low(versions_rig *rig, uint32_t from, int32_t out[2])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < 8 && n < 2; i++)
        if (!is_high(rig, (from + i) % 8))
            out[n++] = (int32_t)((from + i) % 8);
    assert_int_equal(n, 2);
}

static void test_version_places_stay_while_a_step_sees_them(void **state)
{
    (void)state;
    versions_rig rig;
    versions_rig_open(&rig, NULL, &(moepage_precision_config){.hi_experts = 2, .lo_fetched = 1});
    moepage_session *slow = versions_rig_session(&rig, 1), *busy = versions_rig_session(&rig, 1);
    uint32_t places = rig.pool->versions[0]->n_places;
    for (uint32_t round = 0; round < 6; round++) {
        int32_t hot[2];
        find_low(&rig, round, hot);
        const mp_swap *swap = NULL;
        for (uint32_t s = 0; !swap && s < MOST_STEPS; s++) {
            versions_rig_step(&rig, busy, hot, 2);
            swap = find_loading(&rig);
        }
        assert_non_null(swap);
        uint32_t key = swap->in;
        moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
        assert_int_equal(moepage_session_begin(slow, &step), MOEPAGE_OK);
        bool saw_low = !(pool_version_seen(rig.pool, slow->step.client, key) & MP_VERSION_HIGH);
        /* Others have it published, and then want its place for what they make low. */
        uint32_t s = 0;
        while (!is_high(&rig, key) && s++ < MOST_STEPS) {
            versions_rig_step(&rig, busy, hot, 2);
            sched_yield();
        }
        assert_true(s < MOST_STEPS);
        for (s = 0; s < 200; s++) {
            const int32_t next[2] = {(int32_t)((s + round) / 20 % 8),
                                     (int32_t)(((s + round) / 20 + 3) % 8)};
            versions_rig_step(&rig, busy, next, 2);
        }
        assert_int_equal(pool_version_seen(rig.pool, slow->step.client, key) & MP_VERSION_HIGH,
                         saw_low ? 0 : MP_VERSION_HIGH);
        for (uint32_t l = 0; l < LAYERS; l++) /* looks at every byte */
            versions_rig_layer(&rig, slow, l, all, 8, NULL);
        assert_int_equal(moepage_session_end(slow, NULL), MOEPAGE_OK);
        assert_true(rig.pool->versions[0]->n_free <= places);
    }
    moepage_session_destroy(slow);
    moepage_session_destroy(busy);
    versions_rig_close(&rig);
}

/* Several high versions are wanted at once, and one entry of the host tier is all that there is to
 * read them through: they come one after the other. */
static void test_version_places_fill_through_one_entry_of_a_host_tier(void **state)
{
    (void)state;
    const bank_shape shape = {.layers = LAYERS,
                              .experts = 8,
                              .top_k = 2,
                              .hidden = 64,
                              .intermediate = 32,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT2,
                              .seed = 12};
    const moepage_precision_config precision = {.hi_experts = 4, .transitions = 8};
    versions_rig rig = {0};
    moepage_form_info dense = {.struct_size = sizeof dense};
    bank_model_open(&rig.bank, &shape);
    assert_int_equal(moepage_model_get_form(rig.bank.model, MOEPAGE_FORM_DENSE, &dense),
                     MOEPAGE_OK);
    rig.host_tier_bytes = dense.most_bytes + 2 * 4096; /* reads are of whole pages */
    versions_rig_open_over(&rig, rig.bank.model, &precision, 0);
    assert_int_equal(versions_rig_info(&rig).host_tier_experts, 1);

    moepage_session *session = versions_rig_session(&rig, 1);
    uint64_t wanted = 4 * LAYERS;
    for (uint32_t i = 0; versions_rig_info(&rig).hi_published < wanted; i++) {
        assert_true(i < MOST_STEPS);
        (void)versions_rig_step(&rig, session, all, 4); /* looks at every byte */
        sched_yield();
    }
    assert_int_equal(versions_rig_info(&rig).transitions_failed, 0);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_places_stay_while_a_step_sees_them),
        cmocka_unit_test(test_version_places_fill_through_one_entry_of_a_host_tier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
