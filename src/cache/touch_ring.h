/* touch_ring.h — how a session reports hits without taking the pool's lock.
 *
 * One producer (the session's thread) appends a record per routed layer whose experts were all
 * resident; one consumer at a time (whoever holds the pool's lock) drains it. Every record carries
 * a stamp from the pool's clock, so that the records of several sessions are replayed in the order
 * in which they happened and recency is exact. */
#ifndef MP_CACHE_TOUCH_RING_H
#define MP_CACHE_TOUCH_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A key's top bit marks a touch by prefill alone. */
#define MP_TOUCH_SCAN 0x80000000u
#define MP_TOUCH_HEADER 3u /* stamp low, stamp high, number of keys */

typedef struct mp_touch_ring {
    uint32_t *words;
    uint32_t mask;
    _Atomic uint32_t head; /* next to write: the producer's */
    _Atomic uint32_t tail; /* next to read: the consumer's */
} mp_touch_ring;

static inline uint32_t mp_touch_ring_used(const mp_touch_ring *ring)
{
    return atomic_load_explicit(&ring->head, memory_order_acquire) -
           atomic_load_explicit(&ring->tail, memory_order_acquire);
}

static inline bool mp_touch_ring_fits(const mp_touch_ring *ring, uint32_t n_keys)
{
    return mp_touch_ring_used(ring) + MP_TOUCH_HEADER + n_keys <= ring->mask + 1;
}

static inline uint32_t mp_touch_ring_word(const mp_touch_ring *ring, uint32_t at)
{
    return ring->words[at & ring->mask];
}

#endif
