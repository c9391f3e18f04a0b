/* tiers.h — the transfer room's second door: what stands behind a place's bytes, for callers that
 * schedule transfers, lend images out, or share places with compressed experts.
 *
 * Compressed experts (FluxMoE's compressed backend): their EXPH images lie at the low end of the
 * experts' side of the arena, in units that take whole places. A *round* is one expert of each layer,
 * so that the number is the same for every layer. Which expert of a layer joins in which round never
 * changes, and the experts of the first n rounds are spread over the layer's ids, whatever n. Images
 * are copied in the background, on the PREFETCH bus; an expert counts when its image has landed.
 *
 * The owner's lock is held in every call, unless a comment says otherwise. */
#ifndef MP_TRANSFER_TIERS_H
#define MP_TRANSFER_TIERS_H

#include "transfer/transfer.h"

/* A tick of a stream. */
typedef struct mp_event {
    mp_stream *stream;
    mp_tick tick;
} mp_event;

/* ---- scheduling behind what is under way (passage.c) ---- */

/* The last submission to a pipe's bus. */
mp_event mp_transfer_last(const mp_transfer *transfer, mp_pipe_kind pipe);
/* Finds the next event in a passage's way; returns false if none is to come. */
bool mp_passage_next_event(const mp_transfer *transfer, uint32_t passage, mp_event *out);
/* Finds the next end of a cold read, whoever wanted it; returns false if none is under way. */
bool mp_transfer_next_read(const mp_transfer *transfer, mp_event *out);
/* Submits the copy of an image in `form` to `place` on the PREFETCH bus, outside of any passage;
 * nothing is staged. *result is set once its source has failed. */
moepage_status mp_transfer_copy_image(mp_transfer *transfer, uint32_t key, uint32_t form,
                                      unsigned char *place, _Atomic int32_t *result, mp_tick *tick);

/* ---- readers of places (readers.c) ---- */

/* The stream that reader number `reader` reads places on; NULL: none any more. */
void mp_readers_set(mp_transfer *transfer, uint32_t reader, mp_stream *stream);
/* The reader's work on a passage's place ends with `tick` of its stream. No lock. */
void mp_readers_until(mp_transfer *transfer, uint32_t passage, uint32_t reader, mp_tick tick);
bool mp_readers_done(const mp_transfer *transfer, uint32_t passage);
moepage_status mp_readers_sync(mp_transfer *transfer, uint32_t passage);

/* ---- images in host memory (tiers.c) ---- */

/* Returns true if images can be had in host memory as the kernels read them (DENSE). No lock. */
bool mp_transfer_may_lend(const mp_transfer *transfer, uint32_t layer, uint32_t expert,
                          bool in_pieces, const unsigned char **mapped);
/* Lends the host tier's image of an expert out until mp_transfer_take_back; false if the tier does not
 * have it, or could then serve no other. Without a host tier: true, and *entry is UINT32_MAX. */
bool mp_transfer_lend(mp_transfer *transfer, uint32_t key, uint32_t *entry,
                      const unsigned char **address);
void mp_transfer_take_back(mp_transfer *transfer, uint32_t entry);
/* Writes the sentence that explains why an expert's image could not be had. No lock. */
const char *mp_transfer_explain(mp_transfer *transfer, uint32_t key, moepage_status status,
                                char *out, size_t capacity);

/* ---- rates (tiers.c) ---- */

mp_rates mp_transfer_measured_rates(const mp_transfer *transfer); /* before serving */
mp_rates mp_transfer_live_rates(const mp_transfer *transfer);     /* while serving */
/* Nanoseconds to bring one expert over the bus, and per byte that crosses it; 0 = not known. */
double mp_transfer_load_ns(const mp_transfer *transfer);
double mp_transfer_bus_ns(const mp_transfer *transfer);

/* ---- compressed experts (compressed.c) ---- */

/* Returns true if experts can be kept compressed at all; bytes of one; if a decoder is behind the bus. */
bool mp_images_possible(const mp_transfer *transfer);
uint64_t mp_images_bytes(const mp_transfer *transfer);
bool mp_transfer_decodes(const mp_transfer *transfer);
/* Rounds that there are, and those that may be decoded from. */
uint32_t mp_images_rounds(const mp_transfer *transfer);
uint32_t mp_images_usable(const mp_transfer *transfer);
/* Places that so many rounds take. */
uint32_t mp_images_places(const mp_transfer *transfer, uint32_t rounds);
/* Leaves all but the first so many rounds unused. */
void mp_images_limit(mp_transfer *transfer, uint32_t rounds);
/* Returns true if no round beyond these is read or filled; they are not used any more. */
bool mp_images_quiet(const mp_transfer *transfer, uint32_t rounds);
/* Blocks until it is so. */
moepage_status mp_images_settle(mp_transfer *transfer, uint32_t rounds);
/* There are so many rounds from now on: images that come will be copied, those that go are forgotten. */
void mp_images_set(mp_transfer *transfer, uint32_t rounds);
/* Returns true if images are left to copy or to land. */
bool mp_images_pending(const mp_transfer *transfer);
/* Submits up to `room` bytes of images; returns how many. */
uint64_t mp_images_advance(mp_transfer *transfer, uint64_t room);
/* Counts what has landed. */
void mp_images_sweep(mp_transfer *transfer);

#endif
