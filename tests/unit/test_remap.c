/* Remapping of decode batches: cases worked out by hand from the equations, the definition written
 * out naively, the device's rule, and what must hold of any batch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "base/floats.h"
#include "naive_router.h"
#include "policy/remap.h"
#include "testing.h"

#define MAX_TOKENS 48
#define MAX_EXPERTS 130
#define MAX_K 16

typedef struct batch {
    uint32_t n, k, experts;
    float logits[MAX_TOKENS * MAX_EXPERTS];
    int32_t ids[MAX_TOKENS * MAX_K];
    float weights[MAX_TOKENS * MAX_K];
    uint8_t resident[MAX_EXPERTS];
} batch;

/* What came of one. */
typedef struct outcome {
    int32_t ids[MAX_TOKENS * MAX_K];
    float weights[MAX_TOKENS * MAX_K];
    mp_remap_result result;
} outcome;

static batch b;
static outcome got;
static uint64_t seed;

static void remap(const mp_remap_law *law, const batch *of, outcome *out)
{
    uint64_t bytes = mp_remap_scratch_bytes(of->n, of->k, of->experts);
    void *scratch = aligned_alloc(64, bytes);
    mp_remap_batch view = {.n_tokens = of->n,
                           .top_k = of->k,
                           .experts = of->experts,
                           .logits = of->logits,
                           .ids = of->ids,
                           .weights = of->weights,
                           .resident = of->resident};
    memset(scratch, 0xa7, bytes);
    memset(out, 0x55, sizeof *out);
    mp_remap(law, &view, scratch, out->ids, out->weights, &out->result);
    free(scratch);
}

static void make(uint32_t n, uint32_t k, uint32_t experts, const float *logits, const int32_t *ids,
                 const float *weights)
{
    memset(&b, 0, sizeof b);
    b.n = n, b.k = k, b.experts = experts;
    memcpy(b.logits, logits, sizeof(float) * n * experts);
    memcpy(b.ids, ids, sizeof(int32_t) * n * k);
    memcpy(b.weights, weights, sizeof(float) * n * k);
}

static bool is_unchanged(void)
{
    return memcmp(got.ids, b.ids, sizeof(int32_t) * b.n * b.k) == 0 &&
           memcmp(got.weights, b.weights, sizeof(float) * b.n * b.k) == 0;
}

static void expect_result(uint32_t before, uint32_t after, uint32_t tokens, uint32_t rows)
{
    assert_int_equal(got.result.experts_before, before);
    assert_int_equal(got.result.experts_after, after);
    assert_int_equal(got.result.tokens_changed, tokens);
    assert_int_equal(got.result.rows_changed, rows);
}

/* ---- by hand ---- */

/* Two tokens, so base 2, top-2 of 4 experts; alpha 1, beta 2:
 *
 *   token 0 has 0 at 5 and 1 at 4.5: gaps 0 and 0.5, both bin 0, 1 each.
 *   token 1 has 0 at 6 and 3 at 4.75: gap 1.25, ceil(-1.25) = -1: 1/2 for expert 3.
 *   scores 2, 1, -, 1/2; token 1's z' are 8, 5.4, -, 5.25: top-2 are 0 and 1.
 *   token 0's are 7, 5.5, -, 4.5. So 3 goes, and token 1 gets 1 instead.
 *
 * Weights: e^6 and e^4.4 are as 1 to e^-1.6; their sum is what it was, 0.9. */
static const float hand_logits[] = {5, 4.5f, 1, 4, 6, 4.4f, 0, 4.75f};
static const int32_t hand_ids[] = {0, 1, 3, 0};
static const float hand_weights[] = {0.5f, 0.25f, 0.2f, 0.7f};

static void test_remap_prunes_what_the_equations_say(void **state)
{
    (void)state;
    make(2, 2, 4, hand_logits, hand_ids, hand_weights);
    remap(&(mp_remap_law){.alpha = 1, .beta = 2}, &b, &got);
    assert_memory_equal(got.ids, ((const int32_t[]){0, 1, 1, 0}), 16);
    assert_memory_equal(got.weights, b.weights, 8); /* token 0's */
    assert_true(fabs((double)got.weights[2] - 0.9 * exp(-1.6) / (1 + exp(-1.6))) < 1e-7);
    assert_true(fabs((double)got.weights[3] - 0.9 / (1 + exp(-1.6))) < 1e-7);
    expect_result(3, 2, 1, 1);
}

static void test_remap_weighs_by_sigmoids_where_the_gate_has_them(void **state)
{
    double s0 = 1 / (1 + exp(-6.0)), s1 = 1 / (1 + exp(-4.4));
    (void)state;
    make(2, 2, 4, hand_logits, hand_ids, hand_weights);
    remap(&(mp_remap_law){.alpha = 1, .beta = 2, .gate = MOEPAGE_GATE_SIGMOID}, &b, &got);
    assert_memory_equal(got.ids, ((const int32_t[]){0, 1, 1, 0}), 16);
    assert_true(fabs((double)got.weights[2] - 0.9 * s1 / (s0 + s1)) < 1e-7);
    assert_true(fabs((double)got.weights[3] - 0.9 * s0 / (s0 + s1)) < 1e-7);
}

/* Sigmoids that are 0 in FP32 still have a proportion: that of their exponentials. */
static void test_remap_weighs_sigmoids_that_vanish(void **state)
{
    (void)state;
    make(2, 2, 4, hand_logits, hand_ids, hand_weights);
    for (uint32_t i = 0; i < 8; i++)
        b.logits[i] -= 200;
    remap(&(mp_remap_law){.alpha = 1, .beta = 2, .gate = MOEPAGE_GATE_SIGMOID}, &b, &got);
    assert_true(fabs((double)got.weights[3] - 0.9 / (1 + exp(-1.6))) < 1e-5);
}

/* With alpha 2 the gaps of 0.5 and 1.25 are in bins -1 and -2: 1 scores 1/2 and 3 scores 1/4. For
 * token 1 that is 4.9 against 5: 3 stays. */
static void test_remap_tells_experts_apart_by_alpha(void **state)
{
    (void)state;
    make(2, 2, 4, hand_logits, hand_ids, hand_weights);
    remap(&(mp_remap_law){.alpha = 2, .beta = 2}, &b, &got);
    assert_true(is_unchanged());
    expect_result(3, 3, 0, 0);
}

/* A gap of 2.5 is in bin -2, but not with beta 1: expert 3 then scores 1/2 instead of 1/4, and for
 * token 1 it is 4 against 3.9, where it was 3.75. Halfway, with 2^-1.5 = 0.35, it is 3.85. */
static void test_remap_bins_no_further_than_beta(void **state)
{
    static const float logits[] = {5, 4.5f, 1, 2, 6, 2.9f, 0, 3.5f};
    static const struct {
        float beta;
        bool changes;
    } cases[] = {{1, false}, {1.5f, true}, {2, true}, {3, true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make(2, 2, 4, logits, hand_ids, hand_weights);
        remap(&(mp_remap_law){.alpha = 1, .beta = cases[i].beta}, &b, &got);
        assert_int_equal(got.result.tokens_changed, cases[i].changes);
        assert_int_equal(is_unchanged(), !cases[i].changes);
    }
    b.logits[5] = 2.87f; /* with beta 1.5 that is 3.87 against 3.8536; with 1.3, against 3.906 */
    remap(&(mp_remap_law){.alpha = 1, .beta = 1.5f}, &b, &got);
    assert_int_equal(got.result.tokens_changed, 1);
    remap(&(mp_remap_law){.alpha = 1, .beta = 1.3f}, &b, &got);
    assert_int_equal(got.result.tokens_changed, 0);
}

/* 4.25 + 1 and 4.75 + 1/2 are the same number. */
static void test_remap_gives_ties_to_the_lower_id(void **state)
{
    static const int32_t swapped_ids[] = {0, 3, 1, 0};
    (void)state;
    make(2, 2, 4, hand_logits, hand_ids, hand_weights);
    b.logits[5] = 4.25f;
    remap(&(mp_remap_law){.alpha = 1, .beta = 2}, &b, &got);
    assert_memory_equal(got.ids, ((const int32_t[]){0, 1, 1, 0}), 16);
    make(2, 2, 4, hand_logits, swapped_ids, hand_weights); /* 1 and 3 change their parts */
    b.logits[1] = 4, b.logits[3] = 4.5f, b.logits[5] = 4.75f, b.logits[7] = 4.25f;
    remap(&(mp_remap_law){.alpha = 1, .beta = 2}, &b, &got);
    assert_true(is_unchanged());
}

/* As in alpha 2's case, where it is 4.9 against 5. */
static void test_remap_prefers_residents_by_so_many_logits(void **state)
{
    (void)state;
    make(2, 2, 4, hand_logits, hand_ids, hand_weights);
    b.resident[1] = 1;
    remap(&(mp_remap_law){.alpha = 2, .beta = 2, .resident = 0.05f}, &b, &got);
    assert_true(is_unchanged());
    remap(&(mp_remap_law){.alpha = 2, .beta = 2, .resident = 0.2f}, &b, &got);
    assert_memory_equal(got.ids, ((const int32_t[]){0, 1, 1, 0}), 16);
    b.resident[2] = 1; /* nobody routed to it */
    b.logits[2] = b.logits[6] = 3.9f;
    remap(&(mp_remap_law){.alpha = 2, .beta = 2, .resident = 50}, &b, &got);
    assert_memory_equal(got.ids, ((const int32_t[]){0, 1, 1, 0}), 16);
}

/* A row with a hole, and one with an id twice, beside the two tokens: base and scores are the two
 * tokens', and what the rows name stays, expert 3 as well. */
static void test_remap_leaves_rows_with_holes_alone(void **state)
{
    static const float logits[] = {5, 4.5f, 1, 4, 6, 4.4f, 0, 4.75f, 9, 9, 9, 9, 9, 9, 9, 9};
    int32_t ids[] = {0, 1, 3, 0, MOEPAGE_NO_EXPERT, 2, 2, 2};
    static const float weights[] = {0.5f, 0.25f, 0.2f, 0.7f, 0, 1, 0.5f, 0.5f};
    (void)state;
    make(4, 2, 4, logits, ids, weights);
    remap(&(mp_remap_law){.alpha = 1, .beta = 2}, &b, &got);
    assert_memory_equal(got.ids, ((const int32_t[]){0, 1, 1, 0, MOEPAGE_NO_EXPERT, 2, 2, 2}), 32);
    assert_memory_equal(got.weights + 4, weights + 4, 16);
    expect_result(4, 3, 1, 1);
    ids[7] = 3;
    ids[6] = MOEPAGE_NO_EXPERT;
    make(4, 2, 4, logits, ids, weights);
    remap(&(mp_remap_law){.alpha = 1, .beta = 2}, &b, &got);
    assert_true(is_unchanged());
    ids[0] = MOEPAGE_NO_EXPERT; /* one whole token is left */
    ids[7] = 2;
    make(4, 2, 4, logits, ids, weights);
    remap(&(mp_remap_law){.alpha = 1, .beta = 2}, &b, &got);
    assert_true(is_unchanged());
    expect_result(4, 4, 0, 0);
}

/* ---- the definition, naively ---- */

/* Routed by z, plus what a bias that the library never sees makes of it. Logits and alphas are
 * multiples of 1/16: products and differences are exact. */
static void make_random(uint32_t n, uint32_t k, uint32_t experts, bool biased, bool holes)
{
    float common[MAX_EXPERTS], bias[MAX_EXPERTS];
    memset(&b, 0, sizeof b);
    b.n = n, b.k = k, b.experts = experts;
    for (uint32_t e = 0; e < experts; e++) {
        common[e] = (float)bank_below(&seed, 40) / 16;
        bias[e] = biased ? (float)bank_below(&seed, 24) / 16 : 0;
        b.resident[e] = bank_below(&seed, 2) == 0;
    }
    for (uint32_t t = 0; t < n; t++) {
        float *z = b.logits + t * experts;
        bool taken[MAX_EXPERTS] = {0};
        for (uint32_t e = 0; e < experts; e++)
            z[e] = common[e] + (float)bank_below(&seed, 64) / 16 - 2;
        for (uint32_t i = 0; i < k; i++) {
            int32_t best = -1;
            for (uint32_t e = 0; e < experts; e++)
                if (!taken[e] && (best < 0 || z[e] + bias[e] > z[best] + bias[best]))
                    best = (int32_t)e;
            taken[best] = true;
            b.ids[t * k + i] = best;
            b.weights[t * k + i] = 0.125f + (float)bank_below(&seed, 100) / 64;
        }
        if (holes && bank_below(&seed, 4) == 0)
            b.ids[t * k + bank_below(&seed, k)] = MOEPAGE_NO_EXPERT;
    }
}

static bool is_whole(uint32_t t)
{
    for (uint32_t i = 0; i < b.k; i++)
        if (b.ids[t * b.k + i] == MOEPAGE_NO_EXPERT)
            return false;
    return true;
}

static bool chose(const int32_t *ids, uint32_t t, uint32_t e)
{
    for (uint32_t i = 0; i < b.k; i++)
        if (ids[t * b.k + i] == (int32_t)e)
            return true;
    return false;
}

/* How many of the experts that `may` be are before e, by value, then id. */
static uint32_t rank_of(const double *values, const bool *may, uint32_t e)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < b.experts; o++)
        n += may[o] && (values[o] > values[e] || (values[o] == values[e] && o < e));
    return n;
}

/* The first choice, and each expert's z' before the preference. */
static uint32_t first_of(uint32_t t)
{
    uint32_t first = UINT32_MAX;
    for (uint32_t e = 0; e < b.experts; e++)
        if (chose(b.ids, t, e) &&
            (first == UINT32_MAX || b.logits[t * b.experts + e] > b.logits[t * b.experts + first]))
            first = e;
    return first;
}

static void naive_kept(const mp_remap_law *law, bool *kept)
{
    bool routed[MAX_EXPERTS] = {0};
    float score[MAX_EXPERTS] = {0};
    uint32_t whole = 0;
    memset(kept, 0, MAX_EXPERTS);
    for (uint32_t t = 0; t < b.n; t++)
        whole += is_whole(t);
    for (uint32_t t = 0; t < b.n; t++) {
        double most = -INFINITY;
        for (uint32_t e = 0; e < b.experts; e++)
            most = fmax(most, (double)b.logits[t * b.experts + e]);
        for (uint32_t e = 0; e < b.experts; e++) {
            double gap = (double)b.logits[t * b.experts + e] - most;
            float power = 1;
            if (!chose(b.ids, t, e))
                continue;
            routed[e] = true;
            kept[e] = kept[e] || !is_whole(t);
            for (double bin = fmax(-(double)law->beta, ceil((double)law->alpha * gap)); bin < 0;
                 bin++)
                power /= (float)whole;
            score[e] += is_whole(t) ? power : 0;
        }
    }
    for (uint32_t t = 0; t < b.n; t++) {
        double values[MAX_EXPERTS];
        if (!is_whole(t))
            continue;
        for (uint32_t e = 0; e < b.experts; e++)
            values[e] = (double)(float)(b.logits[t * b.experts + e] +
                                        (score[e] + (b.resident[e] ? law->resident : 0)));
        for (uint32_t e = 0; e < b.experts; e++)
            kept[e] = kept[e] || (routed[e] && rank_of(values, routed, e) < b.k);
        kept[first_of(t)] = true;
    }
}

static double gate_of(const mp_remap_law *law, uint32_t t, int32_t id)
{
    double z = (double)b.logits[t * b.experts + (uint32_t)id];
    return law->gate == MOEPAGE_GATE_SIGMOID ? 1 / (1 + exp(-z)) : exp(z);
}

static void expect_token(const mp_remap_law *law, uint32_t t, const bool *kept)
{
    bool left[MAX_EXPERTS];
    double values[MAX_EXPERTS], sum = 0, gates = 0;
    uint32_t n = 0;
    for (uint32_t e = 0; e < b.experts; e++) {
        left[e] = kept[e] && !chose(b.ids, t, e);
        values[e] = (double)b.logits[t * b.experts + e];
    }
    for (uint32_t i = t * b.k; i < (t + 1) * b.k; i++) {
        sum += (double)b.weights[i];
        gates += gate_of(law, t, got.ids[i]);
        if (kept[b.ids[i]])
            assert_int_equal(got.ids[i], b.ids[i]);
        else
            assert_int_equal(rank_of(values, left, (uint32_t)got.ids[i]), n++);
    }
    for (uint32_t i = t * b.k; i < (t + 1) * b.k; i++) {
        double want = gate_of(law, t, got.ids[i]) * sum / gates;
        assert_true(n ? fabs((double)got.weights[i] - want) < 1e-6 * sum
                      : mp_bits_of(got.weights[i]) == mp_bits_of(b.weights[i]));
    }
}

/* What must hold whatever the law. */
static void expect_invariants(void)
{
    bool before[MAX_EXPERTS] = {0}, after[MAX_EXPERTS] = {0};
    uint32_t n_before = 0, n_after = 0, tokens = 0, rows = 0;
    for (uint32_t t = 0; t < b.n; t++) {
        uint32_t changed = 0;
        for (uint32_t i = t * b.k; i < (t + 1) * b.k; i++) {
            changed += got.ids[i] != b.ids[i];
            if (got.ids[i] == MOEPAGE_NO_EXPERT)
                continue;
            for (uint32_t j = t * b.k; j < i; j++)
                assert_int_not_equal(got.ids[i], got.ids[j]);
            after[got.ids[i]] = true;
        }
        for (uint32_t i = t * b.k; i < (t + 1) * b.k; i++)
            if (b.ids[i] != MOEPAGE_NO_EXPERT)
                before[b.ids[i]] = true;
        if (is_whole(t))
            assert_true(chose(got.ids, t, first_of(t)));
        else
            assert_int_equal(changed, 0);
        tokens += changed > 0;
        rows += changed;
    }
    for (uint32_t e = 0; e < b.experts; e++) {
        assert_true(before[e] || !after[e]);
        n_before += before[e];
        n_after += after[e];
    }
    expect_result(n_before, n_after, tokens, rows);
}

static void test_remap_does_what_the_definition_says(void **state)
{
    uint32_t rounds = getenv("MP_TEST_LONG") ? 4000 : 200, changed = 0, total = 0;
    (void)state;
    for (uint32_t round = 0; round < rounds; round++) {
        bool kept[MAX_EXPERTS];
        seed = 1000 + round;
        uint32_t experts = 1 + bank_below(&seed, MAX_EXPERTS - 1);
        uint32_t k = 1 + bank_below(&seed, experts < MAX_K ? experts : MAX_K);
        mp_remap_law law = {.alpha = (float)(1 + bank_below(&seed, 64)) / 16,
                            .gate = bank_below(&seed, 2),
                            .resident = (float)bank_below(&seed, 3) / 2};
        law.beta = (float)(1 + bank_below(&seed, (uint32_t)ceilf(3 * law.alpha)));
        make_random(1 + bank_below(&seed, MAX_TOKENS), k, experts, round % 3 == 1, round % 5 == 4);
        remap(&law, &b, &got);
        naive_kept(&law, kept);
        uint32_t whole = 0;
        for (uint32_t t = 0; t < b.n; t++)
            whole += is_whole(t);
        if (whole < 2)
            assert_true(is_unchanged());
        for (uint32_t t = 0; t < b.n && whole > 1; t++)
            if (is_whole(t))
                expect_token(&law, t, kept);
        expect_invariants();
        changed += got.result.tokens_changed, total += b.n;
    }
    assert_in_range(changed, total / 10, total * 9 / 10); /* there is something to see */
}

/* Of routers that choose by z: the same experts are kept as moepage_cuda.h says, and the same ids
 * chosen for each token. */
static void test_remap_agrees_with_the_rule_for_devices(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 60; round++) {
        bool kept[NAIVE_MAX_EXPERTS];
        seed = 7000 + round;
        make_random(2 + bank_below(&seed, 40), 1 + bank_below(&seed, 12), 16 + 4 * (round % 20),
                    false, false);
        moepage_cuda_remap device = {.gate = MOEPAGE_CUDA_GATE_SOFTMAX_TOP,
                                     .dtype = MOEPAGE_DTYPE_F32,
                                     .n_tokens = b.n,
                                     .experts = b.experts,
                                     .top_k = b.k,
                                     .alpha = (float)(8 + 8 * (round % 4)) / 16,
                                     .beta = (float)(1 + round % 2),
                                     .preferred = round % 3 ? b.resident : NULL,
                                     .bonus = 0.25f,
                                     .logits = b.logits};
        moepage_cuda_topk router = {.gate = device.gate,
                                    .dtype = device.dtype,
                                    .n_tokens = b.n,
                                    .experts = b.experts,
                                    .top_k = b.k,
                                    .logits = b.logits};
        mp_remap_law law = {.alpha = device.alpha,
                            .beta = device.beta,
                            .resident = device.preferred ? device.bonus : 0};
        remap(&law, &b, &got);
        assert_true(naive_keep(&device, kept));
        for (uint32_t t = 0; t < b.n; t++) {
            naive_choice want;
            naive_route(&router, t, kept, &want);
            for (uint32_t i = 0; i < b.k; i++)
                assert_true(chose(got.ids, t, (uint32_t)want.ids[i]));
        }
    }
}

static void test_remap_leaves_a_batch_of_one_unchanged(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 50; round++) {
        seed = 300 + round;
        make_random(1, 1 + bank_below(&seed, 12), 12 + bank_below(&seed, 60), round % 2, false);
        remap(&(mp_remap_law){.alpha = 0.25f, .beta = 0.25f, .gate = round % 2, .resident = 9}, &b,
              &got);
        assert_true(is_unchanged());
        expect_result(b.k, b.k, 0, 0);
    }
}

/* ---- fewer experts as alpha and beta fall ----
 *
 * Of routers whose logits spread over more than a bin, on average over batches. Where they hardly
 * differ, every rule of popularity has pruned what it can at any alpha. */

static const float falling_alphas[] = {8, 4, 2, 1, 0.5f};
#define FALLING (sizeof falling_alphas / sizeof *falling_alphas)

/* Adds the experts that the batch has left at each alpha, beta twice that. */
static uint32_t count_falling(uint32_t *sums)
{
    for (size_t i = 0; i < FALLING; i++) {
        float alpha = falling_alphas[i];
        remap(&(mp_remap_law){.alpha = alpha, .beta = 2 * alpha}, &b, &got);
        expect_invariants();
        sums[i] += got.result.experts_after;
    }
    return got.result.experts_before;
}

static void expect_falling(const uint32_t *sums, uint32_t before)
{
    for (size_t i = 0; i < FALLING; i++) {
        if (sums[i] >= (i ? sums[i - 1] : before))
            fail_msg("%u experts at alpha %g, %u before", sums[i], (double)falling_alphas[i],
                     i ? sums[i - 1] : before);
    }
}

static float random_normal(void)
{
    float sum = -6;
    for (uint32_t i = 0; i < 12; i++)
        sum += (float)bank_below(&seed, 1u << 20) / (1u << 20);
    return sum;
}

static void route_by_logits(void)
{
    moepage_cuda_topk router = {.gate = MOEPAGE_CUDA_GATE_SOFTMAX_TOP,
                                .dtype = MOEPAGE_DTYPE_F32,
                                .n_tokens = b.n,
                                .experts = b.experts,
                                .top_k = b.k,
                                .logits = b.logits};
    for (uint32_t t = 0; t < b.n; t++) {
        naive_choice choice;
        naive_route(&router, t, NULL, &choice);
        for (uint32_t k = 0; k < b.k; k++) {
            b.ids[t * b.k + k] = choice.ids[k];
            b.weights[t * b.k + k] = (float)choice.weights[k];
        }
    }
}

static void test_remap_activates_fewer_as_alpha_and_beta_fall(void **state)
{
    (void)state;
    for (uint32_t n = 8; n <= 32; n *= 2) {
        uint32_t sums[FALLING] = {0}, before = 0;
        for (uint32_t round = 0; round < 100; round++) {
            seed = 50 + round;
            float common[64];
            memset(&b, 0, sizeof b);
            b.n = n, b.k = 8, b.experts = 64;
            for (uint32_t e = 0; e < 64; e++)
                common[e] = random_normal();
            for (uint32_t i = 0; i < n * 64; i++)
                b.logits[i] = common[i % 64] + random_normal();
            route_by_logits();
            before += count_falling(sums);
        }
        expect_falling(sums, before);
    }
}

#define LAYERS 4
#define WINDOWS 32
#define EXPERTS 64

static void read_router(float logits[LAYERS][WINDOWS][EXPERTS])
{
    static uint16_t halves[LAYERS * WINDOWS * EXPERTS];
    FILE *file = fopen("tests/data/router-logits.f16", "rb");
    assert_non_null(file);
    assert_int_equal(fread(halves, sizeof halves, 1, file), 1);
    fclose(file);
    for (uint32_t i = 0; i < LAYERS * WINDOWS * EXPERTS; i++)
        (&logits[0][0][0])[i] = mp_from_f16(halves[i]);
}

/* Batches of the trained model's routers: as the goal is, a fifth fewer at least. */
static void test_remap_activates_fewer_of_a_trained_router(void **state)
{
    static float logits[LAYERS][WINDOWS][EXPERTS];
    (void)state;
    read_router(logits);
    for (uint32_t n = 8; n <= WINDOWS; n *= 2) {
        uint32_t sums[FALLING] = {0}, before = 0;
        for (uint32_t i = 0; i < LAYERS * WINDOWS; i += n) {
            memset(&b, 0, sizeof b);
            b.n = n, b.k = 8, b.experts = EXPERTS;
            memcpy(b.logits, logits[i / WINDOWS][i % WINDOWS], sizeof(float) * n * EXPERTS);
            route_by_logits();
            before += count_falling(sums);
        }
        expect_falling(sums, before);
        assert_true(sums[1] * 5 < before * 4 || n == 8);
        assert_true(sums[2] * 5 < before * 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remap_prunes_what_the_equations_say),
        cmocka_unit_test(test_remap_weighs_by_sigmoids_where_the_gate_has_them),
        cmocka_unit_test(test_remap_weighs_sigmoids_that_vanish),
        cmocka_unit_test(test_remap_tells_experts_apart_by_alpha),
        cmocka_unit_test(test_remap_bins_no_further_than_beta),
        cmocka_unit_test(test_remap_gives_ties_to_the_lower_id),
        cmocka_unit_test(test_remap_prefers_residents_by_so_many_logits),
        cmocka_unit_test(test_remap_leaves_rows_with_holes_alone),
        cmocka_unit_test(test_remap_does_what_the_definition_says),
        cmocka_unit_test(test_remap_agrees_with_the_rule_for_devices),
        cmocka_unit_test(test_remap_leaves_a_batch_of_one_unchanged),
        cmocka_unit_test(test_remap_activates_fewer_as_alpha_and_beta_fall),
        cmocka_unit_test(test_remap_activates_fewer_of_a_trained_router),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
