/* A predictor and one sequence. */
#include "predict_rig.h"

#include <stdlib.h>
#include <string.h>

#include "testing.h"

enum { ALIGN = 64, MAX_EXPERTS = 1024 };

void *predict_rig_alloc(uint64_t bytes)
{
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, ALIGN, bytes ? bytes : 1), 0);
    memset(memory, 0, bytes);
    return memory;
}

void predict_rig_open(predict_rig *rig, const mp_predictor *kind, const mp_predict_config *config)
{
    *rig = (predict_rig){.kind = kind, .config = *config};
    assert_in_range(config->experts, 1, MAX_EXPERTS);
    rig->state = predict_rig_alloc(kind->state_bytes(config));
    rig->context = predict_rig_alloc(kind->context_bytes(config));
    kind->init(rig->state, config);
    predict_rig_request(rig);
}

void predict_rig_close(predict_rig *rig)
{
    free(rig->state);
    free(rig->context);
}

void predict_rig_request(predict_rig *rig)
{
    rig->kind->request(rig->state, rig->context);
}

void predict_rig_begin(predict_rig *rig)
{
    rig->kind->begin(rig->state, rig->context, NULL);
}

void predict_rig_see(predict_rig *rig, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    mp_seen seen = {.layer = layer, .n_experts = n, .experts = experts};
    rig->kind->observe(rig->state, rig->context, &seen);
}

uint32_t predict_rig_ask(predict_rig *rig, uint32_t layer, mp_guess *out)
{
    float score = -7;
    uint32_t n = rig->kind->predict(rig->state, rig->context, layer, out, &score);
    assert_true(score == 1);
    assert_in_range(n, 0, rig->config.experts);
    assert_int_equal(rig->kind->predict(rig->state, rig->context, layer, out, NULL), n);
    return n;
}

void predict_rig_end(predict_rig *rig)
{
    rig->kind->end(rig->state, rig->context);
}

void predict_rig_expect(predict_rig *rig, uint32_t layer, uint32_t n, const mp_guess *expected)
{
    mp_guess guesses[MAX_EXPERTS];
    assert_int_equal(predict_rig_ask(rig, layer, guesses), n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(guesses[i].expert, expected[i].expert);
        assert_float_equal(guesses[i].p, expected[i].p, 1e-6);
    }
}
