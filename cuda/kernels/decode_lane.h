/* decode_lane.h — one lane of a tile: its symbols, a run of eight at a time, joined with their
 * rests into elements.
 *
 * A lane holds two words of its bits, low and high. Its next bit is the one after bit `before` % 32
 * of low, so that high:low >> `before` has the next 8 bits where an offset into a table of 2-byte
 * entries has them, and the two words always hold the 32 bits that four symbols may take.
 *
 * An entry is exponent << 7 | length. A shift by an entry, modulo 32, moves past its symbol; four
 * entries added to `before` move that past their symbols in its low 6 bits, and the bits above
 * those are ignored; and the exponent stands where a BF16 number has it. */
#ifndef MP_KERNELS_DECODE_LANE_H
#define MP_KERNELS_DECODE_LANE_H

#include "decode_chunk.h"

/* Where a lane's bits are; always a constant where it is passed. */
enum {
    MP_DECODE_FROM_STAGE,
    MP_DECODE_FROM_STREAM, /* in global memory, with zeros behind its end */
    MP_DECODE_FROM_NONE    /* a constant chunk has none */
};

typedef struct mp_decode_window {
    uint32_t low, high, before;
    mp_bits_place table;
    mp_bits_place staged; /* the word after high, in shared memory, */
    uint32_t next;        /* or its index in the chunk */
} mp_decode_window;

/* Four entries. */
typedef struct mp_decode_quad {
    uint32_t of[4];
} mp_decode_quad;

/* Word `index` of a chunk's bytes. */
MP_GPU uint32_t mp_decode_stream_word(const mp_decode_chunk *chunk, uint32_t index)
{
    const uint64_t at = (uint64_t)index * 4;
    uint32_t word = 0;
    if (at + 4 <= chunk->readable)
        return mp_bits_load32(chunk->base + at);
    for (uint32_t i = 0; i < 4 && at + i < chunk->readable; i++)
        word |= mp_bits_load8(chunk->base + at + i) << 8 * i;
    return word;
}

MP_GPU mp_decode_window mp_decode_open_window(mp_gpu_decode_shared *shared, uint32_t tile,
                                              const int from, uint32_t bit)
{
    const uint32_t high = (bit + 31) / 32; /* low's bits do not matter if bit is 0 */
    mp_decode_window window;
    window.before = bit - 1;
    window.table = mp_bits_place_of(mp_decode_table(shared));
    window.staged = mp_bits_place_of(&shared->stage[tile][0]);
    window.next = high + 1;
    window.low = window.high = 0;
    if (from == MP_DECODE_FROM_STAGE) {
        window.low = shared->stage[tile][bit ? high - 1 : 0];
        window.high = shared->stage[tile][high];
        window.staged += window.next * 4;
    } else if (from == MP_DECODE_FROM_STREAM) {
        window.low = mp_decode_stream_word(&shared->chunk, bit ? high - 1 : 0);
        window.high = mp_decode_stream_word(&shared->chunk, high);
    }
    return window;
}

/* The next four symbols. */
MP_GPU mp_decode_quad mp_decode_next_quad(const mp_decode_chunk *chunk, const int from,
                                          mp_decode_window *window)
{
    const uint32_t offset = 2 * (MP_DECODE_WINDOWS - 1);
    uint32_t bits = mp_bits_funnel(window->low, window->high, window->before);
    const uint32_t more = mp_bits_funnel(window->high, 0, window->before);
    mp_decode_quad quad;
    quad.of[0] = mp_bits_look_up(window->table, bits & offset);
    bits = mp_bits_funnel(bits, more, quad.of[0]);
    quad.of[1] = mp_bits_look_up(window->table, bits & offset);
    bits = mp_bits_funnel(bits, 0, quad.of[1]);
    quad.of[2] = mp_bits_look_up(window->table, bits & offset);
    bits = mp_bits_funnel(bits, 0, quad.of[2]);
    quad.of[3] = mp_bits_look_up(window->table, bits & offset);
    const uint32_t before = window->before;
    window->before += quad.of[0] + quad.of[1] + quad.of[2] + quad.of[3];
    const uint32_t moves = (window->before ^ before) & 32;
    if (from == MP_DECODE_FROM_STAGE) {
        mp_bits_advance(moves, &window->low, &window->high, &window->staged);
    } else if (moves) {
        window->low = window->high;
        window->high = mp_decode_stream_word(chunk, window->next++);
    }
    return quad;
}

/* ---- Elements ---- */

/* Two BF16 elements from two entries and the two bytes of `rests` that `pick` doubles. */
MP_GPU uint32_t mp_decode_join_bf16(uint32_t a, uint32_t b, uint32_t rests, uint32_t pick)
{
    return mp_bits_select(0x7f807f80u, mp_bits_permute(a, b, 0x5410),
                          mp_bits_permute(rests, 0, pick));
}

MP_GPU void mp_decode_put_bf16(mp_decode_quad a, mp_decode_quad b, mp_bits_pair rests, uint8_t *out)
{
    mp_bits_vector run;
    run.word[0] = mp_decode_join_bf16(a.of[0], a.of[1], rests.low, 0x1100);
    run.word[1] = mp_decode_join_bf16(a.of[2], a.of[3], rests.low, 0x3322);
    run.word[2] = mp_decode_join_bf16(b.of[0], b.of[1], rests.high, 0x1100);
    run.word[3] = mp_decode_join_bf16(b.of[2], b.of[3], rests.high, 0x3322);
    mp_bits_store128(out, run);
}

/* Stores the first `bytes` bytes of a run, which has `whole`. */
MP_GPU void mp_decode_store(uint8_t *out, mp_bits_vector run, uint32_t bytes, uint32_t whole)
{
    if (bytes == whole && mp_bits_aligned(out, whole)) {
        if (whole == 16)
            mp_bits_store128(out, run);
        else
            mp_bits_store64(out, run.word[0], run.word[1]);
        return;
    }
    MP_BITS_UNROLL
    for (uint32_t i = 0; i < 16; i++) {
        if (i < bytes)
            out[i] = (uint8_t)(run.word[i / 4] >> i % 4 * 8);
    }
}

/* Stores the first n elements of a run of any type, taking rests from the low end
 * of three words. */
MP_GPU void mp_decode_put_any(mp_decode_type type, mp_decode_quad a, mp_decode_quad b,
                              const uint8_t *rests, uint32_t n, uint8_t *out)
{
    const uint32_t rest_bits = type.mantissa_bits + 1;
    const uint32_t sign_at = type.mantissa_bits + type.exponent_bits;
    const uint32_t field = (1u << type.exponent_bits) - 1;
    uint32_t word[3] = {0, 0, 0};
    mp_bits_vector run;
    MP_BITS_UNROLL
    for (uint32_t i = 0; i < 11; i++)
        word[i / 4] |= i < rest_bits ? mp_bits_load8(rests + i) << i % 4 * 8 : 0;
    MP_BITS_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        run.word[i] = 0;
    MP_BITS_UNROLL
    for (uint32_t i = 0; i < MP_DECODE_RUN; i++) {
        const uint32_t exponent = (i < 4 ? a.of[i % 4] : b.of[i % 4]) >> 7 & field;
        const uint32_t mantissa = word[0] & ((1u << type.mantissa_bits) - 1);
        const uint32_t sign = word[0] >> type.mantissa_bits & 1;
        const uint32_t element = sign << sign_at | exponent << type.mantissa_bits | mantissa;
        if (type.bytes == 2)
            run.word[i / 2] |= element << i % 2 * 16;
        else
            run.word[i / 4] |= element << i % 4 * 8;
        word[0] = mp_bits_funnel(word[0], word[1], rest_bits);
        word[1] = mp_bits_funnel(word[1], word[2], rest_bits);
        word[2] = mp_bits_funnel(word[2], 0, rest_bits);
    }
    mp_decode_store(out, run, n * type.bytes, MP_DECODE_RUN * type.bytes);
}

/* ---- Lanes ---- */

/* The lane's next four entries. */
MP_GPU mp_decode_quad mp_decode_quad_from(const mp_decode_chunk *chunk, const int from,
                                          mp_decode_window *window)
{
    mp_decode_quad quad;
    if (from != MP_DECODE_FROM_NONE)
        return mp_decode_next_quad(chunk, from, window);
    MP_BITS_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        quad.of[i] = (chunk->value & 0xff) << 7;
    return quad;
}

MP_GPU void mp_decode_run_bf16(const mp_decode_chunk *chunk, const int from,
                               mp_decode_window *window, mp_bits_pair rests, uint8_t *out)
{
    const mp_decode_quad a = mp_decode_quad_from(chunk, from, window);
    const mp_decode_quad b = mp_decode_quad_from(chunk, from, window);
    mp_decode_put_bf16(a, b, rests, out);
}

/* Decodes the next `runs` runs, whole and of BF16. Rests are loaded as soon as a register is free
 * for them, more than a run ahead. */
MP_GPU void mp_decode_runs_bf16(const mp_decode_chunk *chunk, const int from, uint32_t first,
                                uint32_t runs, mp_decode_window *window)
{
    const uint8_t *rests = chunk->rests + first;
    uint8_t *out = chunk->out + 2 * first;
    mp_bits_pair even = {0, 0}, odd = {0, 0};
    if (runs > 0)
        even = mp_bits_load64(rests);
    if (runs > 1)
        odd = mp_bits_load64(rests + MP_DECODE_GROUP);
    MP_BITS_ROLLED
    for (; runs > 1; runs -= 2) {
        rests += 2 * MP_DECODE_GROUP;
        mp_decode_run_bf16(chunk, from, window, even, out);
        if (runs > 2)
            even = mp_bits_load64(rests);
        mp_decode_run_bf16(chunk, from, window, odd, out + 2 * MP_DECODE_GROUP);
        if (runs > 3)
            odd = mp_bits_load64(rests + MP_DECODE_GROUP);
        out += 4 * MP_DECODE_GROUP;
    }
    if (runs)
        mp_decode_run_bf16(chunk, from, window, even, out);
}

/* Decodes runs [begin, end) of a lane of any type; the chunk's last may be short. */
MP_GPU void mp_decode_runs_any(const mp_gpu_decode_shared *shared, const int from, uint32_t first,
                               uint32_t begin, uint32_t end, mp_decode_window *window)
{
    const mp_decode_chunk *chunk = &shared->chunk;
    const mp_decode_type type = mp_decode_type_of(shared->job.dtype);
    MP_BITS_ROLLED
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t element = first + i * MP_DECODE_GROUP, left = chunk->n - element;
        const mp_decode_quad a = mp_decode_quad_from(chunk, from, window);
        const mp_decode_quad b = mp_decode_quad_from(chunk, from, window);
        mp_decode_put_any(type, a, b,
                          chunk->rests + element / MP_DECODE_RUN * (type.mantissa_bits + 1),
                          left < MP_DECODE_RUN ? left : MP_DECODE_RUN,
                          chunk->out + element * type.bytes);
    }
}

/* Decodes a whole lane, whose first bit is `bit`. */
MP_GPU void mp_decode_lane(mp_gpu_decode_shared *shared, uint32_t tile, uint32_t lane,
                           const int from, uint32_t bit)
{
    const uint32_t first = tile * MP_DECODE_TILE + lane * MP_DECODE_RUN;
    const uint32_t end = (tile + 1) * MP_DECODE_TILE;
    const uint32_t n = shared->chunk.n < end ? shared->chunk.n : end;
    const uint32_t mine = n > first ? n - first : 0; /* up to the end of the tile */
    const uint32_t runs = (mine + MP_DECODE_GROUP - 1) / MP_DECODE_GROUP;
    /* Only the last of them can be short. */
    const uint32_t whole = mine >= MP_DECODE_RUN ? (mine - MP_DECODE_RUN) / MP_DECODE_GROUP + 1 : 0;
    const uint32_t fast = shared->chunk.fast ? whole : 0;
    mp_decode_window window = mp_decode_open_window(shared, tile, from, bit);
    mp_decode_runs_bf16(&shared->chunk, from, first, fast, &window);
    mp_decode_runs_any(shared, from, first, fast, runs, &window);
}

/* ---- Escapes ---- */

MP_GPU void mp_decode_put_exponent(mp_decode_type type, uint32_t exponent, uint8_t *at)
{
    const uint32_t field = ((1u << type.exponent_bits) - 1) << type.mantissa_bits;
    uint32_t element = at[0];
    if (type.bytes == 2)
        element |= (uint32_t)at[1] << 8;
    element = (element & ~field) | (exponent << type.mantissa_bits & field);
    at[0] = (uint8_t)element;
    if (type.bytes == 2)
        at[1] = (uint8_t)(element >> 8);
}

MP_GPU const uint8_t *mp_decode_positions(const mp_decode_chunk *chunk)
{
    return chunk->base + mp_decode_index_bytes(chunk->n, 0);
}

/* Notes whether the list's positions ascend, so that none occurs twice. */
MP_GPU void mp_decode_check_escapes(mp_decode_chunk *chunk, uint32_t thread)
{
    const uint8_t *positions = mp_decode_positions(chunk);
    for (uint32_t i = thread + 1; i < chunk->value; i += MP_DECODE_THREADS) {
        if (mp_bits_load16(positions + 2 * (i - 1)) >= mp_bits_load16(positions + 2 * i))
            chunk->disordered = 1;
    }
}

/* Puts the list's exponents in their places. If several are for one place, the last counts: a list
 * that does not ascend is therefore left to one thread. */
MP_GPU void mp_decode_patch_escapes(const mp_gpu_decode_shared *shared, uint32_t thread)
{
    const mp_decode_chunk *chunk = &shared->chunk;
    const mp_decode_type type = mp_decode_type_of(shared->job.dtype);
    const uint8_t *positions = mp_decode_positions(chunk);
    const uint8_t *exponents = positions + 2 * chunk->value;
    const uint32_t step = chunk->disordered ? 1 : MP_DECODE_THREADS;
    if (chunk->disordered && thread)
        return;
    MP_BITS_ROLLED
    for (uint32_t i = thread; i < chunk->value; i += step) {
        const uint32_t position = mp_bits_load16(positions + 2 * i);
        if (position < chunk->n)
            mp_decode_put_exponent(type, mp_bits_load8(exponents + i),
                                   chunk->out + position * type.bytes);
    }
}

#endif
