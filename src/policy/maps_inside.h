/* maps_inside.h — what searching and replacing expert maps share. */
#ifndef MP_POLICY_MAPS_INSIDE_H
#define MP_POLICY_MAPS_INSIDE_H

#include "policy/maps.h"

/* Clean probabilities [experts] as integers; returns what mp_maps_product wants with them. */
float mp_maps_weigh(const mp_maps *maps, const float *probabilities, int16_t *weights);

/* The inner product of a layer's probabilities with those that codes with that peak stand for, given
 * the integers' product. */
float mp_maps_product(int32_t dot, uint16_t peak, float unit);

/* 0 where one side is all zero. */
float mp_maps_cosine(double dot, double power, double query_power);

#endif
