/* --list: names that other flags take. */
#include <stdio.h>
#include <string.h>

#include "common/fail.h"
#include "pack/shapes.h"
#include "policy/policy.h"
#include "sim/arms.h"
#include "sim/belady.h"
#include "sim/machine.h"
#include "sim/options.h"
#include "sim/study.h"

int sim_list_main(const sim_options *options)
{
    if (!strcmp(options->list, "models")) {
        shape_list(stdout);
    } else if (!strcmp(options->list, "machines")) {
        sim_machine_list(stdout);
    } else if (!strcmp(options->list, "baselines")) {
        sim_baseline_list(stdout);
    } else if (!strcmp(options->list, "studies")) {
        sim_study_list(stdout);
    } else {
        for (uint32_t i = 0; mp_policy_name(i); i++)
            printf("%s\n", mp_policy_name(i));
        printf("%s (replays alone: the bound)\n", sim_belady.name);
    }
    return RUN_OK;
}
