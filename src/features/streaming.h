/* streaming.h — layers that stream: chooses them, and asks the pool for the experts of
 * the next one. */
#ifndef MP_FEATURES_STREAMING_H
#define MP_FEATURES_STREAMING_H

#include "session/step_hooks.h"

/* Attaches streaming with MOEPAGE_REGIME_AUTO or _STREAM, nothing otherwise. May
 * fail with NO_MEMORY. */
moepage_status mp_streaming_attach(struct moepage_session *session);

#endif
