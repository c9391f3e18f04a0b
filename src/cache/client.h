/* client.h — the cache room's door for a session: what a client does for itself.
 *
 * A client is a session, as the cache knows it; these functions are called by the session's thread. They
 * take the locks that they need, and no lock is held when they are called. */
#ifndef MP_CACHE_CLIENT_H
#define MP_CACHE_CLIENT_H

#include "cache/hold.h"
#include "moepage.h"

typedef struct mp_client mp_client;

/* ---- opening a layer (bounds.c); lock-free ---- */

/* Around the opening of a layer, which asks for quotas and reserves what they allow. */
void mp_client_begin_routing(mp_client *client);
void mp_client_end_routing(mp_client *client);
/* Most experts of `layer` on one device that the client may hold at once, what it has reserved for other
 * layers set aside; UINT32_MAX if nothing can ever be evicted. `scan`: for prefill alone. */
uint32_t mp_client_quota(const mp_client *client, uint32_t layer, uint32_t device, bool scan);
/* Slots that the client's open layers hold or will hold at once: `reserved` [n_devices] of all
 * together, `widest` of the layer with most. */
void mp_client_reserve(mp_client *client, const uint32_t *reserved, uint32_t n_devices,
                       uint32_t widest);

/* ---- holding what is there (hits.c) ---- */

/* Holds every one of `holds` that is resident; returns how many of the n are now held. If all are, the
 * touch is recorded and nothing else is to be done. Lock-free. */
uint32_t mp_client_hold_resident(mp_client *client, mp_hold *holds, uint32_t n);
/* Between steps: replays the client's hits before its ring fills up in the middle of a step. */
void mp_client_relieve(const mp_client *client);

/* ---- what the client tells ---- */

/* Publishes the session's sums since its creation (published_stats.c). Lock-free. */
void mp_client_publish_stats(mp_client *client, const moepage_session_stats *stats);
/* The layer that the session routed last: guesses for layers close behind it are the urgent ones
 * (clients.c). Lock-free. */
void mp_client_reach_layer(mp_client *client, uint32_t layer);
/* Begins to count, for each layer, what becomes of the experts that the client has fetched ahead
 * (clients.c). NO_MEMORY without a sentence. */
moepage_status mp_client_open_tally(mp_client *client);
void mp_client_close_tally(mp_client *client);

/* ---- layers that stream (window.c) ---- */

/* The client streams a layer from now on, or no longer. */
void mp_client_stream(mp_client *client, uint32_t layer, bool on);
/* Returns true if the client streams the layer, or any layer. */
bool mp_client_streams(const mp_client *client, uint32_t layer);
bool mp_client_streams_any(const mp_client *client);

#endif
