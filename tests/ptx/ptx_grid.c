/* Grids: the memory of the one block that runs, and what is kept over all of them. */
#include <stdlib.h>
#include <string.h>

#include "ptx_checks.h"

static void *zeroed(size_t n, size_t bytes)
{
    void *memory = calloc(n ? n : 1, bytes);
    if (!memory)
        abort();
    return memory;
}

static void *aligned(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 128, bytes ? bytes : 128))
        abort();
    return memory;
}

static void put_constants(ptx_warp *warp, const ptx_entry *entry)
{
    for (uint32_t i = 0; i < entry->n_constants; i++) {
        const ptx_constant *c = &entry->constants[i];
        unsigned char *at = warp->registers + c->at;
        const uint32_t word =
            c->letter == 'p' ? 0u - (uint32_t)(c->value != 0) : (uint32_t)c->value;
        if (c->letter == 'p')
            memcpy(at, &word, 4);
        for (uint32_t lane = 0; lane < PTX_LANES && c->letter != 'p'; lane++) {
            if (c->letter == 'x')
                memcpy(at + 8 * lane, &c->value, 8);
            else
                memcpy(at + 4 * lane, &word, 4);
        }
    }
}

static void make_warps(ptx_grid *grid)
{
    ptx_block *block = &grid->block;
    const ptx_entry *entry = grid->entry;
    block->n_warps = (grid->n_threads + PTX_LANES - 1) / PTX_LANES;
    block->warps = aligned(block->n_warps * sizeof *block->warps);
    memset(block->warps, 0, block->n_warps * sizeof *block->warps);
    for (uint32_t i = 0; i < block->n_warps; i++) {
        ptx_warp *warp = &block->warps[i];
        warp->index = i;
        warp->block = block;
        warp->registers = aligned(entry->register_bytes);
        warp->set = zeroed(entry->n_ids, sizeof *warp->set);
        warp->insn = entry->insns;
        put_constants(warp, entry);
    }
}

ptx_grid *ptx_grid_new(ptx_entry *entry, const ptx_world *world, const void *args,
                       uint32_t args_bytes, uint32_t n_blocks, uint32_t n_threads,
                       uint32_t shared_bytes)
{
    ptx_grid *grid = zeroed(1, sizeof *grid);
    grid->entry = entry;
    grid->world = *world;
    grid->args = zeroed(args_bytes, 1);
    grid->args_bytes = args_bytes;
    grid->n_threads = n_threads;
    grid->shared_bytes = shared_bytes;
    grid->block.grid = grid;
    grid->block.shared = aligned(shared_bytes);
    grid->block.shadow = zeroed(shared_bytes, sizeof *grid->block.shadow);
    make_warps(grid);
    ptx_grid_again(grid, world->seed, args, n_blocks);
    return grid;
}

void ptx_grid_again(ptx_grid *grid, uint64_t seed, const void *args, uint32_t n_blocks)
{
    memcpy(grid->args, args, grid->args_bytes);
    grid->n_blocks = n_blocks;
    grid->random = seed;
    grid->found = PTX_FOUND_NOTHING;
    grid->said[0] = 0;
    grid->n_lines = 0;
    if (grid->lines)
        memset(grid->lines, 0, grid->cap_lines * sizeof *grid->lines);
    memset(grid->first, 0, sizeof grid->first);
    memset(grid->end, 0, sizeof grid->end);
}

void ptx_grid_end(ptx_grid *grid)
{
    ptx_stores_flush(grid);
}

const char *ptx_grid_said(const ptx_grid *grid)
{
    return grid->said;
}

void ptx_grid_free(ptx_grid *grid)
{
    if (!grid)
        return;
    for (uint32_t i = 0; i < grid->block.n_warps; i++) {
        free(grid->block.warps[i].registers);
        free(grid->block.warps[i].set);
    }
    free(grid->block.warps);
    free(grid->block.shared);
    free(grid->block.shadow);
    free(grid->block.copies);
    free(grid->lines);
    free(grid->stores);
    free(grid->args);
    free(grid);
}

const char *ptx_finding_name(ptx_finding finding)
{
    static const char *const names[] = {"nothing", "lanes",     "barrier",   "pending",
                                        "race",    "nc",        "alignment", "bounds",
                                        "unset",   "weak word", "undefined", "endless"};
    return names[finding];
}
