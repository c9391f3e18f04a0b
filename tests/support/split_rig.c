/* Streams of reuse distances, and what is within bounds, from the definitions. */
#include "split_rig.h"

#include <math.h>
#include <stdlib.h>

#include "testing.h"

typedef unsigned __int128 wide;

static uint64_t random_state;

void rig_seed(uint64_t seed)
{
    random_state = seed * 2 + 1;
    for (int i = 0; i < 8; i++)
        rig_below(2);
}

uint32_t rig_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

double rig_unit(void)
{
    return rig_below(UINT32_MAX) / 4294967296.0;
}

uint64_t rig_draw_size(uint32_t small)
{
    if (rig_below(4))
        return rig_below(small);
    const uint64_t high = rig_below(UINT32_MAX);
    return (high << 32 | rig_below(UINT32_MAX)) >> rig_below(64);
}

uint32_t rig_rounds(uint32_t few)
{
    return getenv("MP_TEST_LONG") ? 20 * few : few;
}

bool rig_within(const mp_split_bounds *bounds, const mp_split *split)
{
    const wide experts = (wide)split->experts * bounds->expert_bytes;
    const wide kv = (wide)split->kv * bounds->kv_bytes;
    return split->experts >= bounds->min_experts && split->experts <= bounds->max_experts &&
           split->kv >= bounds->kv_floor && experts <= bounds->budget_bytes &&
           kv <= bounds->budget_bytes - experts;
}

void rig_expect_iso_vram(const mp_split_bounds *bounds, const mp_split *split)
{
    assert_true(rig_within(bounds, split));
    const wide experts = (wide)split->experts * bounds->expert_bytes;
    const wide used = experts + (wide)split->kv * bounds->kv_bytes;
    assert_true(bounds->kv_bytes == 0 || bounds->budget_bytes - used < bounds->kv_bytes);
}

void rig_expect_split(const mp_split *split, uint64_t experts, uint64_t kv)
{
    assert_int_equal(split->experts, experts);
    assert_int_equal(split->kv, kv);
}

static uint32_t draw_distance(rig_shape shape, uint32_t most, uint32_t mode)
{
    switch (shape) {
    case RIG_EVEN: return rig_below(most);
    case RIG_NEAR: return (uint32_t)fmin(most, -0.2 * most * log(1 - rig_unit()));
    case RIG_BIMODAL:
        return rig_below(3) ? rig_below(most / 10 + 1)
                            : (uint32_t)fmin(most, mode + rig_below(most / 20 + 1));
    case RIG_LOOP: return mode;
    default: return most;
    }
}

void rig_stream_make(rig_stream *stream, rig_shape shape, uint32_t most, uint32_t accesses,
                     uint32_t max_bins)
{
    stream->most = most;
    for (uint32_t d = 0; d <= most; d++)
        stream->weights[d] = 0;
    const uint32_t mode = most / 4 + rig_below(most * 3 / 4 + 1);
    for (uint32_t i = 0; i < accesses && shape != RIG_NOTHING; i++)
        stream->weights[draw_distance(shape, most, mode)]++;
    mp_curve_init(&stream->curve, stream->bins, most, max_bins);
    rig_stream_burst(stream, 0);
}

void rig_stream_burst(rig_stream *stream, double noise)
{
    for (uint32_t d = 0; d <= stream->most; d++) {
        const double factor = noise > 0 ? 1 + noise * (2 * rig_unit() - 1) : 1;
        if (stream->weights[d] > 0)
            mp_curve_add(&stream->curve, d, stream->weights[d] * factor);
    }
}

double rig_misses(const rig_stream *stream, uint64_t capacity)
{
    double misses = 0;
    for (uint64_t d = capacity < stream->most ? capacity : stream->most; d <= stream->most; d++)
        misses += stream->weights[d];
    return misses;
}
