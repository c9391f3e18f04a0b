/* One predictor, many threads: sequences of their own on a shared state, while others look, save and
 * load what they saved. What was learnt is what all of them taught. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "features/shared_predictor.h"
#include "moe_maker.h"
#include "policy/predictors.h"
#include "testing.h"

enum { THREADS = 3, PASSES = 500 };

static moepage_predictor *predictor;
static moepage_predictor *mirror; /* what was saved is loaded into it */
static char path[128];

static void *teach(void *argument)
{
    const uint32_t own[] = {*(const uint32_t *)argument};
    mp_guess guesses[MOE_EXPERTS];
    mp_predict_context context = {0};
    uintptr_t wrong = mp_predictor_context_open(predictor, &context) != MOEPAGE_OK;
    mp_predictor_request(predictor, &context);
    for (uint32_t i = 0; !wrong && i < PASSES; i++) {
        mp_predictor_begin(predictor, &context, NULL);
        for (uint32_t l = 0; l < MOE_LAYERS; l++) {
            mp_seen seen = {.layer = l, .n_experts = 1, .experts = own};
            mp_predictor_observe(predictor, &context, &seen);
            uint32_t n = mp_predictor_predict(predictor, &context, !l, guesses, NULL);
            wrong += i > 1 && (n != 1 || guesses[0].expert != own[0]); /* as if alone */
        }
        mp_predictor_end(predictor, &context);
    }
    mp_predictor_context_close(&context);
    return (void *)wrong;
}

static void *look(void *argument)
{
    uintptr_t wrong = 0;
    (void)argument;
    for (uint32_t i = 0; i < 20; i++) {
        moepage_predictor_info info = {.struct_size = sizeof info};
        moepage_rightsize size = {.struct_size = sizeof size};
        wrong += moepage_predictor_get_info(predictor, &info) != MOEPAGE_OK;
        wrong += info.iterations > THREADS * PASSES;
        moepage_status status = moepage_predictor_rightsize(predictor, &size);
        wrong += status != MOEPAGE_OK && status != MOEPAGE_E_STATE;
        wrong += size.experts > MOE_LAYERS * MOE_EXPERTS;
        wrong += moepage_predictor_save(predictor, path) != MOEPAGE_OK;
        wrong += moepage_predictor_load(mirror, path) != MOEPAGE_OK;
    }
    return (void *)wrong;
}

static void test_predictor_threads_learn_as_one(void **state)
{
    (void)state;
    static moe_maker maker;
    pthread_t threads[THREADS + 1];
    uint32_t experts[THREADS];
    moe_maker_init(&maker);
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    snprintf(path, sizeof path, "%s/learnt", maker.dir);
    moepage_predictor_config config = {.struct_size = sizeof config, .name = "coactivation"};
    assert_int_equal(moepage_predictor_create(model, &config, &predictor), MOEPAGE_OK);
    assert_int_equal(moepage_predictor_create(model, &config, &mirror), MOEPAGE_OK);
    for (uint32_t i = 0; i < THREADS; i++) {
        experts[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, teach, &experts[i]), 0);
    }
    assert_int_equal(pthread_create(&threads[THREADS], NULL, look, NULL), 0);
    for (uint32_t i = 0; i <= THREADS; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    const uint32_t *uses = mp_predictor_coactivation_uses(predictor->state);
    for (uint32_t key = 0; key < MOE_LAYERS * MOE_EXPERTS; key++)
        assert_int_equal(uses[key], key % MOE_EXPERTS < THREADS ? PASSES : 0);
    assert_int_equal(predictor->iterations, THREADS * PASSES);
    assert_int_equal(moepage_predictor_destroy(predictor), MOEPAGE_OK);
    assert_int_equal(moepage_predictor_destroy(mirror), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    moe_maker_free(&maker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_predictor_threads_learn_as_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
