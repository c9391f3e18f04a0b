/* ring.h — a circular doubly-linked list in an array of indices.
 *
 * The links of all keys and of the list's sentinel are in one array of fixed size: moving a
 * key allocates nothing. Indices are half the size of pointers, and a key's two links share
 * a cache line. */
#ifndef MP_POLICY_RING_H
#define MP_POLICY_RING_H

#include <stdint.h>

typedef struct mp_link {
    uint32_t prev, next;
} mp_link;

/* Makes `at` a list of itself: the sentinel of an empty list. */
static inline void mp_ring_reset(mp_link *links, uint32_t at)
{
    links[at].prev = links[at].next = at;
}

/* Puts `key`, which is in no list, at the newest end of the list around `sentinel`; the oldest key
 * is links[sentinel].next. Any other key in place of the sentinel: right before that. */
static inline void mp_ring_append(mp_link *links, uint32_t sentinel, uint32_t key)
{
    uint32_t last = links[sentinel].prev;
    links[key] = (mp_link){.prev = last, .next = sentinel};
    links[last].next = links[sentinel].prev = key;
}

/* Takes `key` out of its list; its own links are left stale. */
static inline void mp_ring_unlink(mp_link *links, uint32_t key)
{
    uint32_t prev = links[key].prev, next = links[key].next;
    links[prev].next = next;
    links[next].prev = prev;
}

#endif
