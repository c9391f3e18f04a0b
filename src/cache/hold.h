/* hold.h — one expert of an open layer, from request to release. A session fills in which expert it
 * wants and how; the pool fills in where it is. */
#ifndef MP_CACHE_HOLD_H
#define MP_CACHE_HOLD_H

#include <stdbool.h>
#include <stdint.h>

/* How the expert was found when it was asked for. */
enum {
    MP_HOLD_NONE = 0, /* not held */
    MP_HOLD_HIT = 1,
    MP_HOLD_LATE = 2,
    MP_HOLD_MISS = 3,
    MP_HOLD_LOW = 4, /* the low version: it has no slot and stays as it is while the step is open */
    MP_HOLD_HOST = 5 /* in host memory, where it is computed in place: it has no slot either */
};

typedef struct mp_hold {
    uint32_t key;
    uint32_t shard;    /* which of the pool's devices */
    uint32_t slot;     /* HOST: the host tier's entry, or MP_NO_SLOT */
    uint64_t demanded; /* bytes that this hold put on the bus */
    /* The image of a held expert, usable once it is ready; NULL for HOST in the caller's banks. */
    const unsigned char *address;
    uint32_t form;         /* MOEPAGE_FORM_* of the image */
    uint8_t kind;          /* MP_HOLD_* */
    bool ready;            /* its bytes are in the slot */
    bool may_run_in_place; /* it may be held as HOST */
    bool owns_image;       /* `address` is memory that goes with the hold; if may_run_in_place */
    bool scan;             /* wanted by prefill tokens alone */
    bool pin;              /* not a routed use: counts as neither hit nor miss */
    bool cold;             /* when it was held, the cold tier had yet to give its bytes */
} mp_hold;

#endif
