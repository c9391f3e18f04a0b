/* Grids: the memory of the one block that runs, and what is kept over all of them. */
#include <stdlib.h>
#include <string.h>

#include "ptx_inside.h"

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
    memset(memory, 0xa5, bytes);
    return memory;
}

static void put_constants(ptx_warp *warp, const ptx_entry *entry)
{
    for (uint32_t i = 0; i < entry->n_constants; i++) {
        const ptx_constant *c = &entry->constants[i];
        unsigned char *at = warp->registers + c->at;
        const uint32_t word = c->letter == 'p' ? 0u - (uint32_t)(c->value != 0) : (uint32_t)c->value;
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

ptx_grid *ptx_grid_new(ptx_entry *entry, const ptx_world *world, const void *args, uint32_t args_bytes,
                       uint32_t n_blocks, uint32_t n_threads, uint32_t shared_bytes)
{
    ptx_grid *grid = zeroed(1, sizeof *grid);
    grid->entry = entry;
    grid->world = *world;
    unsigned char *own = zeroed(args_bytes, 1);
    memcpy(own, args, args_bytes);
    grid->args = own;
    grid->args_bytes = args_bytes;
    grid->n_blocks = n_blocks;
    grid->n_threads = n_threads;
    grid->shared_bytes = shared_bytes;
    grid->random = world->seed;
    grid->block.grid = grid;
    grid->block.shared = aligned(shared_bytes);
    grid->block.shadow = zeroed(shared_bytes, sizeof *grid->block.shadow);
    make_warps(grid);
    return grid;
}

const char *ptx_grid_said(const ptx_grid *grid)
{
    return grid->said;
}

void ptx_grid_free(ptx_grid *grid)
{
    if (!grid)
        return;
    ptx_stores_flush(grid);
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
    free((void *)grid->args);
    free(grid);
}

const char *ptx_finding_name(ptx_finding finding)
{
    static const char *const names[] = {"nothing",   "lanes",  "barrier", "pending",   "race",   "nc",
                                        "alignment", "bounds", "unset",   "weak word", "undefined", "endless"};
    return names[finding];
}
