/* Products of a plan's experts in shares: every sum has the bits that moepage_device_linear gives for its row and
 * weights, whatever the group, the shares, and where rows and results are. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "codec/blocks.h"
#include "numbers.h"
#include "pool_rig.h"
#include "random_blocks.h"
#include "testing.h"

enum {
    EXPERTS = 6,
    SLOTS = 2, /* a batch takes several groups */
    TENSORS = 3,
    N_IN = 512,
    N_OUT = 40,
    TOKENS = 5,
    TOP_K = 3,
    CHOICES = TOKENS * TOP_K,
    STRIDE = N_IN + 3
};

static const uint32_t dtypes[TENSORS] = {MOEPAGE_DTYPE_Q4_K, MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F32};
static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16, MOEPAGE_MATH_INT8};
static const int32_t ids[CHOICES] = {0, 1, 2, 3, 4, 5, 1, 0, 3, 5, 2, 1, 4, 1, 0};

typedef struct stand {
    void *bytes[EXPERTS * TENSORS];
    moepage_model *model;
    moepage_device *device;
    moepage_expert_pool *pool;
    moepage_session *session;
    float x[CHOICES * STRIDE];
    _Alignas(64) char operands[CHOICES * N_IN * 4];
} stand;

static void *weights(uint32_t dtype)
{
    if (!mp_block_format_of(dtype))
        return num_array(dtype, N_OUT * N_IN);
    const uint64_t blocks = N_OUT * N_IN / mp_block_format_of(dtype)->weights;
    void *out = guarded_alloc(blocks * mp_block_format_of(dtype)->bytes);
    random_blocks(dtype, blocks, out);
    return out;
}

static uint64_t weights_bytes(uint32_t dtype)
{
    const mp_block_format *format = mp_block_format_of(dtype);
    return format ? N_OUT * N_IN / format->weights * format->bytes
                  : N_OUT * N_IN * num_bytes(dtype);
}

static void open_model(stand *s)
{
    static const uint32_t roles[TENSORS] = {MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_UP, MOEPAGE_ROLE_DOWN};
    moepage_expert_tensor tensors[TENSORS];
    for (uint32_t t = 0; t < TENSORS; t++)
        tensors[t] = (moepage_expert_tensor){.role = roles[t],
                                             .dtype = dtypes[t],
                                             .rank = 2,
                                             .shape = {N_OUT, N_IN}};
    for (uint32_t i = 0; i < EXPERTS * TENSORS; i++)
        s->bytes[i] = weights(dtypes[i % TENSORS]);
    const moepage_banks banks =
        MOEPAGE_BANKS(.moe_layers = 1, .experts = EXPERTS, .top_k = TOP_K, .hidden = N_IN,
                      .expert_intermediate = N_OUT, .n_tensors = TENSORS, .tensors = tensors,
                      .data = (const void *const *)s->bytes,
                      .activation = MOEPAGE_ACTIVATION_OTHER);
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &s->model), MOEPAGE_OK);
}

static int open_stand(void **state)
{
    stand *s = aligned_alloc(64, (sizeof *s + 63) / 64 * 64);
    assert_non_null(s);
    memset(s, 0, sizeof *s);
    *state = s;
    open_model(s);
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    assert_int_equal(moepage_model_get_info(s->model, &info), MOEPAGE_OK);
    const moepage_device_config device =
        MOEPAGE_DEVICE_CONFIG(.threads = 1, .workspace_bytes = 8 << 20,
                              .budget_bytes =
                                  (8 << 20) + (SLOTS * info.slot_bytes + 4095) / 4096 * 4096);
    const moepage_expert_pool_config pool = MOEPAGE_EXPERT_POOL_CONFIG(.slots = SLOTS);
    const moepage_session_config session =
        MOEPAGE_SESSION_CONFIG(.max_tokens = TOKENS, .max_top_k = TOP_K);
    assert_int_equal(moepage_device_open("host", &device, &s->device), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(&s->device, 1, s->model, &pool, &s->pool),
                     MOEPAGE_OK);
    assert_int_equal(moepage_session_create(s->pool, NULL, &session, &s->session), MOEPAGE_OK);
    for (uint32_t i = 0; i < CHOICES * STRIDE; i++)
        s->x[i] = num_random();
    return 0;
}

static int close_stand(void **state)
{
    stand *s = *state;
    assert_int_equal(moepage_session_destroy(s->session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(s->pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(s->device), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(s->model), MOEPAGE_OK);
    for (uint32_t i = 0; i < EXPERTS * TENSORS; i++)
        guarded_free(s->bytes[i], weights_bytes(dtypes[i % TENSORS]));
    free(s);
    return 0;
}

static void begin(stand *s, moepage_plan *plan)
{
    const moepage_routing routing = MOEPAGE_ROUTING(TOP_K, ids, NULL);
    assert_int_equal(moepage_session_begin(s->session, &MOEPAGE_STEP(TOKENS)), MOEPAGE_OK);
    if (moepage_session_route(s->session, 0, &routing, plan))
        fail_msg("%s", moepage_last_error());
}

static void end(stand *s)
{
    assert_int_equal(moepage_session_retire(s->session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(s->session, NULL), MOEPAGE_OK);
}

/* ---- the judge ---- */

/* One row of x with an expert's matrix, by the library's dense product over the caller's own bytes. */
static void wanted(const stand *s, uint32_t tensor, uint32_t math, int32_t expert, uint32_t x_row,
                   float *out)
{
    const moepage_linear linear =
        MOEPAGE_LINEAR(.math = math, .n_rows = 1, .n_in = N_IN, .n_out = N_OUT,
                       .w_dtype = dtypes[tensor], .x = s->x + x_row * STRIDE,
                       .w = s->bytes[(uint32_t)expert * TENSORS + tensor], .out = out);
    assert_int_equal(moepage_device_linear(s->device, &linear), MOEPAGE_OK);
}

static uint32_t row_of(const moepage_plan *plan, uint32_t rows, uint32_t r)
{
    return rows == MOEPAGE_ROWS_TOKENS    ? plan->rows[r] / TOP_K
           : rows == MOEPAGE_ROWS_CHOICES ? plan->rows[r]
                                          : r;
}

/* All of a group's results, and nothing else in out. */
static void expect_group(const stand *s, const moepage_plan *plan, const moepage_product *product)
{
    float sums[N_OUT], *out = product->out;
    bool written[CHOICES] = {false};
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const uint32_t row = row_of(plan, product->out_rows, r);
        wanted(s, product->tensor, product->math, ids[plan->rows[r]],
               row_of(plan, product->x_rows, r), sums);
        written[row] = true;
        if (memcmp(out + row * N_OUT, sums, sizeof sums))
            fail_msg("tensor %u, math %u, x_rows %u: row %u differs", product->tensor,
                     product->math, product->x_rows, row);
    }
    for (uint32_t i = 0; i < CHOICES * N_OUT; i++)
        assert_true(written[i / N_OUT] || out[i] == 77.0f);
}

/* ---- products ---- */

static void run(stand *s, const moepage_product *product, uint32_t n_shares)
{
    memset(s->operands, 0x7f, sizeof s->operands); /* none of what other shares left */
    for (uint32_t i = n_shares; i-- > 0;)          /* in any order */
        if (moepage_session_convert(s->session, 0, product, i, n_shares))
            fail_msg("%s", moepage_last_error());
    for (uint32_t i = 0; i < n_shares; i++)
        if (moepage_session_multiply(s->session, 0, product, i, n_shares))
            fail_msg("%s", moepage_last_error());
}

static void try_group(stand *s, const moepage_plan *plan, uint32_t tensor, uint32_t math)
{
    static float out[CHOICES * N_OUT];
    static const uint32_t shares[] = {1, 3, 100};
    for (uint32_t way = 0; way < 3; way++)
        for (uint32_t i = 0; i < 3; i++) {
            const moepage_product product =
                MOEPAGE_PRODUCT(.math = math, .tensor = tensor, .x_rows = way,
                                .out_rows = way == MOEPAGE_ROWS_GROUP ? MOEPAGE_ROWS_GROUP
                                                                      : MOEPAGE_ROWS_CHOICES,
                                .x = s->x, .x_stride = STRIDE, .out = out, .operands = s->operands);
            for (uint32_t k = 0; k < CHOICES * N_OUT; k++)
                out[k] = 77.0f;
            run(s, &product, shares[i]);
            expect_group(s, plan, &product);
        }
}

static void test_product_has_the_bits_of_dense_products(void **state)
{
    stand *s = *state;
    moepage_plan plan = MOEPAGE_PLAN();
    begin(s, &plan);
    assert_int_equal(plan.n_groups, EXPERTS / SLOTS);
    for (uint32_t g = 0; g < EXPERTS / SLOTS; g++) {
        if (g > 0)
            assert_int_equal(moepage_session_next_group(s->session, 0, &plan), MOEPAGE_OK);
        for (uint32_t t = 0; t < TENSORS; t++)
            for (uint32_t m = 0; m < sizeof maths / sizeof *maths; m++)
                try_group(s, &plan, t, maths[m]);
    }
    end(s);
}

/* ---- many experts ---- */

/* A group of more experts than one launch takes: each row has its own expert's product, by one share and by several. */
static void test_product_of_a_group_of_many_experts(void **state)
{
    enum { MANY = 150, ALL_TOKENS = MANY / TOP_K, IN = 64, OUT = 3 };
    static float weights[MANY][OUT * IN], x[MANY * IN], out[MANY * OUT];
    static _Alignas(64) char operands[MANY * IN * 4];
    static const uint32_t shares[] = {1, 2, 7};
    const void *data[MANY];
    int32_t chosen[MANY];
    (void)state;
    for (uint32_t e = 0; e < MANY; e++) {
        data[e] = weights[e];
        chosen[e] = (int32_t)(e * 7 % MANY); /* each once */
        for (uint32_t i = 0; i < OUT * IN; i++)
            weights[e][i] = num_random();
        for (uint32_t i = 0; i < IN; i++)
            x[e * IN + i] = num_random();
    }
    const moepage_expert_tensor tensor = {.role = MOEPAGE_ROLE_DOWN,
                                          .dtype = MOEPAGE_DTYPE_F32,
                                          .rank = 2,
                                          .shape = {OUT, IN}};
    const moepage_banks banks =
        MOEPAGE_BANKS(.moe_layers = 1, .experts = MANY, .top_k = TOP_K, .hidden = OUT,
                      .expert_intermediate = IN, .n_tensors = 1, .tensors = &tensor, .data = data,
                      .activation = MOEPAGE_ACTIVATION_OTHER);
    const moepage_session_config session =
        MOEPAGE_SESSION_CONFIG(.max_tokens = ALL_TOKENS, .max_top_k = TOP_K);
    moepage_model *model;
    moepage_engine *engine;
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &model), MOEPAGE_OK);
    const moepage_engine_config config = MOEPAGE_ENGINE_CONFIG(.model = model, .session = &session,
                                                               .extra_workspace_bytes = 1 << 20);
    assert_int_equal(moepage_engine_open(NULL, "budget=100% threads=1", &config, &engine),
                     MOEPAGE_OK);

    moepage_plan plan = MOEPAGE_PLAN();
    const moepage_routing routing = MOEPAGE_ROUTING(TOP_K, chosen, NULL);
    stand s = {.device = moepage_engine_device(engine), .session = moepage_engine_session(engine)};
    assert_int_equal(moepage_session_begin(s.session, &MOEPAGE_STEP(ALL_TOKENS)), MOEPAGE_OK);
    assert_int_equal(moepage_session_route(s.session, 0, &routing, &plan), MOEPAGE_OK);
    assert_int_equal(plan.n_experts, MANY);
    const moepage_product product =
        MOEPAGE_PRODUCT(.math = MOEPAGE_MATH_FP32, .x_rows = MOEPAGE_ROWS_CHOICES,
                        .out_rows = MOEPAGE_ROWS_CHOICES, .x = x, .out = out, .operands = operands);
    for (uint32_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        memset(out, 0x7f, sizeof out);
        run(&s, &product, shares[i]);
        for (uint32_t c = 0; c < MANY; c++) {
            float sums[OUT];
            const moepage_linear linear =
                MOEPAGE_LINEAR(.n_rows = 1, .n_in = IN, .n_out = OUT, .math = MOEPAGE_MATH_FP32,
                               .w_dtype = MOEPAGE_DTYPE_F32, .x = x + c * IN,
                               .w = weights[chosen[c]], .out = sums);
            assert_int_equal(moepage_device_linear(s.device, &linear), MOEPAGE_OK);
            assert_memory_equal(out + c * OUT, sums, sizeof sums);
        }
    }
    end(&s);
    assert_int_equal(moepage_engine_close(engine), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- threads ---- */

typedef struct team {
    const stand *stand;
    const moepage_product *product;
    pthread_barrier_t barrier;
    uint32_t n;
} team;

typedef struct member {
    team *of;
    uint32_t share;
    moepage_status status;
} member;

static void *work(void *data)
{
    member *m = data;
    const team *of = m->of;
    m->status = moepage_session_convert(of->stand->session, 0, of->product, m->share, of->n);
    pthread_barrier_wait(&m->of->barrier);
    if (!m->status)
        m->status = moepage_session_multiply(of->stand->session, 0, of->product, m->share, of->n);
    return NULL;
}

static void test_product_is_shared_by_threads(void **state)
{
    enum { THREADS = 3 };
    static float out[CHOICES * N_OUT];
    stand *s = *state;
    moepage_plan plan = MOEPAGE_PLAN();
    begin(s, &plan);
    const moepage_product product =
        MOEPAGE_PRODUCT(.math = MOEPAGE_MATH_INT8, .x_rows = MOEPAGE_ROWS_TOKENS,
                        .out_rows = MOEPAGE_ROWS_CHOICES, .x = s->x, .x_stride = STRIDE, .out = out,
                        .operands = s->operands);
    for (uint32_t k = 0; k < CHOICES * N_OUT; k++)
        out[k] = 77.0f;
    memset(s->operands, 0x7f, sizeof s->operands);
    team of = {.stand = s, .product = &product, .n = THREADS};
    member members[THREADS];
    pthread_t threads[THREADS];
    assert_int_equal(pthread_barrier_init(&of.barrier, NULL, THREADS), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        members[i] = (member){.of = &of, .share = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &members[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(members[i].status, MOEPAGE_OK);
    }
    pthread_barrier_destroy(&of.barrier);
    expect_group(s, &plan, &product);
    end(s);
}

/* ---- refusals ---- */

static void refuse(stand *s, const moepage_product *product, uint32_t share, uint32_t n_shares,
                   moepage_status status, const char *words)
{
    assert_int_equal(moepage_session_convert(s->session, 0, product, share, n_shares), status);
    assert_non_null(strstr(moepage_last_error(), words));
    assert_int_equal(moepage_session_multiply(s->session, 0, product, share, n_shares), status);
    assert_non_null(strstr(moepage_last_error(), words));
}

static void test_product_refuses_what_is_wrong(void **state)
{
    static float out[CHOICES * N_OUT];
    stand *s = *state;
    const moepage_product good =
        MOEPAGE_PRODUCT(.x_rows = MOEPAGE_ROWS_TOKENS, .out_rows = MOEPAGE_ROWS_CHOICES, .x = s->x,
                        .out = out, .operands = s->operands);
    moepage_product bad = good;
    moepage_plan plan = MOEPAGE_PLAN();
    refuse(s, &good, 0, 1, MOEPAGE_E_STATE, "layer 0");
    begin(s, &plan);
#define REFUSE(field, value, words) \
    bad = good;                     \
    bad.field = (value);            \
    refuse(s, &bad, 0, 1, MOEPAGE_E_ARGUMENT, words)
    REFUSE(math, MOEPAGE_MATH_INT8 + 1, "math is");
    REFUSE(tensor, TENSORS, "tensor is 3");
    REFUSE(x_rows, MOEPAGE_ROWS_GROUP + 1, "x_rows is 3");
    REFUSE(out_rows, MOEPAGE_ROWS_TOKENS, "no one row of out");
    REFUSE(reserved, 1, "reserved");
    REFUSE(x, NULL, "x is NULL");
    REFUSE(out, NULL, "out is NULL");
    REFUSE(operands, NULL, "operands is NULL");
    REFUSE(operands, s->operands + 4, "64 bytes");
    REFUSE(x_stride, N_IN - 1, "x_stride is 511");
#undef REFUSE
    refuse(s, &good, 2, 2, MOEPAGE_E_ARGUMENT, "share is 2 of 2");
    refuse(s, NULL, 0, 1, MOEPAGE_E_ARGUMENT, "product is NULL");
    end(s);
    refuse(s, &good, 0, 1, MOEPAGE_E_STATE, "layer 0");
}

static void test_product_needs_a_plan(void **state)
{
    static float out[CHOICES * N_OUT];
    stand *s = *state;
    const float shares[CHOICES] = {1};
    const moepage_routing routing = MOEPAGE_ROUTING(TOP_K, ids, shares);
    const moepage_product product = MOEPAGE_PRODUCT(.out_rows = MOEPAGE_ROWS_CHOICES, .x = s->x,
                                                    .out = out, .operands = s->operands);
    assert_int_equal(moepage_session_begin(s->session, &MOEPAGE_STEP(TOKENS)), MOEPAGE_OK);
    assert_int_equal(moepage_session_route(s->session, 0, &routing, NULL), MOEPAGE_OK);
    refuse(s, &product, 0, 1, MOEPAGE_E_STATE, "has no plan");
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_product_has_the_bits_of_dense_products, open_stand,
                                        close_stand),
        cmocka_unit_test(test_product_of_a_group_of_many_experts),
        cmocka_unit_test_setup_teardown(test_product_is_shared_by_threads, open_stand, close_stand),
        cmocka_unit_test_setup_teardown(test_product_refuses_what_is_wrong, open_stand,
                                        close_stand),
        cmocka_unit_test_setup_teardown(test_product_needs_a_plan, open_stand, close_stand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
