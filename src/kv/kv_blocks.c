/* The free tree and reference counts of KV blocks. */
#include "kv/kv_blocks.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

moepage_status mp_kv_blocks_init(mp_kv_blocks *blocks, uint32_t total)
{
    assert(total > 0);
    *blocks = (mp_kv_blocks){.total = total, .first = total};
    blocks->refs = mp_alloc_array(total, sizeof *blocks->refs);
    if (!blocks->refs)
        goto fail;
    uint64_t bits = total;
    do {
        uint64_t words = (bits + 63) / 64;
        assert(blocks->levels < MP_KV_LEVELS);
        blocks->tree[blocks->levels] = mp_alloc_array(words, sizeof(uint64_t));
        if (!blocks->tree[blocks->levels])
            goto fail;
        blocks->levels++;
        bits = words;
    } while (bits > 1);
    return MOEPAGE_OK;

fail:
    mp_kv_blocks_fini(blocks);
    return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to keep track of %u KV blocks", total);
}

void mp_kv_blocks_fini(mp_kv_blocks *blocks)
{
    for (uint32_t level = 0; level < blocks->levels; level++)
        mp_free(blocks->tree[level]);
    mp_free(blocks->refs);
    memset(blocks, 0, sizeof *blocks);
}

static bool is_free(const mp_kv_blocks *blocks, uint32_t block)
{
    return blocks->tree[0][block / 64] >> (block % 64) & 1;
}

/* Sets bits upwards until a word was non-empty already. */
static void mark_free(mp_kv_blocks *blocks, uint32_t block)
{
    assert(!is_free(blocks, block));
    uint64_t bit = block;
    for (uint32_t level = 0; level < blocks->levels; level++, bit /= 64) {
        uint64_t *word = &blocks->tree[level][bit / 64];
        bool was_empty = !*word;
        *word |= 1ull << (bit % 64);
        if (!was_empty)
            break;
    }
    blocks->free++;
}

/* Clears bits upwards until a word keeps another bit. */
static void mark_held(mp_kv_blocks *blocks, uint32_t block)
{
    assert(is_free(blocks, block));
    uint64_t bit = block;
    for (uint32_t level = 0; level < blocks->levels; level++, bit /= 64) {
        uint64_t *word = &blocks->tree[level][bit / 64];
        *word &= ~(1ull << (bit % 64));
        if (*word)
            break;
    }
    blocks->free--;
}

static uint32_t highest_free(const mp_kv_blocks *blocks)
{
    uint64_t index = 0;
    for (uint32_t level = blocks->levels; level-- > 0;)
        index = index * 64 + 63 - (uint64_t)__builtin_clzll(blocks->tree[level][index]);
    return (uint32_t)index;
}

void mp_kv_blocks_set_first(mp_kv_blocks *blocks, uint32_t first)
{
    assert(first <= blocks->total);
    for (uint32_t block = blocks->first; block-- > first;)
        mark_free(blocks, block);
    for (uint32_t block = blocks->first; block < first; block++) {
        if (is_free(blocks, block))
            mark_held(blocks, block);
        blocks->refs[block] = 0;
    }
    blocks->first = first;
}

uint32_t mp_kv_blocks_take(mp_kv_blocks *blocks)
{
    assert(blocks->free > 0);
    uint32_t block = highest_free(blocks);
    mark_held(blocks, block);
    blocks->refs[block] = 1;
    uint32_t used = mp_kv_blocks_used(blocks);
    if (used > blocks->peak)
        blocks->peak = used;
    if (used > blocks->burst_peak)
        blocks->burst_peak = used;
    return block;
}

void mp_kv_blocks_share(mp_kv_blocks *blocks, uint32_t block)
{
    assert(blocks->refs[block] > 0);
    blocks->refs[block]++;
}

void mp_kv_blocks_drop(mp_kv_blocks *blocks, uint32_t block)
{
    assert(blocks->refs[block] > 0);
    if (--blocks->refs[block] == 0)
        mark_free(blocks, block);
}

uint32_t mp_kv_blocks_move(mp_kv_blocks *blocks, uint32_t from)
{
    assert(blocks->refs[from] > 0 && blocks->free > 0);
    uint32_t to = highest_free(blocks);
    assert(to > from);
    mark_held(blocks, to);
    blocks->refs[to] = blocks->refs[from];
    blocks->refs[from] = to;
    return to;
}

void mp_kv_blocks_move_back(mp_kv_blocks *blocks, uint32_t from)
{
    uint32_t to = blocks->refs[from];
    blocks->refs[from] = blocks->refs[to];
    blocks->refs[to] = 0;
    mark_free(blocks, to);
}

moepage_status mp_kv_blocks_check_free(mp_kv_blocks *blocks, uint64_t needed)
{
    if (needed <= blocks->free)
        return MOEPAGE_OK;
    blocks->wanted = mp_kv_blocks_used(blocks) + needed;
    return mp_fail(MOEPAGE_E_WOULD_NOT_FIT, "would not fit: needs %llu blocks, %u free",
                   (unsigned long long)needed, blocks->free);
}
