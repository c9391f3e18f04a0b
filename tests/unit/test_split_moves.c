/* Moves of the split one claim at a time: what waits, what is promised, what is left as it was, and
 * experts that become compressed while others are served. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv/kv_pool.h"
#include "kv_tokens.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "split/split.h"
#include "testing.h"

#define LAYERS 3
#define EXPERTS 8
#define KEYS (LAYERS * EXPERTS)
#define BLOCK_TOKENS 4

static bank_model bank;
static pool_rig rig;
static moepage_kv_pool *kv;
static kv_tokens tokens;

static void open_rig(uint32_t pack_forms, const pool_rig_config *config)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 48,
                        .intermediate = 40,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = pack_forms,
                        .seed = 5};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, config);
    kv = NULL;
}

static void open_kv(uint64_t blocks)
{
    const uint32_t bytes_per_token[2] = {100, 60};
    moepage_kv_pool_config config = {.struct_size = sizeof config,
                                     .block_tokens = BLOCK_TOKENS,
                                     .layers = 2,
                                     .bytes_per_token = bytes_per_token,
                                     .blocks_per_granule = 1,
                                     .blocks = blocks};
    assert_int_equal(moepage_kv_pool_create(rig.devices[0], &config, &kv), MOEPAGE_OK);
    kv_tokens_open(&tokens, kv, 2, bytes_per_token);
}

static void close_rig(void)
{
    assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static moepage_session *open_session(bool with_kv, uint32_t max_top_k)
{
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_top_k = max_top_k,
                                     .regime = MOEPAGE_REGIME_CACHE};
    moepage_session *session = NULL;
    assert_int_equal(moepage_session_create(rig.pool, with_kv ? kv : NULL, &config, &session),
                     MOEPAGE_OK);
    return session;
}

static void close_session(moepage_session *session)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
}

/* Opens a layer with one expert; the plan's bytes are looked at. */
static moepage_plan open_layer(moepage_session *session, uint32_t layer, int32_t expert)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, layer, &expert, 1, &plan), MOEPAGE_OK);
    assert_true(bank_model_matches(&bank, layer, (uint32_t)expert, plan.experts[0].tensors));
    return plan;
}

static void close_layer(moepage_session *session, uint32_t layer)
{
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

/* Opens a layer with an expert that lies in this slot or above; returns the layer. */
static uint32_t open_above(moepage_session *session, int32_t slot)
{
    for (uint32_t key = 0; key < KEYS; key++) {
        moepage_residency where = {.struct_size = sizeof where};
        assert_int_equal(moepage_expert_pool_lookup(rig.pool, key / EXPERTS, key % EXPERTS, &where),
                         MOEPAGE_OK);
        if (where.slot < slot)
            continue;
        open_layer(session, key / EXPERTS, (int32_t)(key % EXPERTS));
        return key / EXPERTS;
    }
    fail_msg("no expert lies in slot %d or above", slot);
    return 0;
}

static void visit_all(moepage_session *session)
{
    for (uint32_t key = 0; key < KEYS; key++) {
        open_layer(session, key / EXPERTS, (int32_t)(key % EXPERTS));
        close_layer(session, key / EXPERTS);
    }
}

static moepage_status move_slots(uint64_t slots)
{
    return mp_split_move(rig.pool, kv, slots, 0, NULL);
}

static uint64_t used_bytes(void)
{
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(rig.devices[0], &info), MOEPAGE_OK);
    return info.used_bytes;
}

/* ---- experts ---- */

/* Two sessions, one of which always has a plan open with the same expert: it is never unheld, and
 * still its slot drains. */
static void test_split_moves_a_slot_that_is_always_held_drains(void **state)
{
    (void)state;
    open_rig(0, &(pool_rig_config){.slots = 8});
    moepage_session *sessions[2] = {open_session(false, 0), open_session(false, 0)};
    for (int32_t e = 0; e < 8; e++) { /* fills the slots in order */
        open_layer(sessions[0], 0, e);
        close_layer(sessions[0], 0);
    }
    int32_t slot = open_layer(sessions[0], 0, 7).experts[0].slot;
    assert_int_equal(slot, 7);
    assert_int_equal(move_slots(6), MOEPAGE_E_BUSY);
    uint32_t attempts = 1;
    for (uint32_t turn = 1; attempts < 10; turn++) {
        moepage_plan plan = open_layer(sessions[turn % 2], 0, 7); /* before the other lets go */
        assert_true(plan.experts[0].slot < 6);
        close_layer(sessions[(turn + 1) % 2], 0);
        attempts++;
        if (move_slots(6) == MOEPAGE_OK) {
            close_layer(sessions[turn % 2], 0);
            break;
        }
    }
    assert_true(attempts <= 3);
    assert_int_equal(pool_rig_info(&rig).slots, 6);
    close_session(sessions[0]);
    close_session(sessions[1]);
    close_rig();
}

/* A layer that was opened with eight slots in view needs them all, group by group; the move waits
 * for it, a layer opened meanwhile is content with less, and neither is refused anything. */
static void test_split_moves_open_layers_get_what_they_were_promised(void **state)
{
    (void)state;
    open_rig(0, &(pool_rig_config){.slots = 6});
    moepage_session *session = open_session(false, EXPERTS);
    int32_t ids[EXPERTS];
    moepage_plan plan = {.struct_size = sizeof plan};
    for (int32_t e = 0; e < EXPERTS; e++)
        ids[e] = e;
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, ids, 5, &plan), MOEPAGE_OK);
    assert_int_equal(plan.n_groups, 1);
    uint64_t used = used_bytes();
    assert_int_equal(move_slots(2), MOEPAGE_E_BUSY);
    assert_int_equal(used_bytes(), used);
    assert_int_equal(pool_rig_route(session, 1, ids, 3, &plan), MOEPAGE_OK); /* one at a time */
    assert_int_equal(plan.n_groups, 3);
    for (uint32_t group = 1; group < 3; group++) {
        assert_int_equal(move_slots(2), MOEPAGE_E_BUSY);
        assert_int_equal(moepage_session_next_group(session, 1, &plan), MOEPAGE_OK);
        assert_true(bank_model_matches(&bank, 1, plan.experts[0].expert, plan.experts[0].tensors));
    }
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    moepage_status status = move_slots(2);
    assert_true(!status || status == MOEPAGE_E_BUSY);
    assert_int_equal(moepage_session_retire(session, 1), MOEPAGE_OK);
    assert_int_equal(move_slots(2), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    pool_rig_check(&rig);
    close_session(session);
    close_rig();
}

static void test_split_moves_an_abandoned_move_leaves_the_old_split(void **state)
{
    (void)state;
    open_rig(0, &(pool_rig_config){.slots = 8});
    moepage_session *session = open_session(false, 0);
    visit_all(session);
    for (int32_t slot = 1; slot < 8; slot++) {
        uint32_t layer = open_above(session, slot);
        uint64_t used = used_bytes();
        assert_int_equal(move_slots(1), MOEPAGE_E_BUSY);
        mp_split_abandon(rig.pool);
        assert_int_equal(pool_rig_info(&rig).slots, 8);
        assert_int_equal(used_bytes(), used);
        close_layer(session, layer);
        visit_all(session);
        assert_int_equal(pool_rig_info(&rig).resident, 8); /* all of them are in use again */
        pool_rig_check(&rig);
    }
    close_session(session);
    close_rig();
}

static void test_split_moves_a_refused_move_takes_an_older_ones_fence_away(void **state)
{
    (void)state;
    open_rig(0, &(pool_rig_config){.slots = 8});
    moepage_session *session = open_session(false, 0);
    visit_all(session);
    uint32_t layer = open_above(session, 4);
    assert_int_equal(move_slots(1), MOEPAGE_E_BUSY);
    assert_int_equal(move_slots(KEYS + 1), MOEPAGE_E_BUDGET);
    close_layer(session, layer);
    visit_all(session);
    assert_int_equal(pool_rig_info(&rig).resident, 8);
    close_session(session);
    close_rig();
}

static void test_split_moves_a_pinned_slot_stays_until_it_is_unpinned(void **state)
{
    (void)state;
    open_rig(0, &(pool_rig_config){.slots = 8});
    moepage_session *session = open_session(false, 0);
    for (int32_t e = 0; e < 8; e++) {
        open_layer(session, 0, e);
        close_layer(session, 0);
    }
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 0, 7), MOEPAGE_OK); /* in slot 7 */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(move_slots(7), MOEPAGE_E_BUSY);
        assert_int_equal(pool_rig_state(&rig, 0, 7), MOEPAGE_EXPERT_RESIDENT);
    }
    /* One pinned while the fence stands goes where it can stay. */
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 1), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 0, 7), MOEPAGE_OK);
    assert_int_equal(move_slots(7), MOEPAGE_OK);
    assert_int_equal(pool_rig_state(&rig, 1, 1), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 1), MOEPAGE_OK);
    close_session(session);
    close_rig();
}

/* ---- KV ---- */

static moepage_seq fill(uint64_t n, const uint64_t *tags)
{
    moepage_seq seq;
    assert_int_equal(moepage_kv_create(kv, &seq), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(kv, seq, n, NULL), MOEPAGE_OK);
    kv_tokens_write(&tokens, seq, 0, n, tags);
    return seq;
}

/* Blocks are copied only while no step could read them; a step that uses no KV is none of that, and
 * growing is no matter. */
static void test_split_moves_tables_stand_still_while_a_step_is_open(void **state)
{
    (void)state;
    uint64_t tags[40];
    for (uint64_t i = 0; i < 40; i++)
        tags[i] = 100 + i;
    open_rig(0, &(pool_rig_config){.slots = 4, .arena_slots = 20});
    open_kv(12);
    moepage_session *reader = open_session(true, 0), *other = open_session(false, 0);
    moepage_seq above = fill(8 * BLOCK_TOKENS, tags), below = fill(14, tags);
    assert_int_equal(moepage_kv_free(kv, above), MOEPAGE_OK); /* the rest lies at the boundary */
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(reader, &step), MOEPAGE_OK);
    moepage_kv_table table = {.struct_size = sizeof table};
    assert_int_equal(moepage_kv_get_table(kv, below, &table), MOEPAGE_OK);
    uint32_t before[4];
    memcpy(before, table.blocks, sizeof before);
    uint64_t used = used_bytes();
    assert_int_equal(mp_split_move(rig.pool, kv, 8, 6, NULL), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_split_set(rig.pool, kv, 8, 6, NULL), MOEPAGE_E_BUSY);
    assert_int_equal(used_bytes(), used);
    assert_int_equal(mp_split_move(rig.pool, kv, 0, 20, NULL), MOEPAGE_OK);
    assert_int_equal(mp_split_move(rig.pool, kv, 0, 12, NULL), MOEPAGE_OK); /* nothing to copy */
    assert_memory_equal(table.blocks, before, sizeof before);
    assert_int_equal(moepage_session_end(reader, NULL), MOEPAGE_OK);
    open_layer(other, 0, 0);
    assert_int_equal(mp_split_move(rig.pool, kv, 8, 6, NULL), MOEPAGE_OK);
    close_layer(other, 0);
    assert_int_equal(moepage_kv_get_table(kv, below, &table), MOEPAGE_OK);
    assert_int_not_equal(memcmp(table.blocks, before, sizeof before), 0);
    assert_true(kv_tokens_match(&tokens, below, 14, tags));
    close_session(reader);
    close_session(other);
    close_rig();
}

/* The side that shrinks waits; the other does not run ahead of it. */
static void test_split_moves_nobody_grows_before_the_other_has_shrunk(void **state)
{
    (void)state;
    open_rig(0, &(pool_rig_config){.slots = 16, .arena_slots = 20});
    open_kv(4);
    moepage_session *session = open_session(true, 0);
    visit_all(session);
    uint32_t layer = open_above(session, 10);
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    uint64_t used = used_bytes();
    assert_int_equal(mp_split_move(rig.pool, kv, 8, 40, NULL), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_kv_pool_get_info(kv, &info), MOEPAGE_OK);
    assert_int_equal(info.blocks, 4);
    assert_int_equal(used_bytes(), used);
    close_layer(session, layer);
    assert_int_equal(mp_split_move(rig.pool, kv, 8, 40, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_get_info(kv, &info), MOEPAGE_OK);
    assert_int_equal(info.blocks, 40);
    assert_int_equal(pool_rig_info(&rig).slots, 8);
    close_session(session);
    close_rig();
}

/* ---- compressed experts ---- */

#define EXPH (1u << MOEPAGE_FORM_EXPH)

static void test_split_moves_compressed_experts_come_and_go_while_others_are_served(void **state)
{
    (void)state;
    static const uint32_t counts[] = {3, 1, 5, 8, 0, 2};
    open_rig(EXPH, &(pool_rig_config){.slots = 12, .arena_slots = KEYS + 12, .compressed = 1});
    moepage_session *session = open_session(false, 0);
    uint64_t beside = used_bytes() - pool_rig_info(&rig).compressed_bytes -
                      12 * pool_rig_info(&rig).slot_bytes; /* workspaces */
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint32_t now = pool_rig_info(&rig).compressed_experts;
        while (now != counts[i]) { /* a round at a time: there are few slots */
            now += now < counts[i] ? 1 : -1u;
            assert_int_equal(mp_split_compress(rig.pool, now, 12), MOEPAGE_OK);
            visit_all(session);
        }
        pool_rig_wait(&rig);
        moepage_expert_pool_info info = pool_rig_info(&rig);
        assert_int_equal(info.compressed_experts, counts[i]);
        assert_int_equal(info.slots, 12);
        assert_true(info.compressed_bytes % info.slot_bytes == 0);
        assert_int_equal(used_bytes() - beside, info.compressed_bytes + 12 * info.slot_bytes);
        uint64_t decoded = info.compressed_loads;
        visit_all(session);
        assert_int_equal(counts[i] > 0, pool_rig_info(&rig).compressed_loads > decoded);
        pool_rig_check(&rig); /* every image is its expert's */
    }
    close_session(session);
    close_rig();
}

/* The experts of the first rounds are spread over the ids, and are the same ones whatever follows. */
static void test_split_moves_rounds_are_stable_and_spread(void **state)
{
    (void)state;
    open_rig(EXPH, &(pool_rig_config){.slots = 12, .arena_slots = KEYS + 12});
    const mp_shard *shard = &rig.pool->cache->shards[0];
    bool joined[EXPERTS] = {false};
    for (uint32_t round = 0; round < EXPERTS; round++) {
        uint32_t expert = mp_images_key(shard->transfer, round * LAYERS) % EXPERTS, lower = 0;
        assert_false(joined[expert]);
        joined[expert] = true;
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(mp_images_key(shard->transfer, round * LAYERS + layer),
                             layer * EXPERTS + expert);
        for (uint32_t e = 0; e < EXPERTS / 2; e++)
            lower += joined[e];
        assert_in_range(2 * lower + 2, round, round + 4); /* half of them, more or less */
    }
    close_rig();
}

/* One that a plan uses makes the images wait for its slot. */
static void test_split_moves_images_wait_for_slots_in_use(void **state)
{
    (void)state;
    open_rig(EXPH, &(pool_rig_config){.slots = 12, .arena_slots = KEYS + 12});
    moepage_session *session = open_session(false, 0);
    assert_int_equal(open_layer(session, 0, 3).experts[0].slot, 0);
    uint64_t used = used_bytes();
    assert_int_equal(mp_split_compress(rig.pool, 1, 12), MOEPAGE_E_BUSY);
    assert_int_equal(used_bytes(), used);
    assert_int_equal(pool_rig_info(&rig).compressed_experts, 0);
    close_layer(session, 0);
    assert_int_equal(mp_split_compress(rig.pool, 1, 12), MOEPAGE_OK);
    pool_rig_wait(&rig);
    assert_int_equal(pool_rig_info(&rig).compressed_experts, 1);
    close_session(session);
    close_rig();
}

static void expect_refusal(moepage_status got, moepage_status expected, const char *word)
{
    assert_int_equal(got, expected);
    if (!strstr(moepage_last_error(), word))
        fail_msg("\"%s\" does not mention \"%s\"", moepage_last_error(), word);
}

static void test_split_moves_compress_refuses_what_cannot_be(void **state)
{
    (void)state;
    open_rig(EXPH, &(pool_rig_config){.slots = 12, .arena_slots = 14});
    expect_refusal(mp_split_compress(rig.pool, EXPERTS + 1, 12), MOEPAGE_E_ARGUMENT, "layer has 8");
    expect_refusal(mp_split_compress(rig.pool, 3, 12), MOEPAGE_E_BUDGET, "slots");
    expect_refusal(mp_split_compress(rig.pool, 1, 0), MOEPAGE_E_BUDGET, "0 slots");
    moepage_session *session = open_session(false, 0);
    visit_all(session);
    assert_int_equal(pool_rig_info(&rig).resident, 12); /* no fence is left */
    close_session(session);
    close_rig();
    open_rig(1u << MOEPAGE_FORM_DENSE, &(pool_rig_config){.slots = 6});
    expect_refusal(mp_split_compress(rig.pool, 1, 4), MOEPAGE_E_UNSUPPORTED, "EXPH");
    close_rig();
    open_rig(EXPH, &(pool_rig_config){.slots = 6, .n_devices = 2});
    expect_refusal(mp_split_compress(rig.pool, 1, 4), MOEPAGE_E_UNSUPPORTED, "devices");
    close_rig();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_moves_a_slot_that_is_always_held_drains),
        cmocka_unit_test(test_split_moves_open_layers_get_what_they_were_promised),
        cmocka_unit_test(test_split_moves_an_abandoned_move_leaves_the_old_split),
        cmocka_unit_test(test_split_moves_a_refused_move_takes_an_older_ones_fence_away),
        cmocka_unit_test(test_split_moves_a_pinned_slot_stays_until_it_is_unpinned),
        cmocka_unit_test(test_split_moves_tables_stand_still_while_a_step_is_open),
        cmocka_unit_test(test_split_moves_nobody_grows_before_the_other_has_shrunk),
        cmocka_unit_test(test_split_moves_compressed_experts_come_and_go_while_others_are_served),
        cmocka_unit_test(test_split_moves_rounds_are_stable_and_spread),
        cmocka_unit_test(test_split_moves_images_wait_for_slots_in_use),
        cmocka_unit_test(test_split_moves_compress_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
