/* synthetic.h — a model of a published shape with random weights, opened as caller-held experts:
 * none of them is in memory; they are made when they are read. */
#ifndef EXAMPLE_SYNTHETIC_H
#define EXAMPLE_SYNTHETIC_H

#include "moepage.h"
#include "pack/random_weights.h"
#include "pack/shapes.h"

typedef struct synthetic synthetic;

/* Opens the first `layers` layers of a shape (0 = all of them). For families that run, the model
 * has every tensor that its architecture needs; the others have their routers only. Weights depend
 * on seed, layer, expert, tensor and position alone. One line and an exit code on failure. */
int synthetic_open(const shape *s, uint32_t layers, weight_shape weights, uint64_t seed,
                   synthetic **out);

/* Returns the model, owned by the synthetic. */
moepage_model *synthetic_model(synthetic *s);

/* Closes the synthetic; NULL is a no-op. */
void synthetic_close(synthetic *s);

#endif
