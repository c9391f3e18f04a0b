/* Handle checks and the graveyard. */
#include "base/handle.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

static const char *kind_name(uint32_t kind)
{
    switch (kind) {
    case MP_KIND_DEVICE: return "device";
    case MP_KIND_MODEL: return "model";
    case MP_KIND_EXPERTS: return "expert pool";
    case MP_KIND_KV: return "KV pool";
    case MP_KIND_SESSION: return "session";
    case MP_KIND_TRACE: return "trace";
    case MP_KIND_PAGED: return "PagedTensor";
    case MP_KIND_PATH: return "path";
    case MP_KIND_CONTROLLER: return "controller";
    case MP_KIND_PREDICTOR: return "predictor";
    case MP_KIND_DEAD: return "destroyed object";
    default: return "foreign object";
    }
}

moepage_status mp_handle_check(const void *object, mp_kind kind)
{
    if (!object)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the %s handle is NULL", kind_name(kind));
    uint32_t found =
        __atomic_load_n((const uint32_t *)&((const mp_handle *)object)->kind, __ATOMIC_ACQUIRE);
    if (found == (uint32_t)kind)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_HANDLE, "the handle is a %s, a live %s is needed", kind_name(found),
                   kind_name(kind));
}

void mp_graveyard_init(mp_graveyard *graveyard)
{
    memset(graveyard, 0, sizeof *graveyard);
    pthread_mutex_init(&graveyard->lock, NULL);
}

void mp_graveyard_bury(mp_graveyard *graveyard, void *object)
{
    mp_handle_kill(object);
    pthread_mutex_lock(&graveyard->lock);
    mp_free(graveyard->dead[graveyard->next]);
    graveyard->dead[graveyard->next] = object;
    graveyard->next = (graveyard->next + 1) % MP_GRAVEYARD_HANDLES;
    pthread_mutex_unlock(&graveyard->lock);
}

void mp_graveyard_free(mp_graveyard *graveyard)
{
    for (uint32_t i = 0; i < MP_GRAVEYARD_HANDLES; i++)
        mp_free(graveyard->dead[i]);
    pthread_mutex_destroy(&graveyard->lock);
}
