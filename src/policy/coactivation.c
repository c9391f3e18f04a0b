/* The co-activation table: its counts, its conditionals, its bytes in a file.
 *
 * One expert's pairs are contiguous, [span][experts]: they age together, and predictions and
 * learning both access whole rows. */
#include "policy/coactivation.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"

#define MOST_PAIR_BYTES (256ull << 20)

struct mp_coactivation {
    uint32_t layers, experts, span;
    uint32_t uses[]; /* [layers * experts], then fired of the same length, then pairs */
};

static uint64_t pair_bytes(uint32_t layers, uint32_t experts, uint32_t span)
{
    return (uint64_t)layers * experts * span * experts * sizeof(uint16_t);
}

uint32_t mp_coactivation_span(uint32_t layers, uint32_t experts)
{
    uint32_t span = layers < MP_COACTIVATION_SPAN ? layers : MP_COACTIVATION_SPAN;
    while (span > 1 && pair_bytes(layers, experts, span) > MOST_PAIR_BYTES)
        span--;
    return span;
}

uint64_t mp_coactivation_bytes(uint32_t layers, uint32_t experts)
{
    uint64_t singles = (uint64_t)layers * experts * (sizeof(uint32_t) + sizeof(uint16_t));
    return sizeof(mp_coactivation) + singles +
           pair_bytes(layers, experts, mp_coactivation_span(layers, experts));
}

void mp_coactivation_init(mp_coactivation *table, uint32_t layers, uint32_t experts)
{
    memset(table, 0, mp_coactivation_bytes(layers, experts));
    table->layers = layers;
    table->experts = experts;
    table->span = mp_coactivation_span(layers, experts);
}

/* ---- Offsets ---------------------------------------------------------------------------- */

static uint64_t keys_of(const mp_coactivation *table)
{
    return (uint64_t)table->layers * table->experts;
}

static uint64_t key_of(const mp_coactivation *table, uint32_t layer, uint32_t expert)
{
    assert(layer < table->layers && expert < table->experts);
    return (uint64_t)layer * table->experts + expert;
}

static uint16_t *fired_of(const mp_coactivation *table)
{
    return (uint16_t *)(uintptr_t)(table->uses + keys_of(table));
}

/* Returns the number of counters in an expert's block of pairs. */
static uint64_t block_length(const mp_coactivation *table)
{
    return (uint64_t)table->span * table->experts;
}

static uint16_t *block_of(const mp_coactivation *table, uint64_t key)
{
    return fired_of(table) + keys_of(table) + key * block_length(table);
}

static uint16_t *row_of(const mp_coactivation *table, uint64_t key, uint32_t distance)
{
    assert(distance >= 1 && distance <= table->span);
    return block_of(table, key) + (uint64_t)(distance - 1) * table->experts;
}

/* ---- Counting ---------------------------------------------------------------------------- */

static void fire(mp_coactivation *table, uint64_t key)
{
    uint16_t *fired = fired_of(table) + key;
    if (*fired == UINT16_MAX) {
        uint16_t *block = block_of(table, key);
        for (uint64_t i = 0; i < block_length(table); i++)
            block[i] >>= 1;
        *fired >>= 1;
    }
    ++*fired;
}

void mp_coactivation_use(mp_coactivation *table, uint32_t layer, const uint16_t *experts,
                         uint32_t n, bool fired)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = key_of(table, layer, experts[i]);
        table->uses[key] += table->uses[key] < UINT32_MAX;
        if (fired)
            fire(table, key);
    }
}

void mp_coactivation_pair(mp_coactivation *table, uint32_t layer, uint32_t distance,
                          const uint16_t *from, uint32_t n_from, const uint16_t *to, uint32_t n_to)
{
    for (uint32_t i = 0; i < n_from; i++) {
        uint64_t key = key_of(table, layer, from[i]);
        uint16_t fired = fired_of(table)[key], *row = row_of(table, key, distance);
        /* When two sequences' passes overlap, one may have halved the counts after
         * the other fired. */
        for (uint32_t j = 0; j < n_to; j++)
            row[to[j]] = (uint16_t)(row[to[j]] + (row[to[j]] < fired));
    }
}

uint32_t mp_coactivation_add(const mp_coactivation *table, uint32_t layer, uint32_t distance,
                             const uint16_t *from, uint32_t n_from, float weight, float *sums)
{
    uint32_t known = 0;
    for (uint32_t i = 0; i < n_from; i++) {
        uint64_t key = key_of(table, layer, from[i]);
        uint16_t fired = fired_of(table)[key];
        if (!fired)
            continue;
        known++;
        const uint16_t *row = row_of(table, key, distance);
        float each = weight / (float)fired;
        for (uint32_t b = 0; b < table->experts; b++)
            sums[b] += each * (float)row[b];
    }
    return known;
}

const uint32_t *mp_coactivation_uses(const mp_coactivation *table)
{
    return table->uses;
}

/* ---- Saving and loading ----------------------------------------------------------------- */

uint64_t mp_coactivation_save_bytes(const mp_coactivation *table)
{
    uint64_t keys = keys_of(table), n = keys * 6;
    for (uint64_t i = 0; i < keys; i++)
        n += fired_of(table)[i] ? block_length(table) * 2 : 0;
    return n;
}

void mp_coactivation_save(const mp_coactivation *table, unsigned char *out)
{
    uint64_t keys = keys_of(table);
    const uint16_t *fired = fired_of(table);
    for (uint64_t i = 0; i < keys; i++)
        mp_put16(out + 2 * i, fired[i]);
    for (uint64_t i = 0; i < keys; i++)
        mp_put32(out + 2 * keys + 4 * i, table->uses[i]);
    out += 6 * keys;
    for (uint64_t i = 0; i < keys; i++) {
        const uint16_t *block = block_of(table, i);
        for (uint64_t j = 0; fired[i] && j < block_length(table); j++, out += 2)
            mp_put16(out, block[j]);
    }
}

static moepage_status check_length(const mp_coactivation *table, const unsigned char *in,
                                   uint64_t bytes)
{
    uint64_t keys = keys_of(table), needed = 6 * keys;
    for (uint64_t i = 0; bytes >= 6 * keys && i < keys; i++)
        needed += mp_get16(in + 2 * i) ? block_length(table) * 2 : 0;
    if (bytes == needed)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT, "the table is %llu bytes, %s%llu are needed",
                   (unsigned long long)bytes, bytes < 6 * keys ? "at least " : "",
                   (unsigned long long)needed);
}

/* Checks a key's counts against the pairs at `block`. */
static moepage_status check_key(const mp_coactivation *table, uint64_t key, uint32_t fired,
                                uint32_t uses, const unsigned char *block)
{
    unsigned layer = (unsigned)(key / table->experts), expert = (unsigned)(key % table->experts);
    if (fired > uses)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "layer %u: expert %u fired %u times, but was used only %u times", layer,
                       expert, fired, uses);
    for (uint64_t j = 0; fired && j < block_length(table); j++)
        if (mp_get16(block + 2 * j) > fired)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "layer %u: expert %u fired %u times, but %u times with another", layer,
                           expert, fired, mp_get16(block + 2 * j));
    return MOEPAGE_OK;
}

moepage_status mp_coactivation_load(mp_coactivation *table, const unsigned char *in, uint64_t bytes)
{
    uint64_t keys = keys_of(table);
    moepage_status status = check_length(table, in, bytes);
    const unsigned char *block = in + 6 * keys;
    for (uint64_t i = 0; !status && i < keys; i++) {
        uint32_t fired = mp_get16(in + 2 * i);
        status = check_key(table, i, fired, mp_get32(in + 2 * keys + 4 * i), block);
        block += fired ? block_length(table) * 2 : 0;
    }
    if (status)
        return status;
    mp_coactivation_init(table, table->layers, table->experts);
    block = in + 6 * keys;
    for (uint64_t i = 0; i < keys; i++) {
        fired_of(table)[i] = mp_get16(in + 2 * i);
        table->uses[i] = mp_get32(in + 2 * keys + 4 * i);
        for (uint64_t j = 0; fired_of(table)[i] && j < block_length(table); j++, block += 2)
            block_of(table, i)[j] = mp_get16(block);
    }
    return MOEPAGE_OK;
}
