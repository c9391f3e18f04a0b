/* maps_inside.h — functions shared by searching and replacing expert maps. */
#ifndef MP_POLICY_MAPS_INSIDE_H
#define MP_POLICY_MAPS_INSIDE_H

#include "policy/maps.h"

/* Converts clean probabilities [experts] to integers; returns the unit that
 * mp_maps_product expects. */
float mp_maps_weigh(const mp_maps *maps, const float *probabilities, int16_t *weights);

/* Returns the inner product of a layer's probabilities with those of codes with that peak, from the
 * integers' product. */
float mp_maps_product(int32_t dot, uint16_t peak, float unit);

/* Returns the cosine; 0 if one side is all zero. */
float mp_maps_cosine(double dot, double power, double query_power);

#endif
