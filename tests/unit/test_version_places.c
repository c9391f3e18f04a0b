/* The low place of an expert that has become high: nobody gets it while a step is open that still
 * computes with it. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "memory/expert_versions.h"
#include "session/session.h"
#include "versions_rig.h"

#define LAYERS 3
#define MOST_STEPS 200000

static const int32_t all[8] = {0, 1, 2, 3, 4, 5, 6, 7};

/* A swap whose high version has been given a slot, and is not published yet. */
static const mp_swap *find_loading(versions_rig *rig)
{
    const mp_versions *versions = rig->pool->versions;
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
    return rig->pool->versions->published[key] & MP_VERSION_HIGH;
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
    uint32_t places = rig.pool->versions->n_places;
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
        bool saw_low = !(slow->client.published[key] & MP_VERSION_HIGH);
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
        assert_int_equal(slow->client.published[key] & MP_VERSION_HIGH,
                         saw_low ? 0 : MP_VERSION_HIGH);
        for (uint32_t l = 0; l < LAYERS; l++) /* looks at every byte */
            versions_rig_layer(&rig, slow, l, all, 8, NULL);
        assert_int_equal(moepage_session_end(slow, NULL), MOEPAGE_OK);
        assert_true(rig.pool->versions->n_free <= places);
    }
    moepage_session_destroy(slow);
    moepage_session_destroy(busy);
    versions_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_places_stay_while_a_step_sees_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
