/* The simulated device against what the conformance suite asks of devices without bytes. */
#include "conformance.h"
#include "machine_rig.h"

static mp_device *open_sim(uint32_t threads, uint64_t bus_bytes_per_s)
{
    moepage_device_config config = {
        .struct_size = sizeof config,
        .threads = threads,
        .budget_bytes = 64u << 20,
        .bus_bytes_per_s = bus_bytes_per_s,
    };
    mp_sim_profile profile = machine_profile();
    mp_device *device = NULL;
    return mp_sim_open(&profile, &config, &device) ? NULL : device;
}

int main(void)
{
    static const conformance_subject sim = {
        .name = "simulated device",
        .open = open_sim,
        .has_throttle = true,
    };
    return conformance_run(&sim);
}
