/* packing.h — forms that a model lacks: a pack with them, which exists during the run. */
#ifndef EVAL_PACKING_H
#define EVAL_PACKING_H

#include "common/host.h"
#include "eval/eval_options.h"
#include "eval/settings.h"

typedef struct packing {
    char dir[256]; /* empty: no pack was needed */
    char path[288];
} packing;

/* Opens into *h the model or, if a setting needs forms that it lacks, a pack written now, with a
 * message on standard error. *opts gets the path. */
int packing_open(eval_options *opts, const settings *list, packing *out, host *h);

/* Removes the pack; call it after host_close. */
void packing_close(packing *p);

#endif
