/* FineMoE: evict the key with the highest 1/(p freq) (FineMoE 4.5): p is its probability in the map
 * found last, freq the number of its uses since insertion.
 *
 * A key without a map's probability has that of a uniform router. Among equals, the one whose last
 * use is longest ago goes first, so that without any prediction this is LFU.
 *
 * The resident keys are in one ring in the order of last use (lru.c). All operations are O(1)
 * except victim, which scans every resident key: each layer's map changes the probabilities, so a
 * maintained order would be rebuilt more often than it is needed. */
#include <assert.h>
#include <stddef.h>

#include "policy/policies.h"
#include "policy/ring.h"

typedef struct fine_key {
    float p;
    uint32_t freq; /* 0: not resident */
} fine_key;

typedef struct fine_state {
    uint32_t n_keys; /* also the sentinel's index */
    uint32_t reserved;
    fine_key *keys;  /* [n_keys] */
    mp_link links[]; /* [n_keys + 1] */
} fine_state;

static uint64_t fine_state_bytes(uint32_t keys, uint32_t experts)
{
    (void)experts;
    return sizeof(fine_state) + ((uint64_t)keys + 1) * sizeof(mp_link) +
           (uint64_t)keys * sizeof(fine_key);
}

static void fine_init(void *state, uint32_t keys, uint32_t experts)
{
    fine_state *fine = state;
    fine->n_keys = keys;
    fine->reserved = 0;
    fine->keys = (fine_key *)(fine->links + keys + 1);
    for (uint32_t key = 0; key < keys; key++)
        fine->keys[key] = (fine_key){.p = 1.0f / (float)experts};
    mp_ring_reset(fine->links, keys);
}

static void fine_expect(void *state, uint32_t first, const float *p, uint32_t n)
{
    fine_state *fine = state;
    for (uint32_t i = 0; i < n; i++)
        fine->keys[first + i].p = p[i];
}

static void fine_insert(void *state, uint32_t key)
{
    fine_state *fine = state;
    assert(key < fine->n_keys && fine->keys[key].freq == 0);
    fine->keys[key].freq = 1;
    mp_ring_append(fine->links, fine->n_keys, key);
}

static void fine_touch(void *state, uint32_t key)
{
    fine_state *fine = state;
    assert(fine->keys[key].freq > 0);
    fine->keys[key].freq += fine->keys[key].freq < UINT32_MAX;
    mp_ring_unlink(fine->links, key);
    mp_ring_append(fine->links, fine->n_keys, key);
}

static void fine_remove(void *state, uint32_t key)
{
    fine_state *fine = state;
    assert(fine->keys[key].freq > 0);
    fine->keys[key].freq = 0;
    mp_ring_unlink(fine->links, key);
}

static uint32_t fine_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    const fine_state *fine = state;
    uint32_t best = MP_NO_KEY;
    double least = 0;
    for (uint32_t key = fine->links[fine->n_keys].next; key != fine->n_keys;
         key = fine->links[key].next) {
        double kept = (double)fine->keys[key].p * fine->keys[key].freq;
        if ((best == MP_NO_KEY || kept < least) && may_evict(ctx, key)) {
            best = key;
            least = kept;
        }
    }
    return best;
}

const mp_policy mp_policy_finemoe = {
    .name = "finemoe",
    .state_bytes = fine_state_bytes,
    .init = fine_init,
    .expect = fine_expect,
    .insert = fine_insert,
    .touch = fine_touch,
    .remove = fine_remove,
    .victim = fine_victim,
};
