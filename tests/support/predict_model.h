/* predict_model.h — a model with routers, for tests of moepage_predictor, and a place for its file. */
#ifndef PREDICT_MODEL_H
#define PREDICT_MODEL_H

#include "moe_maker.h"

typedef struct predict_model {
    moe_maker maker;
    moepage_model *model;
    char path[128]; /* of a file that is not there yet */
} predict_model;

void predict_model_open(predict_model *made);
void predict_model_close(predict_model *made);

#endif
