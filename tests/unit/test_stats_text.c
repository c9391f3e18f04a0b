/* The entry point of the metrics: capacities, handles, and what it reports of real objects. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_rig.h"
#include "moepage_cuda.h"
#include "pool_rig.h"
#include "prom_text.h"
#include "testing.h"

#define MUST(call) assert_int_equal((call), MOEPAGE_OK)

static bank_model bank;
static pool_rig rig;
static moepage_kv_pool *kv;
static moepage_controller *controller;
static moepage_predictor *predictor;
static char out[MOEPAGE_STATS_TEXT_BYTES];
static prom_text text;

static int open_all(void **state)
{
    (void)state;
    static const uint32_t per_token[2] = {64, 64};
    const bank_shape shape = {
        .layers = 2, .experts = 8, .top_k = 2, .hidden = 8, .intermediate = 4, .seed = 5};
    const moepage_kv_pool_config config = {.struct_size = sizeof config,
                                           .block_tokens = 4,
                                           .layers = 2,
                                           .bytes_per_token = per_token,
                                           .blocks = 1};
    const moepage_controller_config control = {.struct_size = sizeof control,
                                               .mode = MOEPAGE_CONTROL_OBSERVE};
    const moepage_predictor_config predict = {.struct_size = sizeof predict, .name = "previous"};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 6, .host_experts = 8});
    MUST(moepage_kv_pool_create(rig.devices[0], &config, &kv));
    MUST(moepage_controller_create(rig.pool, kv, &control, &controller));
    MUST(moepage_predictor_create(bank.model, &predict, &predictor));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    MUST(moepage_predictor_destroy(predictor));
    MUST(moepage_controller_destroy(controller));
    MUST(moepage_kv_pool_destroy(kv));
    pool_rig_close(&rig);
    bank_model_close(&bank);
    return 0;
}

static moepage_stats_source everything(void)
{
    return (moepage_stats_source){.struct_size = sizeof(moepage_stats_source),
                                  .device = rig.devices[0],
                                  .experts = rig.pool,
                                  .kv = kv,
                                  .controller = controller,
                                  .predictor = predictor};
}

static void scrape(const moepage_stats_source *source)
{
    uint64_t length = 0;
    MUST(moepage_stats_text(source, out, sizeof out, &length));
    assert_int_equal(strlen(out), length);
    prom_read(out, &text);
}

static void test_stats_text_reports_what_the_objects_say(void **state)
{
    (void)state;
    moepage_stats_source source = everything();
    moepage_session *session = pool_rig_session(&rig, NULL);
    pool_rig_visit(session, 0, (int32_t[]){1, 3}, 2);
    pool_rig_visit(session, 0, (int32_t[]){3, 5}, 2);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    MUST(moepage_session_get_stats(session, &stats));
    MUST(moepage_session_destroy(session));
    scrape(&source);
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(prom_count(&text, "moepage_steps_total"), 2);
    assert_int_equal(prom_count(&text, "moepage_experts_routed_total{outcome=\"hit\"}"), 1);
    assert_int_equal(prom_count(&text, "moepage_experts_routed_total{outcome=\"miss\"}"), 3);
    assert_int_equal(prom_count(&text, "moepage_expert_slots"), 6);
    assert_int_equal(prom_count(&text, "moepage_experts_resident"), 3);
    assert_int_equal(prom_count(&text, "moepage_expert_bus_bytes_total{cause=\"demand\"}"),
                     info.demand_bytes);
    assert_int_equal(prom_count(&text, "moepage_expert_tier_loads_total{tier=\"cold\"}"),
                     info.cold_reads);
    assert_true(info.cold_reads > 0);
    char seconds[64];
    snprintf(seconds, sizeof seconds, "%llu.%09llu",
             (unsigned long long)(stats.wall_ns / 1000000000),
             (unsigned long long)(stats.wall_ns % 1000000000));
    assert_string_equal(prom_value(&text, "moepage_step_seconds_total"), seconds);
    moepage_kv_pool_info kv_info = {.struct_size = sizeof kv_info};
    MUST(moepage_kv_pool_get_info(kv, &kv_info));
    assert_int_equal(prom_count(&text, "moepage_kv_blocks"), kv_info.blocks);
    assert_true(prom_has(&text, "moepage_predictor_info{name=\"previous\"}"));
    assert_true(prom_has(&text, "moepage_controller_info{mode=\"observe\"}"));
}

/* What was to be had only in a slower kind. */
static void test_stats_text_shows_fallbacks(void **state)
{
    (void)state;
    moepage_stats_source source = everything();
    scrape(&source);
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(prom_count(&text, "moepage_device_pageable_bytes"), 0);
    assert_int_equal(prom_count(&text, "moepage_host_tier_page_bytes"), info.host_page_bytes);
    assert_true(info.host_page_bytes >= 4096);
    assert_int_equal(atoi(prom_value(&text, "moepage_host_tier_numa_node")), info.host_node);
    assert_int_equal(prom_count(&text, "moepage_expert_cold_buffered_reads_total"),
                     info.cold_reads);
    assert_true(prom_has(
        &text, "moepage_expert_pool_info{bus_form=\"dense\",slot_form=\"dense\",high_form=\"none\","
               "low_form=\"none\",cold_engine=\"pread\"}"));
}

/* Over the simulated driver. */
static void test_stats_text_tells_more_of_cuda_devices(void **state)
{
    (void)state;
    const moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 8 << 20};
    setenv("MP_TEST_DEVICE", "sim", 1);
    moepage_stats_source source = {.struct_size = sizeof source};
    source.device = device_rig_open(&config);
    scrape(&source);
    moepage_cuda_info info = {.struct_size = sizeof info};
    MUST(moepage_cuda_get_info(source.device, &info));
    assert_int_equal(prom_count(&text, "moepage_cuda_poisoned"), 0);
    assert_int_equal(prom_count(&text, "moepage_cuda_memory_bytes"), info.device_bytes);
    assert_true(info.device_bytes > 0);
    assert_int_equal(prom_count(&text, "moepage_cuda_memory_calls_total"), info.driver_calls);
    device_rig_close(source.device);
    unsetenv("MP_TEST_DEVICE");
    source.device = rig.devices[0];
    scrape(&source);
    assert_false(prom_has(&text, "moepage_cuda_poisoned"));
}

static void test_stats_text_leaves_out_what_is_null(void **state)
{
    (void)state;
    moepage_stats_source source = {.struct_size = sizeof source};
    scrape(&source);
    assert_int_equal(text.n_samples, 1);
    assert_string_equal(text.samples[0].name, "moepage_build_info");
    source.kv = kv;
    scrape(&source);
    assert_true(prom_has(&text, "moepage_kv_blocks"));
    assert_false(prom_has(&text, "moepage_expert_slots"));
    source.labels = "";
    scrape(&source);
    assert_true(prom_has(&text, "moepage_kv_blocks"));
    source.labels = "pool=\"b\"";
    scrape(&source);
    assert_true(prom_has(&text, "moepage_kv_blocks{pool=\"b\"}"));
}

static void test_stats_text_needs_room_for_all_of_it(void **state)
{
    (void)state;
    moepage_stats_source source = {.struct_size = sizeof source};
    uint64_t length = 0, again = 99;
    MUST(moepage_stats_text(&source, NULL, 0, &length));
    MUST(moepage_stats_text(&source, NULL, 0, NULL));
    memset(out, '~', sizeof out);
    assert_int_equal(moepage_stats_text(&source, out, length, &again), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "MOEPAGE_STATS_TEXT_BYTES"));
    assert_int_equal(moepage_stats_text(&source, out, 0, &again), MOEPAGE_E_ARGUMENT);
    assert_int_equal(again, 99);
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(out[i], '~');
    MUST(moepage_stats_text(&source, out, length + 1, &again));
    assert_int_equal(again, length);
    assert_int_equal(out[length], '\0');
    assert_int_equal(out[length + 1], '~');
}

static void test_stats_text_refuses_what_it_cannot_report(void **state)
{
    (void)state;
    moepage_stats_source source = everything();
    assert_int_equal(moepage_stats_text(NULL, out, sizeof out, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_stats_text(&source, NULL, 1, NULL), MOEPAGE_E_ARGUMENT);
    source.labels = "a=b";
    assert_int_equal(moepage_stats_text(&source, out, sizeof out, NULL), MOEPAGE_E_ARGUMENT);
    source = everything();
    source.reserved = 1;
    assert_int_equal(moepage_stats_text(&source, out, sizeof out, NULL), MOEPAGE_E_ARGUMENT);
    source = everything();
    source.struct_size = 8;
    assert_int_equal(moepage_stats_text(&source, out, sizeof out, NULL), MOEPAGE_E_VERSION);
    for (int i = 0; i < 5; i++) {
        source = everything();
        void *wrong = i == 2 ? (void *)rig.pool : (void *)kv;
        memcpy((char *)&source + offsetof(moepage_stats_source, device) + 8 * i, &wrong, 8);
        assert_int_equal(moepage_stats_text(&source, out, sizeof out, NULL), MOEPAGE_E_HANDLE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats_text_reports_what_the_objects_say),
        cmocka_unit_test(test_stats_text_shows_fallbacks),
        cmocka_unit_test(test_stats_text_tells_more_of_cuda_devices),
        cmocka_unit_test(test_stats_text_leaves_out_what_is_null),
        cmocka_unit_test(test_stats_text_needs_room_for_all_of_it),
        cmocka_unit_test(test_stats_text_refuses_what_it_cannot_report),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
