/* Routing from logits, against plain scans and arithmetic in double. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_rig.h"
#include "naive_router.h"
#include "numbers.h"
#include "testing.h"

static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};

/* A router with outputs of its own, at the edge of accessible memory. */
static moepage_cuda_topk router_make(uint32_t n_tokens, uint32_t experts, uint32_t top_k)
{
    const uint64_t n = (uint64_t)n_tokens * experts, out = (uint64_t)n_tokens * top_k;
    moepage_cuda_topk r = {.struct_size = sizeof r,
                           .dtype = MOEPAGE_DTYPE_F32,
                           .n_tokens = n_tokens,
                           .experts = experts,
                           .top_k = top_k,
                           .logits = num_array(MOEPAGE_DTYPE_F32, n),
                           .ids = guarded_alloc(out * 4),
                           .weights = guarded_alloc(out * 4)};
    return r;
}

static void router_free(moepage_cuda_topk *r)
{
    const uint64_t n = (uint64_t)r->n_tokens * r->experts, out = (uint64_t)r->n_tokens * r->top_k;
    guarded_free((void *)(uintptr_t)r->logits, n * num_bytes(r->dtype));
    guarded_free(r->ids, out * 4);
    guarded_free(r->weights, out * 4);
}

static float *logits_of(moepage_cuda_topk *r)
{
    assert_int_equal(r->dtype, MOEPAGE_DTYPE_F32);
    return (float *)(uintptr_t)r->logits;
}

static void run(const moepage_cuda_topk *r, uint32_t blocks)
{
    mp_cuda *gpu = kernel_rig(4);
    kernel_rig_cut(blocks);
    memset(r->ids, 0x55, (uint64_t)r->n_tokens * r->top_k * 4);
    memset(r->weights, 0x55, (uint64_t)r->n_tokens * r->top_k * 4);
    assert_int_equal(mp_cuda_call_topk(gpu, NULL, r), MOEPAGE_OK);
    assert_int_equal(kernel_rig_launches(), 1);
}

/* Returns how many tokens rounding might decide. */
static uint32_t expect_routed(const moepage_cuda_topk *r)
{
    uint32_t doubtful = 0;
    for (uint32_t t = 0; t < r->n_tokens; t++) {
        naive_choice want;
        naive_route(r, t, NULL, &want);
        doubtful += want.doubtful;
        for (uint32_t k = 0; k < r->top_k && !want.doubtful; k++) {
            const float got = r->weights[t * r->top_k + k];
            assert_int_equal(r->ids[t * r->top_k + k], want.ids[k]);
            assert_true(isnan(want.weights[k])
                            ? isnan(got)
                            : fabs(got - want.weights[k]) <= 4e-6 * fabs(want.weights[k]) + 1e-37);
        }
    }
    return doubtful;
}

static void test_cuda_topk_routes_as_every_gate_says(void **state)
{
    static const struct {
        uint32_t experts, top_k;
    } shapes[] = {{1, 1},  {2, 2},   {8, 2},    {31, 5},    {32, 8},  {33, 32},
                  {64, 8}, {160, 6}, {256, 10}, {1000, 32}, {1024, 8}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (uint32_t gate = 0; gate <= MOEPAGE_CUDA_GATE_SIGMOID_NORM; gate++) {
            moepage_cuda_topk r = router_make(11, shapes[s].experts, shapes[s].top_k);
            r.gate = gate;
            r.scale = gate % 2 ? 2.5f : 0;
            run(&r, 1000);
            assert_int_equal(expect_routed(&r), 0);
            router_free(&r);
        }
}

static void test_cuda_topk_adds_biases_to_choices_but_not_to_weights(void **state)
{
    uint32_t doubtful = 0;
    (void)state;
    for (uint32_t experts = 16; experts <= 256; experts *= 2) {
        moepage_cuda_topk r = router_make(50, experts, 8);
        float *bias = num_array(MOEPAGE_DTYPE_F32, experts);
        for (uint32_t e = 0; e < experts; e++)
            bias[e] /= 8;
        r.gate = MOEPAGE_CUDA_GATE_SIGMOID_NORM;
        r.bias = bias;
        r.scale = 2.5f;
        run(&r, 1000);
        doubtful += expect_routed(&r);
        guarded_free(bias, experts * 4);
        router_free(&r);
    }
    assert_in_range(doubtful, 0, 25); /* of 250 */
}

static void test_cuda_topk_adds_biases_to_every_dtype(void **state)
{
    uint32_t doubtful = 0;
    (void)state;
    for (size_t d = 0; d < 3; d++) {
        moepage_cuda_topk r = router_make(30, 1024, 8);
        float *bias = num_array(MOEPAGE_DTYPE_F32, 1024);
        guarded_free(logits_of(&r), 30 * 1024 * 4);
        r.dtype = dtypes[d];
        r.logits = num_array(r.dtype, 30 * 1024);
        r.gate = MOEPAGE_CUDA_GATE_SIGMOID_NORM;
        r.bias = bias;
        run(&r, 1000);
        doubtful += expect_routed(&r);
        guarded_free(bias, 1024 * 4);
        router_free(&r);
    }
    assert_in_range(doubtful, 0, 30); /* of 90 */
}

static void test_cuda_topk_reads_every_dtype(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3 * 2 * (MOEPAGE_CUDA_GATE_SIGMOID_NORM + 1); i++) {
        const uint32_t experts = i / 3 % 2 ? 1024 : 60;
        moepage_cuda_topk r = router_make(9, experts, 4);
        guarded_free(logits_of(&r), 9 * experts * 4);
        r.dtype = dtypes[i % 3];
        r.gate = (uint32_t)i / 6;
        r.logits = num_array(r.dtype, 9 * experts);
        run(&r, 1000);
        assert_int_equal(expect_routed(&r), 0);
        router_free(&r);
    }
}

static void test_cuda_topk_gives_equal_logits_to_the_lower_id(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 20; round++) {
        moepage_cuda_topk r = router_make(5, 40 + round * 9, 8);
        float *z = logits_of(&r);
        for (uint32_t i = 0; i < r.n_tokens * r.experts; i++)
            z[i] = (float)(num_random_bits() % 4) - (i % 3 ? 2.0f : 0.0f);
        z[7] = -0.0f;
        run(&r, 1000);
        assert_int_equal(expect_routed(&r), 0);
        router_free(&r);
    }
    moepage_cuda_topk zeros = router_make(1, 100, 3);
    memset(logits_of(&zeros), 0, 100 * 4);
    logits_of(&zeros)[0] = -0.0f; /* is zero, too */
    run(&zeros, 1000);
    for (int32_t k = 0; k < 3; k++)
        assert_int_equal(zeros.ids[k], k);
    router_free(&zeros);
}

static void test_cuda_topk_puts_nan_last_and_keeps_ids_valid(void **state)
{
    (void)state;
    for (uint32_t gate = 0; gate <= MOEPAGE_CUDA_GATE_SIGMOID_NORM; gate++) {
        moepage_cuda_topk r = router_make(4, 70, 6);
        float *z = logits_of(&r);
        r.gate = gate;
        for (uint32_t e = 0; e < 70; e++) {
            z[e] = e % 13 == 5 ? (float)e /* 5 numbers, and NaNs of either sign */
                               : num_of_bits(0x7fc00000u + (e % 2 << 31) + e * 977);
            z[70 + e] = -INFINITY;
            z[140 + e] = e == 33 ? 2.0f : -INFINITY;
            z[210 + e] = NAN;
        }
        run(&r, 1000);
        for (uint32_t i = 0; i < 4 * 6; i++) {
            naive_choice want;
            naive_route(&r, i / 6, NULL, &want);
            assert_int_equal(r.ids[i], want.ids[i % 6]);
        }
        assert_true(r.ids[0] == 57 && r.ids[5] == 0);
        if (gate == MOEPAGE_CUDA_GATE_SIGMOID_NORM) {
            assert_true(r.weights[6] == 0); /* not 0 / 0 */
        } else {
            assert_true(r.weights[12] == 1 && r.weights[13] == 0);
            assert_true(isnan(r.weights[6]));
        }
        assert_true(isnan(r.weights[18]) && isnan(r.weights[5]));
        router_free(&r);
    }
}

static void test_cuda_topk_is_the_same_in_one_turn_and_in_several(void **state)
{
    (void)state;
    moepage_cuda_topk r = router_make(301, 48, 3);
    uint32_t first[301 * 3];
    run(&r, 1000);
    assert_int_equal(expect_routed(&r), 0);
    memcpy(first, r.weights, sizeof first);
    for (uint32_t blocks = 1; blocks < 40; blocks += 13) {
        run(&r, blocks);
        assert_int_equal(expect_routed(&r), 0);
        assert_memory_equal(first, r.weights, sizeof first);
    }
    router_free(&r);
}

static void test_cuda_topk_normalised_weights_are_those_of_the_top_alone(void **state)
{
    (void)state;
    moepage_cuda_topk r = router_make(40, 128, 8);
    uint32_t all[40 * 8];
    r.gate = MOEPAGE_CUDA_GATE_SOFTMAX_ALL_NORM;
    run(&r, 1000);
    memcpy(all, r.weights, sizeof all);
    r.gate = MOEPAGE_CUDA_GATE_SOFTMAX_TOP;
    run(&r, 1000);
    assert_memory_equal(all, r.weights, sizeof all);
    router_free(&r);
}

static void test_cuda_topk_of_no_tokens_launches_nothing(void **state)
{
    (void)state;
    const moepage_cuda_topk none = {.experts = 4, .top_k = 1, .dtype = MOEPAGE_DTYPE_F32};
    assert_int_equal(mp_cuda_call_topk(kernel_rig(4), NULL, &none), MOEPAGE_OK);
    assert_int_equal(kernel_rig_launches(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_topk_routes_as_every_gate_says),
        cmocka_unit_test(test_cuda_topk_adds_biases_to_choices_but_not_to_weights),
        cmocka_unit_test(test_cuda_topk_adds_biases_to_every_dtype),
        cmocka_unit_test(test_cuda_topk_reads_every_dtype),
        cmocka_unit_test(test_cuda_topk_gives_equal_logits_to_the_lower_id),
        cmocka_unit_test(test_cuda_topk_puts_nan_last_and_keeps_ids_valid),
        cmocka_unit_test(test_cuda_topk_is_the_same_in_one_turn_and_in_several),
        cmocka_unit_test(test_cuda_topk_normalised_weights_are_those_of_the_top_alone),
        cmocka_unit_test(test_cuda_topk_of_no_tokens_launches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
