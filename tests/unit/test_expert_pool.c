/* Expert pools: what creation refuses, pins, resizing, and loads whose source fails. */
#include <stdlib.h>
#include <string.h>

#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 4
#define EXPERTS 8
#define TOP_K 2
#define KEYS (LAYERS * EXPERTS)

static bank_model bank;
static pool_rig rig;

static void open_bank(bool callback)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 8,
                        .intermediate = 4,
                        .callback = callback,
                        .seed = 7};
    bank_model_open(&bank, &shape);
}

static void open_rig(const pool_rig_config *config)
{
    open_bank(false);
    pool_rig_open(&rig, &bank, config);
}

static moepage_session *cache_session(void)
{
    return pool_rig_session(&rig, &(moepage_session_config){.regime = MOEPAGE_REGIME_CACHE});
}

static void close_rig(void)
{
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

#define expect_refusal(call, status, word)                                            \
    do {                                                                              \
        assert_int_equal((call), (status));                                           \
        if (!strstr(moepage_last_error(), (word)))                                    \
            fail_msg("\"%s\" does not mention \"%s\"", moepage_last_error(), (word)); \
    } while (0)

/* ---- creation ---- */

static moepage_device *open_device(uint64_t arena_bytes)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = 1,
                                    .workspace_bytes = 4096,
                                    .budget_bytes = 4096 + arena_bytes};
    moepage_device *device = NULL;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
    return device;
}

static void test_expert_pool_create_refuses_bad_configs(void **state)
{
    (void)state;
    open_bank(false);
    moepage_device *device = open_device(8192), *twice[2] = {device, device};
    moepage_expert_pool *pool = NULL;
    moepage_expert_pool_config good = {.struct_size = sizeof good, .slots = 4}, config;
#define expect_create_refusal(status, word)                                                      \
    expect_refusal(moepage_expert_pool_create(&device, 1, bank.model, &config, &pool), (status), \
                   (word))
    config = good, config.policy = "fifo";
    expect_create_refusal(MOEPAGE_E_NOT_FOUND, "fifo");
    config = good, config.scan_percent = 100;
    expect_create_refusal(MOEPAGE_E_ARGUMENT, "scan_percent is 100");
    config = good, config.scope = 2;
    expect_create_refusal(MOEPAGE_E_ARGUMENT, "scope is 2");
    config = good, config.tp_size = 2;
    expect_create_refusal(MOEPAGE_E_UNSUPPORTED, "tp_size 2");
    config = good, config.slots = 1000;
    expect_create_refusal(MOEPAGE_E_BUDGET, "32"); /* the most experts there are do not fit */
    config = good, config.scope = MOEPAGE_SCOPE_LAYER, config.slots = LAYERS - 1;
    expect_create_refusal(MOEPAGE_E_BUDGET, "no expert would be resident");
    config = good, config.struct_size = 3;
    expect_create_refusal(MOEPAGE_E_VERSION, "struct_size");
    config = good;
    expect_refusal(moepage_expert_pool_create(&device, 0, bank.model, &config, &pool),
                   MOEPAGE_E_ARGUMENT, "n_devices");
    expect_refusal(moepage_expert_pool_create(twice, 2, bank.model, &config, &pool),
                   MOEPAGE_E_ARGUMENT, "the same");
    expect_refusal(moepage_expert_pool_create(NULL, 1, bank.model, &config, &pool),
                   MOEPAGE_E_ARGUMENT, "NULL");
    expect_refusal(moepage_expert_pool_create(&device, 1, NULL, &config, &pool), MOEPAGE_E_ARGUMENT,
                   "NULL");
    expect_refusal(moepage_expert_pool_create(&device, 1, bank.model, &config, NULL),
                   MOEPAGE_E_ARGUMENT, "out is NULL");
    assert_null(pool);
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_int_equal(info.peak_bytes, 0);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK); /* nothing lives on it */
    bank_model_close(&bank);
}

/* More layers times experts than keys have bits. */
static void test_expert_pool_create_refuses_more_experts_than_it_can_tell_apart(void **state)
{
    (void)state;
    open_bank(true);
    moepage_banks banks = {.struct_size = sizeof banks,
                           .moe_layers = 65536,
                           .experts = 65536,
                           .top_k = 1,
                           .hidden = 8,
                           .expert_intermediate = 4,
                           .n_tensors = bank.n_tensors,
                           .tensors = bank.tensors,
                           .read = (moepage_read_fn)(uintptr_t)1};
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &model), MOEPAGE_OK);
    moepage_device *device = open_device(16384);
    moepage_expert_pool *pool = NULL;
    expect_refusal(moepage_expert_pool_create(&device, 1, model, NULL, &pool),
                   MOEPAGE_E_UNSUPPORTED, "65536 experts");
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    bank_model_close(&bank);
}

static void test_expert_pool_create_refuses_an_arena_without_room(void **state)
{
    (void)state;
    bank_shape shape = {.layers = 1, .experts = 2, .top_k = 1, .hidden = 64, .intermediate = 64};
    bank_model_open(&bank, &shape);
    moepage_device *device = open_device(4096); /* an expert has 48 KiB */
    moepage_expert_pool *pool = NULL;
    expect_refusal(moepage_expert_pool_create(&device, 1, bank.model, NULL, &pool),
                   MOEPAGE_E_BUDGET, "room for 0 slots");
    moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = 1};
    expect_refusal(moepage_expert_pool_create(&device, 1, bank.model, &config, &pool),
                   MOEPAGE_E_BUDGET, "room for 0");
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    bank_model_close(&bank);
}

static void test_expert_pool_is_the_only_one_on_a_device(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 4, .n_devices = 2});
    moepage_expert_pool *pool = NULL;
    expect_refusal(moepage_expert_pool_create(&rig.devices[1], 1, bank.model, NULL, &pool),
                   MOEPAGE_E_BUSY, "one expert pool");
    moepage_device *mixed[2] = {open_device(65536), rig.devices[0]};
    expect_refusal(moepage_expert_pool_create(mixed, 2, bank.model, NULL, &pool), MOEPAGE_E_BUSY,
                   "one expert pool");
    assert_int_equal(moepage_device_close(mixed[0]), MOEPAGE_OK); /* given up again */
    expect_refusal(moepage_device_close(rig.devices[0]), MOEPAGE_E_BUSY, "1 pool");
    expect_refusal(moepage_model_close(bank.model), MOEPAGE_E_BUSY, "pool");
    close_rig();
}

static void test_expert_pool_takes_the_slots_it_was_given(void **state)
{
    (void)state;
    static const struct {
        uint64_t asked;
        uint32_t scope, devices;
        uint64_t got;
    } cases[] = {
        {1, 0, 1, 1},   {7, 0, 1, 7}, {0, 0, 1, KEYS}, {1000, 0, 1, KEYS}, {5, 1, 1, 4},
        {31, 1, 1, 28}, {7, 0, 2, 7}, {0, 0, 2, KEYS}, {17, 1, 2, 16},     {2, 0, 2, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_rig(&(pool_rig_config){.slots = cases[i].asked,
                                    .scope = cases[i].scope,
                                    .n_devices = cases[i].devices});
        moepage_expert_pool_info info = pool_rig_info(&rig);
        assert_int_equal(info.slots, cases[i].got);
        assert_int_equal(info.devices, cases[i].devices);
        close_rig();
    }
}

static void test_expert_pool_handles_go_stale(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 4});
    moepage_expert_pool *pool = rig.pool;
    moepage_residency residency = {.struct_size = sizeof residency};
    expect_refusal(moepage_expert_pool_lookup(pool, LAYERS, 0, &residency), MOEPAGE_E_ARGUMENT,
                   "layer 4");
    expect_refusal(moepage_expert_pool_lookup(pool, 0, EXPERTS, &residency), MOEPAGE_E_ARGUMENT,
                   "expert 8");
    expect_refusal(moepage_expert_pool_lookup(pool, 0, 0, NULL), MOEPAGE_E_ARGUMENT, "NULL");
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    expect_refusal(moepage_expert_pool_lookup(pool, 0, 0, &residency), MOEPAGE_E_HANDLE,
                   "destroyed");
    expect_refusal(moepage_expert_pool_pin(pool, 0, 0), MOEPAGE_E_HANDLE, "destroyed");
    expect_refusal(moepage_expert_pool_destroy(pool), MOEPAGE_E_HANDLE, "destroyed");
    assert_int_equal(moepage_expert_pool_destroy(NULL), MOEPAGE_OK);
    expect_refusal(moepage_expert_pool_destroy((moepage_expert_pool *)rig.devices[0]),
                   MOEPAGE_E_HANDLE, "device");
    assert_int_equal(moepage_expert_pool_create(rig.devices, 1, bank.model, NULL, &rig.pool),
                     MOEPAGE_OK);
    close_rig();
}

/* ---- pins ---- */

static void test_expert_pool_pins_count_and_leave_top_k_slots(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 5});
    expect_refusal(moepage_expert_pool_unpin(rig.pool, 0, 0), MOEPAGE_E_STATE, "not pinned");
    for (uint32_t e = 0; e < 3; e++)
        assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, e), MOEPAGE_OK);
    expect_refusal(moepage_expert_pool_pin(rig.pool, 1, 3), MOEPAGE_E_BUDGET,
                   "3 experts are pinned");
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 0), MOEPAGE_OK); /* takes no slot */
    assert_int_equal(pool_rig_info(&rig).pinned, 3);

    moepage_session *session = cache_session();
    for (uint32_t e = 0; e < EXPERTS; e += 2)
        for (uint32_t l = 0; l < LAYERS; l++)
            pool_rig_visit(session, l, (int32_t[]){(int32_t)e, (int32_t)e + 1}, 2);
    for (uint32_t e = 0; e < 3; e++)
        assert_int_equal(pool_rig_state(&rig, 1, e), MOEPAGE_EXPERT_RESIDENT);
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.hits, 3);
    assert_int_equal(info.misses, KEYS - 3); /* a pin is neither */
    assert_int_equal(info.late, 0);

    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 0), MOEPAGE_OK);
    assert_int_equal(pool_rig_info(&rig).pinned, 3);
    for (uint32_t e = 0; e < 3; e++)
        assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, e), MOEPAGE_OK);
    expect_refusal(moepage_expert_pool_unpin(rig.pool, 1, 0), MOEPAGE_E_STATE, "not pinned");
    assert_int_equal(pool_rig_info(&rig).pinned, 0);
    for (uint32_t i = 0; i < 3; i++)
        pool_rig_visit(session, 3, (int32_t[]){2 * (int32_t)i, 2 * (int32_t)i + 1}, 2);
    for (uint32_t e = 0; e < 3; e++)
        assert_int_equal(pool_rig_state(&rig, 1, e), MOEPAGE_EXPERT_ABSENT);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

static void test_expert_pool_layer_scopes_do_not_compete(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 3 * LAYERS, .scope = MOEPAGE_SCOPE_LAYER});
    moepage_session *session = pool_rig_session(&rig, NULL);
    pool_rig_visit(session, 0, (int32_t[]){0, 1}, 2);
    for (uint32_t e = 0; e < EXPERTS; e += 2)
        for (uint32_t l = 1; l < LAYERS; l++) {
            pool_rig_visit(session, l, (int32_t[]){(int32_t)e, (int32_t)e + 1}, 2);
            uint32_t here = 0;
            for (uint32_t i = 0; i < EXPERTS; i++)
                here += pool_rig_state(&rig, l, i) == MOEPAGE_EXPERT_RESIDENT;
            assert_int_equal(here, e == 0 ? 2 : 3);
        }
    assert_int_equal(pool_rig_state(&rig, 0, 0), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(pool_rig_state(&rig, 0, 1), MOEPAGE_EXPERT_RESIDENT);
    /* Pins are limited per layer. */
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 0, 5), MOEPAGE_OK);
    expect_refusal(moepage_expert_pool_pin(rig.pool, 0, 6), MOEPAGE_E_BUDGET, "pinned");
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 5), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

/* ---- resizing ---- */

static uint64_t used_bytes(void)
{
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(rig.devices[0], &info), MOEPAGE_OK);
    return info.used_bytes;
}

static void visit_everything(moepage_session *session)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e += 2)
            pool_rig_visit(session, l, (int32_t[]){(int32_t)e, (int32_t)e + 1}, 2);
}

static void test_expert_pool_resizes_exactly(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {KEYS, 3, KEYS, 17, 16, 1, 2, KEYS - 1};
    open_rig(&(pool_rig_config){.slots = 10});
    moepage_session *session = cache_session();
    uint64_t slot_bytes = pool_rig_info(&rig).slot_bytes;
    uint64_t beside = used_bytes() - 10 * slot_bytes;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        visit_everything(session);
        assert_int_equal(moepage_split_set(rig.pool, NULL, sizes[i], 0, NULL), MOEPAGE_OK);
        assert_int_equal(pool_rig_info(&rig).slots, sizes[i]);
        assert_int_equal(used_bytes(), beside + sizes[i] * slot_bytes);
        pool_rig_check(&rig);
        visit_everything(session);
        moepage_expert_pool_info info = pool_rig_info(&rig);
        assert_int_equal(info.resident, sizes[i]);
        pool_rig_check(&rig);
    }
    expect_refusal(moepage_split_set(rig.pool, NULL, KEYS + 1, 0, NULL), MOEPAGE_E_BUDGET, "33");
    assert_int_equal(pool_rig_info(&rig).slots, KEYS - 1);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

static void test_expert_pool_resize_keeps_layers_equal(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 4 * LAYERS, .scope = MOEPAGE_SCOPE_LAYER});
    moepage_session *session = pool_rig_session(&rig, NULL);
    visit_everything(session);
    expect_refusal(moepage_split_set(rig.pool, NULL, 2 * LAYERS + 1, 0, NULL), MOEPAGE_E_BUDGET,
                   "multiples of 4");
    for (uint64_t each = 8; each > 0; each -= each > 2 ? 3 : 1) {
        assert_int_equal(moepage_split_set(rig.pool, NULL, each * LAYERS, 0, NULL), MOEPAGE_OK);
        pool_rig_check(&rig);
        visit_everything(session);
        for (uint32_t l = 0; l < LAYERS; l++) {
            uint32_t here = 0;
            for (uint32_t e = 0; e < EXPERTS; e++)
                here += pool_rig_state(&rig, l, e) == MOEPAGE_EXPERT_RESIDENT;
            assert_int_equal(here, each);
        }
    }
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

static void test_expert_pool_resize_refuses_what_is_in_use(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 8});
    moepage_session *session = pool_rig_session(&rig, NULL);
    moepage_plan plan = {.struct_size = sizeof plan};
    for (uint32_t e = 0; e < 8; e += 2) /* fills slots 0..7 in order */
        pool_rig_visit(session, 0, (int32_t[]){(int32_t)e, (int32_t)e + 1}, 2);
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, (int32_t[]){7}, 1, &plan), MOEPAGE_OK);
    int32_t held = plan.experts[0].slot;
    uint64_t before = used_bytes();
    expect_refusal(moepage_split_set(rig.pool, NULL, (uint64_t)held, 0, NULL), MOEPAGE_E_BUSY,
                   "open plan");
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.slots, 8);
    assert_int_equal(info.resident, 8); /* nothing was dropped for it */
    assert_int_equal(used_bytes(), before);
    assert_true(bank_model_matches(&bank, 0, 7, plan.experts[0].tensors));
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_split_set(rig.pool, NULL, (uint64_t)held, 0, NULL), MOEPAGE_OK);

    moepage_session *other = pool_rig_session(&rig, NULL);
    expect_refusal(moepage_split_set(rig.pool, NULL, 1, 0, NULL), MOEPAGE_E_BUDGET, "2 sessions");
    assert_int_equal(moepage_session_destroy(other), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 0, 0), MOEPAGE_OK);
    expect_refusal(moepage_split_set(rig.pool, NULL, 1, 0, NULL), MOEPAGE_E_BUDGET, "1 pins");
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

static void test_expert_pool_over_devices_is_not_resized(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 8, .n_devices = 2});
    expect_refusal(moepage_split_set(rig.pool, NULL, 4, 0, NULL), MOEPAGE_E_UNSUPPORTED,
                   "2 devices");
    expect_refusal(moepage_split_set(NULL, NULL, 4, 0, NULL), MOEPAGE_E_ARGUMENT, "NULL");
    close_rig();
}

/* ---- experts and KV together ---- */

static void test_expert_pool_trades_bytes_with_kv(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 8, .arena_slots = 64});
    uint32_t bytes_per_token[2] = {64, 64};
    moepage_kv_pool_config config = {.struct_size = sizeof config,
                                     .layers = 2,
                                     .bytes_per_token = bytes_per_token,
                                     .block_tokens = 4,
                                     .blocks_per_granule = 1,
                                     .blocks = 16};
    moepage_kv_pool *kv = NULL;
    assert_int_equal(moepage_kv_pool_create(rig.devices[0], &config, &kv), MOEPAGE_OK);
    moepage_kv_pool_info kv_info = {.struct_size = sizeof kv_info};
    assert_int_equal(moepage_kv_pool_get_info(kv, &kv_info), MOEPAGE_OK);
    moepage_device_info device = {.struct_size = sizeof device};
    assert_int_equal(moepage_device_get_info(rig.devices[0], &device), MOEPAGE_OK);
    uint64_t slot_bytes = pool_rig_info(&rig).slot_bytes, granule = kv_info.granule_bytes;
    uint64_t most_kv = (device.arena_bytes - 2 * slot_bytes) / granule;

    /* A refusal for either side leaves both. */
    expect_refusal(moepage_split_set(rig.pool, kv, 8, device.arena_bytes / granule, NULL),
                   MOEPAGE_E_BUDGET, "bytes");
    expect_refusal(moepage_split_set(rig.pool, kv, KEYS + 1, 1, NULL), MOEPAGE_E_BUDGET, "33");
    assert_int_equal(pool_rig_info(&rig).slots, 8);
    assert_int_equal(used_bytes(), 8 * slot_bytes + 16 * granule);

    static const uint64_t slots[] = {2, KEYS, 1, 20};
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t blocks = i % 2 ? 4 : most_kv;
        assert_int_equal(moepage_split_set(rig.pool, kv, slots[i], blocks, NULL), MOEPAGE_OK);
        assert_int_equal(used_bytes(), slots[i] * slot_bytes + blocks * granule);
        moepage_session *session = pool_rig_session(&rig, NULL);
        visit_everything(session);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        pool_rig_check(&rig);
    }
    assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_OK);
    close_rig();
}

/* ---- failing loads ---- */

static void test_expert_pool_recovers_from_a_failed_read(void **state)
{
    (void)state;
    open_bank(true);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 3});
    moepage_session *session = cache_session();
    moepage_plan plan = {.struct_size = sizeof plan};
    int32_t ids[2] = {3, 4};
    for (uint64_t call = 1; call <= 2 * bank.n_tensors; call++) {
        atomic_store(&bank.fail_call, call); /* each read of either expert in turn */
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        expect_refusal(pool_rig_route(session, 2, ids, 2, &plan), MOEPAGE_E_CALLBACK,
                       call <= bank.n_tensors ? "expert 3 of layer 2" : "expert 4 of layer 2");
        expect_refusal(moepage_session_retire(session, 2), MOEPAGE_E_STATE, "not open");
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        pool_rig_check(&rig);
        assert_int_equal(pool_rig_state(&rig, 2, 3) == MOEPAGE_EXPERT_ABSENT,
                         call <= bank.n_tensors);
        assert_int_equal(pool_rig_state(&rig, 2, 4) == MOEPAGE_EXPERT_ABSENT,
                         call > bank.n_tensors);
        assert_int_equal(pool_rig_info(&rig).failed_loads, call);
        assert_int_equal(moepage_split_set(rig.pool, NULL, 1, 0, NULL), MOEPAGE_OK); /* drop all */
        assert_int_equal(moepage_split_set(rig.pool, NULL, 3, 0, NULL), MOEPAGE_OK);
        pool_rig_visit(session, 3, (int32_t[]){0, 1}, 2);
        pool_rig_visit(session, 1, (int32_t[]){0, 1}, 2);
        pool_rig_visit(session, 0, (int32_t[]){0, 1}, 2);
    }
    pool_rig_visit(session, 2, ids, 2);
    assert_int_equal(pool_rig_state(&rig, 2, 3), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(pool_rig_state(&rig, 2, 4), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

static void test_expert_pool_pin_fails_with_its_read(void **state)
{
    (void)state;
    open_bank(true);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 3});
    for (uint32_t tries = 0; tries < 5; tries++) { /* more than there are pins to give */
        atomic_store(&bank.fail_call, 1);
        expect_refusal(moepage_expert_pool_pin(rig.pool, 0, 1), MOEPAGE_E_CALLBACK, "expert 1");
    }
    expect_refusal(moepage_expert_pool_unpin(rig.pool, 0, 1), MOEPAGE_E_STATE, "not pinned");
    assert_int_equal(pool_rig_info(&rig).resident, 0);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 0, 1), MOEPAGE_OK);
    pool_rig_check(&rig);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 0, 1), MOEPAGE_OK);
    close_rig();
}

/* A reader that comes late to a failing load may be the last to let go of its slot. */
static void test_expert_pool_loses_no_slot_to_a_passing_reader(void **state)
{
    (void)state;
    open_bank(true);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 1});
    moepage_session *session = pool_rig_session(&rig, NULL);
    mp_shard *shard = &rig.pool->cache->shards[0];
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    atomic_store(&bank.fail_call, 1);
    assert_int_equal(pool_rig_route(session, 0, (int32_t[]){0}, 1, NULL), MOEPAGE_OK);
    /* Another session's try to hold, stopped half way, as `entry` still named the slot. */
    mp_hold late = {.key = 0, .kind = MP_HOLD_LATE};
    atomic_fetch_add(&shard->words[0], 1);
    float x[8] = {0}, y[8];
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    expect_refusal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_E_CALLBACK, "expert 0");
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    assert_int_equal(MP_WORD_STATE(atomic_load(&shard->words[0])), MP_SLOT_FAILED);
    mp_pool_release(rig.pool, &late, 1);
    assert_int_equal(atomic_load(&shard->words[0]), 0);
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, (int32_t[]){0}, 1, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

/* Holds an expert and waits for it. */
static moepage_status hold_expert(mp_hold *hold, uint32_t key)
{
    *hold = (mp_hold){.key = key};
    moepage_status status = mp_pool_hold_rest(rig.pool, hold, 1, 0);
    return status ? status : mp_pool_wait(rig.pool, hold, NULL);
}

/* A user that has let go of a slot and has not freed it yet, as it waits for the lock. */
static void let_go_of(const mp_hold *hold)
{
    atomic_fetch_sub(&rig.pool->cache->shards[0].words[hold->slot], 1);
}

/* A slot without users is there for the next expert, whether or not its last user has had the lock. */
static void test_expert_pool_waits_for_no_last_user(void **state)
{
    (void)state;
    open_bank(true);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 3});
    mp_shard *shard = &rig.pool->cache->shards[0];
    mp_hold holds[5];

    /* The only slot that is not held is of a load that has failed. */
    assert_int_equal(hold_expert(&holds[0], 0), MOEPAGE_OK);
    assert_int_equal(hold_expert(&holds[1], 1), MOEPAGE_OK);
    atomic_store(&bank.fail_call, 1);
    expect_refusal(hold_expert(&holds[2], 2), MOEPAGE_E_CALLBACK, "expert 2");
    expect_refusal(hold_expert(&holds[3], 3), MOEPAGE_E_BUSY, "no slot for expert 3");
    let_go_of(&holds[2]);
    assert_int_equal(hold_expert(&holds[3], 3), MOEPAGE_OK);
    assert_int_equal(holds[3].slot, holds[2].slot);
    assert_false(mp_shard_drop(shard, holds[2].slot, 2, MP_SLOT_FAILED)); /* it comes too late */

    /* The only room is that of a slot that has to go. */
    mp_extent less = mp_pool_extent(rig.pool, 0, 2);
    assert_int_equal(mp_pool_move(rig.pool, &less, false), MOEPAGE_E_BUSY);
    mp_pool_release(rig.pool, &holds[0], 1);
    expect_refusal(hold_expert(&holds[4], 4), MOEPAGE_E_BUSY, "no slot for expert 4");
    let_go_of(&holds[3]);
    assert_int_equal(hold_expert(&holds[4], 4), MOEPAGE_OK);
    assert_int_equal(holds[4].slot, 0);
    assert_false(mp_shard_drop(shard, holds[3].slot, 3, MP_SLOT_DRAINING));
    assert_false(mp_pool_any_draining(rig.pool));
    assert_int_equal(mp_pool_move(rig.pool, &less, false), MOEPAGE_OK);
    mp_pool_release(rig.pool, &holds[1], 1);
    mp_pool_release(rig.pool, &holds[4], 1);
    assert_int_equal(pool_rig_info(&rig).resident, 2);
    close_rig();
}

/* Loads that nobody waits for, of layers that were never run: destroying copes. */
static void test_expert_pool_destroy_waits_for_loads(void **state)
{
    (void)state;
    for (uint32_t prefetch = 0; prefetch < 3; prefetch++) {
        open_rig(
            &(pool_rig_config){.slots = KEYS / 2, .chunk_bytes = 64, .bus_bytes_per_s = 1u << 20});
        moepage_session *session =
            pool_rig_session(&rig, &(moepage_session_config){.prefetch = prefetch});
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < LAYERS; l++) {
            if (prefetch)
                assert_int_equal(moepage_session_hint(session, (l + 1) % LAYERS,
                                                      (int32_t[]){4, 5, 6, 7}, 4),
                                 MOEPAGE_OK);
            assert_int_equal(pool_rig_route(session, l, (int32_t[]){0, 1}, 2, NULL), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
        assert_int_equal(moepage_device_close(rig.devices[0]), MOEPAGE_OK);
        bank_model_close(&bank);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_pool_create_refuses_bad_configs),
        cmocka_unit_test(test_expert_pool_create_refuses_more_experts_than_it_can_tell_apart),
        cmocka_unit_test(test_expert_pool_create_refuses_an_arena_without_room),
        cmocka_unit_test(test_expert_pool_is_the_only_one_on_a_device),
        cmocka_unit_test(test_expert_pool_takes_the_slots_it_was_given),
        cmocka_unit_test(test_expert_pool_handles_go_stale),
        cmocka_unit_test(test_expert_pool_pins_count_and_leave_top_k_slots),
        cmocka_unit_test(test_expert_pool_layer_scopes_do_not_compete),
        cmocka_unit_test(test_expert_pool_resizes_exactly),
        cmocka_unit_test(test_expert_pool_resize_keeps_layers_equal),
        cmocka_unit_test(test_expert_pool_resize_refuses_what_is_in_use),
        cmocka_unit_test(test_expert_pool_over_devices_is_not_resized),
        cmocka_unit_test(test_expert_pool_trades_bytes_with_kv),
        cmocka_unit_test(test_expert_pool_recovers_from_a_failed_read),
        cmocka_unit_test(test_expert_pool_pin_fails_with_its_read),
        cmocka_unit_test(test_expert_pool_loses_no_slot_to_a_passing_reader),
        cmocka_unit_test(test_expert_pool_waits_for_no_last_user),
        cmocka_unit_test(test_expert_pool_destroy_waits_for_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
