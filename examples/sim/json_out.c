/* Prints the object. */
#include "sim/json_out.h"

#include <stdio.h>

#include "common/fail.h"

int sim_json_print(int failed, json_t *root)
{
    if (!root)
        failed = 1;
    if (!failed)
        failed = json_dumpf(root, stdout, JSON_COMPACT) || fputc('\n', stdout) == EOF;
    json_decref(root);
    return failed ? fail(RUN_FAILED, "cannot write the JSON output") : RUN_OK;
}
