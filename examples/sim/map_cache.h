/* map_cache.h — a cache of experts small enough to be plain about it: for studies of what a priority
 * keeps, with every key's use, count and expectation in the open. */
#ifndef SIM_MAP_CACHE_H
#define SIM_MAP_CACHE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum sim_map_policy {
    SIM_MAP_LRU,
    SIM_MAP_LFU,   /* least often visited since the beginning; of equals the least recent */
    SIM_MAP_LIKELY /* 1 / (p * freq), p from the map last found (FineMoE 4.5) */
} sim_map_policy;

typedef struct sim_map_cache {
    uint32_t keys, capacity, used;
    uint64_t clock;
    bool *resident;
    bool *named;      /* the caller's */
    uint64_t *last;   /* when a key was last used, or brought */
    uint64_t *visits; /* how often it was used */
    float *p;         /* of being used, as last predicted */
} sim_map_cache;

/* `capacity` 0: nothing is ever kept. Non-zero: no memory. */
int sim_map_cache_open(uint32_t keys, uint32_t capacity, sim_map_cache *out);
void sim_map_cache_close(sim_map_cache *cache);

void sim_map_cache_expect(sim_map_cache *cache, uint32_t key, float p);
/* Ahead of need. */
void sim_map_cache_fetch(sim_map_cache *cache, uint32_t key, sim_map_policy policy);
/* Needed now: it is resident afterwards. */
void sim_map_cache_use(sim_map_cache *cache, uint32_t key, sim_map_policy policy);

#endif
