/* packing.h — experts in forms that a model does not have: a pack of them for the time of a run. */
#ifndef EVAL_PACKING_H
#define EVAL_PACKING_H

#include "common/host.h"
#include "eval/eval_options.h"
#include "eval/settings.h"

typedef struct packing {
    char dir[256]; /* empty: none was needed */
    char path[288];
} packing;

/* Opens into *h the model, or, where a setting needs forms that it does not have, a pack of it that
 * is written now; standard error says so. *opts is told the path. */
int packing_open(eval_options *opts, const settings *list, packing *out, host *h);

/* Removes the pack; after host_close. */
void packing_close(packing *p);

#endif
