/* inspect_report.h — the output of moepage-inspect. */
#ifndef EXAMPLE_INSPECT_REPORT_H
#define EXAMPLE_INSPECT_REPORT_H

#include <stdio.h>

#include "common/forms.h"
#include "inspect/census.h"

/* Everything known about a model. */
typedef struct inspection {
    const char *path;
    const char *kind; /* "checkpoint", "pack" or "gguf" */
    bool one_layer;   /* the census covers only the experts of its first layer */
    moepage_model_info info;
    moepage_form_info forms[LAST_FORM + 1];
    moepage_expert_tensor
        tensors[MOEPAGE_MAX_EXPERT_TENSORS]; /* of the first layer that is looked at */
    uint64_t n_dense;                        /* tensors that are never paged */
    census census;
} inspection;

void inspect_print(FILE *out, const inspection *i);
int inspect_print_json(FILE *out, const inspection *i);

#endif
