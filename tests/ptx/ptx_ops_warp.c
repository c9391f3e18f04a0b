/* What a warp does together: shuffles, reductions, matrix products; and the clock, pauses and jumps. The
 * scheduler has seen to it that the lanes are there. */
#include <string.h>

#include "ptx_lanes.h"

static uint32_t mask_of(const ptx_warp *warp, const ptx_insn *insn, uint32_t lane)
{
    return PTX_REG(const uint32_t, insn->n_ops - 1)[lane];
}

/* d|p = the a of another lane of the segment that c describes; p: whether that lane is in it. The bound is the last
 * lane for .bfly, the first for .up. */
static void shuffle(ptx_warp *warp, const ptx_insn *insn, bool up)
{
    uint32_t *d = PTX_REG(uint32_t, 0), *p = PTX_REG(uint32_t, 1), values[PTX_LANES];
    const uint32_t *b = PTX_REG(const uint32_t, 3), *c = PTX_REG(const uint32_t, 4);
    memcpy(values, PTX_REG(const uint32_t, 2), sizeof values);
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        if (!(warp->active >> lane & 1))
            continue;
        const uint32_t segment = c[lane] >> 8 & 31, clamp = c[lane] & 31;
        const int32_t bound = (int32_t)((lane & segment) | (clamp & ~segment));
        const int32_t by = (int32_t)(b[lane] & 31);
        const int32_t from = up ? (int32_t)lane - by : (int32_t)lane ^ by;
        const bool inside = up ? from >= bound : from <= bound;
        if (inside && !(warp->active >> from & 1))
            ptx_find(warp, lane, PTX_FOUND_UNDEFINED,
                     "lane %d, which it shuffles from, is not there", (int)from);
        d[lane] = values[inside ? (uint32_t)from : lane];
        *p = (*p & ~(1u << lane)) | (uint32_t)inside << lane;
    }
}
PTX_HANDLER(shfl_bfly)
{
    shuffle(warp, insn, false);
}
PTX_HANDLER(shfl_up)
{
    shuffle(warp, insn, true);
}

static void reduce(ptx_warp *warp, const ptx_insn *insn, bool least)
{
    const uint32_t *a = PTX_REG(const uint32_t, 1);
    uint32_t result = least ? ~0u : 0;
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        if (warp->active >> lane & 1)
            result = (a[lane] < result) == least ? a[lane] : result;
    }
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        if (warp->active >> lane & 1)
            PTX_REG(uint32_t, 0)[lane] = result;
    }
}
PTX_HANDLER(redux_min)
{
    reduce(warp, insn, true);
}
PTX_HANDLER(redux_max)
{
    reduce(warp, insn, false);
}

/* Orders the lanes' accesses, where all of the warp meet. */
PTX_HANDLER(bar_warp)
{
    if (mask_of(warp, insn, (uint32_t)__builtin_ctz(warp->active)) == PTX_ALL_LANES)
        warp->epoch++;
}

/* ---- mma.m16n8k16 of bf16 ---- */

static float half(uint32_t word, uint32_t upper)
{
    const uint32_t bits = upper ? word & 0xffff0000u : word << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

typedef struct matrices {
    float a[16][16], b[16][8], d[16][8];
} matrices;

/* The PTX ISA's tables of fragments, with groupID = lane >> 2 and in = lane % 4:
 *   a_i: row = groupID for i = 0, 1, 4, 5, else groupID + 8; column = in * 2 + (i & 1), + 8 for i >= 4
 *   b_i: row = in * 2 + (i & 1), + 8 for i >= 2; column = groupID
 *   c_i: row = groupID for i < 2, else groupID + 8; column = in * 2 + (i & 1) */
static void gather(const ptx_warp *warp, const ptx_insn *insn, matrices *m)
{
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        const uint32_t group = lane >> 2, in = lane % 4;
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
            m->a[row][in * 2 + (i & 1) + (i >= 4 ? 8 : 0)] =
                half(PTX_REG(const uint32_t, 4 + i / 2)[lane], i & 1);
        }
        for (uint32_t i = 0; i < 4; i++) {
            m->b[in * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] =
                half(PTX_REG(const uint32_t, 8 + i / 2)[lane], i & 1);
            m->d[i < 2 ? group : group + 8][in * 2 + (i & 1)] = PTX_REG(const float, 10 + i)[lane];
        }
    }
}

/* The order of additions is not specified. Here: c, then the exact products by ascending k, each sum
 * rounded to nearest even. */
PTX_HANDLER(mma_bf16)
{
    matrices m;
    gather(warp, insn, &m);
    for (uint32_t row = 0; row < 16; row++) {
        for (uint32_t k = 0; k < 16; k++) {
            for (uint32_t column = 0; column < 8; column++)
                m.d[row][column] += m.a[row][k] * m.b[k][column];
        }
    }
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        const uint32_t group = lane >> 2, in = lane % 4;
        for (uint32_t i = 0; i < 4; i++) {
            const float sum = m.d[i < 2 ? group : group + 8][in * 2 + (i & 1)];
            const uint32_t nan = 0x7fffffffu;
            memcpy(&PTX_REG(uint32_t, i)[lane], sum != sum ? (const void *)&nan : &sum, 4);
        }
    }
}

/* ---- The clock, and pauses ---- */

PTX_HANDLER(globaltimer)
{
    const ptx_world *world = &warp->block->grid->world;
    const uint64_t now = world->now_ns ? world->now_ns(world->user) : 0;
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        if (warp->active >> lane & 1)
            PTX_REG(uint64_t, 0)[lane] = now;
    }
}

PTX_HANDLER(nanosleep)
{
    const ptx_world *world = &warp->block->grid->world;
    (void)insn;
    if (world->pause)
        world->pause(world->user);
}

#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
const ptx_opcode ptx_ops_warp[] = {
    {"shfl.sync.bfly.b32", "wp=wwww", shfl_bfly, PTX_CONVERGENT},
    {"shfl.sync.up.b32", "wp=wwww", shfl_up, PTX_CONVERGENT},
    {"redux.sync.min.u32", "w=ww", redux_min, PTX_CONVERGENT},
    {"redux.sync.max.u32", "w=ww", redux_max, PTX_CONVERGENT},
    {"bar.warp.sync", "w", bar_warp, PTX_CONVERGENT},
    {MMA, "wwww=wwwwwwwwww", mma_bf16, PTX_ALIGNED},
    {"mov.u64", "x=t", globaltimer, PTX_PLAIN},
    {"nanosleep.u32", "w", nanosleep, PTX_PLAIN},
    {0},
};

/* The scheduler runs these itself. */
const ptx_opcode ptx_ops_flow[] = {
    {"bra", "l", NULL, PTX_BRANCH},
    {"bra.uni", "l", NULL, PTX_BRANCH},
    {"ret", "", NULL, PTX_RETURN},
    {"exit", "", NULL, PTX_RETURN},
    {"bar.sync", "w", NULL, PTX_BARRIER},
    {"barrier.sync.aligned", "w", NULL, PTX_BARRIER},
    {0},
};
