/* Sampled reuse distances: a time line as in reuse.c, restricted to sampled keys, with sizes.
 *
 *   table:  hash -> slot           open addressing, half full at most
 *   slots:  key's last use | next  in order of use; size 0: not in use
 *   tree:   units in each block of slots
 *
 * The hash is a bijection, so it serves as the key. When the line is full, and when the threshold
 * falls, the remaining slots move to its beginning and the table is rebuilt: O(1) per use, since
 * either happens once in a number of uses proportional to max_keys. (The threshold falls by a
 * sixteenth, not by one key, and so no order by hash has to be kept.)
 *
 * The units used by all keys, which are known exactly, correct the measurements of the sampled
 * ones. Both corrections are the best linear ones for keys that are used m times, drawn with
 * probability R:
 *
 * Distances. In the U units used since a key's last use let sampled keys have u, and d distinct.
 * d / R estimates the distance, u / R the known U. The variance of d / R + b (U - u / R) goes with
 * the sum over keys of (1 - b m)^2, least at b = sum m / sum m^2, for uses at random 1 / (1 + U P)
 * with P the chance that two are of one key. If no sampled key was used twice (d = u) the distance
 * is taken to be U, so that a cyclic scan, such as experts layer by layer, is measured as sharply
 * as without sampling.
 *
 * Weights. With size / R for each use, the total would be off by the sample's excess or lack of
 * busy keys. Instead a use weighs size (1 / R + c m), with c such that all weights add up to the
 * units used: the difference goes to busy keys, which cause it. */
#include "planning/sampled.h"

#include <assert.h>
#include <string.h>

#include "planning/fenwick.h"

#define BLOCK_SLOTS 16u /* their sizes fill a cache line */
#define NO_SLOT UINT32_MAX
#define KEPT 0.9375    /* of uses counted, at each rebuild */
#define MOST_SHARE 4.0 /* limit on one use's weight, in average weights: few keys may be tracked */

/* A key's last use. Two fill a cache line. */
typedef struct last_use {
    uint64_t hash;
    uint64_t used;         /* units used by all keys up to and including this use */
    uint64_t used_sampled; /* of them by sampled keys */
    float uses, load;      /* of this key, and their units; decayed at each rebuild */
} last_use;

struct mp_sampled {
    uint64_t limit; /* hashes up to this one are sampled */
    double scale;   /* 1 / rate */
    uint64_t units; /* sum of sizes */
    uint64_t used, used_sampled;
    double recent; /* units used, decayed at each rebuild; */
    double load;   /* the tracked keys' share of `recent` */
    double spread; /* sum over tracked keys of load * uses */
    uint64_t salt;
    uint32_t max_keys;
    uint32_t count; /* tracked keys */
    uint32_t next;  /* slot of the next use */
    uint32_t blocks;
    uint32_t mask;   /* the table's size - 1 */
    uint64_t *tree;  /* [blocks] of the sum of sizes in each block */
    last_use *slots; /* [blocks * BLOCK_SLOTS] */
    uint32_t *sizes; /* [blocks * BLOCK_SLOTS] */
    uint32_t *table; /* [mask + 1] slot or NO_SLOT */
};

/* ---- State --------------------------------------------------------------------------------- */

static uint32_t blocks_for(uint32_t max_keys)
{
    return (2 * max_keys + BLOCK_SLOTS - 1) / BLOCK_SLOTS;
}

static uint32_t table_for(uint32_t max_keys)
{
    assert(max_keys >= 16 && max_keys <= 1u << 30);
    uint32_t size = 32;
    while (size < 2 * max_keys)
        size *= 2;
    return size;
}

uint64_t mp_sampled_bytes(uint32_t max_keys)
{
    const uint64_t blocks = blocks_for(max_keys), slots = blocks * BLOCK_SLOTS;
    return sizeof(mp_sampled) + blocks * sizeof(uint64_t) +
           slots * (sizeof(last_use) + sizeof(uint32_t)) +
           (uint64_t)table_for(max_keys) * sizeof(uint32_t);
}

/* Mixes a key into its hash with the finaliser of splitmix64, a bijection. */
static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t hash_of(const mp_sampled *sampled, uint64_t key)
{
    return mixed(key ^ sampled->salt);
}

static void set_limit(mp_sampled *sampled, uint64_t limit)
{
    sampled->limit = limit;
    sampled->scale = 0x1p64 / ((double)limit + 1);
}

mp_sampled *mp_sampled_init(void *state, uint32_t max_keys, double rate, uint64_t seed)
{
    assert(rate > 0 && rate <= 1);
    mp_sampled *sampled = state;
    *sampled = (mp_sampled){.max_keys = max_keys, .blocks = blocks_for(max_keys)};
    sampled->salt = mixed(seed + 0x9e3779b97f4a7c15u);
    set_limit(sampled, rate < 1 ? (uint64_t)(rate * 0x1p64) : UINT64_MAX);
    const uint64_t slots = (uint64_t)sampled->blocks * BLOCK_SLOTS;
    sampled->mask = table_for(max_keys) - 1;
    sampled->tree = (uint64_t *)(sampled + 1);
    sampled->slots = (last_use *)(sampled->tree + sampled->blocks);
    sampled->sizes = (uint32_t *)(sampled->slots + slots);
    sampled->table = sampled->sizes + slots;
    memset(sampled->tree, 0, sampled->blocks * sizeof(uint64_t));
    memset(sampled->sizes, 0, slots * sizeof(uint32_t));
    memset(sampled->table, 0xff, (sampled->mask + 1ull) * sizeof(uint32_t));
    return sampled;
}

double mp_sampled_rate(const mp_sampled *sampled)
{
    return ((double)sampled->limit + 1) * 0x1p-64;
}

/* ---- Table and line ------------------------------------------------------------------------- */

/* Returns the entry that holds the hash's slot, or the free entry where it belongs. */
static uint32_t find(const mp_sampled *sampled, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & sampled->mask;
    while (sampled->table[at] != NO_SLOT && sampled->slots[sampled->table[at]].hash != hash)
        at = (at + 1) & sampled->mask;
    return at;
}

/* Frees an entry: displaced entries behind it move up. */
static void erase(mp_sampled *sampled, uint32_t at)
{
    uint32_t next = at;
    for (;;) {
        next = (next + 1) & sampled->mask;
        const uint32_t slot = sampled->table[next];
        if (slot == NO_SLOT)
            break;
        const uint32_t home = (uint32_t)sampled->slots[slot].hash & sampled->mask;
        if (((next - home) & sampled->mask) < ((next - at) & sampled->mask))
            continue;
        sampled->table[at] = slot;
        at = next;
    }
    sampled->table[at] = NO_SLOT;
}

/* Returns the sum of the sizes of keys used after the one in `slot`. */
static uint64_t units_after(const mp_sampled *sampled, uint32_t slot)
{
    uint64_t sum = mp_fenwick_before(sampled->tree, slot / BLOCK_SLOTS);
    for (uint32_t i = slot - slot % BLOCK_SLOTS; i <= slot; i++)
        sum += sampled->sizes[i];
    return sampled->units - sum;
}

static void leave_slot(mp_sampled *sampled, uint32_t slot)
{
    const uint32_t size = sampled->sizes[slot];
    sampled->sizes[slot] = 0;
    mp_fenwick_add(sampled->tree, sampled->blocks, slot / BLOCK_SLOTS, 0 - (uint64_t)size);
    sampled->units -= size;
    sampled->count--;
    const last_use *last = &sampled->slots[slot];
    sampled->load -= (double)last->load;
    sampled->spread -= (double)last->load * (double)last->uses;
}

static void take_slot(mp_sampled *sampled, uint32_t at, uint32_t size, const last_use *use)
{
    const uint32_t slot = sampled->next++;
    sampled->table[at] = slot;
    sampled->slots[slot] = *use;
    sampled->sizes[slot] = size;
    mp_fenwick_add(sampled->tree, sampled->blocks, slot / BLOCK_SLOTS, size);
    sampled->units += size;
    sampled->count++;
    sampled->load += (double)use->load;
    sampled->spread += (double)use->load * (double)use->uses;
}

/* Moves the slots in use with hashes up to the limit to the beginning, in their order. `staying` is
 * the fraction of keys below the new limit, and so of the units attributed to sampled keys. Use
 * counts decay here, so that the corrections follow a changing stream. */
static void rebuild(mp_sampled *sampled, double staying)
{
    const uint32_t end = sampled->next;
    memset(sampled->tree, 0, sampled->blocks * sizeof(uint64_t));
    memset(sampled->table, 0xff, (sampled->mask + 1ull) * sizeof(uint32_t));
    sampled->next = 0;
    sampled->units = 0;
    sampled->recent *= KEPT;
    sampled->load = sampled->spread = 0;
    for (uint32_t slot = 0; slot < end; slot++) {
        last_use use = sampled->slots[slot];
        const uint32_t size = sampled->sizes[slot];
        sampled->sizes[slot] = 0;
        if (size == 0 || use.hash > sampled->limit)
            continue;
        const uint32_t to = sampled->next++;
        sampled->table[find(sampled, use.hash)] = to;
        const uint64_t seen = sampled->used_sampled - use.used_sampled;
        use.used_sampled += seen - (uint64_t)((double)seen * staying);
        use.uses *= (float)KEPT;
        use.load *= (float)KEPT;
        sampled->slots[to] = use;
        sampled->sizes[to] = size;
        sampled->tree[to / BLOCK_SLOTS] += size;
        sampled->units += size;
        sampled->load += (double)use.load;
        sampled->spread += (double)use.load * (double)use.uses;
    }
    mp_fenwick_build(sampled->tree, sampled->blocks);
    sampled->count = sampled->next;
}

/* Lowers the threshold until one more key can be tracked, or until the new key is not sampled.
 * Hashes are distinct, so more than max_keys >= 16 of them up to the limit imply a limit of at
 * least 16, which can still fall. */
static void make_room(mp_sampled *sampled, uint64_t hash)
{
    do {
        const double before = sampled->scale;
        set_limit(sampled, sampled->limit - sampled->limit / 16);
        rebuild(sampled, mp_sampled_rate(sampled) * before);
    } while (sampled->count == sampled->max_keys && hash <= sampled->limit);
}

/* ---- Uses ---------------------------------------------------------------------------------- */

static double clamp(double value, double least, double most)
{
    return value < least ? least : value > most ? most : value;
}

/* Estimates a distance from d; the formula is at the top of the file. */
static uint64_t estimate(const mp_sampled *sampled, const last_use *last, uint64_t d)
{
    const uint64_t all = sampled->used - last->used;
    const uint64_t seen = sampled->used_sampled - last->used_sampled;
    if (sampled->limit == UINT64_MAX)
        return d;
    if (d >= seen)
        return all;
    const double load = sampled->load;
    const double busy = load > 0 ? sampled->spread / (load * load * sampled->scale) : 0;
    const double gain = 1 / (1 + (double)all * busy);
    const double distance =
        (double)d * sampled->scale + gain * ((double)all - (double)seen * sampled->scale);
    return (uint64_t)(clamp(distance, (double)d, (double)all) + 0.5);
}

/* Returns the weight of one unit of a use. */
static double share_of(const mp_sampled *sampled, const last_use *last)
{
    const double scale = sampled->scale;
    if (sampled->limit == UINT64_MAX || sampled->spread <= 0)
        return scale;
    const double missing = sampled->recent - sampled->load * scale;
    const double share = scale + (double)last->uses * missing / sampled->spread;
    return clamp(share, 1, MOST_SHARE * scale);
}

static mp_sample measure(const mp_sampled *sampled, uint64_t hash, uint32_t size)
{
    const uint32_t slot = sampled->table[find(sampled, hash)];
    if (slot == NO_SLOT)
        return (mp_sample){.distance = UINT64_MAX, .weight = size * sampled->scale};
    const last_use *last = &sampled->slots[slot];
    return (mp_sample){.distance = estimate(sampled, last, units_after(sampled, slot)),
                       .weight = size * share_of(sampled, last)};
}

/* Makes the key the most recent. */
static void move(mp_sampled *sampled, uint64_t hash, uint32_t size)
{
    if (sampled->next == sampled->blocks * BLOCK_SLOTS)
        rebuild(sampled, 1);
    sampled->used_sampled += size;
    uint32_t at = find(sampled, hash);
    last_use use = {.hash = hash};
    if (sampled->table[at] != NO_SLOT) {
        use = sampled->slots[sampled->table[at]];
        leave_slot(sampled, sampled->table[at]);
    } else if (sampled->count == sampled->max_keys) {
        make_room(sampled, hash);
        if (hash > sampled->limit)
            return;
        at = find(sampled, hash);
    }
    use.used = sampled->used;
    use.used_sampled = sampled->used_sampled;
    use.uses += 1;
    use.load += (float)size;
    take_slot(sampled, at, size, &use);
}

uint32_t mp_sampled_use_set(mp_sampled *sampled, const mp_sampled_use *uses, uint32_t n,
                            mp_sample *samples)
{
    uint32_t n_samples = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert(uses[i].size >= 1);
        const uint64_t hash = hash_of(sampled, uses[i].key);
        if (hash <= sampled->limit)
            samples[n_samples++] = measure(sampled, hash, uses[i].size);
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t hash = hash_of(sampled, uses[i].key);
        sampled->used += uses[i].size;
        sampled->recent += uses[i].size;
        if (hash <= sampled->limit)
            move(sampled, hash, uses[i].size);
    }
    return n_samples;
}

void mp_sampled_forget(mp_sampled *sampled, uint64_t key)
{
    const uint64_t hash = hash_of(sampled, key);
    const uint32_t at = find(sampled, hash), slot = sampled->table[at];
    if (slot == NO_SLOT)
        return;
    /* The forgotten keys include unsampled ones; this key's uses represent its share of them. */
    const double gone = (double)sampled->slots[slot].load * sampled->scale;
    sampled->recent = gone < sampled->recent ? sampled->recent - gone : 0;
    leave_slot(sampled, slot);
    erase(sampled, at);
}
