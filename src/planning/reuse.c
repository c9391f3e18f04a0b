/* Exact reuse distances: every use takes the next slot of a time line, and a key's distance is
 * the number of slots in use after its own.
 *
 *   slots:  . a . . c d . b | next          distance of c: d and b, so 2
 *
 * Slots are bits, and the Fenwick tree is over words of 64 of them: its walks are six steps shorter
 * than over single slots. When the line is full, the slots in use move to its beginning in their
 * order: as there are twice as many slots as keys, that costs O(1) per use. */
#include "planning/reuse.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "planning/fenwick.h"

#define WORD_SLOTS 64u
#define NO_SLOT UINT32_MAX

struct mp_reuse {
    uint32_t keys, words;
    uint32_t next;     /* slot of the next use */
    uint32_t live;     /* slots in use */
    uint64_t *tree;    /* [words] of the number of slots in use in each word */
    uint64_t *used;    /* [words] a bit per slot: a key's last use */
    uint32_t *slot_of; /* [keys] slot or NO_SLOT */
    uint32_t *key_at;  /* [words * WORD_SLOTS] key of each slot in use */
};

static uint32_t words_for(uint32_t keys)
{
    assert(keys < 1u << 31);
    return (2 * keys + WORD_SLOTS - 1) / WORD_SLOTS;
}

uint64_t mp_reuse_bytes(uint32_t keys)
{
    const uint64_t words = words_for(keys), numbers = keys + words * WORD_SLOTS;
    return sizeof(mp_reuse) + words * 2 * sizeof(uint64_t) +
           (numbers + numbers % 2) * sizeof(uint32_t);
}

mp_reuse *mp_reuse_init(void *state, uint32_t keys)
{
    mp_reuse *reuse = state;
    *reuse = (mp_reuse){.keys = keys, .words = words_for(keys)};
    reuse->tree = (uint64_t *)(reuse + 1);
    reuse->used = reuse->tree + reuse->words;
    reuse->slot_of = (uint32_t *)(reuse->used + reuse->words);
    reuse->key_at = reuse->slot_of + keys;
    memset(reuse->tree, 0, 2ull * reuse->words * sizeof(uint64_t));
    for (uint32_t key = 0; key < keys; key++)
        reuse->slot_of[key] = NO_SLOT;
    return reuse;
}

static uint32_t distance_of(const mp_reuse *reuse, uint32_t key)
{
    const uint32_t slot = reuse->slot_of[key];
    if (slot == NO_SLOT)
        return MP_REUSE_FIRST;
    const uint32_t word = slot / WORD_SLOTS;
    const uint64_t up_to = UINT64_MAX >> (WORD_SLOTS - 1 - slot % WORD_SLOTS);
    const uint32_t before = (uint32_t)mp_fenwick_before(reuse->tree, word);
    return reuse->live - before - (uint32_t)__builtin_popcountll(reuse->used[word] & up_to);
}

static void leave_slot(mp_reuse *reuse, uint32_t slot)
{
    reuse->used[slot / WORD_SLOTS] ^= 1ull << slot % WORD_SLOTS;
    mp_fenwick_add(reuse->tree, reuse->words, slot / WORD_SLOTS, UINT64_MAX);
    reuse->live--;
}

static void take_slot(mp_reuse *reuse, uint32_t key)
{
    const uint32_t slot = reuse->next++;
    reuse->key_at[slot] = key;
    reuse->slot_of[key] = slot;
    reuse->used[slot / WORD_SLOTS] |= 1ull << slot % WORD_SLOTS;
    mp_fenwick_add(reuse->tree, reuse->words, slot / WORD_SLOTS, 1);
    reuse->live++;
}

static void compact(mp_reuse *reuse)
{
    uint32_t to = 0;
    for (uint32_t word = 0; word < reuse->words; word++) {
        for (uint64_t bits = reuse->used[word]; bits; bits &= bits - 1) {
            const uint32_t slot = word * WORD_SLOTS + (uint32_t)__builtin_ctzll(bits);
            const uint32_t key = reuse->key_at[slot];
            reuse->key_at[to] = key;
            reuse->slot_of[key] = to++;
        }
    }
    for (uint32_t word = 0; word < reuse->words; word++) {
        const uint32_t first = word * WORD_SLOTS, rest = to > first ? to - first : 0;
        reuse->tree[word] = rest < WORD_SLOTS ? rest : WORD_SLOTS;
        reuse->used[word] = rest < WORD_SLOTS ? (1ull << rest) - 1 : UINT64_MAX;
    }
    mp_fenwick_build(reuse->tree, reuse->words);
    reuse->next = to;
}

void mp_reuse_use(mp_reuse *reuse, const uint32_t *keys, uint32_t n, uint32_t *distances)
{
    for (uint32_t i = 0; i < n; i++) {
        assert(keys[i] < reuse->keys);
        distances[i] = distance_of(reuse, keys[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (reuse->slot_of[keys[i]] != NO_SLOT)
            leave_slot(reuse, reuse->slot_of[keys[i]]);
        if (reuse->next == reuse->words * WORD_SLOTS)
            compact(reuse);
        take_slot(reuse, keys[i]);
    }
}

void mp_reuse_forget(mp_reuse *reuse, uint32_t key)
{
    assert(key < reuse->keys);
    if (reuse->slot_of[key] == NO_SLOT)
        return;
    leave_slot(reuse, reuse->slot_of[key]);
    reuse->slot_of[key] = NO_SLOT;
}
