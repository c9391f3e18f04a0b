/* Probabilities as six-bit codes: packing into a slot of the store and unpacking. maps.h
 * has the layout. */
#include <math.h>

#include "base/floats.h"
#include "policy/maps.h"

/* A probability below this counts as 0: its weight in a search would be 0 beside any other. */
#define LEAST 1e-12f

float mp_maps_clean(float probability)
{
    if (!(probability > LEAST))
        return 0;
    return probability < 1 ? probability : 1;
}

/* Rounds up to BF16, so that no code exceeds the top one. */
static uint16_t round_up_bf16(float value)
{
    return (uint16_t)((mp_bits_of(value) + 0xffffu) >> 16);
}

/* Returns the code whose square is nearest. */
static uint8_t code_of(float probability, float peak)
{
    const float level = probability / peak * MP_MAPS_TOP_LEVEL;
    uint32_t code = (uint32_t)sqrtf(level);
    if (code < MP_MAPS_TOP_CODE && level - (float)(code * code) > (float)code + 0.5f)
        code++;
    return (uint8_t)(code < MP_MAPS_TOP_CODE ? code : MP_MAPS_TOP_CODE);
}

static uint8_t *lines_of(const mp_maps *maps, uint32_t slot, uint32_t layer)
{
    return (uint8_t *)mp_maps_tile(maps, layer, slot / MP_MAPS_TILE) + slot % MP_MAPS_TILE;
}

/* Records the scale of codes that have been written already. */
static void set_scale(mp_maps *maps, uint32_t slot, uint32_t layer, uint16_t peak)
{
    const double unit = (double)mp_from_bf16(peak) / MP_MAPS_TOP_LEVEL;
    const uint64_t at = mp_maps_at(maps, layer, slot);
    uint64_t power = 0;
    for (uint32_t e = 0; peak && e < maps->shape.experts; e++) {
        const uint64_t code = mp_maps_code(maps, slot, layer, e);
        power += code * code * code * code;
    }
    maps->peaks[at] = peak;
    maps->powers[at] = (float)((double)power * unit * unit);
}

void mp_maps_set_lines(mp_maps *maps, uint32_t slot, uint32_t layer, const uint8_t *bytes,
                       uint16_t peak)
{
    uint8_t *line = lines_of(maps, slot, layer);
    for (uint32_t i = 0; i < maps->quads * 3; i++)
        line[(uint64_t)i * MP_MAPS_TILE] = bytes[i];
    set_scale(maps, slot, layer, peak);
}

void mp_maps_pack(mp_maps *maps, uint32_t slot, uint32_t layer, const float *probabilities)
{
    const uint32_t experts = maps->shape.experts;
    float most = 0;
    for (uint32_t e = 0; e < experts; e++)
        most = fmaxf(most, mp_maps_clean(probabilities[e]));
    const uint16_t peak = most > 0 ? round_up_bf16(most) : 0;
    uint8_t *line = lines_of(maps, slot, layer);
    for (uint32_t first = 0; first < experts; first += 4, line += 3 * MP_MAPS_TILE) {
        uint8_t code[4] = {0};
        for (uint32_t k = 0; peak && k < 4 && first + k < experts; k++)
            code[k] = code_of(mp_maps_clean(probabilities[first + k]), mp_from_bf16(peak));
        for (uint32_t k = 0; k < 3; k++)
            line[k * MP_MAPS_TILE] = (uint8_t)(code[k] | (code[3] >> (2 * k) & 3) << 6);
    }
    set_scale(maps, slot, layer, peak);
}

uint32_t mp_maps_code(const mp_maps *maps, uint32_t slot, uint32_t layer, uint32_t expert)
{
    const uint8_t *line = lines_of(maps, slot, layer) + (uint64_t)(expert / 4) * 3 * MP_MAPS_TILE;
    if (expert % 4 < 3)
        return line[expert % 4 * MP_MAPS_TILE] & MP_MAPS_TOP_CODE;
    return (uint32_t)(line[0] >> 6 | (line[MP_MAPS_TILE] >> 6) << 2 |
                      (line[2 * MP_MAPS_TILE] >> 6) << 4);
}

void mp_maps_unpack(const mp_maps *maps, uint32_t slot, uint32_t layer, uint8_t *codes)
{
    for (uint32_t e = 0; e < maps->shape.experts; e++)
        codes[e] = (uint8_t)mp_maps_code(maps, slot, layer, e);
}
