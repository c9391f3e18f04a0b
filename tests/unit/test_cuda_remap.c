/* Remapping of a batch's experts, against the words of moepage_cuda.h step by step. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_rig.h"
#include "naive_router.h"
#include "numbers.h"
#include "testing.h"

static uint64_t scratch_bytes(const moepage_cuda_remap *r)
{
    return mp_cuda_remap_layout_of(r->n_tokens, r->experts).bytes;
}

/* Logits are multiples of 1/16 with a common part, as those of one batch have; multiplied by alphas
 * that are, too, they are exact. */
static moepage_cuda_remap remap_make(uint32_t n_tokens, uint32_t experts, uint32_t top_k)
{
    const uint64_t n = (uint64_t)n_tokens * experts, out = (uint64_t)n_tokens * top_k;
    moepage_cuda_remap r = {.struct_size = sizeof r,
                            .gate = MOEPAGE_CUDA_GATE_SOFTMAX_TOP,
                            .dtype = MOEPAGE_DTYPE_F32,
                            .n_tokens = n_tokens,
                            .experts = experts,
                            .top_k = top_k,
                            .alpha = 2,
                            .beta = 4,
                            .logits = num_array(MOEPAGE_DTYPE_F32, n),
                            .ids = guarded_alloc(out * 4),
                            .weights = guarded_alloc(out * 4)};
    float *z = (float *)(uintptr_t)r.logits, common[NAIVE_MAX_EXPERTS];
    for (uint32_t e = 0; e < experts; e++)
        common[e] = (float)(num_random_bits() % 40) / 16;
    for (uint64_t i = 0; i < n; i++)
        z[i] = common[i % experts] + (float)(num_random_bits() % 64) / 16 - 2;
    r.scratch = aligned_alloc(64, scratch_bytes(&r));
    memset(r.scratch, 0xa7, scratch_bytes(&r));
    return r;
}

static float *logits_of(moepage_cuda_remap *r)
{
    return (float *)(uintptr_t)r->logits;
}

static void remap_free(moepage_cuda_remap *r)
{
    const uint64_t out = (uint64_t)r->n_tokens * r->top_k;
    guarded_free(logits_of(r), (uint64_t)r->n_tokens * r->experts * num_bytes(r->dtype));
    guarded_free(r->ids, out * 4);
    guarded_free(r->weights, out * 4);
    free(r->scratch);
}

static void run(const moepage_cuda_remap *r)
{
    memset(r->ids, 0x55, (uint64_t)r->n_tokens * r->top_k * 4);
    memset(r->weights, 0x55, (uint64_t)r->n_tokens * r->top_k * 4);
    assert_int_equal(mp_cuda_call_remap(kernel_rig(4), NULL, r), MOEPAGE_OK);
}

static moepage_cuda_topk router_of(const moepage_cuda_remap *r)
{
    return (moepage_cuda_topk){.struct_size = sizeof(moepage_cuda_topk),
                               .gate = r->gate,
                               .dtype = r->dtype,
                               .n_tokens = r->n_tokens,
                               .experts = r->experts,
                               .top_k = r->top_k,
                               .logits = r->logits,
                               .bias = r->bias,
                               .scale = r->scale,
                               .ids = r->ids,
                               .weights = r->weights};
}

/* Distinct experts in the outputs; each token's are checked to be valid and distinct. */
static uint32_t activated(const moepage_cuda_remap *r, bool *active)
{
    uint32_t n = 0;
    memset(active, 0, NAIVE_MAX_EXPERTS);
    for (uint32_t t = 0; t < r->n_tokens; t++) {
        bool mine[NAIVE_MAX_EXPERTS] = {0};
        for (uint32_t k = 0; k < r->top_k; k++) {
            const int32_t id = r->ids[t * r->top_k + k];
            assert_in_range(id, 0, r->experts - 1);
            assert_false(mine[id]);
            mine[id] = true;
            n += !active[id];
            active[id] = true;
        }
    }
    return n;
}

/* Returns false where rounding might decide, and nothing was compared. */
static bool expect_remapped(const moepage_cuda_remap *r)
{
    const moepage_cuda_topk router = router_of(r);
    bool kept[NAIVE_MAX_EXPERTS], active[NAIVE_MAX_EXPERTS];
    run(r);
    activated(r, active);
    if (!naive_keep(r, kept))
        return false;
    for (uint32_t t = 0; t < r->n_tokens; t++) {
        naive_choice want, own;
        naive_route(&router, t, kept, &want);
        naive_route(&router, t, NULL, &own);
        assert_int_equal(r->ids[t * r->top_k], own.ids[0]); /* each token's first choice */
        for (uint32_t k = 0; k < r->top_k; k++) {
            assert_int_equal(r->ids[t * r->top_k + k], want.ids[k]);
            assert_true(fabs(r->weights[t * r->top_k + k] - want.weights[k]) <=
                        4e-6 * fabs(want.weights[k]) + 1e-37);
        }
    }
    return true;
}

static void test_cuda_remap_keeps_what_the_definition_keeps(void **state)
{
    static const struct {
        uint32_t tokens, experts, top_k;
        float alpha, beta;
    } cases[] = {
        {2, 8, 2, 2, 4},    {3, 16, 4, 1, 3},    {5, 60, 4, 0.5f, 1},   {8, 64, 8, 4, 12},
        {16, 33, 6, 2, 2},  {31, 128, 8, 2, 6},  {32, 64, 6, 0.75f, 2}, {33, 64, 6, 1, 2},
        {64, 128, 8, 2, 4}, {100, 256, 8, 1, 1}, {7, 1024, 32, 21, 63}, {48, 1000, 10, 8, 24},
        {200, 40, 1, 2, 4}, {40, 4, 4, 1, 1},    {9, 1, 1, 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        moepage_cuda_remap r = remap_make(cases[i].tokens, cases[i].experts, cases[i].top_k);
        r.alpha = cases[i].alpha;
        r.beta = cases[i].beta;
        assert_true(expect_remapped(&r));
        assert_int_equal(kernel_rig_launches(), r.n_tokens <= 32 ? 1 : 4);
        remap_free(&r);
    }
}

/* Logits far apart, and a base so small that even the last bin counts. */
static void test_cuda_remap_bins_no_further_than_beta(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 24; round++) {
        moepage_cuda_remap r = remap_make(8 + round, 16, 6);
        for (uint32_t i = 0; i < r.n_tokens * r.experts; i++)
            logits_of(&r)[i] *= 2;
        r.alpha = 2;
        r.beta = (float)(1 + round % 6);
        r.base = 1.25f;
        r.keep = 8;
        assert_true(expect_remapped(&r));
        remap_free(&r);
    }
}

/* As the replays of a graph do. */
static void test_cuda_remap_forgets_the_batch_before(void **state)
{
    (void)state;
    for (uint32_t n = 8; n <= 40; n += 32) {
        moepage_cuda_remap first = remap_make(n, 128, 4), second = remap_make(n, 128, 4);
        void *own = second.scratch;
        assert_true(expect_remapped(&first));
        second.scratch = first.scratch;
        assert_true(expect_remapped(&second));
        second.scratch = own;
        remap_free(&first);
        remap_free(&second);
    }
}

/* Where the largest logit is infinite, experts that have it are in bin 0, all others in the
 * last. */
static void test_cuda_remap_bins_infinities(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 10; round++) {
        moepage_cuda_remap r = remap_make(6, 20, 4);
        const moepage_cuda_topk router = router_of(&r);
        bool kept[NAIVE_MAX_EXPERTS];
        for (uint32_t i = 0; i < 6 * 20; i++)
            if (num_random_bits() % 12 == 0)
                logits_of(&r)[i] = num_random_bits() % 3 ? INFINITY : -INFINITY;
        run(&r);
        assert_true(naive_keep(&r, kept));
        for (uint32_t i = 0; i < 6 * 4; i++) {
            naive_choice want;
            naive_route(&router, i / 4, kept, &want);
            assert_int_equal(r.ids[i], want.ids[i % 4]);
        }
        remap_free(&r);
    }
}

static void test_cuda_remap_follows_every_gate(void **state)
{
    (void)state;
    for (uint32_t gate = 0; gate <= MOEPAGE_CUDA_GATE_SIGMOID_NORM; gate++)
        for (uint32_t n = 12; n <= 48; n += 36) {
            moepage_cuda_remap r = remap_make(n, 64, 6);
            r.gate = gate;
            r.scale = 1.5f;
            assert_true(expect_remapped(&r));
            remap_free(&r);
        }
}

/* The same logits in fewer bits, which they have; no zeros, which num_put does not know. */
static void narrow(moepage_cuda_remap *r, uint32_t dtype)
{
    const uint64_t n = (uint64_t)r->n_tokens * r->experts;
    float *wide = logits_of(r);
    void *narrow = guarded_alloc(n * num_bytes(dtype));
    for (uint64_t i = 0; i < n; i++)
        num_put(dtype, narrow, i, wide[i] != 0 ? wide[i] : 1.0 / 16);
    guarded_free(wide, n * 4);
    r->logits = narrow;
    r->dtype = dtype;
}

static void test_cuda_remap_reads_every_dtype(void **state)
{
    static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};
    (void)state;
    for (uint32_t d = 0; d < 3; d++)
        for (uint32_t gate = 0; gate <= MOEPAGE_CUDA_GATE_SIGMOID_NORM; gate++)
            for (uint32_t n = 6; n <= 36; n += 30) {
                moepage_cuda_remap r = remap_make(n, gate % 2 ? 1000 : 1024, 10);
                r.gate = gate;
                r.alpha = 8;
                r.beta = 24;
                narrow(&r, dtypes[d]);
                assert_true(expect_remapped(&r));
                remap_free(&r);
            }
}

static void test_cuda_remap_scores_beside_biases(void **state)
{
    uint32_t compared = 0;
    (void)state;
    for (uint32_t round = 0; round < 30; round++) {
        moepage_cuda_remap r = remap_make(2 + round * 2, 24, 3);
        float *bias = guarded_alloc(24 * sizeof *bias);
        for (uint32_t e = 0; e < 24; e++)
            bias[e] = (float)(num_random_bits() % 16) / 64;
        r.gate = MOEPAGE_CUDA_GATE_SIGMOID_NORM;
        r.bias = bias;
        compared += expect_remapped(&r);
        guarded_free(bias, 24 * sizeof *bias);
        remap_free(&r);
    }
    assert_in_range(compared, 15, 30);
}

/* Of many experts, few stand out, so that rounding decides nothing. */
static void test_cuda_remap_scores_every_dtype_beside_biases(void **state)
{
    static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};
    uint32_t compared = 0;
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        moepage_cuda_remap r = remap_make(i % 2 ? 6 : 36, 1024, 4);
        float *bias = guarded_alloc(1024 * sizeof *bias);
        for (uint32_t e = 0; e < 1024; e++)
            bias[e] = e % 60 ? -4 : (float)e / 1024;
        r.gate = MOEPAGE_CUDA_GATE_SIGMOID_NORM;
        r.bias = bias;
        narrow(&r, dtypes[i % 3]);
        compared += expect_remapped(&r);
        guarded_free(bias, 1024 * sizeof *bias);
        remap_free(&r);
    }
    assert_in_range(compared, 6, 12);
}

static void test_cuda_remap_limits_the_batch_but_not_first_choices(void **state)
{
    bool active[NAIVE_MAX_EXPERTS];
    (void)state;
    for (uint32_t n = 6; n <= 60; n += 9)
        for (uint32_t keep = 6; keep <= 30; keep += 6) {
            moepage_cuda_remap r = remap_make(n, 64, 6);
            r.keep = keep;
            assert_true(expect_remapped(&r));
            const uint32_t used = activated(&r, active);
            uint32_t firsts = 0;
            bool first[64] = {0};
            for (uint32_t t = 0; t < n; t++) {
                firsts += !first[r.ids[t * 6]];
                first[r.ids[t * 6]] = true;
            }
            assert_true(used <= (keep > firsts ? keep : firsts));
            remap_free(&r);
        }
}

static void test_cuda_remap_prefers_what_it_is_told_to(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 24; round++) {
        moepage_cuda_remap r = remap_make(4 + round * 2, 48, 4);
        uint8_t *preferred = guarded_alloc(48);
        for (uint32_t e = 0; e < 48; e++)
            preferred[e] = num_random_bits() % 3 ? 0 : (uint8_t)(1 + num_random_bits() % 255);
        r.preferred = preferred;
        r.keep = round % 2 ? 12 : 0;
        r.bonus = (float)(round % 4) / 2;
        r.base = round % 3 ? 2 : 0;
        assert_true(expect_remapped(&r));
        guarded_free(preferred, 48);
        remap_free(&r);
    }
}

/* Two experts of the same score, one place: the one that is preferred, else the lower id. */
static void test_cuda_remap_breaks_ties_of_score_by_preference(void **state)
{
    (void)state;
    for (uint32_t last = 0; last < 2; last++) {
        moepage_cuda_remap r = remap_make(2, 3, 2);
        static const float z[] = {5, 4, 3, 5, 3, 4};
        uint8_t *preferred = guarded_alloc(3);
        memcpy(preferred, (const uint8_t[]){0, 0, (uint8_t)last}, 3);
        bool active[NAIVE_MAX_EXPERTS];
        memcpy(logits_of(&r), z, sizeof z);
        r.keep = 2;
        r.preferred = preferred;
        assert_true(expect_remapped(&r));
        assert_int_equal(activated(&r, active), 2);
        assert_true(active[0] && active[1 + last]);
        guarded_free(preferred, 3);
        remap_free(&r);
    }
}

static void test_cuda_remap_leaves_a_batch_of_one_unchanged(void **state)
{
    (void)state;
    for (uint32_t gate = 0; gate <= MOEPAGE_CUDA_GATE_SIGMOID_NORM; gate++) {
        moepage_cuda_remap r = remap_make(1, 50, 5);
        int32_t *ids = guarded_alloc(5 * sizeof *ids);
        float *weights = guarded_alloc(5 * sizeof *weights);
        moepage_cuda_topk router = router_of(&r);
        router.gate = r.gate = gate;
        router.ids = ids;
        router.weights = weights;
        r.keep = 5;
        run(&r);
        assert_int_equal(mp_cuda_call_topk(kernel_rig(4), NULL, &router), MOEPAGE_OK);
        assert_memory_equal(ids, r.ids, 5 * sizeof *ids);
        assert_memory_equal(weights, r.weights, 5 * sizeof *weights);
        guarded_free(ids, 5 * sizeof *ids);
        guarded_free(weights, 5 * sizeof *weights);
        remap_free(&r);
    }
}

static void test_cuda_remap_of_numbers_that_are_none_stays_valid(void **state)
{
    bool active[NAIVE_MAX_EXPERTS];
    (void)state;
    for (uint32_t n = 9; n <= 40; n += 31) {
        moepage_cuda_remap r = remap_make(n, 40, 4);
        float *z = logits_of(&r);
        for (uint32_t i = 0; i < n * 40; i++) {
            const uint32_t kind = num_random_bits() % 8;
            z[i] = i < 80 || kind == 0 ? NAN : kind == 1 ? -INFINITY : kind == 2 ? INFINITY : z[i];
        }
        run(&r);
        activated(&r, active);
        remap_free(&r);
    }
}

#define BATCHES 12u

/* The same batches every time: tokens that like the same experts, each with a mind of its own. */
static void fill_batch(float *z, uint32_t n, uint32_t experts, uint32_t batch)
{
    for (uint32_t i = 0; i < n * experts; i++)
        z[i] = (float)((i * 2654435761u + batch * 40503u) >> 16 & 127) / 32 +
               (float)(i % experts * 37 % 64) / 32;
}

static uint32_t activated_with(float alpha, float beta)
{
    uint32_t total = 0;
    bool active[NAIVE_MAX_EXPERTS];
    for (uint32_t batch = 0; batch < BATCHES; batch++) {
        moepage_cuda_remap r = remap_make(16, 64, 8);
        fill_batch(logits_of(&r), 16, 64, batch);
        r.alpha = alpha;
        r.beta = beta;
        run(&r);
        total += activated(&r, active);
        remap_free(&r);
    }
    return total;
}

static uint32_t activated_without(void)
{
    uint32_t total = 0;
    bool active[NAIVE_MAX_EXPERTS];
    for (uint32_t batch = 0; batch < BATCHES; batch++) {
        moepage_cuda_remap r = remap_make(16, 64, 8);
        const moepage_cuda_topk router = router_of(&r);
        fill_batch(logits_of(&r), 16, 64, batch);
        assert_int_equal(mp_cuda_call_topk(kernel_rig(4), NULL, &router), MOEPAGE_OK);
        total += activated(&r, active);
        remap_free(&r);
    }
    return total;
}

static void test_cuda_remap_activates_fewer_and_with_coarse_bins_still_fewer(void **state)
{
    (void)state;
    const uint32_t plain = activated_without(), fine = activated_with(16, 48);
    const uint32_t coarse = activated_with(1, 3);
    assert_in_range(fine, coarse + 1, plain * 3 / 4);
}

static void test_cuda_remap_of_no_tokens_launches_nothing(void **state)
{
    (void)state;
    const moepage_cuda_remap none = {
        .experts = 4, .top_k = 1, .dtype = MOEPAGE_DTYPE_F32, .alpha = 1, .beta = 1};
    assert_int_equal(mp_cuda_call_remap(kernel_rig(4), NULL, &none), MOEPAGE_OK);
    assert_int_equal(kernel_rig_launches(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_remap_keeps_what_the_definition_keeps),
        cmocka_unit_test(test_cuda_remap_bins_no_further_than_beta),
        cmocka_unit_test(test_cuda_remap_forgets_the_batch_before),
        cmocka_unit_test(test_cuda_remap_bins_infinities),
        cmocka_unit_test(test_cuda_remap_follows_every_gate),
        cmocka_unit_test(test_cuda_remap_reads_every_dtype),
        cmocka_unit_test(test_cuda_remap_scores_beside_biases),
        cmocka_unit_test(test_cuda_remap_scores_every_dtype_beside_biases),
        cmocka_unit_test(test_cuda_remap_limits_the_batch_but_not_first_choices),
        cmocka_unit_test(test_cuda_remap_prefers_what_it_is_told_to),
        cmocka_unit_test(test_cuda_remap_breaks_ties_of_score_by_preference),
        cmocka_unit_test(test_cuda_remap_leaves_a_batch_of_one_unchanged),
        cmocka_unit_test(test_cuda_remap_of_numbers_that_are_none_stays_valid),
        cmocka_unit_test(test_cuda_remap_activates_fewer_and_with_coarse_bins_still_fewer),
        cmocka_unit_test(test_cuda_remap_of_no_tokens_launches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
