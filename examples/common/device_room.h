/* device_room.h — how large a device must be for the objects on it. */
#ifndef EXAMPLE_DEVICE_ROOM_H
#define EXAMPLE_DEVICE_ROOM_H

#include "moepage.h"

/* Sets the workspace and the budget of *out so that a pool and a session of these configs, and
 * `kv_bytes` of KV blocks, fit: no more than a page is left over. The pool's `slots` must be given.
 * One line and RUN_REFUSED on failure. */
int device_room(const moepage_model *model, const moepage_expert_pool_config *pool,
                const moepage_session_config *session, uint64_t kv_bytes,
                moepage_device_config *out);

#endif
