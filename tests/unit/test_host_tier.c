/* The host tier, one claim at a time, with reads that end when the test says so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cold_rig.h"
#include "testing.h"

#define UNIT(rig) mp_model_image_room((rig)->bank.model, MOEPAGE_FORM_DENSE)

static mp_entry_state state_of(const mp_host_tier *tier, uint32_t entry)
{
    return tier->entries[entry].state;
}

/* Brings an expert in, without any use of it. */
static uint32_t load(mp_host_tier *tier, uint32_t key)
{
    uint32_t entry = mp_host_tier_fetch(tier, key, false);
    assert_int_not_equal(entry, MP_NO_ENTRY);
    cold_rig_land_all(tier);
    mp_host_tier_settle(tier, entry);
    assert_int_equal(state_of(tier, entry), MP_ENTRY_VALID);
    return entry;
}

/* The sentence must be this load's own, not that of another failure. */
static void expect_failure(mp_host_tier *tier, uint32_t key, const char *sentence)
{
    char text[512] = "";
    mp_failure_recall(&tier->failure, key, text, sizeof text);
    assert_string_equal(text, sentence);
    mp_failure_recall(&tier->failure, key + 1, text, sizeof text);
    assert_string_equal(text, "");
}

/* ---- Creation ---- */

static void test_host_tier_has_as_many_entries_as_fit(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    const uint64_t unit = UNIT(&rig);
    const struct {
        uint64_t bytes;
        uint32_t entries;
    } cases[] = {
        {unit, 1},
        {2 * unit - 1, 1},
        {2 * unit, 2},
        {COLD_RIG_KEYS * unit, COLD_RIG_KEYS},
        {COLD_RIG_KEYS * unit + unit, COLD_RIG_KEYS}, /* more than there are experts */
        {UINT64_MAX, COLD_RIG_KEYS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mp_host_tier *tier = NULL;
        assert_int_equal(mp_host_tier_create(&rig.home, rig.bank.model, MOEPAGE_FORM_DENSE,
                                             cases[i].bytes, &tier),
                         MOEPAGE_OK);
        assert_int_equal(tier->n_entries, cases[i].entries);
        assert_true(rig.mapped_bytes >= cases[i].entries * unit);
        assert_true(rig.mapped_bytes < cases[i].entries * unit + 4096); /* whole pages */
        assert_int_equal(tier->n_keys, COLD_RIG_KEYS);
        mp_host_tier_destroy(tier);
    }
    cold_rig_close(&rig);
}

static void test_host_tier_that_holds_no_expert_is_refused(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = NULL;
    assert_int_equal(mp_host_tier_create(&rig.home, rig.bank.model, MOEPAGE_FORM_DENSE,
                                         UNIT(&rig) - 1, &tier),
                     MOEPAGE_E_BUDGET);
    assert_null(tier);
    char number[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)UNIT(&rig));
    assert_non_null(strstr(moepage_last_error(), number));
    mp_host_tier_destroy(NULL);
    cold_rig_close(&rig);
}

static void test_host_tier_reads_on_as_many_lanes_as_there_are_threads_and_entries(void **state)
{
    (void)state;
    const struct {
        uint32_t io_threads, entries, lanes;
    } cases[] = {{1, 4, 1}, {3, 4, 3}, {4, 3, 3}, {200, 15, 15}, {0, 4, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cold_rig rig;
        cold_rig_open(&rig, cases[i].io_threads);
        mp_host_tier *tier = cold_rig_tier(&rig, cases[i].entries);
        assert_int_equal(tier->n_lanes, cases[i].lanes);
        assert_int_equal(rig.streams, cases[i].lanes);
        mp_host_tier_destroy(tier);
        cold_rig_close(&rig);
    }
}

/* ---- Reads that succeed ---- */

static void test_host_tier_read_is_valid_once_it_has_landed_and_settled(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 2);
    assert_int_equal(mp_host_tier_find(tier, 11), MP_NO_ENTRY);
    uint32_t entry = mp_host_tier_fetch(tier, 11, false);
    assert_int_equal(tier->entries[entry].users, 0);
    mp_host_tier_use(tier, entry);
    assert_false(mp_host_tier_landed(tier, entry));
    mp_host_tier_settle(tier, entry);
    assert_int_equal(state_of(tier, entry), MP_ENTRY_READING);
    assert_int_equal(mp_host_tier_find(tier, 11), entry);
    assert_int_equal(tier->n_valid, 0);

    assert_true(cold_rig_land(tier, 0));
    assert_true(mp_host_tier_landed(tier, entry));
    assert_int_equal(state_of(tier, entry), MP_ENTRY_READING);
    mp_host_tier_settle(tier, entry);
    mp_host_tier_settle(tier, entry);
    assert_int_equal(state_of(tier, entry), MP_ENTRY_VALID);
    assert_int_equal(tier->n_valid, 1);
    assert_true(mp_host_tier_landed(tier, entry));
    assert_true(cold_rig_matches(&rig.bank, 11, mp_host_tier_image(tier, entry)));
    assert_int_equal(mp_host_tier_find(tier, 11), entry);
    mp_host_tier_let_go(tier, entry);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_counts_hits_reads_and_bytes(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 2);
    mp_host_tier_find(tier, 0); /* not there: no hit */
    uint32_t entry = mp_host_tier_fetch(tier, 0, false);
    assert_int_equal(tier->reads, 1);
    mp_host_tier_find(tier, 0); /* under way: a hit */
    cold_rig_land_all(tier);
    assert_int_equal(tier->cold_bytes, 0);
    mp_host_tier_settle(tier, entry);
    assert_int_equal(tier->cold_bytes, rig.bank.expert_bytes);
    mp_host_tier_find(tier, 0);
    mp_host_tier_find(tier, 1);
    assert_int_equal(tier->hits, 2);
    load(tier, 1);
    assert_int_equal(tier->reads, 2);
    assert_int_equal(tier->cold_bytes, 2 * rig.bank.expert_bytes);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_every_expert_has_room_of_its_own(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 4);
    mp_host_tier *tier = cold_rig_tier(&rig, COLD_RIG_KEYS);
    for (uint32_t k = 0; k < COLD_RIG_KEYS; k++)
        load(tier, k);
    assert_int_equal(tier->n_valid, COLD_RIG_KEYS);
    for (uint32_t k = 0; k < COLD_RIG_KEYS; k++) {
        uint32_t entry = mp_host_tier_find(tier, k);
        assert_true(cold_rig_matches(&rig.bank, k, mp_host_tier_image(tier, entry)));
    }
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

/* Every expert in turn, with room for two, must be what the model reads. */
static void check_images(cold_rig *rig, const moepage_model *model, uint32_t form)
{
    uint64_t room = mp_model_image_room(model, form), read_bytes;
    mp_host_tier *tier = NULL;
    assert_int_equal(mp_host_tier_create(&rig->home, model, form, 2 * room, &tier), MOEPAGE_OK);
    unsigned char *buffer = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    assert_non_null(buffer);
    for (uint32_t k = 0; k < COLD_RIG_KEYS; k++) {
        uint32_t layer = k / COLD_RIG_EXPERTS, expert = k % COLD_RIG_EXPERTS;
        mp_image image;
        mp_model_find_image(model, layer, expert, form, &image);
        assert_int_equal(mp_model_read_image(model, layer, expert, form, buffer, room, &read_bytes),
                         MOEPAGE_OK);
        uint64_t before = tier->cold_bytes;
        uint32_t entry = load(tier, k);
        assert_int_equal(tier->cold_bytes - before, read_bytes);
        assert_true(image.skew + image.bytes <= room);
        const unsigned char *at = mp_host_tier_image(tier, entry);
        if (image.stored) /* stored as it is: may be read with direct I/O */
            assert_int_equal((uintptr_t)(at - image.skew) % 4096, 0);
        if (form != MOEPAGE_FORM_DENSE)
            assert_memory_equal(at, buffer + image.skew, image.bytes);
        else
            assert_true(cold_rig_matches(&rig->bank, k, at));
    }
    free(buffer);
    mp_host_tier_destroy(tier);
}

static void test_host_tier_holds_images_as_the_model_reads_them(void **state)
{
    (void)state;
    const uint32_t dense = 1u << MOEPAGE_FORM_DENSE, exph = 1u << MOEPAGE_FORM_EXPH;
    const struct {
        uint32_t forms;
        int32_t cold_level;
        uint32_t form;
    } cases[] = {{dense, 0, MOEPAGE_FORM_DENSE},
                 {dense, 3, MOEPAGE_FORM_DENSE},
                 {exph, 0, MOEPAGE_FORM_DENSE},
                 {exph, 0, MOEPAGE_FORM_EXPH},
                 {dense | exph, 3, MOEPAGE_FORM_EXPH}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cold_rig rig;
        cold_rig_open(&rig, 2);
        bank_model_close(&rig.bank);
        bank_shape shape = rig.bank.shape;
        shape.dtype = MOEPAGE_DTYPE_BF16;
        shape.pack_forms = cases[i].forms;
        shape.cold_level = cases[i].cold_level;
        bank_model_open(&rig.bank, &shape);
        check_images(&rig, rig.bank.model, cases[i].form);
        cold_rig_close(&rig);
    }
}

static void test_host_tier_reads_go_to_the_idlest_lane(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 3);
    mp_host_tier *tier = cold_rig_tier(&rig, 9);
    uint32_t lane[6];
    for (uint32_t k = 0; k < 6; k++)
        lane[k] = tier->entries[mp_host_tier_fetch(tier, k, false)].lane;
    for (uint32_t k = 0; k < 3; k++) { /* in turn: two reads each */
        assert_int_not_equal(lane[k], lane[(k + 1) % 3]);
        assert_int_equal(lane[k], lane[k + 3]);
    }
    cold_rig_land(tier, lane[1]);
    assert_int_equal(tier->entries[mp_host_tier_fetch(tier, 6, false)].lane, lane[1]);
    cold_rig_land(tier, lane[2]);
    cold_rig_land(tier, lane[2]);
    assert_int_equal(tier->entries[mp_host_tier_fetch(tier, 7, false)].lane, lane[2]);
    assert_int_equal(tier->entries[mp_host_tier_fetch(tier, 8, false)].lane, lane[2]);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_destroy_waits_for_reads(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 2);
    mp_host_tier *tier = cold_rig_tier(&rig, 5);
    for (uint32_t k = 0; k < 5; k++)
        mp_host_tier_fetch(tier, k, false);
    mp_host_tier_destroy(tier);
    for (uint32_t k = 0; k < 5; k++)
        assert_int_equal(atomic_load(&rig.bank.loads[k]), 1);
    cold_rig_close(&rig);
}

/* ---- Eviction ---- */

static void test_host_tier_evicts_the_least_recently_found(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 3);
    load(tier, 0);
    load(tier, 1);
    load(tier, 2);
    mp_host_tier_find(tier, 0);
    load(tier, 3); /* instead of 1 */
    assert_int_equal(mp_host_tier_find(tier, 1), MP_NO_ENTRY);
    assert_int_not_equal(mp_host_tier_find(tier, 2), MP_NO_ENTRY);
    load(tier, 4); /* instead of 0 */
    assert_int_equal(mp_host_tier_find(tier, 0), MP_NO_ENTRY);
    load(tier, 5); /* instead of 3 */
    assert_int_equal(mp_host_tier_find(tier, 3), MP_NO_ENTRY);
    assert_int_equal(tier->n_valid, 3);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_never_gives_an_entry_in_use_away(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 2);
    uint32_t first = load(tier, 0), second = load(tier, 1);
    mp_host_tier_use(tier, first);
    mp_host_tier_use(tier, first);
    assert_int_equal(load(tier, 2), second); /* although 0 is older */
    mp_host_tier_use(tier, second);
    assert_int_equal(mp_host_tier_fetch(tier, 3, false), MP_NO_ENTRY);
    mp_host_tier_let_go(tier, first);
    assert_int_equal(mp_host_tier_fetch(tier, 3, false), MP_NO_ENTRY);
    assert_true(cold_rig_matches(&rig.bank, 0, mp_host_tier_image(tier, first)));
    mp_host_tier_let_go(tier, first);
    assert_int_equal(load(tier, 3), first);
    assert_int_equal(mp_host_tier_find(tier, 0), MP_NO_ENTRY);
    mp_host_tier_let_go(tier, second);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_never_gives_an_entry_away_that_is_being_read(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 2);
    mp_host_tier *tier = cold_rig_tier(&rig, 2);
    uint32_t first = mp_host_tier_fetch(tier, 0, false);
    mp_host_tier_fetch(tier, 1, false);
    assert_int_equal(mp_host_tier_fetch(tier, 2, false), MP_NO_ENTRY);
    assert_int_equal(tier->reads, 2);
    cold_rig_land(tier, tier->entries[first].lane);
    /* Nobody has settled it: a read that was given up must not occupy its entry for good. */
    assert_int_equal(load(tier, 2), first);
    assert_int_not_equal(mp_host_tier_find(tier, 1), MP_NO_ENTRY);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_keeps_what_was_read_for_nobody(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 2);
    uint32_t entry = mp_host_tier_fetch(tier, 0, false);
    mp_host_tier_use(tier, entry);
    mp_host_tier_let_go(tier, entry); /* given up half way */
    cold_rig_land_all(tier);
    assert_int_equal(mp_host_tier_find(tier, 0), entry);
    assert_int_equal(state_of(tier, entry), MP_ENTRY_VALID);
    assert_true(cold_rig_matches(&rig.bank, 0, mp_host_tier_image(tier, entry)));
    assert_int_equal(atomic_load(&rig.bank.loads[0]), 1);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

/* ---- Reads that fail ---- */

static void test_host_tier_failed_read_is_found_by_nobody(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 1);
    atomic_store(&rig.bank.fail_key, 6);
    uint32_t entry = mp_host_tier_fetch(tier, 6, false);
    mp_host_tier_use(tier, entry);
    mp_host_tier_use(tier, entry);
    cold_rig_land_all(tier);
    mp_host_tier_settle(tier, entry);
    assert_int_equal(state_of(tier, entry), MP_ENTRY_FAILED);
    assert_int_equal(atomic_load(&tier->entries[entry].result), MOEPAGE_E_CALLBACK);
    assert_int_equal(mp_host_tier_find(tier, 6), MP_NO_ENTRY);
    assert_int_equal(tier->hits, 0);

    /* Its users keep it from being reused, the last one lets it go. */
    mp_host_tier_let_go(tier, entry);
    assert_int_equal(mp_host_tier_fetch(tier, 6, false), MP_NO_ENTRY);
    mp_host_tier_let_go(tier, entry);
    assert_int_equal(state_of(tier, entry), MP_ENTRY_EMPTY);
    atomic_store(&rig.bank.fail_key, UINT32_MAX);
    assert_int_equal(load(tier, 6), entry);
    assert_int_equal(atomic_load(&tier->entries[entry].result), MOEPAGE_OK);
    assert_true(cold_rig_matches(&rig.bank, 6, mp_host_tier_image(tier, entry)));
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_failed_read_without_users_empties_its_entry(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 1);
    atomic_store(&rig.bank.fail_call, 1);
    uint32_t entry = mp_host_tier_fetch(tier, 6, false);
    cold_rig_land_all(tier);
    assert_int_equal(mp_host_tier_find(tier, 6), MP_NO_ENTRY); /* settles it first */
    assert_int_equal(state_of(tier, entry), MP_ENTRY_EMPTY);
    assert_int_equal(tier->n_valid, 0);
    atomic_store(&rig.bank.fail_call, 1);
    mp_host_tier_fetch(tier, 6, false);
    cold_rig_land_all(tier);
    load(tier, 7); /* finds it settled by nobody */
    assert_int_equal(tier->n_valid, 1);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_expert_is_read_again_beside_its_failed_entry(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 2);
    atomic_store(&rig.bank.fail_call, 1);
    uint32_t failed = mp_host_tier_fetch(tier, 6, false);
    mp_host_tier_use(tier, failed);
    cold_rig_land_all(tier);
    mp_host_tier_settle(tier, failed);
    uint32_t entry = load(tier, 6);
    assert_int_not_equal(entry, failed);
    mp_host_tier_let_go(tier, failed);
    assert_int_equal(mp_host_tier_find(tier, 6), entry);
    assert_true(cold_rig_matches(&rig.bank, 6, mp_host_tier_image(tier, entry)));
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_failure_says_what_the_model_said(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 1);
    expect_failure(tier, 13, "");
    atomic_store(&rig.bank.fail_key, 13);
    uint64_t read_bytes;
    _Alignas(4096) static unsigned char buffer[4096];
    assert_true(UNIT(&rig) <= sizeof buffer);
    assert_int_equal(mp_model_read_image(rig.bank.model, 13 / COLD_RIG_EXPERTS,
                                         13 % COLD_RIG_EXPERTS, MOEPAGE_FORM_DENSE, buffer,
                                         sizeof buffer, &read_bytes),
                     MOEPAGE_E_CALLBACK);
    char said[512];
    snprintf(said, sizeof said, "%s", moepage_last_error());
    assert_true(strlen(said) > 0);
    mp_host_tier_fetch(tier, 13, false);
    cold_rig_land_all(tier);
    expect_failure(tier, 13, said);
    char start[5];
    mp_failure_recall(&tier->failure, 13, start, sizeof start);
    assert_int_equal(strlen(start), sizeof start - 1);
    assert_memory_equal(start, said, sizeof start - 1);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_refused_read_is_a_failed_read(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 2);
    mp_host_tier_fetch(tier, 0, false); /* stays under way: ticks of others must not matter */
    rig.refuse_in = 1;
    uint32_t entry = mp_host_tier_fetch(tier, 1, false);
    mp_host_tier_use(tier, entry);
    assert_true(mp_host_tier_landed(tier, entry));
    mp_host_tier_settle(tier, entry);
    assert_int_equal(state_of(tier, entry), MP_ENTRY_FAILED);
    assert_int_equal(atomic_load(&tier->entries[entry].result), MOEPAGE_E_DEVICE);
    expect_failure(tier, 1, "the rig was told to refuse this submission");
    assert_int_equal(tier->reads, 1);
    assert_int_equal(atomic_load(&rig.bank.loads[1]), 0);
    mp_host_tier_let_go(tier, entry);
    assert_int_equal(load(tier, 1), entry);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

static void test_host_tier_says_so_when_the_device_has_failed(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, 1);
    mp_host_tier *tier = cold_rig_tier(&rig, 1);
    load(tier, 0);
    uint32_t entry = mp_host_tier_fetch(tier, 13, false);
    mp_host_tier_use(tier, entry);
    rig.poisoned = true;
    cold_rig_land_all(tier);
    mp_host_tier_settle(tier, entry);
    assert_int_equal(atomic_load(&tier->entries[entry].result), MOEPAGE_E_DEVICE);
    expect_failure(tier, 13, "layer 2, expert 3 was not read: the device had failed before");
    assert_int_equal(tier->cold_bytes, rig.bank.expert_bytes); /* of the first */
    mp_host_tier_let_go(tier, entry);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_tier_has_as_many_entries_as_fit),
        cmocka_unit_test(test_host_tier_that_holds_no_expert_is_refused),
        cmocka_unit_test(test_host_tier_reads_on_as_many_lanes_as_there_are_threads_and_entries),
        cmocka_unit_test(test_host_tier_read_is_valid_once_it_has_landed_and_settled),
        cmocka_unit_test(test_host_tier_counts_hits_reads_and_bytes),
        cmocka_unit_test(test_host_tier_every_expert_has_room_of_its_own),
        cmocka_unit_test(test_host_tier_holds_images_as_the_model_reads_them),
        cmocka_unit_test(test_host_tier_reads_go_to_the_idlest_lane),
        cmocka_unit_test(test_host_tier_destroy_waits_for_reads),
        cmocka_unit_test(test_host_tier_evicts_the_least_recently_found),
        cmocka_unit_test(test_host_tier_never_gives_an_entry_in_use_away),
        cmocka_unit_test(test_host_tier_never_gives_an_entry_away_that_is_being_read),
        cmocka_unit_test(test_host_tier_keeps_what_was_read_for_nobody),
        cmocka_unit_test(test_host_tier_failed_read_is_found_by_nobody),
        cmocka_unit_test(test_host_tier_failed_read_without_users_empties_its_entry),
        cmocka_unit_test(test_host_tier_expert_is_read_again_beside_its_failed_entry),
        cmocka_unit_test(test_host_tier_failure_says_what_the_model_said),
        cmocka_unit_test(test_host_tier_refused_read_is_a_failed_read),
        cmocka_unit_test(test_host_tier_says_so_when_the_device_has_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
