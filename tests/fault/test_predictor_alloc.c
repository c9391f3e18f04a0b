/* Predictors when memory runs out: every allocation of a creation, a sequence's context, a save and a
 * load fails in turn, once and for good. They then say NO_MEMORY and leave everything as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "features/shared_predictor.h"
#include "predict_model.h"
#include "testing.h"

static predict_model made;

static int make(void **state)
{
    (void)state;
    predict_model_open(&made);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    predict_model_close(&made);
    return 0;
}

typedef moepage_status (*deed)(moepage_predictor *predictor, const char *name);

static moepage_status create(moepage_predictor *predictor, const char *name)
{
    (void)predictor;
    moepage_predictor_config config = {.struct_size = sizeof config, .name = name};
    moepage_predictor *created = NULL;
    moepage_status status = moepage_predictor_create(made.model, &config, &created);
    assert_int_equal(status == MOEPAGE_OK, created != NULL);
    moepage_predictor_destroy(created);
    return status;
}

static moepage_status open_context(moepage_predictor *predictor, const char *name)
{
    (void)name;
    mp_predict_context context = {0};
    moepage_status status = mp_predictor_context_open(predictor, &context);
    mp_predictor_context_close(&context);
    return status;
}

static moepage_status save(moepage_predictor *predictor, const char *name)
{
    (void)name;
    return moepage_predictor_save(predictor, made.path);
}

static moepage_status load(moepage_predictor *predictor, const char *name)
{
    (void)name;
    return moepage_predictor_load(predictor, made.path);
}

/* How many allocations the deed makes. */
static uint64_t fail_each(deed act, moepage_predictor *predictor, const char *name, bool for_good)
{
    for (uint64_t n = 1;; n++) {
        alloc_fault = (alloc_faults){.countdown = n, .for_good = for_good};
        moepage_status status = act(predictor, name);
        uint64_t failures = alloc_fault.failures;
        alloc_fault = (alloc_faults){0};
        if (!failures) {
            assert_int_equal(status, MOEPAGE_OK);
            return n - 1;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_non_null(strstr(moepage_last_error(), "no memory"));
    }
}

static void fail_both(deed act, moepage_predictor *predictor, const char *name, uint64_t least)
{
    uint64_t once = fail_each(act, predictor, name, false);
    assert_true(once >= least);
    assert_int_equal(fail_each(act, predictor, name, true), once);
}

static void test_predictor_alloc_failed_creation_leaves_nothing(void **state)
{
    (void)state;
    for (uint32_t i = 0; mp_predictor_name(i); i++) {
        bool gate = strcmp(mp_predictor_name(i), "gate") == 0;
        fail_both(create, NULL, mp_predictor_name(i), gate ? 4 : 2);
    }
}

static void test_predictor_alloc_failed_deeds_change_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"hit-count", "coactivation"};
    for (uint32_t i = 0; i < 2; i++) {
        moepage_predictor_config config = {.struct_size = sizeof config, .name = names[i]};
        moepage_predictor *predictor = NULL;
        assert_int_equal(moepage_predictor_create(made.model, &config, &predictor), MOEPAGE_OK);
        fail_both(open_context, predictor, NULL, 1);
        alloc_fault = (alloc_faults){.countdown = 1, .for_good = true};
        assert_int_equal(save(predictor, NULL), MOEPAGE_E_NO_MEMORY);
        alloc_fault = (alloc_faults){0};
        assert_int_equal(access(made.path, F_OK), i == 0 ? -1 : 0);
        fail_both(save, predictor, NULL, 3);
        fail_both(load, predictor, NULL, 1);
        assert_int_equal(moepage_predictor_destroy(predictor), MOEPAGE_OK);
    }
}

#define EACH(test) cmocka_unit_test_setup_teardown(test, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(test_predictor_alloc_failed_creation_leaves_nothing),
        EACH(test_predictor_alloc_failed_deeds_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
