/* A GPU's access to the memory of another, by the driver's peer access: for all that its primary context
 * allocates and will allocate, but for virtual memory, whose mappings name who may touch them. Workspaces are
 * allocations; arenas are not, and no GPU touches another's. Access stays as long as the contexts do, since
 * other users of them may count on it. */
#include "peers.h"

#include "base/status.h"

/* Context current. */
static moepage_status enable(mp_cuda *cuda, const mp_cuda *peer, bool *can)
{
    mp_cu_result result = cuda->driver->enable_peer(peer->context, 0);
    *can = result == MP_CU_SUCCESS || result == MP_CU_PEER_ACCESS_ALREADY_ENABLED;
    if (*can || result == MP_CU_PEER_ACCESS_UNSUPPORTED || result == MP_CU_TOO_MANY_PEERS)
        return MOEPAGE_OK;
    return mp_cuda_check(cuda, result, "taking access to another GPU's memory");
}

moepage_status mp_cuda_reach(mp_device *device, mp_device *other, bool *can)
{
    mp_cuda *cuda = mp_cuda_of(device), *peer = mp_cuda_of(other);
    int possible = 0;
    *can = cuda->context == peer->context;
    if (*can)
        return MOEPAGE_OK;
    moepage_status status =
        mp_cuda_check(cuda, cuda->driver->can_access_peer(&possible, cuda->gpu, peer->gpu),
                      "asking for access to another GPU's memory");
    if (status || !possible)
        return status;
    status = mp_cuda_enter(cuda);
    if (status)
        return status;
    status = enable(cuda, peer, can);
    mp_cuda_leave(cuda);
    return status;
}
