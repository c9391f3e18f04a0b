/* tiers.h — the transfer room's second door, for callers that schedule work behind transfers,
 * borrow images in host memory, read rates, or keep compressed experts in device memory.
 *
 * Compressed experts (FluxMoE's compressed backend) are EXPH images on the experts' side of the arena, from
 * `images_at` (setup.h) on. A *round* is one expert of each layer, so that every layer has equally many. Which expert of a layer belongs to which round never
 * changes, and the experts of the first n rounds are spread evenly over the layer's ids, whatever n
 * is. Images are copied in the background, on the PREFETCH bus; an expert counts as compressed once
 * its image has landed.
 *
 * The owner's lock is held in every call unless its comment says otherwise. */
#ifndef MP_TRANSFER_TIERS_H
#define MP_TRANSFER_TIERS_H

#include "transfer/transfer.h"

/* A tick of a stream. */
typedef struct mp_event {
    mp_stream *stream;
    mp_tick tick;
} mp_event;

/* ---- scheduling behind what is under way (passage.c) ---- */

/* Returns the last submission to a pipe's bus. */
mp_event mp_transfer_last(const mp_transfer *transfer, mp_pipe_kind pipe);
/* Finds the next event that a passage waits for; returns false if there is none. */
bool mp_passage_next_event(const mp_transfer *transfer, uint32_t passage, mp_event *out);
/* Raises the ticks in `ends` to those at which a passage ends, one for each stream that loads may end on. */
#define MP_ENDS (2u * MP_PIPES)
void mp_passage_ends(const mp_transfer *transfer, uint32_t passage, mp_event ends[MP_ENDS]);
/* Finds the next end of a cold read, of any load; returns false if none is under way. */
bool mp_transfer_next_read(const mp_transfer *transfer, mp_event *out);
/* Makes demands that begin later write to places after a tick of a reader's stream only. */
moepage_status mp_transfer_follow(mp_transfer *transfer, mp_stream *reader, mp_tick tick);
/* Submits the copy of an image in `form` to the memory at `to` on the PREFETCH bus at once, outside of
 * any passage; it starts after the readers of `place`, unless that is MP_NO_READERS. *result is set if
 * its source fails. */
moepage_status mp_transfer_copy_image(mp_transfer *transfer, uint32_t key, uint32_t form,
                                      unsigned char *to, uint32_t place, _Atomic int32_t *result,
                                      mp_tick *tick);

/* ---- readers of places (readers.c) ---- */

#define MP_NO_READERS UINT32_MAX

/* Makes room for the readers of n places that no passage leads to; *first: the number of the first of
 * them. A passage's place has the passage's number. Before any reader is set. NO_MEMORY. */
moepage_status mp_readers_add(mp_transfer *transfer, uint32_t n, uint32_t *first);
/* Sets the stream on which reader number `reader` reads places; NULL when the reader leaves. */
void mp_readers_set(mp_transfer *transfer, uint32_t reader, mp_stream *stream);
/* States that the reader's work on a place ends with `tick` of its stream. No lock. */
void mp_readers_until(mp_transfer *transfer, uint32_t place, uint32_t reader, mp_tick tick);
bool mp_readers_done(const mp_transfer *transfer, uint32_t place);
moepage_status mp_readers_sync(mp_transfer *transfer, uint32_t place);

/* ---- images in host memory (tiers.c) ---- */

/* Returns true if host memory can have an expert's image in the form that slots hold: from the host
 * tier; without one, in the caller's banks if `in_pieces`, or, of a file and if it `reads`, as an image that is
 * read here and now. *image: that image, or NULL. *owned: it is the caller's, for mp_transfer_free_image. Blocks
 * for the read. No lock. */
bool mp_transfer_may_lend(const mp_transfer *transfer, uint32_t layer, uint32_t expert,
                          bool in_pieces, bool reads, const unsigned char **image, bool *owned);
void mp_transfer_free_image(const unsigned char *image);
/* Lends out the host tier's image of an expert until mp_transfer_take_back. Returns false if the
 * tier does not have it, or would have no entry left for other experts. Without a host tier it
 * returns true, with *entry UINT32_MAX. */
bool mp_transfer_lend(mp_transfer *transfer, uint32_t key, uint32_t *entry,
                      const unsigned char **address);
void mp_transfer_take_back(mp_transfer *transfer, uint32_t entry);
/* Writes and returns the sentence that explains why an expert's image could not be
 * read. No lock. */
const char *mp_transfer_explain(mp_transfer *transfer, uint32_t key, moepage_status status,
                                char *out, size_t capacity);

/* ---- rates (tiers.c) ---- */

mp_rates mp_transfer_measured_rates(const mp_transfer *transfer); /* before serving */
mp_rates mp_transfer_live_rates(const mp_transfer *transfer);     /* while serving */
/* Return the nanoseconds that one expert takes over the bus, and those per byte; 0 if not known. */
double mp_transfer_load_ns(const mp_transfer *transfer);
double mp_transfer_bus_ns(const mp_transfer *transfer);

/* ---- compressed experts (compressed.c) ---- */

/* Returns true if experts can be kept compressed at all; the bytes of one; true if a decoder is
 * behind the bus. */
bool mp_images_possible(const mp_transfer *transfer);
uint64_t mp_images_bytes(const mp_transfer *transfer);
bool mp_transfer_decodes(const mp_transfer *transfer);
/* Checks that so many experts of each layer can be kept compressed; ARGUMENT, UNSUPPORTED. `owner`: of the
 * transfers, for the sentence. No lock. */
moepage_status mp_images_check(const mp_transfer *transfer, uint32_t compressed, const char *owner);
/* Return the number of rounds, and of those that may be decoded from. */
uint32_t mp_images_rounds(const mp_transfer *transfer);
uint32_t mp_images_usable(const mp_transfer *transfer);
/* Returns the places that so many rounds take, where they take whole ones. */
uint32_t mp_images_places(const mp_transfer *transfer, uint32_t rounds);
/* Stops decoding from all but the first `rounds` rounds. */
void mp_images_limit(mp_transfer *transfer, uint32_t rounds);
/* Returns true if no round beyond the first `rounds`, which mp_images_limit has retired, is still
 * being read or filled. */
bool mp_images_quiet(const mp_transfer *transfer, uint32_t rounds);
/* Blocks until that is so. */
moepage_status mp_images_settle(mp_transfer *transfer, uint32_t rounds);
/* Sets the number of rounds: images of new rounds will be copied, those of rounds given
 * up are forgotten. */
void mp_images_set(mp_transfer *transfer, uint32_t rounds);
/* Returns true if images are left to copy or to land. */
bool mp_images_pending(const mp_transfer *transfer);
/* Submits up to `room` bytes of images; returns how many. */
uint64_t mp_images_advance(mp_transfer *transfer, uint64_t room);
/* Notes which images have landed. */
void mp_images_sweep(mp_transfer *transfer);

#endif
