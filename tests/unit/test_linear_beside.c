/* moepage_device_linear beside a running session of the same device: one thread steps the session's experts,
 * more than fit at once, another multiplies dense matrices; both get the bits that each gets alone. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "numbers.h"
#include "testing.h"

enum { LAYERS = 2, EXPERTS = 8, TOP_K = 2, HIDDEN = 64, TOKENS = 3, STEPS = 40 };
enum { ROWS = 5, COLUMNS = 192, OUTPUTS = 300, PRODUCTS = 60 };

#define WORKSPACE (64u << 10)

/* What one thread works with, and what it gets. */
typedef struct world {
    uint32_t math;
    moepage_engine *engine;
    bank_model bank;
    float *inputs;         /* [ROWS][COLUMNS] */
    uint16_t *weights;     /* [OUTPUTS][COLUMNS] BF16 */
    atomic_uint n_running; /* threads that have not ended */
    atomic_uint n_met;     /* threads that have begun */
    float outputs[STEPS][LAYERS][TOKENS * HIDDEN];
    float products[PRODUCTS][ROWS * OUTPUTS];
} world;

static void must(moepage_status status)
{
    if (status)
        fail_msg("%s", moepage_last_error());
}

static void open_world(world *w, uint32_t math)
{
    const bank_shape shape = {.layers = LAYERS,
                              .experts = EXPERTS,
                              .top_k = TOP_K,
                              .hidden = HIDDEN,
                              .intermediate = 48,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .seed = 5};
    const moepage_device_config device = MOEPAGE_DEVICE_CONFIG(.threads = 3);
    const moepage_session_config session =
        MOEPAGE_SESSION_CONFIG(.max_tokens = TOKENS, .math = math);
    w->math = math;
    bank_model_open(&w->bank, &shape);
    const moepage_engine_config config =
        MOEPAGE_ENGINE_CONFIG(.model = w->bank.model, .budget_percent = 40, .device = &device,
                              .session = &session, .extra_workspace_bytes = WORKSPACE);
    must(moepage_engine_open(NULL, NULL, &config, &w->engine));
    w->inputs = num_array(MOEPAGE_DTYPE_F32, ROWS * COLUMNS);
    w->weights = num_array(MOEPAGE_DTYPE_BF16, OUTPUTS * COLUMNS);
}

static void close_world(world *w)
{
    must(moepage_engine_close(w->engine));
    bank_model_close(&w->bank);
    guarded_free(w->inputs, ROWS * COLUMNS * sizeof *w->inputs);
    guarded_free(w->weights, OUTPUTS * COLUMNS * sizeof *w->weights);
}

/* The same steps in every run. */
static void *step(void *arg)
{
    world *w = arg;
    uint64_t random = 9;
    float x[TOKENS * HIDDEN], weights[TOKENS * TOP_K];
    int32_t ids[TOKENS * TOP_K];
    for (w->n_met++; w->n_met < w->n_running;)
        continue;
    for (uint32_t s = 0; s < STEPS; s++) {
        must(moepage_engine_begin(w->engine, TOKENS));
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
                x[i] = (float)bank_below(&random, 256) / 64 - 2;
            bank_model_route(&w->bank, &random, TOKENS, TOP_K, false, ids, weights);
            must(moepage_engine_experts(w->engine, l, TOP_K, ids, weights, x, w->outputs[s][l]));
        }
        must(moepage_engine_end(w->engine, NULL));
    }
    w->n_running--;
    return NULL;
}

/* Whole products, and such whose rows are rounded in workspace; at least until the session has ended. */
static void *multiply(void *arg)
{
    world *w = arg;
    for (w->n_met++; w->n_met < w->n_running;)
        continue;
    for (uint32_t i = 0; i < PRODUCTS || w->n_running > 1; i++) {
        const uint32_t n_rows = 1 + i % ROWS;
        const moepage_linear linear =
            MOEPAGE_LINEAR(.math = w->math, .n_rows = n_rows, .n_in = COLUMNS, .n_out = OUTPUTS,
                           .x_dtype = MOEPAGE_DTYPE_F32, .w_dtype = MOEPAGE_DTYPE_BF16,
                           .x = w->inputs, .w = w->weights, .out = w->products[i % PRODUCTS]);
        must(moepage_device_linear(moepage_engine_device(w->engine), &linear));
    }
    w->n_running--;
    return NULL;
}

static void run_together(world *w)
{
    pthread_t stepping, multiplying;
    w->n_met = 0;
    w->n_running = 2;
    assert_int_equal(pthread_create(&stepping, NULL, step, w), 0);
    assert_int_equal(pthread_create(&multiplying, NULL, multiply, w), 0);
    assert_int_equal(pthread_join(stepping, NULL), 0);
    assert_int_equal(pthread_join(multiplying, NULL), 0);
}

static void run_alone(world *w, void *(*part)(void *))
{
    w->n_met = 0;
    w->n_running = 1;
    part(w);
}

static void check(uint32_t math)
{
    world *alone = calloc(1, sizeof *alone), *together = calloc(1, sizeof *together);
    assert_true(alone && together);
    open_world(alone, math);
    run_alone(alone, step);
    run_alone(alone, multiply);
    open_world(together, math);
    memcpy(together->inputs, alone->inputs, ROWS * COLUMNS * sizeof *alone->inputs);
    memcpy(together->weights, alone->weights, OUTPUTS * COLUMNS * sizeof *alone->weights);
    run_together(together);
    assert_memory_equal(together->outputs, alone->outputs, sizeof alone->outputs);
    assert_memory_equal(together->products, alone->products, sizeof alone->products);
    moepage_session_stats stats = MOEPAGE_SESSION_STATS();
    must(moepage_session_get_stats(moepage_engine_session(together->engine), &stats));
    assert_true(stats.misses > STEPS); /* loads, too, went on beside the products */
    close_world(together);
    close_world(alone);
    free(together);
    free(alone);
}

static void test_a_session_and_products_beside_it_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    check(MOEPAGE_MATH_FP32);
    check(MOEPAGE_MATH_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_session_and_products_beside_it_have_the_bits_of_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
