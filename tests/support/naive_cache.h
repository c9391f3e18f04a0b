/* naive_cache.h — caches written from the definitions alone: lists that are searched from end to
 * end. The policies, the replay and the bounds are compared with them.
 *
 * All rank the keys 0..keys-1 of one scope. A victim is the first by the definition among those
 * that are not refused. */
#ifndef NAIVE_CACHE_H
#define NAIVE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "naive_cycle.h"

#define NAIVE_KEYS 1024
#define NAIVE_NONE UINT32_MAX

typedef enum naive_kind {
    NAIVE_LRU,
    NAIVE_LFU,
    NAIVE_LFU_AGED,
    NAIVE_SIEVE,
    NAIVE_S3FIFO,
    NAIVE_LIRS,
    NAIVE_FINEMOE,
    NAIVE_CYCLE,
    NAIVE_BELADY
} naive_kind;

/* The oldest first. */
typedef struct naive_list {
    uint32_t n;
    uint32_t keys[NAIVE_KEYS];
} naive_list;

typedef struct naive_cache {
    naive_kind kind;
    uint32_t keys, resident;
    bool here[NAIVE_KEYS];
    bool refused[NAIVE_KEYS]; /* the caller's */
    uint64_t count[NAIVE_KEYS];
    uint64_t next_use[NAIVE_KEYS]; /* the caller's, for BELADY */
    float p[NAIVE_KEYS];           /* FINEMOE: the caller's after naive_open */
    uint64_t uses;                 /* LFU_AGED: since the last ageing */
    uint32_t hand;                 /* SIEVE: a key, or NAIVE_NONE */
    bool low[NAIVE_KEYS];          /* LIRS: is of low recency */
    bool something_left;           /* LIRS */
    /* LRU, LFU: all by last use. LFU_AGED: by rank. SIEVE: by insertion. S3FIFO: small, main and
     * ghosts. LIRS: the stack, its bottom first, and the queue. */
    naive_list lists[3];
    naive_cycle cycle; /* the last: nothing looks at it where the policy is another */
} naive_cache;

/* By the policy's name; fails the test where there is none. `experts`: of each layer. */
void naive_open(naive_cache *c, const char *policy, uint32_t keys, uint32_t experts);

void naive_cache_route(naive_cache *c, const uint32_t *set, uint32_t n); /* a set of one layer */
void naive_insert(naive_cache *c, uint32_t key);
void naive_touch(naive_cache *c, uint32_t key);
void naive_remove(naive_cache *c, uint32_t key);
uint32_t naive_victim(naive_cache *c); /* NAIVE_NONE: all are refused */

/* Serves a set of distinct keys at once with room for `capacity`: returns the misses, and the
 * victims in their order. */
uint32_t naive_serve(naive_cache *c, uint32_t capacity, const uint32_t *set, uint32_t n,
                     uint32_t *victims, uint32_t *n_victims);

#endif
