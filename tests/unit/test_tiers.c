/* The tiers behind a pool's slots: which tier serves which load, its cost on the bus, and the
 * behaviour of tiny, slow or damaged tiers. */
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pack_maker.h"
#include "planning/placement.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 3
#define EXPERTS 12
#define KEYS (LAYERS * EXPERTS)
#define DENSE (1u << MOEPAGE_FORM_DENSE)
#define EXPH (1u << MOEPAGE_FORM_EXPH)

static bank_model bank;
static pool_rig rig;

static const bank_shape bf16 = {.layers = LAYERS,
                                .experts = EXPERTS,
                                .top_k = 2,
                                .hidden = 48,
                                .intermediate = 40,
                                .dtype = MOEPAGE_DTYPE_BF16,
                                .seed = 7};

static bank_shape packed(uint32_t forms)
{
    bank_shape shape = bf16;
    shape.pack_forms = forms;
    return shape;
}

static void open_world(bank_shape shape, const pool_rig_config *config)
{
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, config);
}

static void close_world(moepage_session *session)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

/* Routes one expert and looks at its bytes while the plan holds it. */
static moepage_status visit(moepage_session *session, uint32_t layer, int32_t expert)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    moepage_status status = pool_rig_route(session, layer, &expert, 1, &plan);
    if (status) {
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        return status;
    }
    assert_true(bank_model_matches(&bank, layer, (uint32_t)expert, plan.experts[0].tensors));
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    return MOEPAGE_OK;
}

/* ---- which tier serves which load ---- */

/* A list of keys, most recent first. */
typedef struct recency {
    uint32_t keys[KEYS];
    uint32_t n, capacity;
} recency;

/* Uses a key; true if it was there. The oldest goes when there is no room. */
static bool use(recency *list, uint32_t key)
{
    uint32_t at = 0;
    while (at < list->n && list->keys[at] != key)
        at++;
    bool found = at < list->n;
    if (!found && list->n < list->capacity)
        list->n++;
    if (!found)
        at = list->n - 1;
    memmove(list->keys + 1, list->keys, at * sizeof *list->keys);
    list->keys[0] = key;
    return found;
}

static uint64_t image_bytes(uint32_t key, uint32_t form)
{
    mp_image image;
    mp_model_find_image(bank.model, key / EXPERTS, key % EXPERTS, form, &image);
    return image.bytes;
}

/* One random walk; every load must be served, and counted, as two LRU lists and a set say. */
static void walk(bank_shape shape, pool_rig_config config)
{
    open_world(shape, &config);
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.regime = MOEPAGE_REGIME_CACHE});
    moepage_expert_pool_info start = pool_rig_info(&rig);
    const mp_shard *shard = &rig.pool->cache->shards[0];
    uint32_t form = rig.pool->bus_form;
    recency slots = {.capacity = pool_slots(shard)};
    recency host = {.capacity = shard->transfer->tier ? shard->transfer->tier->n_entries : 0};
    for (uint32_t key = 0; key < KEYS && key < start.cold_reads; key++)
        use(&host, key); /* read while the tier was measured */
    uint64_t misses = 0, compressed = 0, hits = 0, reads = 0, bus = 0, random = 99;
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t key = bank_below(&random, i % 3 ? KEYS / 2 : KEYS);
        assert_int_equal(visit(session, key / EXPERTS, (int32_t)(key % EXPERTS)), MOEPAGE_OK);
        if (use(&slots, key))
            continue;
        misses++;
        if (shard->transfer->compressed.place_of &&
            shard->transfer->compressed.place_of[key] != MP_NO_PLACE) {
            compressed++;
            continue;
        }
        bus += image_bytes(key, form);
        if (host.capacity && use(&host, key))
            hits++;
        else if (host.capacity)
            reads++;
    }
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.misses, misses);
    assert_int_equal(info.compressed_loads, compressed);
    assert_int_equal(info.decodes, form == MOEPAGE_FORM_EXPH ? misses : compressed);
    assert_int_equal(info.host_hits - start.host_hits, hits);
    assert_int_equal(info.cold_reads - start.cold_reads, reads);
    assert_int_equal(info.demand_bytes, bus);
    assert_true(!reads || info.cold_bytes > start.cold_bytes);
    assert_int_equal(info.failed_loads, 0);
    close_world(session);
}

static void test_tiers_serve_what_two_lists_and_a_set_say(void **state)
{
    (void)state;
    static const uint32_t forms[] = {DENSE, EXPH, DENSE | EXPH};
    for (uint32_t f = 0; f < 3; f++)
        for (uint32_t host = 0; host <= 10; host += 5)
            for (uint32_t y = 0; y <= 6; y += 3)
                for (uint32_t form = 0; form <= MOEPAGE_FORM_EXPH; form++) {
                    bool exph = forms[f] & EXPH;
                    if (!exph && (y || form == MOEPAGE_FORM_EXPH))
                        continue;
                    if (forms[f] == EXPH && form == MOEPAGE_FORM_DENSE && !host)
                        continue; /* passes through a tier of its own: below */
                    walk(packed(forms[f]), (pool_rig_config){.slots = 6,
                                                             .host_experts = host,
                                                             .compressed = y,
                                                             .bus_form = form,
                                                             .io_threads = 1});
                }
}

static void test_tiers_over_a_checkpoint_and_a_callback(void **state)
{
    (void)state;
    bank_shape shape = bf16;
    walk(shape, (pool_rig_config){.slots = 4, .host_experts = 7, .io_threads = 1});
    shape.callback = true;
    walk(shape, (pool_rig_config){.slots = 4, .host_experts = 7, .io_threads = 1});
}

/* Images that cannot be used where they are mapped pass through a few entries, and the pool says
 * so. */
static void test_tiers_unpack_through_entries_of_their_own(void **state)
{
    (void)state;
    bank_shape shapes[2] = {packed(DENSE), packed(EXPH)};
    shapes[0].cold_level = 3;
    for (int i = 0; i < 2; i++) {
        pool_rig_config config = {.slots = 4, .bus_form = MOEPAGE_FORM_DENSE, .io_threads = 1};
        walk(shapes[i], config);
        open_world(shapes[i], &config);
        moepage_expert_pool_info info = pool_rig_info(&rig);
        assert_int_equal(info.host_tier_experts, 2);
        assert_true(info.host_tier_bytes > 0 && info.host_page_bytes >= 4096);
        pool_rig_close(&rig);
        bank_model_close(&bank);
    }
}

/* ---- small and slow ---- */

/* A whole layer at once through one entry, two staging buffers and one slot more than it needs. */
static void test_tiers_of_one_entry_serve_a_layer_at_once(void **state)
{
    (void)state;
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= MOEPAGE_FORM_EXPH; form++) {
        open_world(packed(DENSE | EXPH), &(pool_rig_config){.slots = EXPERTS,
                                                            .host_experts = 1,
                                                            .bus_form = form,
                                                            .staging = 2,
                                                            .compressed = 2});
        moepage_session *session =
            pool_rig_session(&rig, &(moepage_session_config){.max_top_k = EXPERTS});
        int32_t ids[EXPERTS];
        for (int32_t e = 0; e < EXPERTS; e++)
            ids[e] = e;
        for (uint32_t round = 0; round < 4; round++)
            for (uint32_t l = 0; l < LAYERS; l++) {
                moepage_plan plan = {.struct_size = sizeof plan};
                pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
                assert_int_equal(pool_rig_route(session, l, ids, EXPERTS, &plan), MOEPAGE_OK);
                for (uint32_t e = 0; e < plan.n_experts; e++)
                    assert_true(bank_model_matches(&bank, l, plan.experts[e].expert,
                                                   plan.experts[e].tensors));
                assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
            }
        close_world(session);
    }
}

static void linger(bank_model *of, uint32_t layer, uint32_t expert, uint32_t tensor)
{
    (void)tensor;
    if (layer == 2 && expert == *(uint32_t *)of->user)
        for (uint32_t i = 0; i < 20000; i++)
            sched_yield();
}

/* A read that was begun for a guess and then called off still fills its entry: a demand that finds
 * no other waits for it. */
static void test_tiers_a_demand_waits_for_an_entry_of_a_dropped_guess(void **state)
{
    (void)state;
    bank_shape shape = bf16;
    uint32_t slow = 5;
    shape.callback = true;
    open_world(shape, &(pool_rig_config){.slots = 6, .host_experts = 1});
    bank.user = &slow;
    bank.before = linger;
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_HINT});
    for (int round = 0; round < 5; round++) {
        slow = 5 + (uint32_t)round;
        int32_t guess = (int32_t)slow;
        assert_int_equal(visit(session, 0, round), MOEPAGE_OK);
        uint64_t reads = pool_rig_info(&rig).cold_reads;
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        assert_int_equal(moepage_session_hint(session, 2, &guess, 1), MOEPAGE_OK);
        while (pool_rig_info(&rig).cold_reads == reads)
            sched_yield();
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        assert_int_equal(visit(session, 2, 11 - round % 2), MOEPAGE_OK); /* calls the guess off */
        assert_int_equal(visit(session, 1, round), MOEPAGE_OK);
    }
    close_world(session);
}

/* A prefetch that has been submitted whole, and that a plan now holds, keeps its entry only until
 * it lands: a demand for another expert waits for it. */
static void test_tiers_a_demand_waits_for_an_entry_of_a_late_prefetch(void **state)
{
    (void)state;
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= MOEPAGE_FORM_EXPH; form++)
        for (int32_t round = 0; round < 4; round++) {
            open_world(packed(DENSE | EXPH), &(pool_rig_config){.slots = 6,
                                                                .host_experts = 1,
                                                                .bus_form = form,
                                                                .bus_bytes_per_s = 4u << 20});
            moepage_session *session =
                pool_rig_session(&rig,
                                 &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_HINT});
            const int32_t guess = 5, ids[2] = {5, 6 + round};
            pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
            assert_int_equal(moepage_session_hint(session, 1, &guess, 1), MOEPAGE_OK);
            while (pool_rig_info(&rig).prefetch_bytes < image_bytes(EXPERTS + 5, form))
                sched_yield();
            moepage_plan plan = {.struct_size = sizeof plan};
            assert_int_equal(pool_rig_route(session, 1, ids, 2, &plan), MOEPAGE_OK);
            for (uint32_t e = 0; e < 2; e++)
                assert_true(
                    bank_model_matches(&bank, 1, plan.experts[e].expert, plan.experts[e].tensors));
            assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
            close_world(session);
        }
}

/* ---- guesses ---- */

static _Atomic bool held; /* reads of layer 2 do not end */
static _Atomic uint32_t waiting;

static void wait_at_layer_2(bank_model *of, uint32_t layer, uint32_t expert, uint32_t tensor)
{
    (void)of, (void)expert, (void)tensor;
    atomic_fetch_add(&waiting, layer == 2);
    while (layer == 2 && atomic_load(&held))
        sched_yield();
    atomic_fetch_sub(&waiting, layer == 2);
}

static void open_slow_world(const pool_rig_config *config)
{
    bank_shape shape = bf16;
    shape.callback = true;
    atomic_store(&held, false);
    open_world(shape, config);
    bank.before = wait_at_layer_2;
    atomic_store(&held, true);
}

/* A guess that cannot start takes no slot, and evicts no expert. */
static void test_tiers_guesses_without_an_entry_evict_nobody(void **state)
{
    (void)state;
    open_slow_world(&(pool_rig_config){.slots = 14, .host_experts = 1, .io_threads = 2});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_HINT,
                                                         .regime = MOEPAGE_REGIME_CACHE});
    for (int32_t e = 0; e < 12; e++)
        assert_int_equal(visit(session, 0, e), MOEPAGE_OK);
    const int32_t read = 3, guesses[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 2, &read, 1, NULL), MOEPAGE_OK); /* takes the entry */
    assert_int_equal(moepage_session_hint(session, 1, guesses, 12), MOEPAGE_OK);
    while (pool_rig_info(&rig).prefetch_refused < 12)
        sched_yield();
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.evictions, 0);
    assert_int_equal(info.resident, 12);
    assert_int_equal(info.prefetch_bytes, 0);
    atomic_store(&held, false);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    close_world(session);
}

/* Guesses, including outdated ones, occupy at most half of the I/O threads. */
static void test_tiers_guesses_leave_threads_to_demands(void **state)
{
    (void)state;
    open_slow_world(&(pool_rig_config){.slots = 30, .host_experts = 20, .io_threads = 4});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_HINT,
                                                         .regime = MOEPAGE_REGIME_CACHE});
    for (int32_t round = 0; round < 4; round++) {
        const int32_t guesses[] = {round, 4 + round, 8 + round};
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        assert_int_equal(moepage_session_hint(session, 2, guesses, 3), MOEPAGE_OK);
        while (atomic_load(&waiting) < 2)
            sched_yield();
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK); /* drops them */
        assert_int_equal(visit(session, 1, round), MOEPAGE_OK);        /* reads all the same */
        assert_int_equal(atomic_load(&waiting), 2);
        assert_int_equal(rig.pool->cache->shards[0].transfer->tier->n_guesses, 2);
    }
    atomic_store(&held, false);
    close_world(session);
}

/* A demand behind a cold read does not hold up one whose expert is in the host tier. */
static void test_tiers_host_hits_pass_cold_reads(void **state)
{
    (void)state;
    open_slow_world(&(pool_rig_config){.slots = 5, .host_experts = 12, .io_threads = 2});
    moepage_session *session =
        pool_rig_session(&rig,
                         &(moepage_session_config){.max_top_k = 1, .regime = MOEPAGE_REGIME_CACHE});
    for (int32_t e = 0; e < 7; e++)
        assert_int_equal(visit(session, 0, e), MOEPAGE_OK); /* 0 and 1 are in the tier alone now */
    const int32_t cold = 3, warm = 0;
    const float weight = 1;
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = 1,
                               .ids = &cold,
                               .weights = &weight};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(moepage_session_route(session, 2, &routing, NULL), MOEPAGE_OK);
    routing.ids = &warm;
    assert_int_equal(moepage_session_route(session, 0, &routing, &plan), MOEPAGE_OK);
    assert_true(bank_model_matches(&bank, 0, 0, plan.experts[0].tensors));
    assert_true(atomic_load(&held));
    atomic_store(&held, false);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    close_world(session);
}

/* ---- failures ---- */

static void test_tiers_a_failed_cold_read_fails_its_load_alone(void **state)
{
    (void)state;
    bank_shape shape = bf16;
    shape.callback = true;
    open_world(shape, &(pool_rig_config){.slots = 4, .host_experts = 6});
    moepage_session *session = pool_rig_session(&rig, NULL);
    atomic_store(&bank.fail_key, EXPERTS + 3);
    for (int again = 0; again < 3; again++) {
        assert_int_equal(visit(session, 1, 3), MOEPAGE_E_CALLBACK);
        assert_non_null(strstr(moepage_last_error(), "expert 3 of layer 1"));
        assert_int_equal(visit(session, 1, 4), MOEPAGE_OK);
        assert_int_equal(pool_rig_state(&rig, 1, 3), MOEPAGE_EXPERT_ABSENT);
    }
    atomic_store(&bank.fail_key, UINT32_MAX);
    assert_int_equal(visit(session, 1, 3), MOEPAGE_OK);
    assert_int_equal(pool_rig_info(&rig).failed_loads, 3);
    close_world(session);
}

/* Changes one byte in the middle of an expert's image in the file. */
static void damage(const char *path, uint32_t key, uint32_t form)
{
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open(path, NULL, &model), MOEPAGE_OK);
    mp_image image;
    mp_model_find_image(model, key / EXPERTS, key % EXPERTS, form, &image);
    off_t at =
        (off_t)(pack_record_offset(model, key / EXPERTS, key % EXPERTS, form) + image.bytes / 2);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);

    int file = open(path, O_RDWR);
    assert_true(file >= 0);
    unsigned char byte;
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

static void test_tiers_a_damaged_expert_is_refused_by_name(void **state)
{
    (void)state;
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= MOEPAGE_FORM_EXPH; form++)
        for (uint32_t host = 0; host <= 8; host += 8) {
            char path[] = "/tmp/moepage-tiers-XXXXXX";
            close(mkstemp(path));
            bank_model_open(&bank, &bf16);
            moepage_pack_config config = {.struct_size = sizeof config, .forms = 1u << form};
            assert_int_equal(moepage_pack_write(bank.model, path, &config, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_model_close(bank.model), MOEPAGE_OK);
            damage(path, 0, form); /* which the pool would measure by */
            damage(path, 2 * EXPERTS + 9, form);
            assert_int_equal(moepage_model_open(path, NULL, &bank.model), MOEPAGE_OK);
            unlink(path);
            bool exph = form == MOEPAGE_FORM_EXPH;
            pool_rig_open(&rig, &bank,
                          &(pool_rig_config){.slots = 4,
                                             .host_experts = host,
                                             .compressed = exph && host ? EXPERTS : 0});
            moepage_session *session = pool_rig_session(&rig, NULL);
            for (int again = 0; again < 2; again++) {
                assert_int_equal(visit(session, 2, 9), MOEPAGE_E_FORMAT);
                assert_non_null(strstr(moepage_last_error(), "expert 9 of layer 2"));
                assert_int_equal(visit(session, 2, 8), MOEPAGE_OK);
                assert_int_equal(visit(session, 0, 0), MOEPAGE_E_FORMAT);
                assert_non_null(strstr(moepage_last_error(), "expert 0 of layer 0"));
            }
            close_world(session);
        }
}

/* ---- set-up ---- */

static void expect_refused(const moepage_expert_pool_config *config, moepage_status expected,
                           const char *word)
{
    moepage_expert_pool *pool = NULL;
    moepage_device *device = NULL;
    moepage_device_config host = {.struct_size = sizeof host,
                                  .budget_bytes = 8u << 20,
                                  .workspace_bytes = 1u << 20};
    assert_int_equal(moepage_device_open("host", &host, &device), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(&device, 1, bank.model, config, &pool), expected);
    assert_non_null(strstr(moepage_last_error(), word));
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_int_equal(info.used_bytes, 0);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

static void test_tiers_bad_configs_are_refused(void **state)
{
    (void)state;
    moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = 4};
    bank_shape shape = packed(DENSE);
    bank_model_open(&bank, &shape);
    config.bus_form = MOEPAGE_FORM_INT4;
    expect_refused(&config, MOEPAGE_E_ARGUMENT, "bus_form");
    config.bus_form = MOEPAGE_FORM_EXPH;
    expect_refused(&config, MOEPAGE_E_UNSUPPORTED, "EXPH");
    config.bus_form = 0;
    config.compressed_experts = 1;
    expect_refused(&config, MOEPAGE_E_UNSUPPORTED, "EXPH");
    bank_model_close(&bank);

    shape = packed(EXPH);
    bank_model_open(&bank, &shape);
    config.compressed_experts = EXPERTS + 1;
    expect_refused(&config, MOEPAGE_E_ARGUMENT, "compressed_experts");
    config.compressed_experts = 0;
    config.staging_experts = 1;
    expect_refused(&config, MOEPAGE_E_ARGUMENT, "staging_experts");
    config.staging_experts = 1000;
    expect_refused(&config, MOEPAGE_E_BUDGET, "staging");
    config.staging_experts = 0;
    config.host_tier_bytes = 1;
    expect_refused(&config, MOEPAGE_E_BUDGET, "tier");
    config.host_tier_bytes = 0;
    config.placement = 2;
    expect_refused(&config, MOEPAGE_E_ARGUMENT, "placement");
    config.placement = MOEPAGE_PLACEMENT_BANDWIDTH;
    config.slots = 0;
    expect_refused(&config, MOEPAGE_E_ARGUMENT, "slots");
    bank_model_close(&bank);
}

/* However much memory is offered, a device's tier is as large as the experts that live there. */
static void test_tiers_of_two_devices_share_the_experts(void **state)
{
    (void)state;
    open_world(packed(EXPH), &(pool_rig_config){.slots = 8, .n_devices = 2, .host_experts = KEYS});
    assert_int_equal(pool_rig_info(&rig).host_tier_experts, KEYS);
    moepage_session *session = pool_rig_session(&rig, NULL);
    for (uint32_t key = 0; key < 2 * KEYS; key++)
        assert_int_equal(visit(session, key / EXPERTS % LAYERS, (int32_t)(key % EXPERTS)),
                         MOEPAGE_OK);
    assert_int_equal(pool_rig_info(&rig).cold_reads, KEYS);
    close_world(session);
}

/* A device that has what the sizes say, and not a byte less, can hold pool and session. */
static void test_tiers_take_what_their_sizes_say(void **state)
{
    (void)state;
    bank_shape shape = packed(DENSE | EXPH);
    bank_model_open(&bank, &shape);
    const moepage_session_config session_config = {.struct_size = sizeof session_config};
    uint64_t scratch;
    assert_int_equal(moepage_session_workspace(bank.model, &session_config, &scratch), MOEPAGE_OK);
    for (uint32_t i = 0; i < 2 * 3 * 2; i++) {
        moepage_expert_pool_config config = {.struct_size = sizeof config,
                                             .slots = 5,
                                             .bus_form = i % 2 ? MOEPAGE_FORM_DENSE : 0,
                                             .compressed_experts = i / 2 % 3 * 5,
                                             .staging_experts = i / 6 ? 7 : 0};
        uint64_t workspace, arena;
        assert_int_equal(moepage_expert_pool_sizes(bank.model, &config, 1, &workspace, &arena),
                         MOEPAGE_OK);
        moepage_device_config device = {.struct_size = sizeof device,
                                        .workspace_bytes = scratch + workspace,
                                        .budget_bytes = scratch + workspace + arena};
        rig = (pool_rig){.bank = &bank, .n_devices = 1};
        assert_int_equal(moepage_device_open("host", &device, &rig.devices[0]), MOEPAGE_OK);
        assert_int_equal(moepage_expert_pool_create(rig.devices, 1, bank.model, &config, &rig.pool),
                         MOEPAGE_OK);
        moepage_session *session = pool_rig_session(&rig, &session_config);
        assert_int_equal(visit(session, 1, 1), MOEPAGE_OK);
        moepage_device_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_device_get_info(rig.devices[0], &info), MOEPAGE_OK);
        assert_true(info.used_bytes <= device.budget_bytes &&
                    info.used_bytes > device.budget_bytes - 4096);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        pool_rig_close(&rig);
    }
    moepage_expert_pool_config bad = {.struct_size = sizeof bad, .staging_experts = 1};
    assert_int_equal(moepage_expert_pool_sizes(bank.model, &bad, 1, NULL, NULL),
                     MOEPAGE_E_ARGUMENT);
    bad.staging_experts = 0;
    bad.slots = UINT64_MAX;
    assert_int_equal(moepage_expert_pool_sizes(bank.model, &bad, 1, NULL, NULL),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_expert_pool_sizes(bank.model, NULL, 1, NULL, NULL), MOEPAGE_OK);
    bank_model_close(&bank);
}

/* The share that eq. 8 gives from the bandwidths that the pool itself reports. */
static void check_placed_by_bandwidth(uint32_t bus_form)
{
    bank_shape shape = packed(EXPH);
    bank_model_open(&bank, &shape);
    for (uint32_t room = 0; room <= EXPERTS; room += 4) {
        uint64_t unit = (mp_model_most_bytes(bank.model, MOEPAGE_FORM_EXPH) + 255) / 256 * 256;
        moepage_model_info model = {.struct_size = sizeof model};
        assert_int_equal(moepage_model_get_info(bank.model, &model), MOEPAGE_OK);
        uint64_t arena = (4 * model.slot_bytes + room * LAYERS * unit + model.slot_bytes) / 4096;
        moepage_device_config device = {.struct_size = sizeof device,
                                        .workspace_bytes = 1u << 20,
                                        .bus_bytes_per_s = 200u << 20};
        device.budget_bytes = device.workspace_bytes + (arena + 1) * 4096;
        moepage_expert_pool_config config = {.struct_size = sizeof config,
                                             .slots = 4,
                                             .bus_form = bus_form,
                                             .placement = MOEPAGE_PLACEMENT_BANDWIDTH};
        rig = (pool_rig){.bank = &bank, .n_devices = 1};
        assert_int_equal(moepage_device_open("host", &device, &rig.devices[0]), MOEPAGE_OK);
        assert_int_equal(moepage_expert_pool_create(rig.devices, 1, bank.model, &config, &rig.pool),
                         MOEPAGE_OK);
        moepage_expert_pool_info info = pool_rig_info(&rig);
        assert_true(info.bus_bytes_per_s > 0 && info.decode_bytes_per_s > 0);
        double exact = (double)EXPERTS * (double)info.decode_bytes_per_s /
                       ((double)info.decode_bytes_per_s + (double)info.bus_bytes_per_s);
        if (bus_form == MOEPAGE_FORM_EXPH) /* the decoder has those from the bus, too */
            exact = (double)EXPERTS *
                    fmax(0, 1 - (double)info.bus_bytes_per_s / (double)info.decode_bytes_per_s);
        double got = info.compressed_experts;
        if (exact > room + 1)
            assert_true(got >= room && got <= room + 1);
        else
            assert_true(got > exact - 1 && got < exact + 1);
        moepage_session *session = pool_rig_session(&rig, NULL);
        for (uint32_t key = 0; key < KEYS; key++)
            assert_int_equal(visit(session, key / EXPERTS, (int32_t)(key % EXPERTS)), MOEPAGE_OK);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        pool_rig_close(&rig);
    }
    bank_model_close(&bank);
}

static void test_tiers_are_placed_by_their_bandwidth(void **state)
{
    (void)state;
    check_placed_by_bandwidth(MOEPAGE_FORM_DENSE);
    check_placed_by_bandwidth(MOEPAGE_FORM_EXPH);
}

/* Compressed experts and slots share the arena with the KV side, which can neither take from them
 * nor see them move. */
static void test_tiers_keep_their_place_while_the_split_moves(void **state)
{
    (void)state;
    open_world(packed(EXPH), &(pool_rig_config){.slots = 8, .compressed = 4, .arena_slots = 24});
    moepage_session *session = pool_rig_session(&rig, NULL);
    const uint32_t bytes_per_token[1] = {64};
    moepage_kv_pool_config kv_config = {.struct_size = sizeof kv_config,
                                        .layers = 1,
                                        .blocks = 4,
                                        .bytes_per_token = bytes_per_token};
    moepage_kv_pool *kv = NULL;
    assert_int_equal(moepage_kv_pool_create(rig.devices[0], &kv_config, &kv), MOEPAGE_OK);
    static const uint64_t slots[] = {16, 2, 20, 8};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(moepage_split_set(rig.pool, kv, slots[i], 0, NULL), MOEPAGE_OK);
        for (uint32_t key = 0; key < KEYS; key++)
            assert_int_equal(visit(session, key / EXPERTS, (int32_t)(key % EXPERTS)), MOEPAGE_OK);
    }
    assert_int_equal(moepage_split_set(rig.pool, kv, KEYS + 24, 0, NULL), MOEPAGE_E_BUDGET);
    assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_OK);
    close_world(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers_serve_what_two_lists_and_a_set_say),
        cmocka_unit_test(test_tiers_over_a_checkpoint_and_a_callback),
        cmocka_unit_test(test_tiers_unpack_through_entries_of_their_own),
        cmocka_unit_test(test_tiers_of_one_entry_serve_a_layer_at_once),
        cmocka_unit_test(test_tiers_a_demand_waits_for_an_entry_of_a_dropped_guess),
        cmocka_unit_test(test_tiers_a_demand_waits_for_an_entry_of_a_late_prefetch),
        cmocka_unit_test(test_tiers_guesses_without_an_entry_evict_nobody),
        cmocka_unit_test(test_tiers_guesses_leave_threads_to_demands),
        cmocka_unit_test(test_tiers_host_hits_pass_cold_reads),
        cmocka_unit_test(test_tiers_of_two_devices_share_the_experts),
        cmocka_unit_test(test_tiers_take_what_their_sizes_say),
        cmocka_unit_test(test_tiers_a_failed_cold_read_fails_its_load_alone),
        cmocka_unit_test(test_tiers_a_damaged_expert_is_refused_by_name),
        cmocka_unit_test(test_tiers_bad_configs_are_refused),
        cmocka_unit_test(test_tiers_are_placed_by_their_bandwidth),
        cmocka_unit_test(test_tiers_keep_their_place_while_the_split_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
