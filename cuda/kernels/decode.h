/* decode.h — DECODE: a list of jobs, each of which decodes an exponent-Huffman stream or copies a
 * plain tensor, in one launch and one pass for many tensors.
 *
 * The units of all jobs (chunks, or pieces of a copy) form one sequence, of which each block of a
 * persistent grid takes an equal stretch: it walks the list once to find where its stretch begins,
 * and reads a tensor's code once. Each of a chunk's four tiles belongs to a warp, and each lane of
 * a tile to a thread:
 *
 *     open     one thread proves the chunk in range; at a new job others lay out its code
 *     stage    lanes find where they begin; the tile's bits go to shared memory; the table is filled
 *     decode   each lane its 32 runs: 8 bytes of rests in, 16 bytes of elements out
 *     escapes  what had no code is patched in
 *
 * A launch depends on no earlier state and leaves none behind, so that a captured launch
 * can be replayed. */
#ifndef MP_KERNELS_DECODE_H
#define MP_KERNELS_DECODE_H

#include "decode_lane.h"

MP_GPU void mp_decode_stage_thread(mp_gpu_decode_shared *shared, mp_gpu_decode_thread *self,
                                   uint32_t thread, uint32_t fill)
{
    const uint32_t tile = thread / MP_DECODE_LANES;
    if (tile < mp_decode_tiles(shared->chunk.n))
        mp_decode_open_tile(shared, self, tile, thread % MP_DECODE_LANES);
    if (fill)
        mp_decode_fill_table(shared, thread);
    mp_decode_check_escapes(&shared->chunk, thread);
    mp_bits_stage_wait();
}

MP_GPU void mp_decode_coded_thread(mp_gpu_decode_shared *shared, const mp_gpu_decode_thread *self,
                                   uint32_t thread)
{
    const uint32_t tile = thread / MP_DECODE_LANES, lane = thread % MP_DECODE_LANES;
    if (tile >= mp_decode_tiles(shared->chunk.n))
        return;
    if (self->staged)
        mp_decode_lane(shared, tile, lane, MP_DECODE_FROM_STAGE, self->bit);
    else
        mp_decode_lane(shared, tile, lane, MP_DECODE_FROM_STREAM, self->bit);
}

/* Writes a chunk that is not coded, in one phase. */
MP_GPU void mp_decode_plain_thread(mp_gpu_decode_shared *shared, uint32_t mode, uint32_t thread)
{
    const mp_decode_chunk *chunk = &shared->chunk;
    const uint32_t bytes = chunk->n * mp_decode_type_of(shared->job.dtype).bytes;
    if (mode == MP_DECODE_CONSTANT)
        mp_decode_lane(shared, thread / MP_DECODE_LANES, thread % MP_DECODE_LANES,
                       MP_DECODE_FROM_NONE, 0);
    else if (mode == MP_DECODE_RAW)
        mp_bits_copy(chunk->out, chunk->base, bytes, thread, MP_DECODE_THREADS);
    else
        mp_bits_fill(chunk->out, 0xff, bytes, thread, MP_DECODE_THREADS);
}

MP_GPU void mp_decode_copy_thread(const mp_gpu_decode_shared *shared, uint32_t unit,
                                  uint32_t thread)
{
    const uint64_t from = (uint64_t)unit * MP_DECODE_COPY_BYTES,
                   left = shared->job.src_bytes - from;
    mp_bits_copy(shared->job.dst + from, shared->job.src + from,
                 left < MP_DECODE_COPY_BYTES ? left : MP_DECODE_COPY_BYTES, thread,
                 MP_DECODE_THREADS);
}

/* Values in shared memory that choose the next phase are read before that phase begins. No thread
 * writes them again until it has ended, so all threads take the same way. */
MP_GPU void mp_gpu_decode_block(MP_BLOCK_PARAMETERS(mp_gpu_decode_args, mp_gpu_decode_shared,
                                                    mp_gpu_decode_thread))
{
    MP_PHASE
        if (thread < MP_DECODE_SLICES)
            mp_decode_count_slice(args, shared, thread);
    MP_PHASE_END
    MP_PHASE
        if (thread < MP_DECODE_SLICES)
            mp_decode_find_range(args, shared, thread, block, n_blocks);
    MP_PHASE_END
    uint32_t left = shared->range.left, unit = shared->range.unit, job = shared->range.job;
    while (left) {
        MP_PHASE
            if (thread == 0)
                mp_decode_open_job(args, shared, job);
        MP_PHASE_END
        const uint32_t units = mp_decode_units(&shared->job), first = unit;
        const uint32_t end = units - unit < left ? units : unit + left;
        const uint32_t coded = shared->job.form == MP_DECODE_EXPH;
        uint32_t filled = 0; /* 1: the table has been filled for this job */
        job = shared->job_index + 1;
        if (unit >= units) /* the list has changed since it was counted */
            return;
        for (; unit < end; unit++, left--) {
            if (!coded) {
                MP_PHASE
                    mp_decode_copy_thread(shared, unit, thread);
                MP_PHASE_END
                continue;
            }
            MP_PHASE
                if (thread == 0)
                    mp_decode_open_chunk(shared, unit);
                if (unit == first && thread / MP_DECODE_SYMBOLS == 2)
                    mp_decode_open_code(shared, thread % MP_DECODE_SYMBOLS);
            MP_PHASE_END
            uint32_t mode = shared->chunk.mode;
            const uint32_t escapes = shared->chunk.value;
            if (mode == MP_DECODE_CODED && !shared->code_valid)
                mode = MP_DECODE_BAD;
            if (mode != MP_DECODE_CODED) {
                MP_PHASE
                    mp_decode_plain_thread(shared, mode, thread);
                MP_PHASE_END
                continue;
            }
            MP_PHASE
                mp_decode_stage_thread(shared, self, thread, !filled);
            MP_PHASE_END
            filled = 1;
            MP_PHASE
                mp_decode_coded_thread(shared, self, thread);
            MP_PHASE_END
            if (escapes) {
                MP_PHASE
                    mp_decode_patch_escapes(shared, thread);
                MP_PHASE_END
            }
        }
        unit = 0;
    }
}

#endif
