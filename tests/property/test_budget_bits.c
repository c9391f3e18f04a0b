/* Sessions decode while the budget moves under them, within steps and between them, on the host or a CUDA device: outputs
 * have the bits of a run whose budget stands still, and every token in the KV pool is what was written. */
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "device_rig.h"
#include "kv_tokens.h"
#include "testing.h"

enum {
    LAYERS = 3,
    EXPERTS = 8,
    KEYS = LAYERS * EXPERTS,
    TOP_K = 2,
    HIDDEN = 256, /* an expert is a quarter of a GPU's handle */
    INTERMEDIATE = 340,
    STEPS = 14,
    TOKENS = 2, /* of a step */
    BLOCK_TOKENS = 2,
    TOKEN_BYTES = 64 << 10,
    BLOCKS = 40,
    WORKSPACE = 4 << 20,
    GRANULE = 2 << 20,
};

typedef struct outputs {
    float y[STEPS][LAYERS][TOKENS * HIDDEN];
} outputs;

static bank_model bank;
static moepage_device *device;
static moepage_expert_pool *experts;
static moepage_kv_pool *kv;
static moepage_session *session;
static moepage_seq sequence;
static kv_tokens tokens;
static uint64_t slot_bytes, most_bytes, random_state;
static float *x, *y;
static struct {
    uint32_t moves, waits, refused, shrunk_slots, relocated;
} seen;

#define OK(call) assert_int_equal(call, MOEPAGE_OK)

static uint32_t below(uint32_t n)
{
    return bank_below(&random_state, n);
}

static void open_all(uint32_t math)
{
    static const uint32_t bytes_per_token[1] = {TOKEN_BYTES};
    most_bytes = (KEYS * slot_bytes + (uint64_t)BLOCKS * BLOCK_TOKENS * TOKEN_BYTES + GRANULE - 1) /
                 GRANULE * GRANULE;
    const moepage_device_config config =
        MOEPAGE_DEVICE_CONFIG(.threads = 2, .workspace_bytes = WORKSPACE,
                              .budget_bytes = most_bytes + WORKSPACE,
                              .max_budget_bytes = most_bytes + WORKSPACE);
    device = device_rig_open(&config);
    OK(moepage_kv_pool_create(device,
                              &MOEPAGE_KV_POOL_CONFIG(.block_tokens = BLOCK_TOKENS, .layers = 1,
                                                      .bytes_per_token = bytes_per_token,
                                                      .blocks_per_granule = 1, .blocks = BLOCKS),
                              &kv));
    kv_tokens_open(&tokens, kv, 1, bytes_per_token);
    OK(moepage_expert_pool_create(&device, 1, bank.model, &MOEPAGE_EXPERT_POOL_CONFIG(.slots = 0),
                                  &experts));
    OK(moepage_session_create(experts, kv,
                              &MOEPAGE_SESSION_CONFIG(.max_tokens = TOKENS, .math = math,
                                                      .prefetch = MOEPAGE_PREFETCH_PREVIOUS),
                              &session));
    OK(moepage_kv_create(kv, &sequence));
    x = device_rig_alloc(device, TOKENS * HIDDEN * sizeof *x);
    y = device_rig_alloc(device, TOKENS * HIDDEN * sizeof *y);
}

static void close_all(void)
{
    moepage_kv_pool_info info = MOEPAGE_KV_POOL_INFO();
    OK(moepage_kv_pool_get_info(kv, &info));
    seen.relocated += (uint32_t)info.relocated_blocks;
    device_rig_free(device, x, TOKENS * HIDDEN * sizeof *x);
    device_rig_free(device, y, TOKENS * HIDDEN * sizeof *y);
    OK(moepage_session_destroy(session));
    OK(moepage_expert_pool_destroy(experts));
    OK(moepage_kv_pool_destroy(kv));
    device_rig_close(device);
}

/* ---- KV --------------------------------------------------------------------------------- */

static void fill_token(uint64_t token, unsigned char *bytes)
{
    for (uint32_t i = 0; i < TOKEN_BYTES; i++)
        bytes[i] = kv_tokens_byte(token + 1000, 0, i);
}

static void append_token(uint64_t token)
{
    static unsigned char bytes[TOKEN_BYTES];
    moepage_kv_table table = MOEPAGE_KV_TABLE();
    moepage_status status = moepage_kv_append(kv, sequence, 1, NULL);
    if (status) { /* the budget is small: the cache makes room, as a host would */
        assert_int_equal(status, MOEPAGE_E_WOULD_NOT_FIT);
        OK(moepage_device_set_budget(device, most_bytes + WORKSPACE, NULL));
        OK(moepage_kv_append(kv, sequence, 1, NULL));
    }
    OK(moepage_kv_get_table(kv, sequence, &table));
    fill_token(token, bytes);
    device_rig_write(device, kv_tokens_at(&tokens, &table, 0, token), bytes, TOKEN_BYTES);
}

static void check_tokens(uint64_t n)
{
    static unsigned char bytes[TOKEN_BYTES], found[TOKEN_BYTES];
    moepage_kv_table table = MOEPAGE_KV_TABLE();
    OK(moepage_kv_get_table(kv, sequence, &table));
    assert_int_equal(table.n_tokens, n);
    for (uint64_t token = 0; token < n; token++) {
        fill_token(token, bytes);
        device_rig_read(device, kv_tokens_at(&tokens, &table, 0, token), found, TOKEN_BYTES);
        assert_memory_equal(bytes, found, TOKEN_BYTES);
    }
}

/* ---- the budget ------------------------------------------------------------------------- */

static void move_budget(void)
{
    static uint64_t aim;
    moepage_device_info before = MOEPAGE_DEVICE_INFO(), after = MOEPAGE_DEVICE_INFO();
    OK(moepage_device_get_info(device, &before));
    if (before.budget_aim_bytes == before.budget_bytes || below(4) == 0)
        aim = below(4) ? GRANULE + below((uint32_t)(most_bytes - GRANULE) + 1) : most_bytes;
    moepage_status status = moepage_device_set_budget(device, aim + WORKSPACE, NULL);
    OK(moepage_device_get_info(device, &after));
    assert_true(!status || status == MOEPAGE_E_BUSY || status == MOEPAGE_E_BUDGET);
    assert_int_equal(after.budget_bytes, status ? before.budget_bytes : aim + WORKSPACE);
    assert_int_equal(after.budget_aim_bytes,
                     status == MOEPAGE_E_BUSY ? aim + WORKSPACE : after.budget_bytes);
    assert_true(after.arena_bytes + WORKSPACE <= after.budget_bytes);
    assert_true(after.arena_expert_bytes + after.arena_kv_bytes <= after.arena_bytes);
    assert_true(after.peak_bytes <= after.budget_bytes);
    seen.moves += !status;
    seen.waits += status == MOEPAGE_E_BUSY;
    seen.refused += status == MOEPAGE_E_BUDGET;
    if (after.arena_expert_bytes < before.arena_expert_bytes)
        seen.shrunk_slots +=
            (uint32_t)((before.arena_expert_bytes - after.arena_expert_bytes) / slot_bytes);
}

static void maybe_move(bool moves)
{
    if (moves && below(2))
        move_budget();
}

/* ---- running ---------------------------------------------------------------------------- */

static void run_layer(uint32_t layer, uint64_t *inputs, bool moves, float *out)
{
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K], in[TOKENS * HIDDEN];
    bank_model_route(&bank, inputs, TOKENS, TOP_K, false, ids, weights);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        in[i] = (float)((int)bank_below(inputs, 2001) - 1000) / 791.0f;
    device_rig_write(device, x, in, sizeof in);
    maybe_move(moves);
    OK(moepage_session_route(session, layer, &MOEPAGE_ROUTING(TOP_K, ids, weights), NULL));
    maybe_move(moves);
    OK(moepage_session_ffn(session, layer, &MOEPAGE_FFN(MOEPAGE_DTYPE_F32, x, y)));
    maybe_move(moves); /* on a CUDA device its kernels may still run */
    OK(moepage_session_retire(session, layer));
    maybe_move(moves);
    device_rig_read(device, y, out, TOKENS * HIDDEN * sizeof *out);
}

static void run(uint32_t math, uint64_t seed, bool moves, outputs *out)
{
    uint64_t inputs = 99, n = 0;
    moepage_seq first = 0;
    random_state = seed;
    open_all(math);
    /* It has the blocks furthest from the boundary, and leaves early: others have to move there. */
    OK(moepage_kv_create(kv, &first));
    OK(moepage_kv_append(kv, first, 16 * BLOCK_TOKENS, NULL));
    for (uint32_t s = 0; s < STEPS; s++) {
        const moepage_step_sequence named = {.seq = sequence, .n_tokens = TOKENS};
        if (s == 4)
            OK(moepage_kv_free(kv, first));
        for (uint32_t t = 0; t < TOKENS; t++)
            append_token(n++);
        OK(moepage_session_begin(session, &(moepage_step){.struct_size = sizeof(moepage_step),
                                                          .n_tokens = TOKENS,
                                                          .sequences = &named,
                                                          .n_sequences = 1}));
        for (uint32_t l = 0; l < LAYERS; l++)
            run_layer(l, &inputs, moves, out->y[s][l]);
        OK(moepage_session_end(session, NULL));
        maybe_move(moves);
    }
    check_tokens(n);
    close_all();
}

static void test_budget_that_moves_changes_no_bit(void **state)
{
    (void)state;
    static outputs expected, found;
    const uint32_t runs = device_rig_is_cuda() ? 3 : 40;
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = HIDDEN,
                        .intermediate = INTERMEDIATE,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .seed = 21};
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    bank_model_open(&bank, &shape);
    OK(moepage_model_get_info(bank.model, &info));
    slot_bytes = info.slot_bytes;
    for (uint32_t math = 0; math < 2; math++) {
        run(math, 0, false, &expected);
        for (uint32_t i = 1; i <= runs; i++) {
            run(math, i, true, &found);
            assert_memory_equal(&found, &expected, sizeof found);
        }
    }
    bank_model_close(&bank);
    print_message("%u moves, %u waits, %u refused; %u slots taken, %u blocks copied\n", seen.moves,
                  seen.waits, seen.refused, seen.shrunk_slots, seen.relocated);
    assert_true(seen.moves > 10 && seen.waits > 10 && seen.refused > 2 && seen.shrunk_slots > 20 &&
                seen.relocated > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget_that_moves_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
