/* Blocks: warps in turns that a seed draws, and a warp's lanes, of which those at the lowest instruction
 * run together until they part, or come to where others are. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_inside.h"

#define MOST_STEPS (1ull << 32)
#define MOST_TURN 12 /* bits of a turn's instructions */

uint64_t ptx_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The first finding is kept; it ends the grid. */
void ptx_find(ptx_warp *warp, uint32_t lane, ptx_finding finding, const char *format, ...)
{
    ptx_grid *grid = warp->block->grid;
    va_list args;
    if (grid->found)
        return;
    grid->found = finding;
    const int n = snprintf(grid->said, sizeof grid->said,
                           "%s: %s:%u %s, block %u, thread %u: ", ptx_finding_name(finding),
                           grid->entry->name, warp->insn->line, warp->insn->opcode, grid->index,
                           warp->index * PTX_LANES + lane);
    va_start(args, format);
    vsnprintf(grid->said + n, sizeof grid->said - (size_t)n, format, args);
    va_end(args);
}

void ptx_activate(ptx_warp *warp, uint32_t lanes)
{
    if (warp->active == lanes)
        return;
    warp->active = lanes;
    for (uint32_t i = 0; i < PTX_LANES; i++)
        warp->narrow[i] = 0u - (lanes >> i & 1);
    for (uint32_t i = 0; i < PTX_LANES; i++)
        warp->wide[i] = 0ull - (lanes >> i & 1);
}

static uint32_t first_lane(uint32_t lanes)
{
    return (uint32_t)__builtin_ctz(lanes);
}

static void move_to(ptx_warp *warp, uint32_t lanes, uint32_t pc)
{
    for (; lanes; lanes &= lanes - 1)
        warp->pc[first_lane(lanes)] = pc;
}

/* ---- One instruction ---- */

static void unset(ptx_warp *warp, uint32_t lanes)
{
    ptx_find(warp, first_lane(lanes), PTX_FOUND_UNSET,
             "it depends on a register that is not written before");
}

/* The lanes in which all that the instruction reads is set. */
static uint32_t set_of(const ptx_warp *warp, const ptx_insn *insn)
{
    uint32_t set = PTX_ALL_LANES;
    if (insn->flow == PTX_SELECT) {
        const uint32_t p = *(const uint32_t *)(warp->registers + insn->at[3]);
        return warp->set[insn->id[3]] &
               ((p & warp->set[insn->id[1]]) | (~p & warp->set[insn->id[2]]));
    }
    for (uint32_t i = insn->n_written; i < insn->n_ops; i++)
        set &= warp->set[insn->id[i]];
    return set;
}

/* What is computed of registers that are not set is as unset: only what has an effect counts. */
static void execute(ptx_warp *warp, const ptx_insn *insn, uint32_t lanes)
{
    uint32_t set = set_of(warp, insn);
    if (lanes & ~set && insn->flow != PTX_PLAIN && insn->flow != PTX_SELECT) {
        unset(warp, lanes & ~set);
        return;
    }
    ptx_activate(warp, lanes);
    warp->undefined = 0;
    insn->run(warp, insn);
    set &= ~warp->undefined;
    for (uint32_t i = 0; i < insn->n_written; i++)
        warp->set[insn->id[i]] = (warp->set[insn->id[i]] & ~lanes) | (set & lanes);
}

/* ---- Meeting ---- */

/* A lane's last operand: a mask, or a barrier's number. */
static const uint32_t *operand_of(const ptx_warp *warp, const ptx_insn *insn, uint32_t lane)
{
    return (const uint32_t *)(warp->registers + insn->at[insn->n_ops - 1]) + lane;
}

/* The lanes that a lane wants to be with. */
static uint32_t wanted(const ptx_warp *warp, const ptx_insn *insn, uint32_t lane)
{
    if (insn->flow != PTX_CONVERGENT)
        return warp->lanes;
    return *operand_of(warp, insn, lane);
}

/* Those that wait where this one does, for the same; bar.warp.sync is the same everywhere. */
static uint32_t met(const ptx_warp *warp, uint32_t lane, uint32_t mask)
{
    const ptx_insn *insns = warp->block->grid->entry->insns, *mine = &insns[warp->pc[lane]];
    uint32_t lanes = 0;
    for (uint32_t rest = warp->meeting; rest; rest &= rest - 1) {
        const uint32_t other = first_lane(rest);
        const ptx_insn *its = &insns[warp->pc[other]];
        const bool anywhere = mine->n_ops == 1 && mine->flow == PTX_CONVERGENT;
        if ((its == mine || (anywhere && its->run == mine->run)) &&
            wanted(warp, its, other) == mask)
            lanes |= 1u << other;
    }
    return lanes;
}

static void step_over(ptx_warp *warp, uint32_t lanes)
{
    for (; lanes; lanes &= lanes - 1)
        warp->pc[first_lane(lanes)]++;
}

static void meet_lane(ptx_warp *warp, const ptx_insn *insn, uint32_t lane)
{
    const uint32_t mask = wanted(warp, insn, lane);
    if (!(mask >> lane & 1) || mask & ~warp->lanes) {
        ptx_find(warp, lane, PTX_FOUND_LANES, "its mask is %08x", mask);
        return;
    }
    if (met(warp, lane, mask) != mask)
        return;
    warp->meeting &= ~mask;
    if (insn->flow == PTX_BARRIER && *operand_of(warp, insn, lane))
        ptx_find(warp, lane, PTX_FOUND_BARRIER, "a barrier but number 0, which is not known");
    else if (insn->flow == PTX_BARRIER)
        warp->at_barrier = mask;
    else
        execute(warp, insn, mask);
    step_over(warp, mask);
}

static void meet(ptx_warp *warp, const ptx_insn *insn, uint32_t lanes)
{
    for (uint32_t i = insn->n_written; i < insn->n_ops; i++) {
        if (lanes & ~warp->set[insn->id[i]])
            unset(warp, lanes & ~warp->set[insn->id[i]]);
    }
    warp->meeting |= lanes;
    for (uint32_t rest = lanes; rest && !warp->block->grid->found; rest &= rest - 1) {
        if (warp->meeting >> first_lane(rest) & 1)
            meet_lane(warp, insn, first_lane(rest));
    }
}

/* ---- A warp's turn ---- */

static uint32_t runnable(const ptx_warp *warp)
{
    return warp->lanes & ~(warp->exited | warp->at_barrier | warp->meeting);
}

/* The lanes at the lowest instruction; `stop`: where the next ones are. */
static uint32_t choose(const ptx_warp *warp, uint32_t *pc, uint32_t *stop)
{
    uint32_t group = 0;
    *pc = *stop = UINT32_MAX;
    for (uint32_t rest = runnable(warp); rest; rest &= rest - 1) {
        const uint32_t lane = first_lane(rest), at = warp->pc[lane];
        if (at < *pc) {
            *stop = *pc;
            *pc = at;
            group = 0;
        } else if (at > *pc && at < *stop)
            *stop = at;
        group |= at == *pc ? 1u << lane : 0;
    }
    return group;
}

/* Runs the instruction; false: the group is no longer one, and its lanes' places are written. */
static bool step(ptx_warp *warp, uint32_t group, uint32_t *pc)
{
    const ptx_insn *insn = &warp->block->grid->entry->insns[*pc];
    uint32_t lanes = group;
    warp->insn = insn;
    if (insn->guard_id) {
        const uint32_t p = *(const uint32_t *)(warp->registers + insn->guard_at);
        if (group & ~warp->set[insn->guard_id])
            unset(warp, group & ~warp->set[insn->guard_id]);
        lanes &= insn->guard_not ? ~p : p;
    }
    bool *const ran = &warp->block->grid->entry->ran[*pc];
    if (lanes && !*ran)
        *ran = true;
    if (insn->flow <= PTX_SELECT) {
        if (lanes)
            execute(warp, insn, lanes);
        ++*pc;
        return true;
    }
    if (insn->flow == PTX_BRANCH && (!lanes || lanes == group)) {
        *pc = lanes ? insn->target : *pc + 1;
        return true;
    }
    move_to(warp, group & ~lanes, *pc + 1);
    move_to(warp, lanes, insn->flow == PTX_BRANCH ? insn->target : *pc);
    if (insn->flow == PTX_RETURN)
        warp->exited |= lanes;
    else if (insn->flow != PTX_BRANCH)
        meet(warp, insn, lanes);
    return false;
}

/* Until its lanes wait, or are done, or have run so many instructions. */
static void turn(ptx_warp *warp, uint64_t budget)
{
    ptx_grid *grid = warp->block->grid;
    while (budget && !grid->found) {
        uint32_t pc, stop;
        const uint32_t group = choose(warp, &pc, &stop);
        bool together = true;
        if (!group)
            break;
        while (budget && together && pc < stop && !grid->found) {
            together = step(warp, group, &pc);
            budget--;
            warp->block->steps++;
        }
        if (together)
            move_to(warp, group, pc);
    }
    if (!grid->found && !runnable(warp) && warp->meeting) {
        const uint32_t lane = first_lane(warp->meeting);
        warp->insn = &grid->entry->insns[warp->pc[lane]];
        ptx_find(warp, lane, PTX_FOUND_LANES, "of the lanes %08x only %08x come",
                 wanted(warp, warp->insn, lane), met(warp, lane, wanted(warp, warp->insn, lane)));
    }
}

/* ---- A block ---- */

/* All have come to the barrier, or are done; false: neither, or some are done that others wait for. */
static bool pass_barrier(ptx_block *block)
{
    uint32_t waiting = 0, done = 0;
    for (uint32_t i = 0; i < block->n_warps; i++) {
        waiting += block->warps[i].at_barrier != 0;
        done += block->warps[i].exited != 0;
    }
    if (!waiting)
        return false;
    for (uint32_t i = 0; i < block->n_warps; i++) {
        ptx_warp *warp = &block->warps[i];
        if (done && warp->at_barrier)
            ptx_find(warp, first_lane(warp->at_barrier), PTX_FOUND_BARRIER,
                     "%u warps wait, %u have exited", waiting, done);
        warp->at_barrier = 0;
    }
    block->epoch++;
    return !done;
}

/* A warp that may run, at random. */
static ptx_warp *next_warp(ptx_block *block)
{
    const uint32_t first = (uint32_t)(ptx_random(&block->grid->random) % block->n_warps);
    for (uint32_t i = 0; i < block->n_warps; i++) {
        ptx_warp *warp = &block->warps[(first + i) % block->n_warps];
        if (runnable(warp))
            return warp;
    }
    return NULL;
}

static void run(ptx_block *block)
{
    ptx_grid *grid = block->grid;
    const uint64_t most = grid->world.most_steps ? grid->world.most_steps : MOST_STEPS;
    while (!grid->found) {
        ptx_warp *warp = next_warp(block);
        if (!warp && !pass_barrier(block))
            break;
        if (!warp)
            continue;
        const uint64_t bits = ptx_random(&grid->random) % MOST_TURN;
        turn(warp, 1 + ptx_random(&grid->random) % (2ull << bits));
        if (block->steps > most)
            ptx_find(warp, 0, PTX_FOUND_ENDLESS, "no end after %llu instructions",
                     (unsigned long long)most);
    }
    if (!grid->found && block->n_copies) {
        const uint32_t thread = block->copies[0].thread;
        ptx_find(&block->warps[thread / PTX_LANES], thread % PTX_LANES, PTX_FOUND_PENDING,
                 "it ends with copies that are not waited for");
    }
}

static void begin_warp(ptx_warp *warp, const ptx_grid *grid)
{
    const ptx_entry *entry = grid->entry;
    uint32_t *tid = (uint32_t *)(warp->registers + entry->tid_at);
    uint32_t *ctaid = (uint32_t *)(warp->registers + entry->ctaid_at);
    const uint32_t first = warp->index * PTX_LANES, n = grid->n_threads - first;
    warp->lanes = n < PTX_LANES ? (1u << n) - 1 : PTX_ALL_LANES;
    warp->exited = warp->at_barrier = warp->meeting = 0;
    memset(warp->pc, 0, sizeof warp->pc);
    memset(warp->set, 0, entry->n_ids * sizeof *warp->set);
    for (uint32_t i = 0; i < 5; i++) /* constants, and the four below */
        warp->set[i] = PTX_ALL_LANES;
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        tid[lane] = first + lane;
        ctaid[lane] = grid->index;
        ((uint32_t *)(warp->registers + entry->ntid_at))[lane] = grid->n_threads;
        ((uint32_t *)(warp->registers + entry->nctaid_at))[lane] = grid->n_blocks;
    }
}

ptx_finding ptx_grid_block(ptx_grid *grid, uint32_t index)
{
    static const unsigned char garbage[] = {0xff, 0x7f, 0xa5, 0x01};
    ptx_block *block = &grid->block;
    grid->index = index;
    block->epoch++;
    block->steps = 0;
    block->n_copies = 0;
    memset(block->shared, garbage[ptx_random(&grid->random) % 4], grid->shared_bytes);
    for (uint32_t i = 0; i < block->n_warps; i++)
        begin_warp(&block->warps[i], grid);
    if (!grid->found)
        run(block);
    return grid->found;
}
