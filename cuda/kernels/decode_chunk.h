/* decode_chunk.h — exponent-Huffman streams as a block of threads reads them: jobs, chunks, the
 * code and its table, where lanes begin. docs/format-exph.md specifies the bytes;
 * src/codec/exph_plain.c and exph_decode.c are the reference: the output has the same bits,
 * whatever the bytes of the stream.
 *
 * No number in a stream is trusted: an address that it leads to is checked to lie in the stream
 * before it is read. */
#ifndef MP_KERNELS_DECODE_CHUNK_H
#define MP_KERNELS_DECODE_CHUNK_H

#include "decode_bits.h"
#include "small_tables.h"

enum {
    MP_DECODE_THREADS = 128,
    MP_DECODE_LANES = 32, /* a warp decodes a tile */
    MP_DECODE_TILES = MP_DECODE_THREADS / MP_DECODE_LANES,
    MP_DECODE_CHUNK = 32768, /* elements */
    MP_DECODE_TILE = 8192,
    MP_DECODE_GROUP = 256,
    MP_DECODE_RUN = 8,
    MP_DECODE_SYMBOLS = 16,
    MP_DECODE_ESCAPE = 15,
    MP_DECODE_WINDOWS = 256,
    MP_DECODE_COPY_BYTES = 65536, /* a unit of work of a job without a code */
    MP_DECODE_SLICES = 32,        /* of the list of jobs */
    /* Behind a lane's first byte: 256 codes of 8 bits, begun inside a byte, and the word after. */
    MP_DECODE_REACH = 256 + 8,
    /* Room for a tile of 4.2 bits per symbol; weights have 2.7. Longer tiles stay
     * in global memory. */
    MP_DECODE_STAGE_BYTES = 4608
};

/* MOEPAGE_DTYPE_* and MOEPAGE_FORM_*; launch_decode.c compares them. */
enum {
    MP_DECODE_F16 = 2,
    MP_DECODE_BF16 = 3,
    MP_DECODE_E4M3 = 4,
    MP_DECODE_E5M2 = 5,
    MP_DECODE_EXPH = 2
};

/* Offsets in a stream. */
enum {
    MP_DECODE_AT_EXPONENTS = 12,
    MP_DECODE_AT_LENGTHS = 28,
    MP_DECODE_AT_TABLE = 36,
    MP_DECODE_ENTRY_BYTES = 12
};
#define MP_DECODE_MAX_ELEMENTS ((uint64_t)1 << 40)

/* Modes of chunks; BAD: cannot be decoded. */
enum { MP_DECODE_CODED = 0, MP_DECODE_CONSTANT = 1, MP_DECODE_RAW = 2, MP_DECODE_BAD = 3 };

/* mp_decode_job's and moepage_cuda_decode_job's layout. */
typedef struct mp_gpu_decode_job {
    const uint8_t *src;
    uint64_t src_bytes;
    uint8_t *dst;
    uint64_t elements;
    uint32_t form;
    uint32_t dtype;
} mp_gpu_decode_job;

typedef struct mp_gpu_decode_args {
    const mp_gpu_decode_job *jobs; /* device memory: read when the kernel runs; NULL: in tables */
    uint32_t n_jobs;
    uint32_t reserved;
    MP_SMALL_ROOM(MP_SMALL_DECODE);
} mp_gpu_decode_args;

typedef struct mp_decode_chunk {
    const uint8_t *base;
    uint64_t readable; /* bytes from there to the stream's end */
    const uint8_t *rests;
    uint8_t *out;
    uint32_t n; /* elements */
    uint32_t mode;
    uint32_t value; /* coded: escapes; constant: the exponent */
    uint32_t fast;  /* BF16, and whole runs can be moved at once */
    /* Set by every thread that finds two escapes out of order. */
    uint32_t disordered;
} mp_decode_chunk;

/* A block's units are consecutive: the first is unit `unit` of job `job`. */
typedef struct mp_decode_range {
    uint32_t job;
    uint32_t unit;
    uint32_t left;
} mp_decode_range;

typedef struct mp_gpu_decode_shared {
    uint32_t stage[MP_DECODE_TILES][MP_DECODE_STAGE_BYTES / 4];
    uint16_t table_room[2 * MP_DECODE_WINDOWS]; /* see mp_decode_table */
    uint16_t entry[MP_DECODE_SYMBOLS];          /* by symbol, as in the table; 0: it has no code */
    uint16_t first[MP_DECODE_SYMBOLS]; /* by symbol: its first of the 256 windows, in code order */
    uint32_t code_valid;
    uint32_t whole; /* 1: the stream holds the job's header, codebook and chunk table */
    uint32_t units[MP_DECODE_SLICES];
    mp_decode_range range; /* written once */
    uint32_t job_index;
    mp_gpu_decode_job job;
    mp_decode_chunk chunk;
} mp_gpu_decode_shared;

typedef struct mp_gpu_decode_thread {
    uint32_t bit;    /* its lane's first, from the stage's start, or the chunk's */
    uint32_t staged; /* its tile's bits are in shared memory */
} mp_gpu_decode_thread;

/* How an element is split. `bytes` is 0 for types that are not coded. */
typedef struct mp_decode_type {
    uint32_t bytes, exponent_bits, mantissa_bits;
} mp_decode_type;

MP_GPU mp_decode_type mp_decode_type_of(uint32_t dtype)
{
    mp_decode_type type = {0, 0, 0};
    if (dtype >= MP_DECODE_F16 && dtype <= MP_DECODE_E5M2) {
        type.bytes = dtype <= MP_DECODE_BF16 ? 2 : 1;
        type.exponent_bits = dtype == MP_DECODE_BF16 ? 8 : dtype == MP_DECODE_E4M3 ? 4 : 5;
        type.mantissa_bits = 8 * type.bytes - 1 - type.exponent_bits;
    }
    return type;
}

/* Bytes of the rests of n elements: a run has as many bytes of rests as a rest has bits. */
MP_GPU uint32_t mp_decode_rest_bytes(mp_decode_type type, uint32_t n)
{
    return ((n + MP_DECODE_RUN - 1) / MP_DECODE_RUN * (type.mantissa_bits + 1) + 15) & ~15u;
}

MP_GPU uint32_t mp_decode_tiles(uint32_t n)
{
    return (n + MP_DECODE_TILE - 1) / MP_DECODE_TILE;
}

/* Bytes of a coded chunk before its bits. */
MP_GPU uint32_t mp_decode_index_bytes(uint32_t n, uint32_t escapes)
{
    return mp_decode_tiles(n) * (4 + MP_DECODE_LANES) + escapes * 3;
}

/* ---- Units of work: chunks, or pieces of a copy ---- */

/* A launch has fewer than 2^32 units: so many would fill 2^48 bytes. */
MP_GPU uint32_t mp_decode_units(const mp_gpu_decode_job *job)
{
    const uint64_t n = job->elements, bytes = job->src_bytes;
    if (job->form != MP_DECODE_EXPH)
        return (uint32_t)(bytes / MP_DECODE_COPY_BYTES + (bytes % MP_DECODE_COPY_BYTES != 0));
    if (mp_decode_type_of(job->dtype).bytes == 0)
        return 0;
    return (uint32_t)(n / MP_DECODE_CHUNK + (n % MP_DECODE_CHUNK != 0));
}

MP_GPU const mp_gpu_decode_job *mp_decode_jobs(const mp_gpu_decode_args *args)
{
    return args->jobs ? args->jobs : (const mp_gpu_decode_job *)(const void *)args->tables;
}

/* The jobs of slice s are [begin(s), begin(s + 1)). */
MP_GPU uint32_t mp_decode_slice_begin(const mp_gpu_decode_args *args, uint32_t slice)
{
    return (uint32_t)((uint64_t)args->n_jobs * slice / MP_DECODE_SLICES);
}

MP_GPU void mp_decode_count_slice(const mp_gpu_decode_args *args, mp_gpu_decode_shared *shared,
                                  uint32_t slice)
{
    const uint32_t end = mp_decode_slice_begin(args, slice + 1);
    uint32_t units = 0;
    MP_BITS_UNROLL_4
    for (uint32_t i = mp_decode_slice_begin(args, slice); i < end; i++)
        units += mp_decode_units(&mp_decode_jobs(args)[i]);
    shared->units[slice] = units;
}

/* Finds the block's range, if it begins in this slice. The first slice says how long it is. */
MP_GPU void mp_decode_find_range(const mp_gpu_decode_args *args, mp_gpu_decode_shared *shared,
                                 uint32_t slice, uint32_t block, uint32_t n_blocks)
{
    uint32_t before = 0, total = 0;
    for (uint32_t k = 0; k < MP_DECODE_SLICES; k++) {
        before += k < slice ? shared->units[k] : 0;
        total += shared->units[k];
    }
    const uint32_t begin = (uint32_t)((uint64_t)total * block / n_blocks);
    const uint32_t end = (uint32_t)((uint64_t)total * (block + 1) / n_blocks);
    if (slice == 0)
        shared->range.left = end - begin;
    if (begin < before || begin - before >= shared->units[slice])
        return;
    uint32_t job = mp_decode_slice_begin(args, slice), unit = begin - before;
    for (uint32_t units; (units = mp_decode_units(&mp_decode_jobs(args)[job])) <= unit; job++)
        unit -= units;
    shared->range.job = job;
    shared->range.unit = unit;
}

/* Makes the first job that has units, from `job` on, the block's current one. */
MP_GPU void mp_decode_open_job(const mp_gpu_decode_args *args, mp_gpu_decode_shared *shared,
                               uint32_t job)
{
    while (job + 1 < args->n_jobs && mp_decode_units(&mp_decode_jobs(args)[job]) == 0)
        job++;
    shared->job_index = job;
    shared->job = mp_decode_jobs(args)[job];
    const uint64_t n = shared->job.elements;
    const uint64_t chunks = mp_decode_units(&shared->job);
    const uint64_t front = MP_DECODE_AT_TABLE + chunks * MP_DECODE_ENTRY_BYTES;
    shared->whole = shared->job.form == MP_DECODE_EXPH && n <= MP_DECODE_MAX_ELEMENTS &&
                    shared->job.src_bytes >= ((front + 15) & ~(uint64_t)15) &&
                    mp_bits_aligned(shared->job.src, 16);
}

/* ---- The code ---- */

/* Prepares symbol `s` for the table. Canonical codes are assigned in order of length,
 * then of symbol; a code of length l covers 256 >> l windows, which are counted with
 * their bits reversed. */
MP_GPU void mp_decode_open_code(mp_gpu_decode_shared *shared, uint32_t s)
{
    const uint8_t *src = shared->job.src;
    uint32_t total = 0, first = 0, legal = shared->whole;
    if (legal) {
        const uint32_t low = mp_bits_load32(src + MP_DECODE_AT_LENGTHS);
        const uint32_t high = mp_bits_load32(src + MP_DECODE_AT_LENGTHS + 4);
        const uint32_t own = (s < 8 ? low : high) >> s % 8 * 4 & 15;
        const uint32_t exponent =
            s == MP_DECODE_ESCAPE ? 0 : mp_bits_load8(src + MP_DECODE_AT_EXPONENTS + s);
        for (uint32_t k = 0; k < MP_DECODE_SYMBOLS; k++) {
            const uint32_t length = (k < 8 ? low : high) >> k % 8 * 4 & 15;
            const uint32_t windows = length ? MP_DECODE_WINDOWS >> length : 0;
            legal &= length <= 8;
            total += windows;
            first += length < own || (length == own && k < s) ? windows : 0;
        }
        shared->entry[s] = (uint16_t)(own ? exponent << 7 | own : 0);
        shared->first[s] = (uint16_t)first;
    }
    if (s == 0)
        shared->code_valid = legal && total == MP_DECODE_WINDOWS;
}

/* The table: exponent << 7 | length, indexed by the next 8 bits. It is aligned to its size, so that
 * an offset is inserted into its address instead of added. */
MP_GPU uint16_t *mp_decode_table(mp_gpu_decode_shared *shared)
{
    const uint32_t bytes = MP_DECODE_WINDOWS * 2;
    uint8_t *room = (uint8_t *)shared->table_room;
    return (uint16_t *)(void *)(room + (bytes - (uint64_t)room % bytes) % bytes);
}

/* Fills the table: a symbol has every window that begins with its code, and eight threads share the
 * windows of one symbol. */
MP_GPU void mp_decode_fill_table(mp_gpu_decode_shared *shared, uint32_t thread)
{
    const uint32_t s = thread % MP_DECODE_SYMBOLS, share = thread / MP_DECODE_SYMBOLS;
    const uint32_t entry = shared->entry[s], length = entry & 15;
    const uint32_t step = (MP_DECODE_THREADS / MP_DECODE_SYMBOLS) << length;
    uint16_t *table = mp_decode_table(shared);
    if (!entry)
        return;
    for (uint32_t w = mp_bits_reversed(shared->first[s]) + (share << length); w < MP_DECODE_WINDOWS;
         w += step)
        table[w] = (uint16_t)entry;
}

/* ---- Chunks ---- */

MP_GPU uint64_t mp_decode_chunk_begin(uint32_t low, uint32_t high)
{
    return (low | (uint64_t)(high & 0xff) << 32) * 16;
}

/* Returns the chunk's mode, or MP_DECODE_BAD if the mode is unknown or the chunk lacks data
 * that it needs. */
MP_GPU uint32_t mp_decode_proved_mode(mp_decode_chunk *chunk, mp_decode_type type, uint32_t mode,
                                      uint64_t bytes)
{
    const uint32_t rests = mp_decode_rest_bytes(type, chunk->n);
    uint64_t needs = rests;
    if (mode > MP_DECODE_RAW)
        return MP_DECODE_BAD;
    if (mode == MP_DECODE_CODED)
        needs += mp_decode_index_bytes(chunk->n, chunk->value);
    if (mode == MP_DECODE_RAW)
        needs = chunk->n * type.bytes;
    if (bytes < needs)
        return MP_DECODE_BAD;
    chunk->rests = mode == MP_DECODE_CODED ? chunk->base + bytes - rests : chunk->base;
    return mode;
}

/* Makes chunk `index` of the block's job its current one. */
MP_GPU void mp_decode_open_chunk(mp_gpu_decode_shared *shared, uint32_t index)
{
    const mp_gpu_decode_job *job = &shared->job;
    const mp_decode_type type = mp_decode_type_of(job->dtype);
    mp_decode_chunk chunk = {0, 0, 0, 0, 0, MP_DECODE_BAD, 0, 0, 0};
    const uint64_t first = (uint64_t)index * MP_DECODE_CHUNK, left = job->elements - first;
    chunk.out = job->dst + first * type.bytes;
    chunk.n = left < MP_DECODE_CHUNK ? (uint32_t)left : MP_DECODE_CHUNK;
    if (shared->whole) {
        const uint8_t *entry =
            job->src + MP_DECODE_AT_TABLE + (uint64_t)index * MP_DECODE_ENTRY_BYTES;
        const uint32_t high = mp_bits_load32(entry + 4);
        const uint64_t begin = mp_decode_chunk_begin(mp_bits_load32(entry), high);
        uint64_t end = job->src_bytes;
        if (left > MP_DECODE_CHUNK)
            end = mp_decode_chunk_begin(mp_bits_load32(entry + MP_DECODE_ENTRY_BYTES),
                                        mp_bits_load8(entry + MP_DECODE_ENTRY_BYTES + 4));
        if (begin <= end && end <= job->src_bytes) {
            chunk.base = job->src + begin;
            chunk.readable = job->src_bytes - begin;
            chunk.value = high >> 16;
            chunk.mode = mp_decode_proved_mode(&chunk, type, high >> 8 & 0xff, end - begin);
        }
    }
    chunk.fast = job->dtype == MP_DECODE_BF16 && mp_bits_aligned(chunk.out, 16) &&
                 mp_bits_aligned(chunk.rests, 8);
    shared->chunk = chunk;
}

/* ---- Lanes ---- */

/* Of the 4 lengths in a word, those of lanes below `lane`; the word begins with lane `first`. */
MP_GPU uint32_t mp_decode_lengths_below(uint32_t word, uint32_t first, uint32_t lane)
{
    const uint32_t n = lane > first ? lane - first : 0;
    return n < 4 ? word & ~(0xffffffffu << 8 * n) : word;
}

/* Finds where a tile's lanes begin and brings its bits into shared memory: 16 bytes at a time, as
 * far as the last lane may read, with zeros behind the stream's end. */
MP_GPU void mp_decode_open_tile(mp_gpu_decode_shared *shared, mp_gpu_decode_thread *self,
                                uint32_t tile, uint32_t lane)
{
    const mp_decode_chunk *chunk = &shared->chunk;
    const uint32_t tiles = mp_decode_tiles(chunk->n);
    const uint8_t *lengths = chunk->base + tiles * 4 + tile * MP_DECODE_LANES;
    const uint32_t head = mp_bits_load32(chunk->base + tile * 4);
    const uint32_t shortest = head >> 16 & 0xfff, shift = head >> 28;
    const uint32_t begin = mp_decode_index_bytes(chunk->n, chunk->value) + (head & 0xffff);
    uint32_t below = 0, below_last = 0;
    MP_BITS_UNROLL
    for (uint32_t i = 0; i < MP_DECODE_LANES; i += 4) {
        const uint32_t word = mp_bits_load32(lengths + i);
        below = mp_bits_add_bytes(mp_decode_lengths_below(word, i, lane), below);
        below_last = mp_bits_add_bytes(mp_decode_lengths_below(word, i, 31), below_last);
    }
    const uint32_t last = begin * 8 + 31 * shortest + (below_last << shift);
    const uint32_t from = begin & ~15u, bytes = last / 8 + MP_DECODE_REACH - from;
    self->bit = begin * 8 + lane * shortest + (below << shift);
    self->staged = bytes <= MP_DECODE_STAGE_BYTES;
    if (!self->staged)
        return;
    self->bit -= from * 8;
    uint8_t *stage = (uint8_t *)shared->stage[tile];
    for (uint32_t at = lane * 16; at < bytes; at += MP_DECODE_LANES * 16) {
        const uint64_t place = (uint64_t)from + at;
        const uint64_t left = place < chunk->readable ? chunk->readable - place : 0;
        mp_bits_stage(stage + at, left ? chunk->base + place : chunk->base,
                      left < 16 ? (uint32_t)left : 16);
    }
}

#endif
