/* map_cache.h — a small, deliberately simple cache of experts for studies of eviction priorities,
 * with every key's last use, count and expectation accessible. */
#ifndef SIM_MAP_CACHE_H
#define SIM_MAP_CACHE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum sim_map_policy {
    SIM_MAP_LRU,
    SIM_MAP_LFU,   /* fewest uses since the beginning; equals by recency */
    SIM_MAP_LIKELY /* 1 / (p * freq), p from the map found last (FineMoE 4.5) */
} sim_map_policy;

typedef struct sim_map_cache {
    uint32_t keys, capacity, used;
    uint64_t clock;
    bool *resident;
    bool *named;      /* the caller's */
    uint64_t *last;   /* when each key was last used or loaded */
    uint64_t *visits; /* number of uses of each key */
    float *p;         /* predicted probability of use */
} sim_map_cache;

/* Opens a cache; `capacity` 0 keeps nothing. Returns non-zero when out of memory. */
int sim_map_cache_open(uint32_t keys, uint32_t capacity, sim_map_cache *out);
void sim_map_cache_close(sim_map_cache *cache);

void sim_map_cache_expect(sim_map_cache *cache, uint32_t key, float p);
/* Loads a key ahead of need. */
void sim_map_cache_fetch(sim_map_cache *cache, uint32_t key, sim_map_policy policy);
/* Uses a key; it is resident afterwards. */
void sim_map_cache_use(sim_map_cache *cache, uint32_t key, sim_map_policy policy);

#endif
