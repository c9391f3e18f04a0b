/* external.h — experts in memory of another runtime's: buffers of a GPU, say, for which there is no device here. */
#ifndef MP_DEVICE_EXTERNAL_H
#define MP_DEVICE_EXTERNAL_H

#include "device/seam.h"

/* Opens a device whose arena is config->external's. `config` has been validated, but for what that points to.
 * ARGUMENT if that is incomplete, and as the host device. */
moepage_status mp_external_open(const moepage_device_config *config, mp_device **out);

#endif
