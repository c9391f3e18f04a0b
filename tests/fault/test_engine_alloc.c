/* Engines when memory runs out: every allocation of an opening fails in turn, once and for good. The
 * opening then says NO_MEMORY and leaves nothing, which the model's closing and sanitizers check. */
#include <string.h>

#include "alloc_fault.h"
#include "bank_model.h"
#include "testing.h"

static bank_model bank;

static moepage_status open_and_close(void)
{
    static const uint32_t token_bytes[1] = {64};
    const moepage_kv_pool_config kv =
        MOEPAGE_KV_POOL_CONFIG(.layers = 1, .bytes_per_token = token_bytes, .blocks = 4);
    const moepage_engine_config config = MOEPAGE_ENGINE_CONFIG(.model = bank.model, .kv = &kv);
    moepage_engine *engine = NULL;
    moepage_status status =
        moepage_engine_open(NULL,
                            "budget=50% max_tokens=4 threads=1 predictor=hit-count policy=cycle",
                            &config, &engine);
    assert_int_equal(engine != NULL, status == MOEPAGE_OK);
    alloc_fault.countdown = 0;
    if (!status)
        assert_int_equal(moepage_engine_close(engine), MOEPAGE_OK);
    return status;
}

static uint64_t fail_each(bool for_good)
{
    for (uint64_t n = 1;; n++) {
        alloc_fault.countdown = n;
        alloc_fault.for_good = for_good;
        alloc_fault.failures = 0;
        moepage_status status = open_and_close();
        if (!alloc_fault.failures) {
            assert_int_equal(status, MOEPAGE_OK);
            return n - 1;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_non_null(strstr(moepage_last_error(), "no memory"));
    }
}

static void test_engine_alloc_opening_leaves_nothing(void **state)
{
    (void)state;
    bank_model_open(
        &bank,
        &(bank_shape){.layers = 2, .experts = 4, .top_k = 2, .hidden = 8, .intermediate = 4});
    const uint64_t once = fail_each(false);
    assert_int_equal(fail_each(true), once);
    assert_true(once >= 80); /* a device, two pools, a predictor, a session */
    bank_model_close(&bank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_alloc_opening_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
