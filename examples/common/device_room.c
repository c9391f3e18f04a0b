/* Computes a device's size from the objects on it. */
#include "common/device_room.h"

#include <unistd.h>

#include "common/fail.h"

int device_room(const moepage_model *model, const moepage_expert_pool_config *pool,
                const moepage_session_config *session, uint64_t kv_bytes,
                moepage_device_config *out)
{
    uint64_t staging, scratch, arena, page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (moepage_expert_pool_sizes(model, pool, 1, &staging, &arena))
        return fail_library(RUN_REFUSED, "expert pool");
    if (moepage_session_workspace(model, session, &scratch))
        return fail_library(RUN_REFUSED, "session");
    out->workspace_bytes = staging + scratch;
    /* Arenas are whole pages. */
    out->budget_bytes = (arena + kv_bytes + page - 1) / page * page + out->workspace_bytes;
    return RUN_OK;
}
