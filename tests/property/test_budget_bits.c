/* Sessions decode while the budget moves under them, or idle KV blocks come and go as experts' slots, within steps and
 * between them, on the host or a CUDA device: outputs have the bits of a run in which nothing moves, and every token in the
 * KV pool is what was written. */
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
    FEW_SLOTS = 10, /* beside all blocks, where blocks are lent */
};

/* What happens under a run. */
typedef struct motion {
    bool budget, lends;
} motion;

typedef struct outputs {
    float y[STEPS][LAYERS][TOKENS * HIDDEN];
} outputs;

static bank_model bank;
static moepage_device *device;
static moepage_expert_pool *experts;
static moepage_kv_pool *kv;
static moepage_session *session;
static moepage_controller *controller; /* or NULL */
static moepage_seq sequence, other;    /* other: comes and goes, 0 = gone */
static uint64_t n_other;
static kv_tokens tokens;
static uint64_t slot_bytes, most_bytes, random_state;
static float *x, *y;
static struct {
    uint32_t moves, waits, refused, shrunk_slots, relocated;
    uint32_t lent, recalls,
        late; /* blocks lent; times that some came back, or that a step was in the way */
} seen;

#define OK(call) assert_int_equal(call, MOEPAGE_OK)

static uint32_t below(uint32_t n)
{
    return bank_below(&random_state, n);
}

static void open_all(uint32_t math, bool lends)
{
    static const uint32_t bytes_per_token[1] = {TOKEN_BYTES};
    most_bytes = (KEYS * slot_bytes + (uint64_t)BLOCKS * BLOCK_TOKENS * TOKEN_BYTES + GRANULE - 1) /
                 GRANULE * GRANULE;
    const uint64_t few_bytes =
        FEW_SLOTS * slot_bytes + (uint64_t)BLOCKS * BLOCK_TOKENS * TOKEN_BYTES;
    const moepage_device_config config =
        MOEPAGE_DEVICE_CONFIG(.threads = 2, .workspace_bytes = WORKSPACE,
                              .budget_bytes = (lends ? few_bytes : most_bytes) + WORKSPACE,
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
    if (lends)
        OK(moepage_controller_create(experts, kv,
                                     &MOEPAGE_CONTROLLER_CONFIG(.burst_steps = 2, .admission = 1,
                                                                .context_tokens = STEPS * TOKENS),
                                     &controller));
    x = device_rig_alloc(device, TOKENS * HIDDEN * sizeof *x);
    y = device_rig_alloc(device, TOKENS * HIDDEN * sizeof *y);
}

static void close_all(void)
{
    moepage_kv_pool_info info = MOEPAGE_KV_POOL_INFO();
    OK(moepage_kv_pool_get_info(kv, &info));
    seen.relocated += (uint32_t)info.relocated_blocks;
    if (controller) {
        moepage_controller_info control = MOEPAGE_CONTROLLER_INFO();
        OK(moepage_controller_get_info(controller, &control));
        seen.recalls += (uint32_t)control.recalls;
        OK(moepage_controller_destroy(controller));
        controller = NULL;
        OK(moepage_kv_pool_get_info(kv, &info));
        assert_int_equal(info.lent_blocks, 0);
    }
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

/* Tokens are numbered from `base` on. */
static void write_token(moepage_seq seq, uint64_t base, uint64_t token)
{
    static unsigned char bytes[TOKEN_BYTES];
    moepage_kv_table table = MOEPAGE_KV_TABLE();
    OK(moepage_kv_get_table(kv, seq, &table));
    fill_token(base + token, bytes);
    device_rig_write(device, kv_tokens_at(&tokens, &table, 0, token), bytes, TOKEN_BYTES);
}

static void tick(void)
{
    moepage_kv_pool_info info = MOEPAGE_KV_POOL_INFO();
    OK(moepage_controller_tick(controller, NULL, NULL));
    OK(moepage_kv_pool_get_info(kv, &info));
    seen.lent += (uint32_t)info.lent_blocks;
}

static void check_tokens(moepage_seq seq, uint64_t base, uint64_t n)
{
    static unsigned char bytes[TOKEN_BYTES], found[TOKEN_BYTES];
    moepage_kv_table table = MOEPAGE_KV_TABLE();
    OK(moepage_kv_get_table(kv, seq, &table));
    assert_int_equal(table.n_tokens, n);
    for (uint64_t token = 0; token < n; token++) {
        fill_token(base + token, bytes);
        device_rig_read(device, kv_tokens_at(&tokens, &table, 0, token), found, TOKEN_BYTES);
        assert_memory_equal(bytes, found, TOKEN_BYTES);
    }
}

/* ---- lending ---------------------------------------------------------------------------- */

/* Another sequence takes blocks, most of which are lent, or gives its own back. */
static void come_or_go(void)
{
    if (other) {
        check_tokens(other, 500, n_other);
        OK(moepage_kv_free(kv, other));
        other = 0;
        return;
    }
    const uint64_t n = 1 + below(22 * BLOCK_TOKENS);
    OK(moepage_kv_create(kv, &other));
    moepage_status status = moepage_kv_append(kv, other, n, NULL);
    assert_true(!status || status == MOEPAGE_E_WOULD_NOT_FIT);
    n_other = status ? 0 : n;
    seen.late += status && strstr(moepage_last_error(), "lent");
    for (uint64_t token = 0; token < n_other; token++)
        write_token(other, 500, token);
}

static void append_token(uint64_t token)
{
    moepage_status status = moepage_kv_append(kv, sequence, 1, NULL);
    if (status) { /* the budget is small: the cache makes room, as a host would */
        assert_int_equal(status, MOEPAGE_E_WOULD_NOT_FIT);
        OK(moepage_device_set_budget(device, most_bytes + WORKSPACE, NULL));
        if (controller)
            tick();
        if (other) /* the controller divides the rest when its burst ends */
            come_or_go();
        OK(moepage_kv_append(kv, sequence, 1, NULL));
    }
    write_token(sequence, 0, token);
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

static void maybe_move(motion moves)
{
    if (moves.budget && below(2))
        move_budget();
    if (moves.lends && below(4) == 0)
        come_or_go();
}

/* ---- running ---------------------------------------------------------------------------- */

static void run_layer(uint32_t layer, uint64_t *inputs, motion moves, float *out)
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

static void run(uint32_t math, uint64_t seed, motion moves, outputs *out)
{
    uint64_t inputs = 99, n = 0;
    moepage_seq first = 0;
    random_state = seed;
    open_all(math, moves.lends);
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
        if (controller)
            tick();
    }
    check_tokens(sequence, 0, n);
    if (other)
        come_or_go();
    close_all();
}

static void check_bits(const motion *kinds, uint32_t n_kinds)
{
    static outputs expected, found;
    const uint32_t runs = device_rig_is_cuda() ? 4 : 40;
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
        run(math, 0, (motion){.budget = false}, &expected);
        for (uint32_t i = 1; i <= runs; i++) {
            run(math, i, kinds[i % n_kinds], &found);
            assert_memory_equal(&found, &expected, sizeof found);
        }
    }
    bank_model_close(&bank);
}

static void test_budget_that_moves_changes_no_bit(void **state)
{
    (void)state;
    check_bits(&(motion){.budget = true}, 1);
    print_message("%u moves, %u waits, %u refused; %u slots taken, %u blocks copied\n", seen.moves,
                  seen.waits, seen.refused, seen.shrunk_slots, seen.relocated);
    assert_true(seen.moves > 10 && seen.waits > 10 && seen.refused > 2 && seen.shrunk_slots > 20 &&
                seen.relocated > 5);
}

static void test_budget_bits_of_lent_blocks_are_the_same(void **state)
{
    static const motion kinds[] = {{.lends = true}, {.lends = true, .budget = true}};
    (void)state;
    check_bits(kinds, 2);
    print_message("%u blocks lent, summed over ticks; %u recalls, %u too late\n", seen.lent,
                  seen.recalls, seen.late);
    assert_true(seen.lent > 20 && seen.recalls > (device_rig_is_cuda() ? 0 : 10));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget_that_moves_changes_no_bit),
        cmocka_unit_test(test_budget_bits_of_lent_blocks_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
