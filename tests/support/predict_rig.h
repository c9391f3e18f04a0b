/* predict_rig.h — a predictor with its state and one sequence, in memory of exactly the sizes that it
 * asked for. */
#ifndef PREDICT_RIG_H
#define PREDICT_RIG_H

#include "policy/predictor.h"

typedef struct predict_rig {
    const mp_predictor *kind;
    mp_predict_config config;
    void *state;
    void *context; /* its request has begun */
} predict_rig;

void predict_rig_open(predict_rig *rig, const mp_predictor *kind, const mp_predict_config *config);
void predict_rig_close(predict_rig *rig);

/* Memory of that size, zero-filled, aligned as predictors may expect; free() it. */
void *predict_rig_alloc(uint64_t bytes);

void predict_rig_request(predict_rig *rig); /* another one begins */
void predict_rig_begin(predict_rig *rig);
void predict_rig_see(predict_rig *rig, uint32_t layer, const uint32_t *experts, uint32_t n);
/* out[experts]; the score must be 1. */
uint32_t predict_rig_ask(predict_rig *rig, uint32_t layer, mp_guess *out);
void predict_rig_end(predict_rig *rig);

/* The answer must be exactly this many, in this order; probabilities to within 1e-6. */
void predict_rig_expect(predict_rig *rig, uint32_t layer, uint32_t n, const mp_guess *expected);

/* The two in short: the experts, or the guesses, one behind the other. */
#define SEE(rig, layer, ...)                                     \
    predict_rig_see(rig, layer, (const uint32_t[]){__VA_ARGS__}, \
                    sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define EXPECT(rig, layer, ...)                                                                \
    predict_rig_expect(rig, layer, sizeof((const mp_guess[]){__VA_ARGS__}) / sizeof(mp_guess), \
                       (const mp_guess[]){__VA_ARGS__})
#define EXPECT_NOTHING(rig, layer) predict_rig_expect(rig, layer, 0, NULL)

#endif
