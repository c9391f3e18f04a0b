/* The host device against the conformance suite. */
#include "conformance.h"

static mp_device *open_host(uint32_t threads, uint64_t bus_bytes_per_s)
{
    moepage_device_config config = {
        .struct_size = sizeof config,
        .threads = threads,
        .budget_bytes = 64u << 20,
        .bus_bytes_per_s = bus_bytes_per_s,
    };
    mp_device *device = NULL;
    return mp_device_open("host", &config, &device) ? NULL : device;
}

int main(void)
{
    static const conformance_subject host = {
        .name = "host device",
        .open = open_host,
        .asynchronous = true,
        .holds_bytes = true,
        .any_thread = true,
        .has_throttle = true,
    };
    return conformance_run(&host);
}
