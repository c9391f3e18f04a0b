/* home.h — a device as the rest of the library sees it: the machine behind the seam, its budget,
 * its arena, and who lives on it. This is what moepage_device points to. */
#ifndef MP_ARENA_HOME_H
#define MP_ARENA_HOME_H

#include <stdbool.h>

#include "arena/arena.h"
#include "base/handle.h"
#include "base/ledger.h"
#include "device/seam.h"

struct moepage_device {
    mp_handle handle;
    mp_device *device;   /* the implementation */
    mp_ledger ledger;    /* arena claims + workspaces; limit = the budget */
    mp_ledger workspace; /* the workspace share of it */
    mp_arena arena;
    _Atomic uint32_t residents;     /* pools that live here */
    _Atomic uint64_t next_sequence; /* of KV sequence ids; never used twice */
    mp_graveyard graveyard;
};

/* Gives an open device its home: splits config->budget_bytes into workspace and arena (defaults
 * filled in already), and allocates the arena. BUDGET, NO_MEMORY; the device is then as it was. */
moepage_status mp_home_open(mp_device *device, const moepage_device_config *config,
                            struct moepage_device **out);
/* Nothing lives there any more. Closes the device too. */
void mp_home_close(struct moepage_device *home);

/* Does anything stand behind its memory, and the host memory that it gave? */
static inline bool mp_home_has_bytes(const struct moepage_device *home)
{
    return !(home->device->caps & MP_CAP_NO_BYTES);
}

/* Device memory for scratch, charged to the workspace share; BUDGET with a sentence. */
moepage_status mp_home_workspace_alloc(struct moepage_device *home, uint64_t bytes, void **out);
void mp_home_workspace_free(struct moepage_device *home, void *memory, uint64_t bytes);

#endif
