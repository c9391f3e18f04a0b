/* What is kept of memory beside its bytes: who has accessed a byte of shared memory since which barrier,
 * what cp.async still owes, which bytes of global memory the grid reads as constant, writes, and
 * accesses with .sys order. */
#include <stdlib.h>
#include <string.h>

#include "ptx_checks.h"
#include "ptx_names.h"

/* ---- Shared memory ---- */

/* Readers of a byte: a thread and 1; a warp, several of whose lanes have; or several warps. */
#define NOBODY 0u
#define OF_WARP 0x8000u
#define MANY 0xffffu

static uint32_t warp_of(uint32_t who)
{
    return who & OF_WARP ? who & 0xff : (who - 1) / PTX_LANES;
}

/* Whether an access by `who` since the last barriers is another thread's, and not ordered before this. */
static bool clashes(const ptx_warp *warp, uint32_t me, uint32_t who, uint32_t epoch,
                    uint32_t warp_epoch)
{
    if (who == NOBODY || who == me || epoch != warp->block->epoch)
        return false;
    return who == MANY || warp_of(who) != warp->index || warp_epoch == warp->epoch;
}

static uint32_t me_of(const ptx_warp *warp, uint32_t lane)
{
    return warp->index * PTX_LANES + lane + 1;
}

static void race(ptx_warp *warp, uint32_t lane, uint32_t at, const char *what, uint32_t who)
{
    if (who == MANY || who & OF_WARP)
        ptx_find(warp, lane, PTX_FOUND_RACE, "byte %u of shared memory, %s by others", at, what);
    else
        ptx_find(warp, lane, PTX_FOUND_RACE, "byte %u of shared memory, %s by thread %u", at, what,
                 who - 1);
}

static bool pending(ptx_warp *warp, uint32_t lane, uint32_t at)
{
    if (!warp->block->shadow[at].pending)
        return false;
    ptx_find(warp, lane, PTX_FOUND_PENDING, "byte %u of shared memory waits for cp.async", at);
    return true;
}

static void note_reader(const ptx_warp *warp, ptx_shadow *s, uint32_t me)
{
    const bool now = s->reader != NOBODY && s->read_epoch == warp->block->epoch;
    if (!now || s->reader == me)
        s->reader = (uint16_t)me;
    else if (s->reader == MANY || warp_of(s->reader) != warp->index)
        s->reader = MANY;
    else
        s->reader =
            s->read_warp_epoch == warp->epoch ? (uint16_t)(OF_WARP | warp->index) : (uint16_t)me;
    s->read_epoch = warp->block->epoch;
    s->read_warp_epoch = warp->epoch;
}

void ptx_shared_read(ptx_warp *warp, uint32_t lane, uint32_t at, uint32_t bytes)
{
    const uint32_t me = me_of(warp, lane);
    for (uint32_t i = at; i < at + bytes; i++) {
        ptx_shadow *s = &warp->block->shadow[i];
        if (pending(warp, lane, i))
            return;
        if (clashes(warp, me, s->writer, s->write_epoch, s->write_warp_epoch)) {
            race(warp, lane, i, "written", s->writer);
            return;
        }
        note_reader(warp, s, me);
    }
}

/* Threads may write a byte that others write too, if all write the same: `value`; NULL: not known. Readers
 * may not be about. */
static bool may_write(ptx_warp *warp, uint32_t lane, uint32_t i, bool atomic,
                      const unsigned char *value)
{
    const ptx_shadow *s = &warp->block->shadow[i];
    const uint32_t me = me_of(warp, lane);
    if (pending(warp, lane, i))
        return false;
    const bool same =
        (atomic && s->atomic) || (value && !s->atomic && *value == warp->block->shared[i]);
    if (!same && clashes(warp, me, s->writer, s->write_epoch, s->write_warp_epoch)) {
        race(warp, lane, i, "written", s->writer);
        return false;
    }
    if (clashes(warp, me, s->reader, s->read_epoch, s->read_warp_epoch)) {
        race(warp, lane, i, "read", s->reader);
        return false;
    }
    return true;
}

void ptx_shared_write(ptx_warp *warp, uint32_t lane, uint32_t at, uint32_t bytes, const void *value,
                      bool atomic)
{
    const unsigned char *byte = value;
    for (uint32_t i = at; i < at + bytes; i++) {
        ptx_shadow *s = &warp->block->shadow[i];
        if (!may_write(warp, lane, i, atomic, byte ? byte++ : NULL))
            return;
        s->writer = (uint16_t)me_of(warp, lane);
        s->atomic = atomic;
        s->write_epoch = warp->block->epoch;
        s->write_warp_epoch = warp->epoch;
    }
}

void ptx_copy_begin(ptx_warp *warp, uint32_t lane, const ptx_copy *copy)
{
    ptx_block *block = warp->block;
    ptx_shared_write(warp, lane, copy->to, copy->bytes, NULL, false);
    for (uint32_t i = copy->to; i < copy->to + copy->bytes; i++) {
        block->shadow[i].pending = true;
        block->shared[i] = 0xdb;
    }
    block->copies =
        ptx_more(block->copies, block->n_copies, &block->cap_copies, sizeof *block->copies);
    block->copies[block->n_copies++] = *copy;
}

/* The bytes are read as late as they may be, and count as written now. */
static void deliver(ptx_warp *warp, uint32_t lane, const ptx_copy *copy)
{
    ptx_block *block = warp->block;
    memset(block->shared + copy->to, 0, copy->bytes);
    memcpy(block->shared + copy->to, (const void *)copy->from, copy->read);
    for (uint32_t i = copy->to; i < copy->to + copy->bytes; i++)
        block->shadow[i].pending = false;
    ptx_shared_write(warp, lane, copy->to, copy->bytes, NULL, false);
}

void ptx_copy_wait(ptx_warp *warp, uint32_t lane)
{
    ptx_block *block = warp->block;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < block->n_copies; i++) {
        const ptx_copy copy = block->copies[i];
        if (copy.thread == warp->index * PTX_LANES + lane)
            deliver(warp, lane, &copy);
        else
            block->copies[kept++] = copy;
    }
    block->n_copies = kept;
}

/* ---- Global memory ---- */

static ptx_line *line_in(ptx_line *lines, uint32_t cap, uint64_t at)
{
    uint64_t hash = at / 64 * 0x9e3779b97f4a7c15u >> 32;
    for (;; hash++) {
        ptx_line *line = &lines[hash & (cap - 1)];
        if (!line->at || line->at == at)
            return line;
    }
}

static void grow(ptx_grid *grid)
{
    const uint32_t cap = grid->cap_lines ? 2 * grid->cap_lines : 1024;
    ptx_line *lines = calloc(cap, sizeof *lines);
    if (!lines)
        abort();
    for (uint32_t i = 0; i < grid->cap_lines; i++) {
        if (grid->lines[i].at)
            *line_in(lines, cap, grid->lines[i].at) = grid->lines[i];
    }
    free(grid->lines);
    grid->lines = lines;
    grid->cap_lines = cap;
}

static ptx_line *line_of(ptx_grid *grid, uint64_t at)
{
    if (2 * grid->n_lines >= grid->cap_lines)
        grow(grid);
    ptx_line *line = line_in(grid->lines, grid->cap_lines, at & ~63ull);
    grid->n_lines += !line->at;
    line->at = at & ~63ull;
    return line;
}

static void note(ptx_line *line, uint64_t bits, ptx_touch kind)
{
    if (kind & PTX_WRITES)
        line->written |= bits;
    if (kind & PTX_READS_CONSTANT)
        line->constant |= bits;
    if (kind & PTX_STRONG)
        line->strong |= bits;
    else
        line->weak |= bits;
}

void ptx_global_touch(ptx_warp *warp, uint32_t lane, uint64_t at, uint32_t bytes, ptx_touch kind)
{
    const ptx_entry *entry = warp->block->grid->entry;
    if (!entry->talks && (!entry->constant || kind == PTX_READS))
        return; /* nothing that it could clash with */
    ptx_line *line = line_of(warp->block->grid, at);
    const uint64_t bits = (~0ull >> (64 - bytes)) << at % 64;
    note(line, bits, kind);
    if (line->written & line->constant & bits)
        ptx_find(warp, lane, PTX_FOUND_NC, "%#llx is written, and read as constant",
                 (unsigned long long)at);
    if (line->strong & line->weak & bits)
        ptx_find(warp, lane, PTX_FOUND_WEAK, "%#llx is accessed with .sys order, and without",
                 (unsigned long long)at);
}
