/* What a pool with two versions of every expert refuses, and in which words. */

#include <string.h>

#include "pack_maker.h"
#include "testing.h"
#include "versions_rig.h"

#define LAYERS 3
#define EXPERTS 8

typedef struct refusal {
    moepage_precision_config precision;
    uint64_t slots;
    uint32_t bus_form, compressed;
    moepage_status status;
    const char *word;
} refusal;

static void test_version_refusals_of_contradictions(void **state)
{
    (void)state;
    bank_model bank;
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 64,
                        .intermediate = 32,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT4)};
    bank_model_open(&bank, &shape);
    moepage_device *device;
    moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 8u << 20};
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
#define LOW .lo_form = MOEPAGE_FORM_INT4
    const refusal refusals[] = {
        {{.serve = 2, LOW}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "serve is 2"},
        {{.hi_form = MOEPAGE_FORM_EXPH, LOW}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "hi_form"},
        {{.lo_form = MOEPAGE_FORM_DENSE}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "lo_form"},
        {{.hi_form = MOEPAGE_FORM_INT4, LOW}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "lo_form"},
        {{.lo_form = MOEPAGE_FORM_INT2}, 0, 0, 0, MOEPAGE_E_UNSUPPORTED, "INT2"},
        {{.hi_form = MOEPAGE_FORM_INT8, LOW}, 0, 0, 0, MOEPAGE_E_UNSUPPORTED, "INT8"},
        {{.alpha = 1, LOW}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "alpha"},
        {{.lo_fetched = 2, LOW}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "lo_fetched"},
        {{.hotness = 2, LOW}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "hotness"},
        {{.transitions = 5000, LOW}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "transitions"},
        {{.hi_experts = 9, LOW}, 0, 0, 0, MOEPAGE_E_ARGUMENT, "hi_experts"},
        {{LOW}, 4, 0, 0, MOEPAGE_E_ARGUMENT, "slots"},
        {{LOW}, 0, MOEPAGE_FORM_EXPH, 0, MOEPAGE_E_ARGUMENT, "bus_form"},
        {{LOW}, 0, 0, 1, MOEPAGE_E_ARGUMENT, "compressed_experts"},
        {{.serve = 1, .lo_fetched = 1, LOW}, 4, 0, 0, MOEPAGE_E_ARGUMENT, "SERVE_CACHE"},
        {{.serve = 1, .hi_experts = 1, LOW}, 4, 0, 0, MOEPAGE_E_ARGUMENT, "SERVE_CACHE"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        moepage_precision_config precision = r->precision;
        precision.struct_size = sizeof precision;
        moepage_expert_pool_config pools = {.struct_size = sizeof pools,
                                            .slots = r->slots,
                                            .bus_form = r->bus_form,
                                            .compressed_experts = r->compressed,
                                            .precision = &precision};
        moepage_expert_pool *pool = NULL;
        moepage_status status = moepage_expert_pool_create(&device, 1, bank.model, &pools, &pool);
        if (status != r->status || !strstr(moepage_last_error(), r->word))
            fail_msg("%s: status %d, %s", r->word, status, moepage_last_error());
        assert_null(pool);
    }
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    bank_model_close(&bank);
}

static void test_version_refusals_without_room_for_all_low_and_some_high(void **state)
{
    (void)state;
    bank_model bank;
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 64,
                        .intermediate = 32,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = PACK_FORM(DENSE) | PACK_FORM(INT2)};
    bank_model_open(&bank, &shape);
    moepage_precision_config precision = {.struct_size = sizeof precision,
                                          .lo_form = MOEPAGE_FORM_INT2,
                                          .hi_experts = 2};
    moepage_expert_pool_config pools = {.struct_size = sizeof pools, .precision = &precision};
    uint64_t workspace, arena;
    assert_int_equal(moepage_expert_pool_sizes(bank.model, &pools, 1, &workspace, &arena),
                     MOEPAGE_OK);
    for (int less = 0; less < 2; less++) { /* what it asks for does, and a page less does not */
        moepage_device *device;
        moepage_expert_pool *pool = NULL;
        moepage_device_config config = {.struct_size = sizeof config,
                                        .workspace_bytes = 1u << 20,
                                        .budget_bytes = (1u << 20) + arena - less * 8192};
        assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
        assert_int_equal(moepage_expert_pool_create(&device, 1, bank.model, &pools, &pool),
                         less ? MOEPAGE_E_BUDGET : MOEPAGE_OK);
        assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
        precision.hi_experts = 0; /* as many as there is room for */
        assert_int_equal(moepage_expert_pool_create(&device, 1, bank.model, &pools, &pool),
                         MOEPAGE_OK);
        moepage_expert_pool_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_expert_pool_get_info(pool, &info), MOEPAGE_OK);
        assert_int_equal(info.hi_experts, less ? 1 : 2);
        precision.hi_experts = 2;
        assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
        assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    }
    bank_model_close(&bank);
}

static void test_version_refusals_of_an_arena_too_small_for_the_low_ones(void **state)
{
    (void)state;
    bank_model bank;
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 64,
                        .intermediate = 32,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = PACK_FORM(DENSE) | PACK_FORM(INT8)};
    bank_model_open(&bank, &shape);
    moepage_device *device;
    moepage_device_config config = {.struct_size = sizeof config,
                                    .workspace_bytes = 1u << 20,
                                    .budget_bytes = (1u << 20) + (64u << 10)};
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        moepage_precision_config precision = {.struct_size = sizeof precision,
                                              .serve = i == 2 ? MOEPAGE_SERVE_CACHE
                                                              : MOEPAGE_SERVE_VERSIONS,
                                              .lo_fetched = i == 1,
                                              .lo_form = MOEPAGE_FORM_INT8};
        moepage_expert_pool_config pools = {.struct_size = sizeof pools, .precision = &precision};
        moepage_expert_pool *pool = NULL;
        assert_int_equal(moepage_expert_pool_create(&device, 1, bank.model, &pools, &pool),
                         MOEPAGE_E_BUDGET);
        assert_null(pool);
        assert_non_null(strstr(moepage_last_error(), "low"));
        assert_non_null(strstr(moepage_last_error(), "room for"));
        moepage_device_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
        assert_int_equal(info.arena_expert_bytes, 0);
    }
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    bank_model_close(&bank);
}

static void test_version_refusals_of_what_such_a_pool_cannot_do(void **state)
{
    (void)state;
    versions_rig rig;
    versions_rig_open(&rig, NULL, &(moepage_precision_config){.hi_experts = 2});
    moepage_session *session = NULL;
    const moepage_session_config configs[] = {
        {.miss = MOEPAGE_MISS_LOW},
        {.miss = MOEPAGE_MISS_HOST},
        {.regime = MOEPAGE_REGIME_STREAM},
        {.prefetch = MOEPAGE_PREFETCH_PREVIOUS},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        moepage_session_config config = configs[i];
        config.struct_size = sizeof config;
        assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &session),
                         MOEPAGE_E_UNSUPPORTED);
        assert_null(session);
    }
    versions_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_refusals_of_contradictions),
        cmocka_unit_test(test_version_refusals_without_room_for_all_low_and_some_high),
        cmocka_unit_test(test_version_refusals_of_an_arena_too_small_for_the_low_ones),
        cmocka_unit_test(test_version_refusals_of_what_such_a_pool_cannot_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
