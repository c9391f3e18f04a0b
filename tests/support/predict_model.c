/* A small checkpoint in a directory of its own. */
#include <stdio.h>

#include "testing.h"

#include "predict_model.h"

void predict_model_open(predict_model *made)
{
    moe_maker_init(&made->maker);
    moe_maker_write(&made->maker);
    made->model = moe_expect_open(&made->maker);
    snprintf(made->path, sizeof made->path, "%s/learnt", made->maker.dir);
}

void predict_model_close(predict_model *made)
{
    assert_int_equal(moepage_model_close(made->model), MOEPAGE_OK);
    moe_maker_free(&made->maker);
}
