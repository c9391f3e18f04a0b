/* The metrics' text: its form, what its values mean, and that its table, its document and the public
 * structs say the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "metrics/metrics.h"
#include "moepage_cuda.h"
#include "prom_text.h"
#include "testing.h"

typedef struct all {
    moepage_device_info device;
    moepage_cuda_info cuda;
    moepage_expert_pool_info experts;
    moepage_session_stats sessions;
    moepage_kv_pool_info kv;
    moepage_controller_info controller;
    moepage_predictor_info predictor;
} all;

static char out[MOEPAGE_STATS_TEXT_BYTES];
static prom_text text;

static mp_metrics metrics_of(const all *a, const char *labels)
{
    return (mp_metrics){.of = {[MP_METRICS_OF_BUILD] = a,
                               [MP_METRICS_OF_DEVICE] = &a->device,
                               [MP_METRICS_OF_CUDA] = &a->cuda,
                               [MP_METRICS_OF_EXPERTS] = &a->experts,
                               [MP_METRICS_OF_SESSIONS] = &a->sessions,
                               [MP_METRICS_OF_KV] = &a->kv,
                               [MP_METRICS_OF_CONTROLLER] = &a->controller,
                               [MP_METRICS_OF_PREDICTOR] = &a->predictor},
                        .labels = labels};
}

static uint64_t render(const all *a, const char *labels)
{
    mp_metrics metrics = metrics_of(a, labels);
    uint64_t n = mp_metrics_render(&metrics, out, sizeof out);
    assert_true(n < sizeof out);
    assert_int_equal(strlen(out), n);
    prom_read(out, &text);
    return n;
}

static all named(const char *device)
{
    return (all){.device = {.name = device, .kernels = "sm_90"}, .predictor = {.name = "maps"}};
}

/* ---- the text ---- */

static void test_metrics_text_is_what_the_format_says(void **state)
{
    (void)state;
    all a = named("cuda:0");
    render(&a, NULL);
    assert_int_equal(text.n_samples, mp_metric_count);
    char build[64];
    snprintf(build, sizeof build, "moepage_build_info{version=\"%s\"}", moepage_version_text());
    assert_true(prom_has(&text, build));
    assert_true(prom_has(&text, "moepage_device_info{name=\"cuda:0\",kernels=\"sm_90\"}"));
    assert_true(prom_has(&text, "moepage_predictor_info{name=\"maps\"}"));
    assert_true(prom_has(&text, "moepage_cuda_info{gpu=\"\",arena=\"malloc\",cublas=\"none\"}"));
    assert_true(prom_has(&text, "moepage_controller_info{mode=\"mv-wsa\"}"));
    assert_true(
        prom_has(&text,
                 "moepage_expert_pool_info{bus_form=\"none\",slot_form=\"none\",high_form=\"none\","
                 "low_form=\"none\",cold_engine=\"none\"}"));
}

static void test_metrics_leave_out_what_is_not_reported_on(void **state)
{
    (void)state;
    all a = named("host");
    mp_metrics metrics = {.of = {[MP_METRICS_OF_KV] = &a.kv}};
    mp_metrics_render(&metrics, out, sizeof out);
    prom_read(out, &text);
    for (uint32_t i = 0; i < text.n_families; i++)
        assert_memory_equal(text.families[i].name, "moepage_kv_", 11);
    metrics = (mp_metrics){0};
    assert_int_equal(mp_metrics_render(&metrics, out, sizeof out), 0);
    assert_string_equal(out, "");
}

static void test_metrics_values_are_exact(void **state)
{
    (void)state;
    all a = named("host");
    a.sessions.stall_cold_ns = 1234567890;
    a.sessions.stall_late_ns = 7;
    a.sessions.tokens = UINT64_MAX;
    a.sessions.wall_ns = UINT64_MAX;
    a.experts.host_node = -1;
    a.experts.prefetch_useful = 9;
    a.experts.prefetch_late = 4;
    a.experts.bus_form = MOEPAGE_FORM_EXPH;
    a.experts.slot_form = MOEPAGE_FORM_DENSE;
    a.experts.hi_form = MOEPAGE_FORM_INT8;
    a.experts.lo_form = MOEPAGE_FORM_INT2;
    a.experts.host_tier_bytes = 1;
    a.controller.expert_miss_ns = 2500000.4;
    a.controller.kv_miss_ns = -3;
    a.controller.predicted_now_ns = 1e30;
    a.controller.predicted_best_ns = NAN;
    a.controller.rho = 0.5;
    a.controller.alpha = 1.0000005;
    a.controller.mode = MOEPAGE_CONTROL_FLUX;
    a.cuda = (moepage_cuda_info){.name = "NVIDIA H100",
                                 .arena_kind = MOEPAGE_CUDA_ARENA_VMM,
                                 .cublas_version = 130100,
                                 .handle_ns = 1500};
    render(&a, NULL);
    static const struct {
        const char *key, *value;
    } expected[] = {
        {"moepage_stall_seconds_total{cause=\"cold\"}", "1.234567890"},
        {"moepage_stall_seconds_total{cause=\"late\"}", "0.000000007"},
        {"moepage_stall_seconds_total{cause=\"slot\"}", "0.000000000"},
        {"moepage_tokens_total", "18446744073709551615"},
        {"moepage_step_seconds_total", "18446744073.709551615"},
        {"moepage_host_tier_numa_node", "-1"},
        {"moepage_prefetch_experts_total{outcome=\"useful\"}", "5"},
        {"moepage_prefetch_experts_total{outcome=\"late\"}", "4"},
        {"moepage_expert_pool_info{bus_form=\"exph\",slot_form=\"dense\",high_form=\"int8\",low_"
         "form=\"int2\","
         "cold_engine=\"pread\"}",
         "1"},
        {"moepage_controller_miss_seconds{side=\"experts\"}", "0.002500000"},
        {"moepage_controller_miss_seconds{side=\"kv\"}", "0.000000000"},
        {"moepage_controller_predicted_seconds{split=\"now\"}", "18446744073.709551615"},
        {"moepage_controller_predicted_seconds{split=\"best\"}", "0.000000000"},
        {"moepage_controller_compute_load_ratio", "0.500000"},
        {"moepage_controller_device_ratio", "1.000001"},
        {"moepage_controller_info{mode=\"flux\"}", "1"},
        {"moepage_cuda_info{gpu=\"NVIDIA H100\",arena=\"vmm\",cublas=\"130100\"}", "1"},
        {"moepage_cuda_handle_seconds", "0.000001500"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_string_equal(prom_value(&text, expected[i].key), expected[i].value);
}

static void test_metrics_labels_are_merged_and_escaped(void **state)
{
    (void)state;
    all a = named("odd \"name\"\\\n");
    a.kv.free_blocks = 3;
    render(&a, "model=\"q\\\"3\",replica=\"0\"");
    assert_int_equal(text.n_samples, mp_metric_count);
    assert_string_equal(prom_value(&text, "moepage_kv_free_blocks{model=\"q\\\"3\",replica=\"0\"}"),
                        "3");
    assert_true(prom_has(&text, "moepage_device_info{model=\"q\\\"3\",replica=\"0\","
                                "name=\"odd \\\"name\\\"\\\\\\n\",kernels=\"sm_90\"}"));
}

/* Every digit of every number, the longest labels, and a device's name that is all escapes. */
static void test_metrics_fit_into_the_documented_capacity(void **state)
{
    (void)state;
    char labels[257], name[65];
    all a;
    memset(&a, 0xff, sizeof a);
    memset(name, '"', 64);
    name[64] = '\0';
    a.device.name = a.device.kernels = name;
    memset(a.predictor.name, '"', sizeof a.predictor.name);
    a.predictor.name[sizeof a.predictor.name - 1] = '\0';
    memset(a.cuda.name, '"', sizeof a.cuda.name);
    a.cuda.name[sizeof a.cuda.name - 1] = '\0';
    a.experts.prefetch_late = 0;
    for (double *d = &a.controller.expert_miss_ns; d <= &a.controller.alpha; d++)
        *d = 1e30;
    memset(labels, 'x', 256);
    labels[256] = '\0';
    memcpy(labels, "l=\"", 3);
    labels[255] = '"';
    assert_int_equal(mp_metrics_check_labels(labels), MOEPAGE_OK);
    uint64_t n = render(&a, labels);
    assert_in_range(n, 40000, sizeof out - 1); /* the worst case is one */
}

static void test_metrics_never_write_past_the_capacity(void **state)
{
    (void)state;
    all a = named("host");
    mp_metrics metrics = metrics_of(&a, NULL);
    uint64_t whole = mp_metrics_render(&metrics, NULL, 0);
    char *copy = malloc(whole + 1);
    assert_non_null(copy);
    assert_int_equal(mp_metrics_render(&metrics, copy, whole + 1), whole);
    for (uint64_t capacity = 0; capacity <= whole; capacity += 97) {
        memset(out, '~', sizeof out);
        assert_int_equal(mp_metrics_render(&metrics, out, capacity), whole);
        assert_memory_equal(out, copy, capacity);
        assert_int_equal(out[capacity], '~');
    }
    free(copy);
}

/* ---- labels ---- */

static void test_metrics_labels_that_are_none_are_refused(void **state)
{
    (void)state;
    static const char *const good[] = {
        "a=\"\"",
        "model=\"qwen3\",replica=\"0\"",
        "_a1=\"b c{}=,\"",
        "a=\"\\\\\"",
        "a=\"\\n\\\"\",b=\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
        "",
        "namespace=\"x\"",
    };
    static const char *const bad[] = {
        "a",
        "a=",
        "a=b",
        "a=\"b",
        "=\"b\"",
        "1a=\"b\"",
        "a =\"b\"",
        "a=\"b\" ",
        "a=\"b\",",
        ",a=\"b\"",
        "a=\"b\"b=\"c\"",
        "a=\"b\n\"",
        "a=\"\\t\"",
        "a=\"\\",
        "a-b=\"c\"",
        "a=\"\xff\"",
        "a=\"\xc0\x80\"",
        "a=\"\xed\xa0\x80\"",
        "a=\"\xc3\"",
        "a=\"\xe2\x82",
        "__a=\"b\"",
        "a=\"b\",a=\"c\"",
        "{a=\"b\"}",
        "a:b=\"c\"",
        "a=\"\xf5\x80\x80\x80\"",
        "a=\"\xe0\x80\x80\"",
        "cause=\"x\"",
        "a=\"b\",name=\"x\"",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (mp_metrics_check_labels(good[i]))
            fail_msg("%s was refused: %s", good[i], moepage_last_error());
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (mp_metrics_check_labels(bad[i]) != MOEPAGE_E_ARGUMENT)
            fail_msg("%s was taken", bad[i]);
    assert_int_equal(mp_metrics_check_labels(NULL), MOEPAGE_OK);
    char longest[300];
    memset(longest, 'x', sizeof longest);
    memcpy(longest, "l=\"", 3);
    memcpy(longest + 256, "\"", 2);
    assert_int_equal(mp_metrics_check_labels(longest), MOEPAGE_E_ARGUMENT);
}

static void refused(void *user, const char *name, size_t bytes)
{
    char labels[64];
    (void)user;
    snprintf(labels, sizeof labels, "%.*s=\"x\"", (int)bytes, name);
    if (mp_metrics_check_labels(labels) != MOEPAGE_E_ARGUMENT)
        fail_msg("metrics use the label %.*s, and a host may give it", (int)bytes, name);
}

static void test_metrics_own_labels_cannot_be_given_twice(void **state)
{
    (void)state;
    all a = named("host");
    render(&a, NULL);
    for (uint32_t i = 0; i < text.n_samples; i++)
        prom_each_label(text.samples[i].key, refused, NULL);
}

/* ---- table, document and structs ---- */

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    char *all_of_it = calloc(1, 1 << 20);
    assert_non_null(all_of_it);
    size_t n = fread(all_of_it, 1, (1 << 20) - 1, file);
    assert_true(n > 0);
    fclose(file);
    return all_of_it;
}

/* A row of the document: | `name` | type | labels | ... */
static void test_metrics_are_those_that_the_document_lists(void **state)
{
    (void)state;
    char *document = read_file("docs/metrics.md"), row[200];
    uint32_t listed = 0;
    all a = named("host");
    render(&a, NULL);
    for (uint32_t i = 0; i < text.n_families; i++) {
        const prom_family *family = &text.families[i];
        snprintf(row, sizeof row, "\n| `%s` | %s |", family->name,
                 family->counter ? "counter" : "gauge");
        if (!strstr(document, row))
            fail_msg("docs/metrics.md lacks a row that begins \"%s\"", row + 1);
    }
    for (const char *at = document; (at = strstr(at, "\n| `moepage_")); at++)
        listed++;
    assert_int_equal(listed, text.n_families);
    free(document);
}

/* Fields that no metric shows, and why. */
static const struct {
    const char *field, *why;
} left_out[] = {
    {"moepage_device_info.name", "a label"},
    {"moepage_device_info.kernels", "a label"},
    {"moepage_cuda_info.ordinal", "in the device's name"},
    {"moepage_cuda_info.compute_major", "in the device's kernels"},
    {"moepage_cuda_info.compute_minor", "likewise"},
    {"moepage_cuda_info.multiprocessors", "what the GPU is, not how it does"},
    {"moepage_cuda_info.driver_version", "likewise"},
    {"moepage_cuda_info.toolkit_version", "likewise"},
    {"moepage_cuda_info.copy_engines", "likewise"},
    {"moepage_cuda_info.numa_node", "moepage_host_tier_numa_node has what became of it"},
    {"moepage_cuda_info.cublas_version", "a label"},
    {"moepage_cuda_info.arena_kind", "a label"},
    {"moepage_cuda_info.name", "a label"},
    {"moepage_expert_pool_info.hits", "moepage_experts_routed_total has them by session's steps"},
    {"moepage_expert_pool_info.misses", "likewise"},
    {"moepage_expert_pool_info.late", "likewise"},
    {"moepage_expert_pool_info.bus_form", "a label"},
    {"moepage_expert_pool_info.slot_form", "a label"},
    {"moepage_expert_pool_info.slot_step", "the same as long as the pool lives"},
    {"moepage_expert_pool_info.hi_form", "a label"},
    {"moepage_expert_pool_info.lo_form", "a label"},
    {"moepage_session_stats.routed", "the sum of moepage_experts_routed_total"},
    {"moepage_session_stats.stall_ns", "the sum of moepage_stall_seconds_total"},
    {"moepage_session_stats.demand_bytes", "moepage_expert_bus_bytes_total has them, with pins'"},
    {"moepage_kv_pool_info.blocks_per_granule", "granule_bytes / block_bytes"},
    {"moepage_controller_info.mode", "a label"},
    {"moepage_predictor_info.name", "a label"},
};

static const struct {
    const char *name;
    mp_metrics_of of;
} structs[] = {
    {"moepage_device_info", MP_METRICS_OF_DEVICE},
    {"moepage_cuda_info", MP_METRICS_OF_CUDA},
    {"moepage_expert_pool_info", MP_METRICS_OF_EXPERTS},
    {"moepage_session_stats", MP_METRICS_OF_SESSIONS},
    {"moepage_kv_pool_info", MP_METRICS_OF_KV},
    {"moepage_controller_info", MP_METRICS_OF_CONTROLLER},
    {"moepage_predictor_info", MP_METRICS_OF_PREDICTOR},
};

static uint32_t shown(mp_metrics_of of, unsigned at)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < mp_metric_count; i++)
        n += mp_metric_table[i].of == of && mp_metric_table[i].at == at &&
             !mp_metric_table[i].describe;
    return n;
}

static bool is_left_out(const char *field)
{
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (!strcmp(left_out[i].field, field))
            return true;
    return false;
}

/* By the list of fields that is made from the header. */
static void test_metrics_show_every_field_or_say_why_not(void **state)
{
    (void)state;
    char *fields = read_file("lib/abi/structs.txt"), field[128];
    uint32_t seen = 0, skipped = 0;
    for (const char *line = fields; line; line = strchr(line, '\n')) {
        unsigned at, bytes;
        line += *line == '\n';
        if (sscanf(line, "field %127s %u %u", field, &at, &bytes) != 3 || bytes == 0)
            continue;
        for (size_t i = 0; i < sizeof structs / sizeof *structs; i++) {
            size_t n = strlen(structs[i].name);
            if (strncmp(field, structs[i].name, n) != 0 || field[n] != '.' ||
                !strcmp(field + n, ".struct_size") || !strcmp(field + n, ".reserved"))
                continue;
            uint32_t times = shown(structs[i].of, at);
            if (times != !is_left_out(field))
                fail_msg("%s is shown %u times, and %s left out", field, times,
                         is_left_out(field) ? "is" : "is not");
            seen += times;
            skipped += !times;
        }
    }
    assert_int_equal(skipped, sizeof left_out / sizeof *left_out);
    assert_int_equal(seen, mp_metric_count - 6); /* and six infos */
    free(fields);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_text_is_what_the_format_says),
        cmocka_unit_test(test_metrics_leave_out_what_is_not_reported_on),
        cmocka_unit_test(test_metrics_values_are_exact),
        cmocka_unit_test(test_metrics_labels_are_merged_and_escaped),
        cmocka_unit_test(test_metrics_fit_into_the_documented_capacity),
        cmocka_unit_test(test_metrics_never_write_past_the_capacity),
        cmocka_unit_test(test_metrics_labels_that_are_none_are_refused),
        cmocka_unit_test(test_metrics_own_labels_cannot_be_given_twice),
        cmocka_unit_test(test_metrics_are_those_that_the_document_lists),
        cmocka_unit_test(test_metrics_show_every_field_or_say_why_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
