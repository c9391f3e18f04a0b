/* One machine for each device: when a device has been closed, nothing of it may be left there. */
#include "cuda_subject.h"

#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "gpu.h"

static const sim_cuda_config *machine;

static mp_device *open_cuda(uint32_t threads, uint64_t bus_bytes_per_s)
{
    moepage_device_config config = {
        .struct_size = sizeof config,
        .threads = threads,
        .budget_bytes = 64u << 20,
        .bus_bytes_per_s = bus_bytes_per_s,
    };
    mp_device *device = NULL;
    const mp_cuda_driver *driver = sim_cuda_open(machine);
    sim_cuda_jitter(machine->seed);
    if (mp_cuda_device_open(driver, NULL, "not here", sim_images, sim_n_images, 0, &config,
                            &device)) {
        sim_cuda_close();
        return NULL;
    }
    return device;
}

/* The device of the process's own driver, through the module. */
static mp_device *open_named(uint32_t threads, uint64_t bus_bytes_per_s)
{
    moepage_device_config config = {
        .struct_size = sizeof config,
        .threads = threads,
        .budget_bytes = 64u << 20,
        .bus_bytes_per_s = bus_bytes_per_s,
    };
    mp_device *device = NULL;
    return mp_device_open(getenv("MP_TEST_DEVICE"), &config, &device) ? NULL : device;
}

static int run_named(const char *name)
{
    const conformance_subject cuda = {
        .name = name,
        .open = open_named,
        .asynchronous = true,
        .holds_bytes = true,
        .any_thread = true,
        .slow = getenv("MP_TEST_SLOW") != NULL,
    };
    return conformance_run(&cuda);
}

int cuda_subject_run(const char *name, const sim_cuda_config *of)
{
    const conformance_subject cuda = {
        .name = name,
        .open = open_cuda,
        .closed = sim_cuda_close,
        .asynchronous = true,
        .holds_bytes = true,
        .any_thread = true,
        .slow = true,
    };
    const char *named = getenv("MP_TEST_DEVICE");
    if (named && !strncmp(named, "cuda:", 5))
        return run_named(named);
    machine = of;
    return conformance_run(&cuda);
}
