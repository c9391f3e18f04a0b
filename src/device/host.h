/* host.h — the CPU as a device: RAM under a byte budget, kernels on its cores. */
#ifndef MP_DEVICE_HOST_H
#define MP_DEVICE_HOST_H

#include "device/executor.h"
#include "device/seam.h"

/* A device whose streams run on the CPU. Others than "host" embed it first. */
typedef struct mp_host_device {
    mp_device device;
    mp_executor *executor;
    int arena_file;       /* anonymous file behind the arena: any part of it can then be mapped at a
                       second address too. -1 without an arena */
    unsigned char *arena; /* NULL without one */
    uint64_t arena_bytes; /* of addresses */
    int32_t node;         /* NUMA node of all its threads; -1 = of several, or unknown */
} mp_host_device;

/* What "host" does. Its `close` gives mp_free the device, executor and all. */
extern const mp_device_ops mp_host_ops;

/* Sets up a device that does that, its arena in `far` if that is not NULL. `config` has been validated. ARGUMENT for
 * more than 1024 threads or 64 for I/O, NO_MEMORY. */
moepage_status mp_host_init(mp_host_device *host, const moepage_device_config *config,
                            const mp_far_memory *far);

/* Opens the host device. `config` and errors as above. */
moepage_status mp_host_open(const moepage_device_config *config, mp_device **out);

#endif
