/* The table of predictors by name. */
#include "policy/predictor.h"

#include <stddef.h>
#include <string.h>

#include "policy/predictors.h"

static const mp_predictor *const predictors[] = {
    &mp_predictor_none, &mp_predictor_previous,     &mp_predictor_hit_count,
    &mp_predictor_gate, &mp_predictor_coactivation, &mp_predictor_maps,
};

const mp_predictor *mp_predictor_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof predictors / sizeof *predictors; i++)
        if (strcmp(predictors[i]->name, name) == 0)
            return predictors[i];
    return NULL;
}

const char *mp_predictor_name(uint32_t index)
{
    return index < sizeof predictors / sizeof *predictors ? predictors[index]->name : NULL;
}
