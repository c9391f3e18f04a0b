/* compressed.h — experts that stay compressed in device memory (FluxMoE's compressed backend).
 *
 * Their EXPH images lie in places of one size at the low end of the experts' side of the arena,
 * which take whole slots: place p is at base + p * unit, for good. Place p is one of round p /
 * layers, in layer p % layers; a round is one expert of each layer, so that the number of places
 * always is the same for every layer. Which expert of a layer joins in which round never changes,
 * and the experts of the first n rounds are spread over the layer's ids, whatever n.
 *
 *   copied: [0, next)     landed, and found whole: place_of[key]     decoded from: [0, usable)
 *
 * Images are copied in the background, on the PREFETCH bus, by the prefetcher's task; an expert
 * counts when its image has landed. The pool's lock is held throughout. */
#ifndef MP_CACHE_COMPRESSED_H
#define MP_CACHE_COMPRESSED_H

#include "transfer/pipe.h"

#define MP_FILLS 4

/* One image on its way to its place. */
typedef struct mp_fill {
    uint32_t place;
    bool whole;             /* all of it has been submitted */
    mp_tick tick;           /* of what has */
    _Atomic int32_t result; /* a moepage_status once its source has failed */
} mp_fill;

typedef struct mp_compressed {
    unsigned char *memory;   /* the arena's base */
    uint64_t unit;           /* bytes of a place; 0 = the model has no such images */
    uint32_t *place_of;      /* [keys] whose image has landed there, or MP_NO_SLOT; or NULL */
    uint32_t n;              /* places that the pool has */
    uint32_t usable;         /* of these, what may be decoded from: all, but while some are to go */
    uint32_t landed;         /* experts with an image */
    uint32_t stride;         /* between the members that join in consecutive rounds */
    uint32_t next;           /* place whose image is copied next */
    uint64_t offset;         /* of what is copied next, in the image */
    mp_fill fills[MP_FILLS]; /* ring */
    uint32_t first_fill, n_fills;
    bool counted;              /* among what the pool has pending */
    mp_tick read[MP_PIPES];    /* the last decoding out of a place */
    mp_tick leaving[MP_PIPES]; /* the same, when places last became fewer: nobody has read those
                                  that go since */
    moepage_status failure;    /* the last one that was not an image's own */
} mp_compressed;

/* Whose place it is. */
uint32_t mp_images_key(const struct mp_shard *shard, uint32_t place);
/* Whole slots that so many rounds take. */
uint32_t mp_images_slots(const struct mp_shard *shard, uint32_t rounds);

/* No memory is taken yet. NO_MEMORY. */
moepage_status mp_images_open(struct mp_shard *shard, uint64_t unit);
void mp_images_close(struct mp_shard *shard);

/* Is the expert's image there to be decoded? */
bool mp_images_have(const struct mp_shard *shard, uint32_t key);
const unsigned char *mp_images_find(const struct mp_shard *shard, uint32_t key);

/* Of all rounds that the pool has, the first so many are used; the others are left alone. */
void mp_images_limit(struct mp_shard *shard, uint32_t rounds);
/* Is nobody reading or filling a place beyond these rounds? They are not used any more. */
bool mp_images_quiet(const struct mp_shard *shard, uint32_t rounds);
/* The same, waiting for it. */
moepage_status mp_images_settle(struct mp_shard *shard, uint32_t rounds);

/* The pool has so many rounds from now on: images that come will be copied, those that go are
 * forgotten, nobody reads them. The slots below are the images' alone. */
void mp_images_set(struct mp_shard *shard, uint32_t rounds);

/* Is there anything left to copy or to land? */
bool mp_images_pending(const struct mp_shard *shard);
/* Submits up to `room` bytes of images; returns how many. */
uint64_t mp_images_advance(struct mp_shard *shard, uint64_t room);
/* Counts what has landed. */
void mp_images_sweep(struct mp_shard *shard);

#endif
