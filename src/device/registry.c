/* Devices by name: "<kind>" or "<kind>:<which>". */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "device/external.h"
#include "device/host.h"
#include "device/module.h"
#include "device/seam.h"

/* `which` is the text behind the colon, or NULL without one. */
typedef moepage_status (*open_fn)(const char *name, const char *which,
                                  const moepage_device_config *config, mp_device **out);

static mp_simulation_fn *_Atomic simulation; /* NULL: none is registered */

void mp_device_register_simulation(mp_simulation_fn *open)
{
    atomic_store(&simulation, open);
}

static moepage_status open_host(const char *name, const char *which,
                                const moepage_device_config *config, mp_device **out)
{
    if (which)
        return mp_fail(MOEPAGE_E_NOT_FOUND, "device \"%s\": there is one host, called \"host\"",
                       name);
    return mp_host_open(config, out);
}

static moepage_status open_external(const char *name, const char *which,
                                    const moepage_device_config *config, mp_device **out)
{
    if (which)
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "device \"%s\": memory of another runtime's is called \"external\"", name);
    return mp_external_open(config, out);
}

static moepage_status open_cuda(const char *name, const char *which,
                                const moepage_device_config *config, mp_device **out)
{
    if (!which || !*which || which[strspn(which, "0123456789")])
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "device \"%s\": CUDA devices are called \"cuda:0\", "
                       "\"cuda:1\" and so on",
                       name);
    uint64_t ordinal = strtoull(which, NULL, 10); /* ULLONG_MAX beyond its range */
    if (ordinal > INT32_MAX)
        return mp_fail(MOEPAGE_E_NOT_FOUND, "device \"%s\": no machine has so many GPUs", name);
    return mp_module_open((uint32_t)ordinal, config, out);
}

static moepage_status open_sim(const char *name, const char *which,
                               const moepage_device_config *config, mp_device **out)
{
    if (!which || !*which)
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "device \"%s\": a simulated one is called \"sim:\" and the path of its "
                       "machine's file",
                       name);
    mp_simulation_fn *open = atomic_load(&simulation);
    if (!open)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "device \"%s\": libmoepage has no simulated devices; moepage-sim has "
                       "(docs/sim.md)",
                       name);
    return open(which, config, out);
}

static const struct {
    const char *kind;
    open_fn open;
    bool ranges;   /* a profiler can be told what runs there */
    bool external; /* config->external is used */
} kinds[] = {
    {"host", open_host, false, false},
    {"cuda", open_cuda, true, false},
    {"external", open_external, false, true},
    {"sim", open_sim, false, false},
};

moepage_status mp_device_open(const char *name, const moepage_device_config *config,
                              mp_device **out)
{
    size_t length = strcspn(name, ":");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strlen(kinds[i].kind) != length || memcmp(kinds[i].kind, name, length) != 0)
            continue;
        if (config->ranges && !kinds[i].ranges)
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "device \"%s\": ranges for profilers are CUDA devices' alone", name);
        if (!config->external != !kinds[i].external)
            return mp_fail(MOEPAGE_E_ARGUMENT, "device \"%s\": config: external is%s NULL", name,
                           config->external ? " not" : "");
        return kinds[i].open(name, name[length] ? name + length + 1 : NULL, config, out);
    }
    return mp_fail(MOEPAGE_E_NOT_FOUND,
                   "there is no device \"%s\"; known are \"host\", \"cuda:N\", \"external\" and "
                   "\"sim:PATH\"",
                   name);
}
