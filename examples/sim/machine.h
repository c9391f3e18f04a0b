/* machine.h — machines by name: the profiles in examples/machines. */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include <limits.h>
#include <stdio.h>

#include "moepage.h"
#include "simulated/sim.h"

typedef struct sim_machine {
    char path[PATH_MAX];
    mp_sim_profile profile;
} sim_machine;

/* Finds a profile. `name`: a file, or a profile's name, which is searched for as
 * examples/machines/NAME.json and share/moepage/machines/NAME.json in the working directory and in
 * every directory above the program's own, so that both a build and an installed tool find theirs.
 * RUN_REFUSED after a line on stderr. */
int sim_machine_find(const char *name, sim_machine *out);

/* Prints one name per line. */
void sim_machine_list(FILE *out);

/* Opens the machine's simulated device with an arena of `arena_bytes` and `workspace_bytes` beside
 * it. */
int sim_machine_open(const sim_machine *machine, uint64_t arena_bytes, uint64_t workspace_bytes,
                     moepage_device **out);

/* Returns the device behind the handle, for mp_sim_work and similar functions. */
mp_device *sim_machine_device(moepage_device *device);

#endif
