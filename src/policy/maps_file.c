/* A store of expert maps as bytes, little-endian, and back.
 *
 *     0  u32 version  4 u32 layers  8 u32 experts  12 u32 semantic_dim  16 u32 coords  20 u32 maps
 *    24  maps, each: layers x {u16 peak, quads x 3 bytes of codes}, and with embeddings f32 gain
 *        and coords / 2 bytes of codes
 *
 * in the layouts of maps.h and maps_sketch.h, the codes of one map together. */
#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "base/floats.h"
#include "base/status.h"
#include "policy/maps.h"
#include "policy/maps_sketch.h"

enum { VERSION = 1, HEADER = 24, PEAK_BYTES = 2, GAIN_BYTES = 4, PEAK_OF_ONE = 0x3f80 };

static uint64_t row_bytes(const mp_maps *maps)
{
    return PEAK_BYTES + (uint64_t)maps->quads * 3;
}

static uint64_t map_bytes(const mp_maps *maps)
{
    return maps->shape.layers * row_bytes(maps) +
           (maps->coords ? GAIN_BYTES + maps->coords / 2 : 0);
}

/* ---- Saving ---- */

uint64_t mp_maps_save_bytes(const mp_maps *maps)
{
    return HEADER + maps->used * map_bytes(maps);
}

static unsigned char *save_row(const mp_maps *maps, uint32_t slot, uint32_t layer,
                               unsigned char *out)
{
    const uint8_t *line = mp_maps_tile(maps, layer, slot / MP_MAPS_TILE) + slot % MP_MAPS_TILE;
    mp_put16(out, maps->peaks[mp_maps_at(maps, layer, slot)]);
    out += PEAK_BYTES;
    for (uint32_t i = 0; i < maps->quads * 3; i++)
        *out++ = line[(uint64_t)i * MP_MAPS_TILE];
    return out;
}

static unsigned char *save_sketch(const mp_maps *maps, uint32_t slot, unsigned char *out)
{
    const uint32_t head = MP_SKETCH_HEAD / 2, tail = mp_sketch_tail_bytes(maps);
    mp_put32(out, mp_bits_of(maps->gains[slot]));
    memcpy(out + GAIN_BYTES, maps->heads + (uint64_t)slot * head, head);
    memcpy(out + GAIN_BYTES + head, maps->tails + (uint64_t)slot * tail, tail);
    return out + GAIN_BYTES + head + tail;
}

void mp_maps_save(const mp_maps *maps, unsigned char *out)
{
    const uint32_t header[] = {
        VERSION,      maps->shape.layers, maps->shape.experts, maps->shape.semantic_dim,
        maps->coords, maps->used,
    };
    for (uint32_t i = 0; i < HEADER / 4; i++)
        mp_put32(out + 4 * i, header[i]);
    out += HEADER;
    for (uint32_t slot = 0; slot < maps->used; slot++) {
        for (uint32_t layer = 0; layer < maps->shape.layers; layer++)
            out = save_row(maps, slot, layer, out);
        if (maps->coords)
            out = save_sketch(maps, slot, out);
    }
}

/* ---- Checking ---- */

static uint32_t code_at(const unsigned char *codes, uint32_t expert)
{
    const unsigned char *four = codes + (uint64_t)(expert / 4) * 3;
    if (expert % 4 < 3)
        return four[expert % 4] & MP_MAPS_TOP_CODE;
    return (uint32_t)(four[0] >> 6 | (four[1] >> 6) << 2 | (four[2] >> 6) << 4);
}

/* Returns true if a row's largest code is the top one, or the row is empty without a peak. */
static bool row_is_sound(const mp_maps *maps, const unsigned char *in)
{
    const uint32_t peak = mp_get16(in);
    uint32_t most = 0;
    for (uint32_t e = 0; e < maps->quads * 4; e++) {
        const uint32_t code = code_at(in + PEAK_BYTES, e);
        if (code && e >= maps->shape.experts)
            return false;
        most = code > most ? code : most;
    }
    return peak <= PEAK_OF_ONE && most == (peak ? MP_MAPS_TOP_CODE : 0);
}

/* Returns true if the gain fits the codes: gain * |values| is 1 / cosine of the embedding
 * and its sketch. */
static bool sketch_is_sound(const mp_maps *maps, const unsigned char *in)
{
    const float gain = mp_float_of(mp_get32(in));
    uint64_t power = 0, any = 0;
    for (uint32_t i = 0; i < maps->coords / 2; i++) {
        const int32_t low = 2 * (in[GAIN_BYTES + i] & 15) - 15;
        const int32_t high = 2 * (in[GAIN_BYTES + i] >> 4) - 15;
        power += (uint64_t)(low * low + high * high);
        any |= in[GAIN_BYTES + i];
    }
    if (mp_bits_of(gain) == 0)
        return !any;
    const double ratio = (double)gain * sqrt((double)power);
    return isfinite(gain) && ratio > 0.999 && ratio < 100;
}

static moepage_status check_header(const mp_maps *maps, const unsigned char *in, uint64_t bytes)
{
    const uint32_t expected[] = {
        VERSION, maps->shape.layers, maps->shape.experts, maps->shape.semantic_dim, maps->coords,
    };
    static const char *const names[] = {"version", "layers", "experts", "semantic_dim", "coords"};
    if (bytes < HEADER)
        return mp_fail(MOEPAGE_E_FORMAT, "expert maps end after %llu bytes of a header of %d",
                       (unsigned long long)bytes, HEADER);
    for (uint32_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        if (mp_get32(in + 4 * i) != expected[i])
            return mp_fail(MOEPAGE_E_FORMAT, "expert maps of %s %u, not %u", names[i],
                           mp_get32(in + 4 * i), expected[i]);
    }
    const uint64_t count = mp_get32(in + 20);
    if ((bytes - HEADER) % map_bytes(maps) || (bytes - HEADER) / map_bytes(maps) != count)
        return mp_fail(MOEPAGE_E_FORMAT, "%llu expert maps of %llu bytes each in %llu bytes",
                       (unsigned long long)count, (unsigned long long)map_bytes(maps),
                       (unsigned long long)(bytes - HEADER));
    return MOEPAGE_OK;
}

static moepage_status check_map(const mp_maps *maps, const unsigned char *in, uint32_t index)
{
    for (uint32_t layer = 0; layer < maps->shape.layers; layer++, in += row_bytes(maps)) {
        if (!row_is_sound(maps, in))
            return mp_fail(MOEPAGE_E_FORMAT, "layer %u of expert map %u is damaged", layer, index);
    }
    if (maps->coords && !sketch_is_sound(maps, in))
        return mp_fail(MOEPAGE_E_FORMAT, "the embedding of expert map %u is damaged", index);
    return MOEPAGE_OK;
}

/* ---- Loading ---- */

static void load_map(mp_maps *maps, const unsigned char *in, uint32_t slot)
{
    for (uint32_t layer = 0; layer < maps->shape.layers; layer++, in += row_bytes(maps))
        mp_maps_set_lines(maps, slot, layer, in + PEAK_BYTES, mp_get16(in));
    if (maps->coords) {
        const uint32_t head = MP_SKETCH_HEAD / 2, tail = mp_sketch_tail_bytes(maps);
        maps->gains[slot] = mp_float_of(mp_get32(in));
        memcpy(maps->heads + (uint64_t)slot * head, in + GAIN_BYTES, head);
        memcpy(maps->tails + (uint64_t)slot * tail, in + GAIN_BYTES + head, tail);
    }
    maps->born[slot] = ++maps->changes;
}

moepage_status mp_maps_load(mp_maps *maps, const unsigned char *in, uint64_t bytes)
{
    moepage_status status = check_header(maps, in, bytes);
    if (status)
        return status;
    const uint32_t count = mp_get32(in + 20), capacity = maps->shape.capacity;
    in += HEADER;
    for (uint32_t i = 0; i < count && !status; i++)
        status = check_map(maps, in + i * map_bytes(maps), i);
    if (status)
        return status;
    maps->used = count < capacity ? count : capacity;
    maps->changes++; /* invalidates earlier search results even if nothing was loaded */
    for (uint32_t slot = 0; slot < maps->used; slot++)
        load_map(maps, in + slot * map_bytes(maps), slot);
    return MOEPAGE_OK;
}
