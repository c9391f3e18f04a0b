/* first_forms.h — the sizes that configs which have grown since had when they were first published:
 * the smallest struct_size that a program may set (docs/abi.md). */
#ifndef MP_BASE_FIRST_FORMS_H
#define MP_BASE_FIRST_FORMS_H

#include <stddef.h>

#include "moepage.h"

#define MP_DEVICE_CONFIG_MIN_BYTES offsetof(moepage_device_config, io_threads)
#define MP_EXPERT_POOL_CONFIG_MIN_BYTES offsetof(moepage_expert_pool_config, host_tier_bytes)
#define MP_PACK_CONFIG_MIN_BYTES offsetof(moepage_pack_config, moments)
#define MP_SESSION_CONFIG_MIN_BYTES offsetof(moepage_session_config, miss)

#endif
