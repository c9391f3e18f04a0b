/* quant.h — weights out of their quantised forms: dequantisation, and products with a few tokens.
 *
 * Integers: packed rows and FP16 scales as src/codec/quant.h lays them out; a weight is q * s, or
 * (q + 1/2) * s in groups of four levels, exact in FP32. FP8: E4M3 bytes, times the scale of their
 * block, that product rounded once to FP32. CPU reference: mp_quant_decode_row, and
 * src/codec/float8.c.
 *
 * Field i of 16 bits becomes a float without a conversion: inserted into the mantissa of 2^23, in
 * its own place, it counts steps of 2^(bits i), and one fused multiply-add removes the offset and
 * the factor exactly. */
#ifndef MP_KERNELS_QUANT_H
#define MP_KERNELS_QUANT_H

#include "lanes.h"
#include "scalar.h"

/* ---- Numbers ---- */

/* The integer in field i (16 / bits of them) of the low 16 bits. */
MP_GPU float mp_quant_integer(uint32_t low, const uint32_t bits, const uint32_t i)
{
    const uint32_t at = bits * i, mask = ((1u << bits) - 1) << at, sign = 1u << (bits - 1);
    const float in_place = mp_scalar_of_bits((low & mask) ^ (0x4b000000u | sign << at));
    return mp_scalar_fma(in_place, mp_scalar_of_bits((127 - at) << 23),
                         -(float)((1u << (23 - at)) + sign));
}

/* Element i of packed words. */
MP_GPU float mp_quant_element(const uint32_t *words, const uint32_t bits, const uint32_t i)
{
    const uint32_t half = i * bits / 16, word = words[half / 2];
    return mp_quant_integer(half % 2 ? word >> 16 : word, bits, i % (16 / bits));
}

/* The weight of an integer under its group's scale. A negative scale says that the group, of two bits,
 * has four levels: (q + 1/2) times the scale's magnitude. */
MP_GPU float mp_quant_weight(float integer, const uint32_t bits, float scale)
{
    if (bits != 2)
        return mp_scalar_mul(integer, scale);
    const float offset = scale < 0 ? 0.5f : 0.0f;
    return mp_scalar_mul(mp_scalar_add(integer, offset),
                         mp_scalar_of_bits(mp_scalar_bits(scale) & 0x7fffffffu));
}

/* Bytes `at` to at + 3 of `n` bytes; zeros past their end. */
MP_GPU uint32_t mp_quant_word(const uint8_t *in, uint32_t at, uint64_t n)
{
    uint32_t word = 0;
    MP_SCALAR_LOOP
    for (uint32_t i = 0; i < 4; i++)
        if (at + i < n)
            word |= (uint32_t)in[at + i] << i * 8;
    return word;
}

/* Exponent and mantissa read as a float's are 2^120 times too small, denormals included. */
MP_GPU float mp_quant_e4m3(uint32_t byte)
{
    const uint32_t sign = (byte & 0x80u) << 24, magnitude = byte & 0x7fu;
    if (magnitude == 0x7fu)
        return mp_scalar_of_bits(sign | 0x7fc00000u);
    const float value = mp_scalar_mul(mp_scalar_of_bits(magnitude << 20), 0x1p120f);
    return mp_scalar_of_bits(sign | mp_scalar_bits(value));
}

/* ---- Dequantisation ---- */

/* A thread works on pieces of 8 columns: as many bytes of input as an integer has bits, and 16 or
 * 32 bytes of output. The reads of a warp are thus one contiguous run of memory, and so are its
 * much larger writes. */
#define MP_DEQUANT_THREADS 256
#define MP_DEQUANT_PIECE 8u
#define MP_DEQUANT_PIECES 4u /* of one thread at a time, whose loads are in flight together */

enum {
    MP_DEQUANT_WHOLE_IN = 1, /* every piece is whole and aligned to its size, and so is ... */
    MP_DEQUANT_WHOLE_OUT = 2 /* ... its output, to 16 bytes */
};

typedef struct mp_gpu_dequant_args {
    const uint8_t *packed;
    const void *scales; /* FP16; FP8's as scale_dtype says, or NULL */
    void *out;          /* [rows][columns] */
    uint64_t columns;
    uint64_t row_bytes;
    uint64_t row_scales;    /* per row, or per row of blocks */
    uint32_t rows;          /* 1 if all rows can be treated as one */
    uint32_t row_pieces;    /* rows * row_pieces < 2^32 */
    uint32_t block_rows;    /* of FP8 */
    uint32_t block_columns; /* of FP8 */
    uint32_t group_shift;   /* of integers: log2 of a group */
    uint32_t bits;          /* 0: FP8 */
    uint32_t out_dtype;
    uint32_t scale_dtype; /* of FP8 */
    uint32_t whole;       /* MP_DEQUANT_WHOLE_* */
    uint32_t reserved;
} mp_gpu_dequant_args;

typedef struct mp_gpu_dequant_shared {
    uint32_t none;
} mp_gpu_dequant_shared;

typedef struct mp_gpu_dequant_thread {
    uint32_t words[MP_DEQUANT_PIECES][2]; /* the next piece's first */
    uint32_t left;
} mp_gpu_dequant_thread;

/* Where a piece is. */
typedef struct mp_dequant_place {
    uint32_t row;
    uint32_t piece; /* of the row */
    uint64_t column;
} mp_dequant_place;

MP_GPU mp_dequant_place mp_dequant_at(const mp_gpu_dequant_args *args, uint32_t piece)
{
    mp_dequant_place at;
    at.row = args->rows == 1 ? 0 : piece / args->row_pieces;
    at.piece = piece - at.row * args->row_pieces;
    at.column = (uint64_t)at.piece * MP_DEQUANT_PIECE;
    return at;
}

/* The number of columns of a piece, which may reach past the row. */
MP_GPU uint32_t mp_dequant_columns(const mp_gpu_dequant_args *args, mp_dequant_place at)
{
    const uint64_t left = args->columns - at.column;
    return left < MP_DEQUANT_PIECE ? (uint32_t)left : MP_DEQUANT_PIECE;
}

MP_GPU void mp_dequant_read(const mp_gpu_dequant_args *args, const uint32_t bits,
                            mp_dequant_place at, uint32_t words[2])
{
    const uint64_t first = (uint64_t)at.piece * bits;
    const uint8_t *in = args->packed + at.row * args->row_bytes + first;
    words[0] = words[1] = 0;
    if (args->whole & MP_DEQUANT_WHOLE_IN) {
        if (bits == 8) {
            words[0] = ((const uint32_t *)in)[0];
            words[1] = ((const uint32_t *)in)[1];
        } else if (bits == 4) {
            words[0] = *(const uint32_t *)in;
        } else {
            words[0] = *(const uint16_t *)in;
        }
        return;
    }
    const uint64_t left = args->row_bytes - first;
    words[0] = mp_quant_word(in, 0, left < bits ? left : bits);
    if (bits == 8)
        words[1] = mp_quant_word(in, 4, left < bits ? left : bits);
}

MP_GPU uint32_t mp_dequant_pair(uint32_t dtype, float low, float high)
{
#if MP_ON_GPU
    uint32_t both;
    if (dtype == MP_SCALAR_F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    if (dtype == MP_SCALAR_F16)
        return mp_scalar_to_f16(low) | (uint32_t)mp_scalar_to_f16(high) << 16;
    return mp_scalar_to_bf16(low) | (uint32_t)mp_scalar_to_bf16(high) << 16;
#endif
}

MP_GPU void mp_dequant_write(const mp_gpu_dequant_args *args, mp_dequant_place at,
                             const float values[MP_DEQUANT_PIECE])
{
    const uint64_t first = at.row * args->columns + at.column;
    mp_scalar_vector a, b;
    if (!(args->whole & MP_DEQUANT_WHOLE_OUT)) {
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_DEQUANT_PIECE; i++)
            if (i < mp_dequant_columns(args, at))
                mp_scalar_store(args->out_dtype, args->out, first + i, values[i]);
    } else if (args->out_dtype == MP_SCALAR_F32) {
        a.x = mp_scalar_bits(values[0]), a.y = mp_scalar_bits(values[1]);
        a.z = mp_scalar_bits(values[2]), a.w = mp_scalar_bits(values[3]);
        b.x = mp_scalar_bits(values[4]), b.y = mp_scalar_bits(values[5]);
        b.z = mp_scalar_bits(values[6]), b.w = mp_scalar_bits(values[7]);
        ((mp_scalar_vector *)args->out)[first / 4] = a;
        ((mp_scalar_vector *)args->out)[first / 4 + 1] = b;
    } else {
        a.x = mp_dequant_pair(args->out_dtype, values[0], values[1]);
        a.y = mp_dequant_pair(args->out_dtype, values[2], values[3]);
        a.z = mp_dequant_pair(args->out_dtype, values[4], values[5]);
        a.w = mp_dequant_pair(args->out_dtype, values[6], values[7]);
        ((mp_scalar_vector *)args->out)[first / 8] = a;
    }
}

MP_GPU void mp_dequant_integers(const mp_gpu_dequant_args *args, const uint32_t bits,
                                mp_dequant_place at, const uint32_t words[2])
{
    const uint64_t group = at.column >> args->group_shift;
    const float scale =
        mp_scalar_from_f16(((const uint16_t *)args->scales)[at.row * args->row_scales + group]);
    float values[MP_DEQUANT_PIECE];
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < MP_DEQUANT_PIECE; i++)
        values[i] = mp_quant_weight(mp_quant_element(words, bits, i), bits, scale);
    mp_dequant_write(args, at, values);
}

MP_GPU float mp_dequant_block_scale(const mp_gpu_dequant_args *args, mp_dequant_place at)
{
    const uint64_t row = at.row / args->block_rows;
    const uint32_t column = (uint32_t)at.column / args->block_columns;
    return mp_scalar_load(args->scale_dtype, args->scales, row * args->row_scales + column);
}

/* Blocks may begin anywhere; a whole piece is in one. */
MP_GPU void mp_dequant_f8(const mp_gpu_dequant_args *args, mp_dequant_place at,
                          const uint32_t words[2])
{
    const uint32_t n = mp_dequant_columns(args, at);
    const uint32_t whole = args->block_columns % MP_DEQUANT_PIECE == 0;
    float values[MP_DEQUANT_PIECE];
    float scale = args->scales && whole ? mp_dequant_block_scale(args, at) : 1.0f;
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < MP_DEQUANT_PIECE; i++) {
        values[i] = mp_quant_e4m3(words[i / 4] >> i % 4 * 8 & 0xffu);
        if (args->scales && !whole && i < n) {
            mp_dequant_place here = at;
            here.column += i;
            scale = mp_dequant_block_scale(args, here);
        }
        if (args->scales)
            values[i] = mp_scalar_mul(values[i], scale);
    }
    mp_dequant_write(args, at, values);
}

/* One round of a block: MP_DEQUANT_PIECES of each thread. */
MP_GPU void mp_dequant_round(const mp_gpu_dequant_args *args, mp_gpu_dequant_thread *own,
                             const uint32_t bits, uint64_t first)
{
    const uint32_t n = args->rows * args->row_pieces;
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < MP_DEQUANT_PIECES; i++)
        if (first + i * MP_DEQUANT_THREADS < n)
            mp_dequant_read(args, bits ? bits : 8,
                            mp_dequant_at(args, (uint32_t)first + i * MP_DEQUANT_THREADS),
                            own->words[i]);
    own->left = MP_DEQUANT_PIECES;
    MP_SCALAR_LOOP
    for (; first < n && own->left--; first += MP_DEQUANT_THREADS) {
        const mp_dequant_place at = mp_dequant_at(args, (uint32_t)first);
        if (bits)
            mp_dequant_integers(args, bits, at, own->words[0]);
        else
            mp_dequant_f8(args, at, own->words[0]);
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i + 1 < MP_DEQUANT_PIECES; i++) {
            own->words[i][0] = own->words[i + 1][0];
            own->words[i][1] = own->words[i + 1][1];
        }
    }
}

MP_GPU void mp_gpu_dequant_block(MP_BLOCK_PARAMETERS(mp_gpu_dequant_args, mp_gpu_dequant_shared,
                                                     mp_gpu_dequant_thread))
{
    const uint64_t round = (uint64_t)MP_DEQUANT_THREADS * MP_DEQUANT_PIECES;
    const uint32_t n = args->rows * args->row_pieces;
    (void)shared;
    for (uint64_t first = block * round; first < n; first += n_blocks * round) {
        MP_PHASE
            switch (args->bits) {
            case 8: mp_dequant_round(args, self, 8, first + thread); break;
            case 4: mp_dequant_round(args, self, 4, first + thread); break;
            case 2: mp_dequant_round(args, self, 2, first + thread); break;
            default: mp_dequant_round(args, self, 0, first + thread); break;
            }
        MP_PHASE_END
    }
}

/* ---- y = W x ---- */

/* A warp has MP_GEMV_ROWS rows, and walks along them in tiles: of each row, each lane has one chunk
 * of consecutive columns, 16 bytes of INT8 and INT4 and 8 of INT2. A tile of x is in shared memory,
 * turned so that lanes read it without conflict. The next tile's weights are loaded while one is
 * computed. A lane sums its columns in ascending order by fused multiply-adds from zero, tile after
 * tile; then lanes are added in ascending order. The order of every sum therefore depends only on
 * the form and the number of columns. */
#define MP_GEMV_THREADS 128 /* at most; any multiple of 32 */
#define MP_GEMV_ROWS 4u
#define MP_GEMV_CHUNK(bits) ((bits) == 8 ? 16u : 32u) /* columns: never more than a group */
#define MP_GEMV_FOURS 8u                              /* of columns in a chunk, at most */
#define MP_GEMV_PITCH 33u                             /* lanes, and one against bank conflicts */
#define MP_GEMV_STAGED 8u                             /* loads of x in flight together */
#define MP_GEMV_SHARED(tokens) ((tokens)*MP_GEMV_FOURS * MP_GEMV_PITCH * 4u)

typedef struct mp_gpu_gemv_args {
    const uint8_t *packed;
    const uint16_t *scales;
    const void *x; /* [n_tokens][columns] */
    void *y;       /* [n_tokens][rows] */
    uint64_t rows;
    uint64_t columns;
    uint64_t row_bytes;
    uint64_t row_groups;
    uint32_t bits;
    uint32_t group_shift;
    uint32_t dtype;
    uint32_t n_tokens;
    uint32_t n_threads;
    uint32_t whole; /* 1: rows are a whole number of chunks */
} mp_gpu_gemv_args;

typedef struct mp_gpu_gemv_thread {
    uint32_t now[MP_GEMV_ROWS][4];
    uint32_t next[MP_GEMV_ROWS][4];
    float scale[MP_GEMV_ROWS];
    float next_scale[MP_GEMV_ROWS];
    float sum[MP_GEMV_ROWS][16];
} mp_gpu_gemv_thread;

typedef struct mp_gpu_gemv_1_shared {
    float at[MP_GEMV_SHARED(1)] __attribute__((aligned(16)));
} mp_gpu_gemv_1_shared;
typedef struct mp_gpu_gemv_4_shared {
    float at[MP_GEMV_SHARED(4)] __attribute__((aligned(16)));
} mp_gpu_gemv_4_shared;
typedef struct mp_gpu_gemv_8_shared {
    float at[MP_GEMV_SHARED(8)] __attribute__((aligned(16)));
} mp_gpu_gemv_8_shared;
typedef struct mp_gpu_gemv_16_shared {
    float at[MP_GEMV_SHARED(16)] __attribute__((aligned(16)));
} mp_gpu_gemv_16_shared;

/* Loads a lane's chunk of a row; zeros past the row's end. */
MP_GPU void mp_gemv_read(const mp_gpu_gemv_args *args, const uint32_t bits, uint64_t row,
                         uint64_t chunk, uint32_t words[4], float *scale)
{
    const uint32_t bytes = MP_GEMV_CHUNK(bits) * bits / 8;
    const uint64_t first = chunk * bytes;
    words[0] = words[1] = words[2] = words[3] = 0;
    *scale = 0;
    if (row >= args->rows || first >= args->row_bytes)
        return;
    const uint8_t *in = args->packed + row * args->row_bytes + first;
    const uint64_t group = chunk * MP_GEMV_CHUNK(bits) >> args->group_shift;
    *scale = mp_scalar_from_f16(args->scales[row * args->row_groups + group]);
    if (args->whole && bytes == 16) {
        const mp_scalar_vector v = *(const mp_scalar_vector *)in;
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if (args->whole) {
        const uint64_t v = *(const uint64_t *)in;
        words[0] = (uint32_t)v, words[1] = (uint32_t)(v >> 32);
    } else {
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < bytes / 4; i++)
            words[i] = mp_quant_word(in, i * 4, args->row_bytes - first);
    }
}

/* Rows of one warp, its lane's chunks of a tile. */
MP_GPU void mp_gemv_fetch(const mp_gpu_gemv_args *args, const uint32_t bits, uint64_t first_row,
                          uint64_t chunk, mp_gpu_gemv_thread *own)
{
    MP_SCALAR_UNROLL
    for (uint32_t r = 0; r < MP_GEMV_ROWS; r++)
        mp_gemv_read(args, bits, first_row + r, chunk, own->next[r], &own->next_scale[r]);
}

/* Where shared memory has columns 4 four .. 4 four + 3 of a lane's chunk of x. */
MP_GPU uint32_t mp_gemv_place(uint32_t token, uint32_t four, uint32_t lane)
{
    return ((token * MP_GEMV_FOURS + four) * MP_GEMV_PITCH + lane) * 4;
}

/* This thread's part of staging a tile of x; zeros past the columns and the tokens. */
MP_GPU void mp_gemv_stage(const mp_gpu_gemv_args *args, const uint32_t bits, const uint32_t tokens,
                          uint64_t tile, uint32_t thread, float *shared)
{
    const uint32_t chunk = MP_GEMV_CHUNK(bits), width = chunk * MP_LANES, n = tokens * width;
    MP_SCALAR_LOOP
    for (uint32_t first = thread; first < n; first += MP_GEMV_STAGED * args->n_threads) {
        float held[MP_GEMV_STAGED];
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_GEMV_STAGED; i++) {
            const uint32_t at = first + i * args->n_threads, token = at / width;
            const uint64_t column = tile * width + at % width;
            held[i] = 0;
            if (token < args->n_tokens && column < args->columns)
                held[i] = mp_scalar_load(args->dtype, args->x, token * args->columns + column);
        }
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_GEMV_STAGED; i++) {
            const uint32_t at = first + i * args->n_threads, c = at % width;
            if (at < n)
                shared[mp_gemv_place(at / width, c % chunk / 4, c / chunk) + c % 4] = held[i];
        }
    }
}

typedef struct mp_gemv_four {
    float at[4];
} mp_gemv_four;

MP_GPU mp_gemv_four mp_gemv_load_four(const float *shared)
{
    mp_gemv_four four;
#if MP_ON_GPU
    const float4 v = *(const float4 *)shared;
    four.at[0] = v.x, four.at[1] = v.y, four.at[2] = v.z, four.at[3] = v.w;
#else
    for (uint32_t i = 0; i < 4; i++)
        four.at[i] = shared[i];
#endif
    return four;
}

/* Four columns of all rows of the warp with all tokens: those of now[][0] from element `first` on,
 * which are the chunk's `four`th. */
MP_GPU void mp_gemv_multiply(const uint32_t bits, const uint32_t tokens, const uint32_t first,
                             uint32_t four, uint32_t lane, const float *shared,
                             mp_gpu_gemv_thread *own)
{
    float w[MP_GEMV_ROWS][4];
    MP_SCALAR_UNROLL
    for (uint32_t r = 0; r < MP_GEMV_ROWS; r++) {
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            w[r][i] = mp_quant_weight(mp_quant_element(own->now[r], bits, first + i), bits,
                                      own->scale[r]);
    }
    MP_SCALAR_UNROLL
    for (uint32_t t = 0; t < tokens; t++) {
        const mp_gemv_four x = mp_gemv_load_four(shared + mp_gemv_place(t, four, lane));
        MP_SCALAR_UNROLL
        for (uint32_t r = 0; r < MP_GEMV_ROWS; r++) {
            MP_SCALAR_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                own->sum[r][t] = mp_scalar_fma(w[r][i], x.at[i], own->sum[r][t]);
        }
    }
}

/* Multiplies the columns of word `word` of each row's chunk, which is in now[][0]; then moves the
 * next word there. */
MP_GPU void mp_gemv_word(const uint32_t bits, const uint32_t tokens, uint32_t word, uint32_t lane,
                         const float *shared, mp_gpu_gemv_thread *own)
{
    const uint32_t fours = 8 / bits;
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < fours; i++)
        mp_gemv_multiply(bits, tokens, i * 4, word * fours + i, lane, shared, own);
    MP_SCALAR_UNROLL
    for (uint32_t r = 0; r < MP_GEMV_ROWS; r++) {
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 3; i++)
            own->now[r][i] = own->now[r][i + 1];
    }
}

/* Unrolled for one token; a loop for more, where unrolling would take much code
 * and many registers. */
MP_GPU void mp_gemv_chunk(const uint32_t bits, const uint32_t tokens, uint32_t lane,
                          const float *shared, mp_gpu_gemv_thread *own)
{
    const uint32_t words = MP_GEMV_CHUNK(bits) * bits / 32;
    if (tokens == 1) {
        MP_SCALAR_UNROLL
        for (uint32_t word = 0; word < words; word++)
            mp_gemv_word(bits, tokens, word, lane, shared, own);
    } else {
        MP_SCALAR_LOOP
        for (uint32_t word = 0; word < words; word++)
            mp_gemv_word(bits, tokens, word, lane, shared, own);
    }
}

MP_GPU void mp_gemv_advance(mp_gpu_gemv_thread *own)
{
    MP_SCALAR_UNROLL
    for (uint32_t r = 0; r < MP_GEMV_ROWS; r++) {
        own->scale[r] = own->next_scale[r];
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            own->now[r][i] = own->next[r][i];
    }
}

/* Output o of a block: the lanes' sums of one row and token, added up. */
MP_GPU void mp_gemv_finish(const mp_gpu_gemv_args *args, const uint32_t tokens, uint32_t block,
                           uint32_t o, const float *shared)
{
    const uint32_t token = o % tokens, in_block = o / tokens;
    const uint64_t row = (uint64_t)block * (args->n_threads / MP_LANES) * MP_GEMV_ROWS + in_block;
    if (row >= args->rows || token >= args->n_tokens)
        return;
    float sum = shared[o * MP_GEMV_PITCH];
    MP_SCALAR_UNROLL
    for (uint32_t lane = 1; lane < MP_LANES; lane++)
        sum = mp_scalar_add(sum, shared[o * MP_GEMV_PITCH + lane]);
    mp_scalar_store(args->dtype, args->y, token * args->rows + row, sum);
}

MP_GPU void mp_gemv_run(MP_BLOCK_PARAMETERS(mp_gpu_gemv_args, float, mp_gpu_gemv_thread),
                        const uint32_t bits, const uint32_t tokens)
{
    const uint32_t width = MP_GEMV_CHUNK(bits) * MP_LANES, warps = args->n_threads / MP_LANES;
    const uint64_t tiles = (args->columns + width - 1) / width;
    const uint64_t block_row = (uint64_t)block * warps * MP_GEMV_ROWS;
    (void)n_blocks;
    MP_PHASE
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_GEMV_ROWS * tokens; i++)
            self->sum[i / tokens][i % tokens] = 0;
    MP_PHASE_END
    MP_SCALAR_LOOP
    for (uint64_t next = 0; next <= tiles; next++) {
        MP_PHASE
            if (next)
                mp_gemv_stage(args, bits, tokens, next - 1, thread, shared);
        MP_PHASE_END
        MP_PHASE
            mp_gemv_advance(self);
            mp_gemv_fetch(args, bits, block_row + thread / MP_LANES * MP_GEMV_ROWS,
                          next * MP_LANES + thread % MP_LANES, self);
            if (next)
                mp_gemv_chunk(bits, tokens, thread % MP_LANES, shared, self);
        MP_PHASE_END
    }
    MP_PHASE
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_GEMV_ROWS * tokens; i++)
            shared[(thread / MP_LANES * MP_GEMV_ROWS * tokens + i) * MP_GEMV_PITCH +
                   thread % MP_LANES] = self->sum[i / tokens][i % tokens];
    MP_PHASE_END
    MP_PHASE
        MP_SCALAR_LOOP
        for (uint32_t o = thread; o < warps * MP_GEMV_ROWS * tokens; o += args->n_threads)
            mp_gemv_finish(args, tokens, block, o, shared);
    MP_PHASE_END
}

MP_GPU void mp_gemv_forms(MP_BLOCK_PARAMETERS(mp_gpu_gemv_args, float, mp_gpu_gemv_thread),
                          const uint32_t tokens)
{
    if (args->bits == 8)
        mp_gemv_run(MP_BLOCK_PASS(block, n_blocks), 8, tokens);
    else if (args->bits == 4)
        mp_gemv_run(MP_BLOCK_PASS(block, n_blocks), 4, tokens);
    else
        mp_gemv_run(MP_BLOCK_PASS(block, n_blocks), 2, tokens);
}

/* For 1 token, and up to 4, 8 and 16: the number of sums that a thread keeps is fixed in each. */
#define MP_GEMV_BLOCK(tokens)                                                                     \
    MP_GPU void mp_gpu_gemv_##tokens##_block(                                                     \
        MP_BLOCK_PARAMETERS(mp_gpu_gemv_args, mp_gpu_gemv_##tokens##_shared, mp_gpu_gemv_thread)) \
    {                                                                                             \
        mp_gemv_forms(MP_GEMV_PASS, tokens);                                                      \
    }
#if MP_ON_GPU
#define MP_GEMV_PASS args, shared->at, self, block, n_blocks, thread
#else
#define MP_GEMV_PASS args, shared->at, threads, block, n_blocks, cpu
#endif
MP_GEMV_BLOCK(1)
MP_GEMV_BLOCK(4)
MP_GEMV_BLOCK(8)
MP_GEMV_BLOCK(16)

/* X(name, arguments, shared, thread, most threads, blocks of them on a multiprocessor) */
#define MP_QUANT_ENTRIES(X)                                                               \
    X(dequant, mp_gpu_dequant_args, mp_gpu_dequant_shared, mp_gpu_dequant_thread, 256, 2) \
    X(gemv_1, mp_gpu_gemv_args, mp_gpu_gemv_1_shared, mp_gpu_gemv_thread, 128, 5)         \
    X(gemv_4, mp_gpu_gemv_args, mp_gpu_gemv_4_shared, mp_gpu_gemv_thread, 128, 4)         \
    X(gemv_8, mp_gpu_gemv_args, mp_gpu_gemv_8_shared, mp_gpu_gemv_thread, 128, 3)         \
    X(gemv_16, mp_gpu_gemv_args, mp_gpu_gemv_16_shared, mp_gpu_gemv_thread, 128, 2)

#endif
