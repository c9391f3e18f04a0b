/* The papers' experiments in short: their shapes, in virtual time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "findings.h"
#include "sim/study.h"
#include "slow.h"
#include "testing.h"

/* Sanitized, a study of big batches takes minutes; what it runs is covered by tests/unit/test_serve. */
static sim_findings *run(const char *name)
{
    if (!strncmp(name, "flux", 4))
        slow_skip_sanitized(name);
    return findings_of(name, NULL, 0);
}

static void assert_within(double value, double least, double most)
{
    if (!(value >= least && value <= most))
        fail_msg("%g is not between %g and %g", value, least, most);
}

static void test_studies_paging_gains_most_at_middle_budgets(void **state)
{
    (void)state;
    sim_findings *found = run("wisp-table2");
    findings_check_claims(found, 4);
    double tight = findings_figure(found, "cap 16 over", "speed-up");
    double middle = findings_figure(found, "cap 32 over", "speed-up");
    double wide = findings_figure(found, "cap 128 over offload 15", "speed-up");
    double all = findings_figure(found, "cap 128 over offload 0", "speed-up");
    assert_true(1 < tight && tight < middle && wide < middle && all < 1);
    assert_within(findings_figure(found, "cap 32", "tok/s"), 18.51 * 0.85, 18.51 * 1.15);
    /* 50 GiB for each token */
    assert_true(findings_figure(found, "offload 50 GiB, layers copied whole", "tok/s") <
                51.66e9 / (43 * 128 * 9437184.0));
    free(found);
}

static void test_studies_prefetching_does_not_help_a_full_bus(void **state)
{
    (void)state;
    sim_findings *found = run("wisp-prefetch");
    findings_check_claims(found, 4);
    double off = findings_figure(found, "coherent, no overhead, no prefetch", "tok/s");
    assert_true(findings_figure(found, "coherent, no overhead, all right", "tok/s") < 1.02 * off);
    assert_true(findings_figure(found, "coherent, no overhead, half right", "tok/s") < off);
    double diverse = findings_figure(found, "diverse, eager host, no prefetch", "tok/s");
    double coherent = findings_figure(found, "coherent, eager host, no prefetch", "tok/s");
    assert_within(coherent / diverse, 0.9, 1.25);
    /* About half of 8 experts of 9 MiB in 48 layers. */
    assert_within(findings_figure(found, "not among", "GiB a step"), 0.4 * 3.375, 0.6 * 3.375);
    free(found);
}

/* Bytes of experts and KV that an arm of 16 layers of 12 MiB experts ends with. */
static double olmoe_gib(const sim_findings *found, const char *arm)
{
    return findings_figure(found, arm, "experts of a layer") * 16 * 12 / 1024 +
           findings_figure(found, arm, "GiB of KV");
}

static void test_studies_a_server_wants_experts_and_kv(void **state)
{
    (void)state;
    sim_findings *found = run("wisp-table4");
    static const char *const arms[] = {"mv-wsa",      "50-50",         "dual-resize",
                                       "flux-online", "mv-wsa-online", "mv-wsa-online, admission"};
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        /* The paper's bytes, all but a unit of each side. */
        assert_within(olmoe_gib(found, arms[i]), 21 * 16 * 12 / 1024.0 + 2.6 - 0.25,
                      21 * 16 * 12 / 1024.0 + 2.6);
        assert_true(findings_figure(found, "mv-wsa", "s for all") <=
                    findings_figure(found, arms[i], "s for all"));
    }
    assert_true(findings_holds(found, "Flux-prop decodes fastest and waits longest"));
    assert_true(findings_holds(found, "50-50 decodes more slowly"));
    assert_true(findings_holds(found, "offloading's turns are longer"));
    assert_true(findings_holds(found, "mv-wsa-online takes"));
    /* One session of 2700 + 4 * 228 + 128 tokens, of 128 KiB each. */
    assert_within(findings_figure(found, "flux, KV for one session", "GiB of KV"), 3740 / 8192.0,
                  3740 / 8192.0 + 12.0 * 16 / 1024);
    /* Flux-prop itself leaves KV nothing. */
    assert_true(isnan(findings_figure(found, "flux", "flux serves 0 of 40 jobs")));
    free(found);
}

static void test_studies_idle_kv_becomes_experts(void **state)
{
    (void)state;
    sim_findings *found = run("wisp-table6");
    assert_true(findings_holds(found, "dual resize gives idle KV to experts"));
    assert_true(findings_holds(found, "mv-wsa-online takes"));
    /* Four sequences of 4570 tokens, of 96 KiB, and a tenth; what is left are units of 48 experts of 9 MiB. */
    double kv = 4 * 4570 * 96 / 1048576.0 * 1.1;
    assert_within(findings_figure(found, "dual-resize", "GiB of KV"), kv, kv + 48 * 9 / 1024.0);
    assert_within(findings_figure(found, "dual-resize", "experts of a layer"),
                  (36 * 48 * 9 / 1024.0 + 3.65 - kv) / (48 * 9 / 1024.0) - 1,
                  (36 * 48 * 9 / 1024.0 + 3.65 - kv) / (48 * 9 / 1024.0));
    assert_true(findings_figure(found, "50-50", "s for all") >
                findings_figure(found, "fixed, offline", "s for all"));
    free(found);
}

static void test_studies_iterations_are_flat_then_linear(void **state)
{
    (void)state;
    sim_findings *found = run("flux-figure6");
    findings_check_claims(found, 3);
    double theory = findings_figure(found, "alpha 1.00", "ms tau_comp");
    assert_within(findings_figure(found, "alpha 0.96", "ms tau_comp") / theory, 0.99, 1.05);
    double low = findings_figure(found, "alpha 0.50", "ms tau_comp");
    double high = findings_figure(found, "alpha 0.70", "ms tau_comp");
    /* Half and 30 % of the experts: both wait for the bus alone. */
    assert_within(low / high, 5.0 / 3 * 0.95, 5.0 / 3 * 1.05);
    assert_within(findings_figure(found, "the knee", "alpha"),
                  1 - theory * 1e6 / (48 * 512 * 65.9e3) - 0.03,
                  1 - theory * 1e6 / (48 * 512 * 65.9e3) + 0.03);
    free(found);
}

static void test_studies_compression_loses_small_and_wins_large_batches(void **state)
{
    (void)state;
    sim_findings *found = run("flux-exp1");
    findings_check_claims(found, 6);
    double small = findings_figure(found, "FluxMoE, batch 32, context 4096", "tok/s");
    assert_within(small / findings_figure(found, "vLLM, batch 32, context 4096", "tok/s"), 0.55,
                  0.75);
    double large = findings_figure(found, "FluxMoE, batch 256, context 4096", "tok/s");
    double vllm = findings_figure(found, "vLLM, batch 256, context 4096", "tok/s");
    assert_true(large > 2 * vllm);
    assert_true(vllm < findings_figure(found, "vLLM, batch 128, context 4096", "tok/s"));
    /* The decoder writes 38.7 GB each step. */
    assert_true(large < 256 * 259.2e9 / (48.0 * 512 * 1572864) * 1.01);
    free(found);
}

static void test_studies_balanced_layers_beat_whole_ones(void **state)
{
    (void)state;
    sim_findings *found = run("flux-exp2");
    findings_check_claims(found, 4);
    assert_within(findings_figure(found, "FluxMoE to FluxMoE-H, context 1024", "ratio"), 1.1, 1.45);
    assert_within(findings_figure(found, "FluxMoE to FluxMoE-H, context 4096", "ratio"), 1.1, 1.45);
    free(found);
}

static void test_studies_staggered_residency_costs_no_throughput(void **state)
{
    (void)state;
    sim_findings *found = run("flux-exp3");
    findings_check_claims(found, 5);
    assert_true(findings_figure(found, "planner to fixed, least", "ratio") > 0.97);
    double staggered = findings_figure(found, "4 rounds, staggered", "of fixed");
    assert_true(staggered > 0.97);
    assert_true(findings_figure(found, "4 rounds, out of one layer", "of fixed") < 0.9 * staggered);
    free(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_studies_paging_gains_most_at_middle_budgets),
        cmocka_unit_test(test_studies_prefetching_does_not_help_a_full_bus),
        cmocka_unit_test(test_studies_a_server_wants_experts_and_kv),
        cmocka_unit_test(test_studies_idle_kv_becomes_experts),
        cmocka_unit_test(test_studies_iterations_are_flat_then_linear),
        cmocka_unit_test(test_studies_compression_loses_small_and_wins_large_batches),
        cmocka_unit_test(test_studies_balanced_layers_beat_whole_ones),
        cmocka_unit_test(test_studies_staggered_residency_costs_no_throughput),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
