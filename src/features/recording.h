/* recording.h — records a session's routing, as the caller gave it, to a trace. */
#ifndef MP_FEATURES_RECORDING_H
#define MP_FEATURES_RECORDING_H

#include "moepage.h"

/* Records to the trace from the next step on; NULL stops recording. Fails with STATE while a step
 * is open, with ARGUMENT for a trace of another shape or one that is being read, and with BUSY if
 * another session records to it. */
moepage_status mp_recording_set(struct moepage_session *session, moepage_trace *trace);

#endif
