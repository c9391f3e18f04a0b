/* streaming.h — layers that stream: which ones do, and what the session asks of the pool for the next of
 * them. */
#ifndef MP_FEATURES_STREAMING_H
#define MP_FEATURES_STREAMING_H

#include "session/step_hooks.h"

/* With MOEPAGE_REGIME_AUTO or _STREAM; nothing otherwise. NO_MEMORY. */
moepage_status mp_streaming_attach(struct moepage_session *session);

#endif
