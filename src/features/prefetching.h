/* prefetching.h — fetching experts ahead because the host hints at them, or because their layer
 * used them last time. */
#ifndef MP_FEATURES_PREFETCHING_H
#define MP_FEATURES_PREFETCHING_H

#include "session/step_hooks.h"

/* Attaches prefetching with MOEPAGE_PREFETCH_HINT or _PREVIOUS, nothing otherwise. May
 * fail with NO_MEMORY. */
moepage_status mp_prefetching_attach(struct moepage_session *session);

#endif
