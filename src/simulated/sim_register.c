/* The simulated device by name. */
#include "simulated/sim.h"

static moepage_status open_file(const char *path, const moepage_device_config *config,
                                mp_device **out)
{
    mp_sim_profile profile;
    moepage_status status = mp_sim_profile_read(path, &profile);
    return status ? status : mp_sim_open(&profile, config, out);
}

/* Runs when a shared object that holds this file is loaded; a program that links the archive calls it. */
__attribute__((constructor)) void mp_sim_register(void)
{
    mp_device_register_simulation(open_file);
}
