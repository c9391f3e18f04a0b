/* experts_mma.h — BF16 math: forms THIN and BROAD of the expert kernels.
 *
 * Weight rows, as stored, are the rows of A; activation rows are the columns of B. Of 32 elements
 * of a row, a unit, lane 4 r + t of the instruction's layout takes 8 t .. 8 t + 7: 16 bytes, for
 * two instructions. So k is not in the order in which the instruction counts it, but it is in the
 * same order in A and B, which is all that a sum needs.
 *
 * The definition of a sum: the units of a row are cut into 8 slices; a slice is accumulated from
 * zero, unit by unit, and the slices' sums are added in order, starting from zero. All of that
 * follows from the length alone. THIN gives each of a block's 8 warps a slice, of 16 rows of two
 * matrices, so that even one row of activations keeps the memory busy; BROAD gives each warp all
 * slices, of rows of its own, with 64 activation rows to every weight that it loads. */
#ifndef MP_KERNELS_EXPERTS_MMA_H
#define MP_KERNELS_EXPERTS_MMA_H

#include "experts_work.h"
#include "mma.h"

#define MP_EXPERTS_WARPS (MP_EXPERTS_THREADS / 32)
#define MP_EXPERTS_SLICES 8u
#define MP_EXPERTS_UNIT 32u
#define MP_EXPERTS_STRIP 16u /* weight rows of an instruction */
#define MP_EXPERTS_GROUP 8u  /* activation rows of an instruction */
#define MP_EXPERTS_THIN_GROUPS 2u
#define MP_EXPERTS_BROAD_GROUPS (MP_EXPERTS_BROAD_ROWS / MP_EXPERTS_GROUP)

/* Blocks that run at once on a multiprocessor. */
#define MP_EXPERTS_THIN_BLOCKS 2
#define MP_EXPERTS_BROAD_BLOCKS 1

typedef struct mp_experts_thread {
    mp_experts_row weights[2][2];  /* of matrix, half of the strip */
    uint32_t line[8];              /* of activations, by group */
    mp_experts_raw ahead[3][2][2]; /* units under way */
    uint32_t x_ahead[8][4];        /* of unit, group */
    uint32_t a[2][2][4];           /* operands of a unit */
    float acc[2][8][4];            /* of matrix, group */
} mp_experts_thread;
typedef mp_experts_thread mp_experts_thin_thread;
typedef mp_experts_thread mp_experts_broad_thread;

typedef struct mp_experts_thin_shared {
    float sums[MP_EXPERTS_WARPS][2][MP_EXPERTS_THIN_GROUPS][32][4];
} mp_experts_thin_shared;

/* Each thread's sums of whole slices, in shared memory because its registers are full. */
typedef struct mp_experts_broad_shared {
    float totals[8 * MP_EXPERTS_BROAD_GROUPS][MP_EXPERTS_THREADS];
} mp_experts_broad_shared;

MP_GPU uint32_t mp_experts_slice_begin(uint32_t length, uint32_t slice)
{
    return slice * mp_experts_up(length, MP_EXPERTS_UNIT) / MP_EXPERTS_SLICES;
}

/* Returns the end of the slice whose units begin at `begin`. Slices without any would add zero to a
 * total, which is never minus zero: they change nothing. */
MP_GPU uint32_t mp_experts_slice_end(uint32_t length, uint32_t begin)
{
    uint32_t end = 0;
    for (uint32_t slice = 1; slice <= MP_EXPERTS_SLICES && end <= begin; slice++)
        end = mp_experts_slice_begin(length, slice);
    return end;
}

/* Starts to load a unit's weights and the activations of `x_groups` groups; elements from `limit`
 * on are zeros. */
MP_GPU void mp_experts_send(mp_experts_thread *own, uint32_t lane, const uint32_t dtype,
                            const uint32_t aligned, const uint32_t x_groups,
                            const mp_gpu_experts_args *args, uint32_t length, uint32_t limit,
                            uint32_t unit, const uint32_t place)
{
    const uint32_t k = unit * MP_EXPERTS_UNIT + lane % 4 * 8;
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        mp_experts_fetch(dtype, aligned, args, &own->weights[i / 2][i % 2], k, limit,
                         &own->ahead[place][i / 2][i % 2]);
    MP_SCALAR_UNROLL
    for (uint32_t j = 0; j < x_groups; j++)
        mp_experts_activations(aligned, mp_experts_activation(args, own->line[j], length, 2, k), k,
                               limit, own->x_ahead[place * x_groups + j]);
}

MP_GPU void mp_experts_send_x(mp_experts_thread *own, uint32_t lane, const uint32_t aligned,
                              const uint32_t groups, const mp_gpu_experts_args *args,
                              uint32_t length, uint32_t limit, uint32_t unit, const uint32_t place)
{
    const uint32_t k = unit * MP_EXPERTS_UNIT + lane % 4 * 8;
    MP_SCALAR_UNROLL
    for (uint32_t j = 0; j < groups; j++)
        mp_experts_activations(aligned, mp_experts_activation(args, own->line[j], length, 2, k), k,
                               limit, own->x_ahead[place * groups + j]);
}

/* Returns the end of what is not zero in units before `end`. */
MP_GPU uint32_t mp_experts_limit(uint32_t length, uint32_t end)
{
    return end * MP_EXPERTS_UNIT < length ? end * MP_EXPERTS_UNIT : length;
}

/* Finds the rows that each lane reads, and starts to load the first `depth` units: of weights, whose
 * places are known first, and then, with `early`, of activations. */
MP_GPU void mp_experts_lead(MP_LANES_PARAMETERS(mp_experts_thread), const uint32_t dtype,
                            const uint32_t aligned, const uint32_t groups, const uint32_t depth,
                            const uint32_t early, const mp_gpu_experts_args *args,
                            const mp_experts_work *work, uint32_t piece, uint32_t begin,
                            uint32_t end)
{
    const uint32_t length = work->length, limit = mp_experts_limit(length, end);
    MP_EACH_LANE(mp_experts_thread)
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            own->weights[i / 2][i % 2] = mp_experts_weight_row(args, work, dtype, MP_EXPERTS_STRIP,
                                                               piece, i / 2, i % 2 * 8 + lane / 4);
        MP_SCALAR_UNROLL
        for (uint32_t u = 0; u < depth; u++)
            mp_experts_send(own, lane, dtype, aligned, 0, args, length, limit, begin + u, u);
    MP_EACH_LANE_END
    MP_LANES_MEET(); /* keeps compilers from waiting for the rows' numbers before these loads */
    MP_EACH_LANE(mp_experts_thread)
        MP_SCALAR_UNROLL
        for (uint32_t j = 0; j < groups; j++)
            own->line[j] = mp_experts_line(args, work, j * MP_EXPERTS_GROUP + lane / 4);
        MP_SCALAR_UNROLL
        for (uint32_t u = 0; early && u < depth; u++)
            mp_experts_send_x(own, lane, aligned, groups, args, length, limit, begin + u, u);
    MP_EACH_LANE_END
    MP_LANES_MEET(); /* of aligned floats, which no lane loads in a branch of its own, only in case a
                      * compiler makes one */
}

/* Accumulates one unit into acc for the first `live` groups. BROAD may do a few more: it takes 4 at
 * a time, so that many products are in flight. */
MP_GPU void mp_experts_step(MP_LANES_PARAMETERS(mp_experts_thread), const uint32_t dtype,
                            const uint32_t aligned, const uint32_t groups, uint32_t live,
                            const uint32_t place, const uint32_t x_place)
{
    const uint32_t together = groups > 2 ? groups / 2 : 1;
    if (!aligned || dtype >= MP_EXPERTS_F8)
        MP_LANES_MEET(); /* the loads of these have branches */
    MP_EACH_LANE(mp_experts_thread)
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            mp_experts_operand(dtype, aligned, &own->ahead[place][i / 2][i % 2],
                               own->a[i / 2][i % 2]);
    MP_EACH_LANE_END
    MP_SCALAR_UNROLL
    for (uint32_t first = 0; first < groups; first += together) {
        if (first >= live)
            continue;
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 4 * together; i++) {
            const uint32_t half = i / (2 * together) * 2, matrix = i % 2;
            const uint32_t j = first + i / 2 % together, at = x_place * groups + j;
            MP_LANES_MMA(mp_experts_thread, own->acc[matrix][j], own->a[matrix][0][half],
                         own->a[matrix][1][half], own->a[matrix][0][half + 1],
                         own->a[matrix][1][half + 1], own->x_ahead[at][half],
                         own->x_ahead[at][half + 1]);
        }
    }
}

/* Ends a slice: adds acc to the thread's totals. */
MP_GPU void mp_experts_fold(mp_experts_thread *own, mp_experts_broad_shared *totals,
                            uint32_t thread)
{
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 8 * MP_EXPERTS_BROAD_GROUPS; i++) {
        float *acc = &own->acc[i % 2][i / 8][i / 2 % 4];
        totals->totals[i][thread] = mp_scalar_add(totals->totals[i][thread], *acc);
        *acc = 0;
        if (i % 8 == 7)
            MP_LANES_MEET(); /* keeps compilers from loading all totals before adding any; a thread's
                              * totals are its own, so it orders nothing */
    }
}

/* acc = the sum over units [begin, end), of which mp_experts_lead has started the first; where there are
 * `totals`, these are the sums of all slices. `depth` units of weights are under way at a time, and of
 * activations with `early`. */
MP_GPU void mp_experts_multiply(MP_LANES_PARAMETERS(mp_experts_thread), const uint32_t dtype,
                                const uint32_t aligned, const uint32_t groups, const uint32_t depth,
                                const uint32_t early, const mp_gpu_experts_args *args,
                                uint32_t length, uint32_t live, uint32_t begin, uint32_t end,
                                mp_experts_broad_shared *totals, uint32_t warp)
{
    const uint32_t x_groups = early ? groups : 0;
    const uint32_t limit = mp_experts_limit(length, end);
    uint32_t fold_at = totals ? mp_experts_slice_end(length, begin) : 0;
    MP_EACH_LANE(mp_experts_thread)
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 8 * groups; i++)
            own->acc[i % 2][i / 8][i / 2 % 4] = 0;
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; totals && i < 8 * groups; i++)
            totals->totals[i][warp * MP_LANES + lane] = 0;
    MP_EACH_LANE_END
    MP_SCALAR_LOOP
    for (uint32_t unit = begin; unit < end; unit += depth) {
        MP_SCALAR_UNROLL
        for (uint32_t u = 0; u < depth; u++) {
            const uint32_t now = unit + u;
            if (now >= end)
                break;
            if (!early) {
                MP_EACH_LANE(mp_experts_thread)
                    mp_experts_send_x(own, lane, aligned, groups, args, length, length, now, 0);
                MP_EACH_LANE_END
            }
            mp_experts_step(MP_LANES_PASS, dtype, aligned, groups, live, u, early ? u : 0);
            MP_EACH_LANE(mp_experts_thread)
                mp_experts_send(own, lane, dtype, aligned, x_groups, args, length, limit,
                                now + depth, u);
                if (totals && now + 1 == fold_at)
                    mp_experts_fold(own, totals, warp * MP_LANES + lane);
            MP_EACH_LANE_END
            if (totals && now + 1 == fold_at)
                fold_at = mp_experts_slice_end(length, fold_at);
        }
    }
}

/* Units of weights under way: as many as registers hold, 4 KiB a warp in THIN and 6 in BROAD for
 * BF16. They make no difference to a sum. */
MP_GPU uint32_t mp_experts_thin_depth(const uint32_t dtype, const uint32_t aligned)
{
#if MP_ON_GPU && __CUDA_ARCH__ < 890
    const uint32_t f8 = 1; /* converting takes registers where there is no instruction for it */
#else
    const uint32_t f8 = 2;
#endif
    if (mp_experts_is_coded(dtype))
        return mp_coded_words(dtype) <= 4 ? 2 : 1;
    return !aligned || dtype == MP_SCALAR_F32 ? 1 : dtype == MP_EXPERTS_F8 ? f8 : 2;
}

MP_GPU uint32_t mp_experts_broad_depth(const uint32_t dtype)
{
    if (mp_experts_is_coded(dtype))
        return mp_coded_words(dtype) <= 4 ? 2 : 1;
    return dtype == MP_SCALAR_F32 ? 1 : dtype == MP_SCALAR_BF16 ? 3 : 2;
}

/* ---- THIN ---- */

/* 1: an item's first units are loaded while the item before it ends. FP8 and coded weights have no registers
 * for that, and rows that are not aligned are rare. */
MP_GPU uint32_t mp_experts_thin_ahead(const uint32_t dtype, const uint32_t aligned)
{
    return aligned && dtype < MP_EXPERTS_F8;
}

/* A piece's part that is a warp's own. */
MP_GPU void mp_experts_thin_lead(MP_LANES_PARAMETERS(mp_experts_thread), const uint32_t dtype,
                                 const uint32_t aligned, const mp_gpu_experts_args *args,
                                 const mp_experts_work *work, uint32_t piece, uint32_t warp)
{
    mp_experts_lead(MP_LANES_PASS, dtype, aligned, MP_EXPERTS_THIN_GROUPS,
                    mp_experts_thin_depth(dtype, aligned), dtype < MP_EXPERTS_F8, args, work, piece,
                    mp_experts_slice_begin(work->length, warp),
                    mp_experts_slice_begin(work->length, warp + 1));
}

MP_GPU void mp_experts_thin_warp(MP_LANES_PARAMETERS(mp_experts_thread), const uint32_t dtype,
                                 const uint32_t aligned, const mp_gpu_experts_args *args,
                                 const mp_experts_work *work, uint32_t warp)
{
    const uint32_t left = work->n_rows - work->first;
    const uint32_t live = left > MP_EXPERTS_GROUP ? 2 : 1;
    mp_experts_multiply(MP_LANES_PASS, dtype, aligned, MP_EXPERTS_THIN_GROUPS,
                        mp_experts_thin_depth(dtype, aligned), dtype < MP_EXPERTS_F8, args,
                        work->length, live, mp_experts_slice_begin(work->length, warp),
                        mp_experts_slice_begin(work->length, warp + 1),
                        (mp_experts_broad_shared *)0, warp);
}

MP_GPU void mp_experts_thin_leave(MP_LANES_PARAMETERS(mp_experts_thread), uint32_t warp,
                                  mp_experts_thin_shared *shared)
{
    MP_EACH_LANE(mp_experts_thread)
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 16; i++)
            shared->sums[warp][i / 8][i / 4 % 2][lane][i % 4] = own->acc[i / 8][i / 4 % 2][i % 4];
    MP_EACH_LANE_END
}

/* Adds the slices' sums: each thread takes one weight row of both matrices and
 * one activation row. */
MP_GPU void mp_experts_thin_finish(const mp_gpu_experts_args *args, const mp_experts_work *work,
                                   const uint32_t dtype, uint32_t piece, uint32_t thread,
                                   const mp_experts_thin_shared *shared)
{
    const uint32_t n = thread / MP_EXPERTS_STRIP, i = thread % MP_EXPERTS_STRIP;
    const uint32_t lane = i % 8 * 4 + n % 8 / 2, at = i / 8 * 2 + n % 2;
    float sum0 = 0, sum1 = 0;
    MP_SCALAR_UNROLL
    for (uint32_t slice = 0; slice < MP_EXPERTS_SLICES; slice++) {
        sum0 = mp_scalar_add(sum0, shared->sums[slice][0][n / 8][lane][at]);
        sum1 = mp_scalar_add(sum1, shared->sums[slice][1][n / 8][lane][at]);
    }
    mp_experts_emit(args, work, dtype, 2, MP_EXPERTS_STRIP, piece, n, i, sum0, sum1);
}

/* Begins the first item from `item` on that has rows for this launch; returns its number, n_items if there
 * is none. An entry is loaded before n_items need be known, which a kernel before may have written too. */
MP_GPU uint32_t mp_experts_thin_find(const mp_gpu_experts_args *args, uint32_t item,
                                     uint32_t n_items, uint32_t n_blocks, uint32_t pieces,
                                     mp_experts_work *work)
{
    for (; item / pieces < args->n_experts; item += n_blocks) {
        mp_experts_begin(args, item / pieces, work);
        if (item >= n_items)
            break;
        if (mp_experts_rows(args, work->n_rows))
            return item;
    }
    return n_items;
}

/* An item is a piece of an expert's weight rows; if the expert has more rows than fit, it is taken again
 * for the next of them. Returns the item behind `item`, as mp_experts_thin_find does. */
MP_GPU uint32_t mp_experts_thin_next(const mp_gpu_experts_args *args, uint32_t item,
                                     uint32_t n_items, uint32_t n_blocks, uint32_t pieces,
                                     const mp_experts_work *work, mp_experts_work *next)
{
    *next = *work;
    next->first += MP_EXPERTS_THIN_GROUPS * MP_EXPERTS_GROUP;
    return next->first < work->n_rows
               ? item
               : mp_experts_thin_find(args, item + n_blocks, n_items, n_blocks, pieces, next);
}

MP_GPU void mp_experts_thin(const uint32_t dtype, const uint32_t aligned,
                            MP_BLOCK_PARAMETERS(mp_gpu_experts_args, mp_experts_thin_shared,
                                                mp_experts_thread))
{
    const uint32_t pieces = mp_experts_pieces(args, MP_EXPERTS_STRIP);
    const uint32_t n_items = mp_experts_count(args) * pieces;
    const uint32_t ahead = mp_experts_thin_ahead(dtype, aligned);
    mp_experts_work work, next;
    uint32_t item = mp_experts_thin_find(args, block, n_items, n_blocks, pieces, &work), then = 0;
    if (ahead && item < n_items) {
        MP_WARPS(mp_experts_thread)
            (void)n_warps;
            mp_experts_thin_lead(MP_LANES_PASS, dtype, aligned, args, &work, item % pieces, warp);
        MP_WARPS_END
    }
    for (; item < n_items; item = then, work = next) {
        if (ahead)
            then = mp_experts_thin_next(args, item, n_items, n_blocks, pieces, &work, &next);
        MP_WARPS(mp_experts_thread)
            (void)n_warps;
            if (!ahead)
                mp_experts_thin_lead(MP_LANES_PASS, dtype, aligned, args, &work, item % pieces,
                                     warp);
            mp_experts_thin_warp(MP_LANES_PASS, dtype, aligned, args, &work, warp);
            if (ahead && then < n_items)
                mp_experts_thin_lead(MP_LANES_PASS, dtype, aligned, args, &next, then % pieces,
                                     warp);
            mp_experts_thin_leave(MP_LANES_PASS, warp, shared);
        MP_WARPS_END
        MP_PHASE
            mp_experts_thin_finish(args, &work, dtype, item % pieces, thread, shared);
        MP_PHASE_END
        if (!ahead)
            then = mp_experts_thin_next(args, item, n_items, n_blocks, pieces, &work, &next);
    }
}

/* ---- BROAD ---- */

MP_GPU void mp_experts_broad_warp(MP_LANES_PARAMETERS(mp_experts_thread), const uint32_t dtype,
                                  const mp_gpu_experts_args *args, const mp_experts_work *work,
                                  uint32_t piece, uint32_t warp, mp_experts_broad_shared *shared)
{
    const uint32_t left = work->n_rows - work->first;
    const uint32_t live = mp_experts_up(left, MP_EXPERTS_GROUP);
    const uint32_t end = mp_experts_up(work->length, MP_EXPERTS_UNIT);
    mp_experts_lead(MP_LANES_PASS, dtype, 1, MP_EXPERTS_BROAD_GROUPS, mp_experts_broad_depth(dtype),
                    0, args, work, piece, 0, end);
    mp_experts_multiply(MP_LANES_PASS, dtype, 1, MP_EXPERTS_BROAD_GROUPS,
                        mp_experts_broad_depth(dtype), 0, args, work->length, live, 0, end, shared,
                        warp);
    MP_EACH_LANE(mp_experts_thread)
        MP_SCALAR_LOOP
        for (uint32_t i = 0; i < 4 * MP_EXPERTS_BROAD_GROUPS; i++) {
            const float *sums = &shared->totals[i * 2][warp * MP_LANES + lane];
            mp_experts_emit(args, work, dtype, 2, MP_EXPERTS_STRIP, piece,
                            i / 4 * MP_EXPERTS_GROUP + lane % 4 * 2 + i % 2,
                            i / 2 % 2 * 8 + lane / 4, sums[0], sums[MP_EXPERTS_THREADS]);
        }
    MP_EACH_LANE_END
}

/* An item is a block's width of pieces times 64 activation rows. An expert's items are consecutive,
 * and those with the same weights are adjacent. */
MP_GPU void mp_experts_broad(const uint32_t dtype, const uint32_t aligned,
                             MP_BLOCK_PARAMETERS(mp_gpu_experts_args, mp_experts_broad_shared,
                                                 mp_experts_thread))
{
    const uint32_t n_experts = mp_experts_count(args), together = MP_EXPERTS_BROAD_ROWS;
    const uint32_t pieces = mp_experts_pieces(args, MP_EXPERTS_STRIP);
    const uint32_t wide = mp_experts_up(pieces, MP_EXPERTS_WARPS);
    uint32_t item = block; /* counted from the current expert's first */
    (void)aligned;         /* always */
    for (uint32_t index = 0; index < n_experts; index++) {
        const uint32_t n_rows = mp_experts_rows(args, args->experts[index].n_rows);
        const uint32_t high = mp_experts_up(n_rows, together), n_items = wide * high;
        mp_experts_work work;
        if (item < n_items)
            mp_experts_begin(args, index, &work);
        for (; item < n_items; item += n_blocks) {
            work.first = item % high * together;
            MP_WARPS(mp_experts_thread)
                (void)n_warps;
                const uint32_t piece = item / high * MP_EXPERTS_WARPS + warp;
                if (piece < pieces)
                    mp_experts_broad_warp(MP_LANES_PASS, dtype, args, &work, piece, warp, shared);
            MP_WARPS_END
        }
        item -= n_items;
    }
}

#endif
