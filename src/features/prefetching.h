/* prefetching.h — experts fetched ahead by the host's hints, or because their layer used them last
 * time. */
#ifndef MP_FEATURES_PREFETCHING_H
#define MP_FEATURES_PREFETCHING_H

#include "session/step_hooks.h"

/* With MOEPAGE_PREFETCH_HINT or _PREVIOUS; nothing otherwise. NO_MEMORY. */
moepage_status mp_prefetching_attach(struct moepage_session *session);

#endif
