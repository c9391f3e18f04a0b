/* client.h — the cache room's door for sessions.
 *
 * A client is what the cache knows of a session. The session's thread calls these functions without
 * holding a lock; they take the lock themselves where they need it. */
#ifndef MP_CACHE_CLIENT_H
#define MP_CACHE_CLIENT_H

#include "cache/hold.h"
#include "moepage.h"

typedef struct mp_client mp_client;

/* ---- opening a layer (bounds.c); lock-free ---- */

/* Begins the opening of a layer, which asks for quotas and reserves slots within them: until
 * mp_client_reserve ends it, a shrinking pool cannot know what the client counts on. */
void mp_client_begin_routing(mp_client *client);
/* Returns the most experts of `layer` on one device that the client may hold at once,
 * besides those reserved for other layers; UINT32_MAX if nothing can ever be evicted.
 * `scan`: for prefill alone. */
uint32_t mp_client_quota(const mp_client *client, uint32_t layer, uint32_t device, bool scan);
/* States how many slots the client's open layers hold or will hold at once: `reserved`
 * [n_devices][classes of slots] for all layers together, `widest` for the one with the most. Ends the
 * opening of a layer. */
void mp_client_reserve(mp_client *client, const uint32_t *reserved, uint32_t widest);

/* ---- holding what is there (hits.c) ---- */

/* Begins a step of so many sequences that decode, and nothing else, or of 0; what is held from now on is its own. */
void mp_client_begin_step(mp_client *client, uint32_t decodes);
uint32_t mp_client_decodes(const mp_client *client);

/* Holds each of the n experts that is resident and returns how many it holds now. If it is
 * all of them, the touch is recorded and nothing is left to do. Lock-free unless the touch
 * ring is full. */
uint32_t mp_client_hold_resident(mp_client *client, mp_hold *holds, uint32_t n);
/* Records a routed set, which a cache with `fixed` slots passes to its watch alone. Lock-free unless the
 * touch ring is full. */
void mp_client_tell(mp_client *client, const mp_hold *holds, uint32_t n);
/* Replays the client's hits if its ring might fill up during the next step.
 * Called between steps. */
void mp_client_relieve(const mp_client *client);

/* ---- what the client reports ---- */

/* Publishes the session's sums since its creation (published_stats.c). Lock-free. */
void mp_client_publish_stats(mp_client *client, const moepage_session_stats *stats);
/* Reports the layer that the session routed last: guesses for the layers right after it are the
 * urgent ones (clients.c). Lock-free. */
void mp_client_reach_layer(mp_client *client, uint32_t layer);
/* Begins to count, for each layer, what becomes of the experts that were fetched ahead for the
 * client (clients.c). May return NO_MEMORY, without a sentence. */
moepage_status mp_client_open_tally(mp_client *client);
void mp_client_close_tally(mp_client *client);

/* ---- layers that stream (window.c) ---- */

/* Lets the client stream a layer from now on, or no longer. */
void mp_client_stream(mp_client *client, uint32_t layer, bool on);
/* Returns true if the client streams the layer, or any layer. */
bool mp_client_streams(const mp_client *client, uint32_t layer);
bool mp_client_streams_any(const mp_client *client);

#endif
