/* A device's budget that moves, one claim at a time: what leaves first and what comes back, what is in the way,
 * what is refused and with which sentence, and that the system really has its memory back. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bank_model.h"
#include "fake_device.h"
#include "kv_tokens.h"
#include "testing.h"

enum {
    LAYERS = 3,
    EXPERTS = 8,
    KEYS = LAYERS * EXPERTS,
    TOP_K = 2,
    BLOCK_TOKENS = 4,
    BLOCK_BYTES = 4 * 1024, /* a page: granules of one block */
    WORKSPACE = 1 << 20,
};

#define OK(call) assert_int_equal(call, MOEPAGE_OK)

static bank_model bank;
static moepage_device *device;
static moepage_expert_pool *experts;
static moepage_kv_pool *kv;
static moepage_session *session;
static kv_tokens tokens;
static uint64_t slot_bytes;

static const uint32_t bytes_per_token[1] = {BLOCK_BYTES / BLOCK_TOKENS};

static bool said(const char *words)
{
    bool is_said = strstr(moepage_last_error(), words) != NULL;
    if (!is_said)
        print_message("it said: %s\n", moepage_last_error());
    return is_said;
}

static moepage_device_info info_of(moepage_device *of)
{
    moepage_device_info info = MOEPAGE_DEVICE_INFO();
    OK(moepage_device_get_info(of, &info));
    assert_true(info.used_bytes <= info.peak_bytes && info.peak_bytes <= info.budget_bytes);
    return info;
}

static uint64_t slots(void)
{
    moepage_expert_pool_info info = MOEPAGE_EXPERT_POOL_INFO();
    OK(moepage_expert_pool_get_info(experts, &info));
    return info.slots;
}

static uint64_t blocks(void)
{
    moepage_kv_pool_info info = MOEPAGE_KV_POOL_INFO();
    OK(moepage_kv_pool_get_info(kv, &info));
    return info.blocks;
}

static moepage_status set(uint64_t arena_bytes)
{
    return moepage_device_set_budget(device, arena_bytes + WORKSPACE, NULL);
}

/* Bytes of the arena that the system has pages for. */
static uint64_t pages_of(moepage_device *of)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = of->arena.bytes / page;
    unsigned char *there = malloc(n);
    uint64_t bytes = 0;
    assert_int_equal(mincore(of->arena.base, of->arena.bytes, there), 0);
    for (uint64_t i = 0; i < n; i++)
        bytes += there[i] & 1 ? page : 0;
    free(there);
    return bytes;
}

static void open_model(void)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 64,
                        .intermediate = 64,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .seed = 5};
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    bank_model_open(&bank, &shape);
    OK(moepage_model_get_info(bank.model, &info));
    slot_bytes = info.slot_bytes;
    assert_int_equal(slot_bytes, 3 * 64 * 64 * 2); /* six pages */
}

static void open_device(uint64_t arena_bytes, uint64_t max_arena_bytes)
{
    device = NULL;
    OK(moepage_device_open("host",
                           &MOEPAGE_DEVICE_CONFIG(.threads = 1,
                                                  .budget_bytes = arena_bytes + WORKSPACE,
                                                  .workspace_bytes = WORKSPACE,
                                                  .max_budget_bytes = max_arena_bytes + WORKSPACE),
                           &device));
}

/* A pool of so many slots, 0 for all that fit, and one of so many blocks, 0 for none. */
static void open_pools(uint64_t n_slots, uint64_t n_blocks)
{
    experts = NULL;
    kv = NULL;
    session = NULL;
    if (n_blocks) {
        OK(moepage_kv_pool_create(device,
                                  &MOEPAGE_KV_POOL_CONFIG(.block_tokens = BLOCK_TOKENS, .layers = 1,
                                                          .bytes_per_token = bytes_per_token,
                                                          .blocks_per_granule = 1,
                                                          .blocks = n_blocks),
                                  &kv));
        kv_tokens_open(&tokens, kv, 1, bytes_per_token);
    }
    OK(moepage_expert_pool_create(&device, 1, bank.model,
                                  &MOEPAGE_EXPERT_POOL_CONFIG(.slots = n_slots), &experts));
    OK(moepage_session_create(experts, kv, &MOEPAGE_SESSION_CONFIG(.max_tokens = 4), &session));
}

static void close_all(void)
{
    OK(moepage_session_destroy(session));
    OK(moepage_expert_pool_destroy(experts));
    OK(moepage_kv_pool_destroy(kv));
    assert_int_equal(info_of(device).used_bytes, 0);
    OK(moepage_device_close(device));
    bank_model_close(&bank);
}

static void route(uint32_t layer, uint32_t expert, moepage_plan *plan)
{
    const int32_t ids[1] = {(int32_t)expert};
    const float weights[1] = {1};
    OK(moepage_session_route(session, layer, &MOEPAGE_ROUTING(1, ids, weights), plan));
}

static void begin(void)
{
    OK(moepage_session_begin(session, &MOEPAGE_STEP(1)));
}

/* Brings every expert into its slot, and checks all bytes. */
static void visit_all(void)
{
    begin();
    for (uint32_t key = 0; key < KEYS; key++) {
        moepage_plan plan = MOEPAGE_PLAN();
        route(key / EXPERTS, key % EXPERTS, &plan);
        assert_true(
            bank_model_matches(&bank, key / EXPERTS, key % EXPERTS, plan.experts[0].tensors));
        OK(moepage_session_retire(session, key / EXPERTS));
    }
    OK(moepage_session_end(session, NULL));
}

/* The expert in the last slot of all. */
static uint32_t last_key(void)
{
    for (uint32_t key = 0; key < KEYS; key++) {
        moepage_residency residency = MOEPAGE_RESIDENCY();
        OK(moepage_expert_pool_lookup(experts, key / EXPERTS, key % EXPERTS, &residency));
        if (residency.slot >= 0 && (uint64_t)residency.slot + 1 == slots())
            return key;
    }
    fail_msg("no expert is in the last slot");
    return 0;
}

/* ---- Memory ----------------------------------------------------------------------------- */

static void test_budget_memory_comes_from_the_system_and_goes_back(void **state)
{
    (void)state;
    open_device(1 << 20, 4 << 20);
    moepage_device_info info = info_of(device);
    assert_int_equal(info.max_budget_bytes, (4 << 20) + WORKSPACE);
    assert_int_equal(info.reserve_bytes, info.max_budget_bytes / 16);
    assert_int_equal(info.arena_bytes, 1 << 20);
    assert_int_equal(pages_of(device), 1 << 20);
    static const uint64_t sizes[] = {4 << 20, 8192, 3 << 20, 4096, (1 << 20) + 5000, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        OK(set(sizes[i]));
        info = info_of(device);
        assert_int_equal(info.budget_bytes, sizes[i] + WORKSPACE);
        assert_int_equal(info.budget_aim_bytes, info.budget_bytes);
        assert_int_equal(info.arena_bytes, sizes[i] / 4096 * 4096);
        assert_int_equal(pages_of(device), info.arena_bytes);
    }
    OK(moepage_device_close(device));
}

/* Without max_budget_bytes it can shrink, and come back. */
static void test_budget_of_any_device_shrinks_and_comes_back(void **state)
{
    (void)state;
    device = NULL;
    OK(moepage_device_open("host",
                           &MOEPAGE_DEVICE_CONFIG(.threads = 1, .budget_bytes = 3 << 20,
                                                  .workspace_bytes = WORKSPACE),
                           &device));
    assert_int_equal(pages_of(device), 2 << 20);
    OK(set(1 << 20));
    assert_int_equal(pages_of(device), 1 << 20);
    OK(set(2 << 20));
    assert_int_equal(pages_of(device), 2 << 20);
    assert_int_equal(set((2 << 20) + 1), MOEPAGE_E_BUDGET);
    assert_true(said("addresses for at most 3145728, its max_budget_bytes"));
    OK(moepage_device_close(device));
}

static void test_budget_is_refused_with_a_sentence(void **state)
{
    (void)state;
    moepage_device *none = NULL;
    open_device(1 << 20, 1 << 20);
    assert_int_equal(moepage_device_set_budget(device, WORKSPACE, NULL), MOEPAGE_E_BUDGET);
    assert_true(
        said("leaves the arena less than one part of 4096 beside the workspace of 1048576"));
    assert_int_equal(moepage_device_set_budget(device, 0, NULL), MOEPAGE_E_BUDGET);
    assert_int_equal(moepage_device_set_budget(NULL, 1 << 20, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_device_follow_memory(NULL, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(info_of(device).budget_bytes, (1 << 20) + WORKSPACE);
    OK(moepage_device_close(device));
    assert_int_equal(moepage_device_open("host",
                                         &MOEPAGE_DEVICE_CONFIG(.budget_bytes = 2 << 20,
                                                                .max_budget_bytes = 1 << 20),
                                         &none),
                     MOEPAGE_E_BUDGET);
    assert_true(said("budget_bytes 2097152 is more than max_budget_bytes 1048576"));
    assert_null(none);
}

/* ---- What leaves, what comes back ------------------------------------------------------- */

static void test_budget_takes_experts_then_free_blocks_and_gives_all_back(void **state)
{
    (void)state;
    open_model();
    open_device(KEYS * slot_bytes + 40 * BLOCK_BYTES, KEYS * slot_bytes + 40 * BLOCK_BYTES);
    open_pools(0, 40);
    assert_int_equal(slots(), KEYS);
    visit_all();
    /* A slot is six pages. */
    OK(set(KEYS * slot_bytes + 40 * BLOCK_BYTES - 1));
    assert_int_equal(slots(), KEYS - 1);
    assert_int_equal(blocks(), 40);
    OK(set(10 * slot_bytes + 40 * BLOCK_BYTES));
    assert_int_equal(slots(), 10);
    assert_int_equal(blocks(), 40);
    assert_int_equal(pages_of(device), info_of(device).arena_bytes);
    visit_all();
    /* One layer's top-k stay, and free blocks go. */
    OK(set(TOP_K * slot_bytes + 15 * BLOCK_BYTES));
    assert_int_equal(slots(), TOP_K);
    assert_int_equal(blocks(), 15);
    moepage_device_info info = info_of(device);
    assert_int_equal(info.used_bytes, info.peak_bytes);
    visit_all();
    assert_int_equal(set(TOP_K * slot_bytes), MOEPAGE_E_BUDGET);
    assert_int_equal(slots(), TOP_K);
    assert_int_equal(blocks(), 15);
    /* Blocks come back first. */
    OK(set(5 * slot_bytes + 40 * BLOCK_BYTES));
    assert_int_equal(blocks(), 40);
    assert_int_equal(slots(), 5);
    OK(set(KEYS * slot_bytes + 40 * BLOCK_BYTES));
    assert_int_equal(slots(), KEYS);
    visit_all();
    close_all();
}

static void test_budget_gives_a_pool_with_counted_slots_no_more_than_it_had(void **state)
{
    (void)state;
    open_model();
    open_device(20 * slot_bytes, 40 * slot_bytes);
    open_pools(8, 0);
    OK(set(9 * slot_bytes)); /* free bytes go first */
    assert_int_equal(slots(), 8);
    OK(set(4 * slot_bytes));
    assert_int_equal(slots(), 4);
    OK(set(6 * slot_bytes));
    assert_int_equal(slots(), 6);
    OK(set(40 * slot_bytes));
    assert_int_equal(slots(), 8);
    close_all();
    open_model();
    open_device(8 * slot_bytes, 40 * slot_bytes);
    open_pools(0, 0);
    assert_int_equal(slots(), 8);
    OK(set(12 * slot_bytes));
    assert_int_equal(slots(), 12);
    OK(set(40 * slot_bytes));
    assert_int_equal(slots(), KEYS);
    close_all();
}

static void test_budget_keeps_live_blocks_and_their_tokens(void **state)
{
    (void)state;
    static uint64_t tags[12 * BLOCK_TOKENS];
    moepage_seq first = 0, second = 0;
    open_model();
    open_device(6 * slot_bytes + 30 * BLOCK_BYTES, 6 * slot_bytes + 30 * BLOCK_BYTES);
    open_pools(6, 30);
    for (uint32_t i = 0; i < 12 * BLOCK_TOKENS; i++)
        tags[i] = 77 + i;
    OK(moepage_kv_create(kv, &first));
    OK(moepage_kv_create(kv, &second));
    OK(moepage_kv_append(kv, first, 9 * BLOCK_TOKENS, NULL));
    OK(moepage_kv_append(kv, second, 12 * BLOCK_TOKENS, NULL)); /* below the other's blocks */
    kv_tokens_write(&tokens, second, 0, 12 * BLOCK_TOKENS, tags);
    OK(moepage_kv_free(kv, first));
    OK(set(TOP_K * slot_bytes + 14 * BLOCK_BYTES));
    assert_int_equal(blocks(), 14);
    assert_true(kv_tokens_match(&tokens, second, 12 * BLOCK_TOKENS, tags));
    assert_int_equal(set(TOP_K * slot_bytes + 11 * BLOCK_BYTES), MOEPAGE_E_BUDGET);
    assert_true(said("cannot hold the 12 that sequences use"));
    assert_int_equal(blocks(), 14);
    OK(set(TOP_K * slot_bytes + 12 * BLOCK_BYTES));
    assert_true(kv_tokens_match(&tokens, second, 12 * BLOCK_TOKENS, tags));
    OK(set(6 * slot_bytes + 30 * BLOCK_BYTES));
    assert_int_equal(blocks(), 30);
    assert_int_equal(slots(), 6);
    assert_true(kv_tokens_match(&tokens, second, 12 * BLOCK_TOKENS, tags));
    OK(moepage_kv_free(kv, second));
    close_all();
}

/* A split can still be chosen within the budget of the moment, and memory moves with it. */
static void test_budget_below_the_maximum_is_split_as_any_other(void **state)
{
    (void)state;
    open_model();
    open_device(8 * slot_bytes + 10 * BLOCK_BYTES, KEYS * slot_bytes + 60 * BLOCK_BYTES);
    open_pools(8, 10);
    visit_all();
    for (uint32_t i = 0; i < 6; i++) {
        OK(moepage_split_set(experts, kv, i % 2 ? 9 : 3, i % 2 ? 4 : 40, NULL));
        assert_int_equal(slots(), i % 2 ? 9 : 3);
        assert_int_equal(blocks(), i % 2 ? 4 : 40);
        assert_int_equal(pages_of(device), 8 * slot_bytes + 10 * BLOCK_BYTES);
        visit_all();
    }
    assert_int_equal(moepage_split_set(experts, kv, 10, 4, NULL), MOEPAGE_E_BUDGET);
    close_all();
}

/* ---- What waits ------------------------------------------------------------------------- */

static void test_budget_waits_for_an_open_plan(void **state)
{
    (void)state;
    moepage_plan plan = MOEPAGE_PLAN();
    open_model();
    open_device(KEYS * slot_bytes, KEYS * slot_bytes);
    open_pools(0, 0);
    visit_all();
    uint32_t key = last_key();
    begin();
    route(key / EXPERTS, key % EXPERTS, &plan);
    const uint64_t smaller = 10 * slot_bytes;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(set(smaller), MOEPAGE_E_BUSY);
        moepage_device_info info = info_of(device);
        assert_int_equal(info.budget_bytes, KEYS * slot_bytes + WORKSPACE);
        assert_int_equal(info.budget_aim_bytes, smaller + WORKSPACE);
        assert_int_equal(slots(), KEYS);
        assert_true(
            bank_model_matches(&bank, key / EXPERTS, key % EXPERTS, plan.experts[0].tensors));
    }
    OK(moepage_session_retire(session, key / EXPERTS));
    OK(moepage_session_end(session, NULL));
    assert_int_equal(pages_of(device), KEYS * slot_bytes); /* nothing goes on by itself */
    OK(set(smaller));
    assert_int_equal(slots(), 10);
    assert_int_equal(pages_of(device), smaller);
    visit_all();
    close_all();
}

static void test_budget_waits_for_a_pin_and_an_aim_can_be_given_up(void **state)
{
    (void)state;
    open_model();
    open_device(KEYS * slot_bytes, KEYS * slot_bytes);
    open_pools(0, 0);
    visit_all();
    uint32_t key = last_key();
    OK(moepage_expert_pool_pin(experts, key / EXPERTS, key % EXPERTS));
    assert_int_equal(set(10 * slot_bytes), MOEPAGE_E_BUSY);
    assert_true(said("pinned"));
    assert_int_equal(set(12 * slot_bytes), MOEPAGE_E_BUSY);
    assert_int_equal(info_of(device).budget_aim_bytes, 12 * slot_bytes + WORKSPACE);
    OK(set(KEYS * slot_bytes)); /* the present budget */
    assert_int_equal(info_of(device).budget_aim_bytes, KEYS * slot_bytes + WORKSPACE);
    assert_int_equal(slots(), KEYS);
    visit_all();
    moepage_expert_pool_info info = MOEPAGE_EXPERT_POOL_INFO();
    OK(moepage_expert_pool_get_info(experts, &info));
    assert_int_equal(info.resident, KEYS); /* all slots take experts again */
    assert_int_equal(set(10 * slot_bytes), MOEPAGE_E_BUSY);
    assert_int_equal(set(slot_bytes), MOEPAGE_E_BUDGET); /* any other failure gives it up, too */
    assert_int_equal(info_of(device).budget_aim_bytes, KEYS * slot_bytes + WORKSPACE);
    for (uint64_t wrong = 0; wrong <= 2 * KEYS; wrong += 2 * KEYS) {
        assert_int_equal(set(10 * slot_bytes), MOEPAGE_E_BUSY);
        assert_int_equal(set(wrong * slot_bytes), MOEPAGE_E_BUDGET);
        assert_int_equal(info_of(device).budget_aim_bytes, KEYS * slot_bytes + WORKSPACE);
    }
    OK(moepage_expert_pool_unpin(experts, key / EXPERTS, key % EXPERTS));
    OK(set(10 * slot_bytes));
    close_all();
}

/* In the place of the one that came with the pools. */
static void take_tokens_whole(moepage_session **of, uint32_t n)
{
    OK(moepage_session_destroy(session));
    session = NULL;
    for (uint32_t i = 0; i < n; i++)
        OK(moepage_session_create(experts, NULL,
                                  &MOEPAGE_SESSION_CONFIG(.max_tokens = 2,
                                                          .grouping = MOEPAGE_GROUP_TOKENS),
                                  &of[i]));
}

/* Routes two tokens without a common expert. */
static void route_pairs(moepage_session *of)
{
    const int32_t ids[2 * TOP_K] = {0, 1, 2, 3};
    const float weights[2 * TOP_K] = {1, 1, 1, 1};
    moepage_plan plan = MOEPAGE_PLAN();
    OK(moepage_session_begin(of, &MOEPAGE_STEP(2)));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        OK(moepage_session_route(of, layer, &MOEPAGE_ROUTING(TOP_K, ids, weights), &plan));
        while (plan.group + 1 < plan.n_groups)
            OK(moepage_session_next_group(of, layer, &plan));
        OK(moepage_session_retire(of, layer));
    }
    OK(moepage_session_end(of, NULL));
}

/* Sessions that take tokens whole keep slots for a token each, whatever makes the pool smaller. */
static void test_budget_leaves_room_for_whole_tokens(void **state)
{
    (void)state;
    moepage_session *of[2];
    open_model();
    open_device(KEYS * slot_bytes, KEYS * slot_bytes);
    open_pools(0, 0);
    take_tokens_whole(of, 2);
    assert_int_equal(set(3 * slot_bytes), MOEPAGE_E_BUDGET);
    assert_true(said("at the fewest"));
    assert_int_equal(moepage_split_set(experts, NULL, 3, 0, NULL), MOEPAGE_E_BUDGET);
    OK(set(5 * slot_bytes));
    OK(moepage_expert_pool_pin(experts, 0, 0));
    assert_int_equal(moepage_expert_pool_pin(experts, 0, 1), MOEPAGE_E_BUDGET);
    for (uint32_t i = 0; i < 2; i++)
        route_pairs(of[i]);
    for (uint32_t i = 0; i < 2; i++)
        OK(moepage_session_destroy(of[i]));
    OK(moepage_expert_pool_unpin(experts, 0, 0));
    close_all();
}

/* A pool that has fewer slots than a session needs can get more. */
static void test_budget_grows_a_pool_that_is_too_small_for_a_token(void **state)
{
    (void)state;
    moepage_session *of = NULL;
    open_model();
    open_device(8 * slot_bytes, 8 * slot_bytes);
    open_pools(1, 0);
    take_tokens_whole(&of, 1);
    OK(moepage_split_set(experts, NULL, TOP_K, 0, NULL));
    assert_int_equal(moepage_split_set(experts, NULL, TOP_K - 1, 0, NULL), MOEPAGE_E_BUDGET);
    route_pairs(of);
    OK(moepage_session_destroy(of));
    close_all();
}

/* Nobody gets more than an aim allows while it waits. */
static void test_budget_that_waits_is_not_taken_up_by_others(void **state)
{
    (void)state;
    open_model();
    open_device(KEYS * slot_bytes + 20 * BLOCK_BYTES, KEYS * slot_bytes + 20 * BLOCK_BYTES);
    open_pools(KEYS - 4, 10);
    OK(moepage_split_set(experts, NULL, KEYS - 2, 0, NULL));
    visit_all();
    begin();
    uint32_t key = last_key();
    route(key / EXPERTS, key % EXPERTS, NULL);
    assert_int_equal(set((KEYS - 4) * slot_bytes + 10 * BLOCK_BYTES), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_split_set(NULL, kv, 0, 11, NULL), MOEPAGE_E_BUDGET);
    OK(moepage_session_retire(session, key / EXPERTS));
    OK(moepage_session_end(session, NULL));
    OK(set((KEYS - 4) * slot_bytes + 10 * BLOCK_BYTES));
    close_all();
}

/* ---- What cannot move ------------------------------------------------------------------- */

static void test_budget_leaves_a_paged_tensor_what_it_has(void **state)
{
    (void)state;
    moepage_paged *paged = NULL;
    open_model();
    open_device(4 << 20, 4 << 20);
    OK(moepage_paged_create(device, bank.model, NULL, &paged));
    uint64_t held = info_of(device).arena_expert_bytes;
    assert_int_equal(set(held - 4096), MOEPAGE_E_BUDGET);
    assert_true(said("experts keep"));
    OK(set(held));
    assert_int_equal(pages_of(device), held);
    OK(moepage_paged_materialise(paged, 0));
    OK(moepage_paged_acquire(paged, 0, NULL));
    OK(moepage_paged_release(paged, 0, NULL));
    OK(moepage_paged_destroy(paged));
    OK(moepage_device_close(device));
    bank_model_close(&bank);
}

static void test_budget_of_a_pool_over_several_devices_does_not_shrink_it(void **state)
{
    (void)state;
    moepage_device *devices[2];
    open_model();
    for (int d = 0; d < 2; d++) {
        open_device(8 * slot_bytes, 8 * slot_bytes);
        devices[d] = device;
    }
    experts = NULL;
    OK(moepage_expert_pool_create(devices, 2, bank.model, &MOEPAGE_EXPERT_POOL_CONFIG(.slots = 10),
                                  &experts));
    for (int d = 0; d < 2; d++) {
        device = devices[d];
        OK(set(6 * slot_bytes));
        assert_int_equal(set(4 * slot_bytes), MOEPAGE_E_UNSUPPORTED);
        assert_true(said("because their pool has several devices"));
        OK(set(8 * slot_bytes));
    }
    OK(moepage_expert_pool_destroy(experts));
    for (int d = 0; d < 2; d++)
        OK(moepage_device_close(devices[d]));
    bank_model_close(&bank);
}

static moepage_status give(void *user, uint64_t bytes, void **base)
{
    (void)user;
    *base = aligned_alloc(64, bytes);
    return *base ? MOEPAGE_OK : MOEPAGE_E_NO_MEMORY;
}

static void take(void *user, void *base, uint64_t bytes)
{
    (void)user, (void)bytes;
    free(base);
}

static moepage_status put(void *user, void *to, const void *from, uint64_t bytes)
{
    (void)user;
    memcpy(to, from, bytes);
    return MOEPAGE_OK;
}

static void test_budget_of_external_memory_stays(void **state)
{
    (void)state;
    const moepage_external_memory memory =
        MOEPAGE_EXTERNAL_MEMORY(.alloc = give, .free = take, .write = put);
    moepage_device_config config =
        MOEPAGE_DEVICE_CONFIG(.budget_bytes = (1 << 20) + WORKSPACE, .workspace_bytes = WORKSPACE,
                              .external = &memory, .max_budget_bytes = (2 << 20) + WORKSPACE);
    moepage_device *external = NULL;
    assert_int_equal(moepage_device_open("external", &config, &external), MOEPAGE_E_UNSUPPORTED);
    assert_true(said("external: max_budget_bytes: the arena's memory is given once and for all"));
    config.max_budget_bytes = 0;
    OK(moepage_device_open("external", &config, &external));
    assert_int_equal(moepage_device_set_budget(external, 4096 + WORKSPACE, NULL),
                     MOEPAGE_E_UNSUPPORTED);
    assert_true(said("the budget cannot move"));
    OK(moepage_device_set_budget(external, config.budget_bytes, NULL));
    assert_int_equal(moepage_device_follow_memory(external, NULL), MOEPAGE_E_UNSUPPORTED);
    assert_true(said("nobody can say"));
    OK(moepage_device_close(external));
    config.budget_bytes = MOEPAGE_BUDGET_AUTO;
    assert_int_equal(moepage_device_open("external", &config, &external), MOEPAGE_E_UNSUPPORTED);
}

/* ---- Memory that is refused ------------------------------------------------------------- */

static void test_budget_that_gets_no_memory_stays(void **state)
{
    (void)state;
    fake_device fake;
    fake_device_init(&fake);
    struct moepage_device *home = fake_home_open_part(&fake, 40960, 8192, 1000);
    assert_int_equal(fake.held_bytes[MP_MEMORY_ARENA], 8192);
    fake.faults.alloc = 1;
    assert_int_equal(moepage_device_set_budget(home, 20480 + 1000, NULL), MOEPAGE_E_NO_MEMORY);
    assert_true(said("told to fail"));
    assert_int_equal(info_of(home).budget_bytes, 8192 + 1000);
    assert_int_equal(info_of(home).budget_aim_bytes, 8192 + 1000);
    assert_int_equal(fake.held_bytes[MP_MEMORY_ARENA], 8192);
    OK(moepage_device_set_budget(home, 20480 + 1000, NULL));
    assert_int_equal(fake.held_bytes[MP_MEMORY_ARENA], 20480);
    fake_home_close(home);
}

/* A move of the split that gets no memory for the side that grows is refused; what the other side gave up is not
 * lost. */
static void test_budget_split_that_gets_no_memory_is_refused(void **state)
{
    (void)state;
    fake_device fake;
    fake_device_init(&fake);
    struct moepage_device *home = fake_home_open_part(&fake, 10 * 4096, 6 * 4096, 1000);
    mp_arena *arena = &home->arena;
    OK(mp_arena_attach(arena, MP_SIDE_EXPERTS, 4096));
    OK(mp_arena_attach(arena, MP_SIDE_KV, 4096));
    OK(mp_arena_resize(arena, MP_SIDE_EXPERTS, 4));
    OK(mp_arena_resize(arena, MP_SIDE_KV, 2));
    assert_int_equal(fake.held_bytes[MP_MEMORY_ARENA], 6 * 4096);
    OK(mp_arena_resize(arena, MP_SIDE_EXPERTS, 1));
    fake.faults.alloc = 1;
    assert_int_equal(mp_arena_resize(arena, MP_SIDE_KV, 4), MOEPAGE_E_NO_MEMORY);
    assert_int_equal(fake.held_bytes[MP_MEMORY_ARENA], 6 * 4096); /* put back */
    assert_int_equal(mp_arena_claimed(arena, MP_SIDE_KV), 2 * 4096);
    fake.faults = (fake_faults){.alloc = 1, .persistent = true};
    assert_int_equal(mp_arena_resize(arena, MP_SIDE_KV, 4), MOEPAGE_E_NO_MEMORY);
    assert_int_equal(fake.held_bytes[MP_MEMORY_ARENA], 4 * 4096); /* cannot be */
    fake.faults = (fake_faults){0};
    OK(mp_arena_resize(arena, MP_SIDE_KV, 5));
    assert_int_equal(fake.held_bytes[MP_MEMORY_ARENA], 6 * 4096);
    assert_int_equal(info_of(home).used_bytes, 6 * 4096);
    mp_arena_detach(arena, MP_SIDE_EXPERTS);
    mp_arena_detach(arena, MP_SIDE_KV);
    fake_home_close(home);
}

/* ---- Following memory ------------------------------------------------------------------- */

static void test_budget_follows_free_memory(void **state)
{
    (void)state;
    fake_device fake;
    fake_device_init(&fake);
    struct moepage_device *home = fake_home_open_part(&fake, 100 * 4096, 50 * 4096, 1000);
    assert_int_equal(info_of(home).reserve_bytes, 2 * 4096);
    /* Of the budget, 1000 bytes of workspace are not held. */
    const uint64_t held = 50 * 4096;
    fake.available = 3 * 4096;
    OK(moepage_device_follow_memory(home, NULL));
    assert_int_equal(info_of(home).budget_bytes, held + 1000);
    fake.available = 3 * 4096 + 1;
    OK(moepage_device_follow_memory(home, NULL));
    assert_int_equal(info_of(home).budget_bytes, held + 4096 + 1);
    OK(moepage_device_set_budget(home, held + 1000, NULL));
    fake.available = 4095;
    OK(moepage_device_follow_memory(home, NULL));
    assert_int_equal(info_of(home).budget_bytes, held + 4095 - 2 * 4096);
    fake.available = UINT64_MAX / 2;
    OK(moepage_device_follow_memory(home, NULL));
    assert_int_equal(info_of(home).budget_bytes, 100 * 4096 + 1000);
    fake_home_close(home);
}

/* As far as the pools let it. */
static void test_budget_follows_to_what_pools_must_keep(void **state)
{
    (void)state;
    open_model();
    device = NULL;
    OK(moepage_device_open("host",
                           &MOEPAGE_DEVICE_CONFIG(.threads = 1,
                                                  .budget_bytes = 20 * slot_bytes + WORKSPACE,
                                                  .workspace_bytes = WORKSPACE,
                                                  .reserve_bytes = UINT64_MAX / 2),
                           &device));
    open_pools(0, 3);
    OK(moepage_device_follow_memory(device, NULL));
    assert_int_equal(slots(), TOP_K);
    assert_int_equal(blocks(), 1);
    visit_all();
    OK(moepage_device_follow_memory(device, NULL));
    assert_int_equal(slots(), TOP_K);
    close_all();
}

static void test_budget_auto_is_what_is_free_less_the_reserve(void **state)
{
    (void)state;
    device = NULL;
    OK(moepage_device_open("host",
                           &MOEPAGE_DEVICE_CONFIG(.threads = 1, .budget_bytes = MOEPAGE_BUDGET_AUTO,
                                                  .max_budget_bytes = 4 << 20,
                                                  .workspace_bytes = WORKSPACE),
                           &device));
    moepage_device_info info = info_of(device);
    assert_int_equal(info.budget_bytes, 4 << 20); /* more is free on any machine */
    assert_int_equal(info.max_budget_bytes, 4 << 20);
    assert_int_equal(info.reserve_bytes, (4 << 20) / 16);
    OK(moepage_device_follow_memory(device, NULL));
    assert_int_equal(info_of(device).budget_bytes, 4 << 20);
    OK(moepage_device_close(device));
    assert_int_equal(moepage_device_open("host",
                                         &MOEPAGE_DEVICE_CONFIG(.budget_bytes = MOEPAGE_BUDGET_AUTO,
                                                                .max_budget_bytes = 4 << 20,
                                                                .reserve_bytes = UINT64_MAX / 2),
                                         &device),
                     MOEPAGE_E_BUDGET);
    assert_true(said("all of which reserve_bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget_memory_comes_from_the_system_and_goes_back),
        cmocka_unit_test(test_budget_of_any_device_shrinks_and_comes_back),
        cmocka_unit_test(test_budget_is_refused_with_a_sentence),
        cmocka_unit_test(test_budget_takes_experts_then_free_blocks_and_gives_all_back),
        cmocka_unit_test(test_budget_gives_a_pool_with_counted_slots_no_more_than_it_had),
        cmocka_unit_test(test_budget_keeps_live_blocks_and_their_tokens),
        cmocka_unit_test(test_budget_below_the_maximum_is_split_as_any_other),
        cmocka_unit_test(test_budget_waits_for_an_open_plan),
        cmocka_unit_test(test_budget_waits_for_a_pin_and_an_aim_can_be_given_up),
        cmocka_unit_test(test_budget_leaves_room_for_whole_tokens),
        cmocka_unit_test(test_budget_grows_a_pool_that_is_too_small_for_a_token),
        cmocka_unit_test(test_budget_that_waits_is_not_taken_up_by_others),
        cmocka_unit_test(test_budget_leaves_a_paged_tensor_what_it_has),
        cmocka_unit_test(test_budget_of_a_pool_over_several_devices_does_not_shrink_it),
        cmocka_unit_test(test_budget_of_external_memory_stays),
        cmocka_unit_test(test_budget_that_gets_no_memory_stays),
        cmocka_unit_test(test_budget_split_that_gets_no_memory_is_refused),
        cmocka_unit_test(test_budget_follows_free_memory),
        cmocka_unit_test(test_budget_follows_to_what_pools_must_keep),
        cmocka_unit_test(test_budget_auto_is_what_is_free_less_the_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
