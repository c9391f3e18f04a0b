/* host.h — the CPU as a device: RAM under a byte budget, kernels on its cores. */
#ifndef MP_DEVICE_HOST_H
#define MP_DEVICE_HOST_H

#include "device/seam.h"

/* Opens the host device. `config` has been validated. ARGUMENT for more than 1024 threads
 * or 64 for I/O, NO_MEMORY. */
moepage_status mp_host_open(const moepage_device_config *config, mp_device **out);

#endif
