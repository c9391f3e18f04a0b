/* Stores to memory that the host looks at while a grid runs. One that no fence orders may become visible
 * late: it waits here, where the grid's own loads find it, for a fence or a release behind it, or for the
 * end. Which may happen earlier, a seed draws. */
#include <string.h>

#include "ptx_names.h"

struct ptx_store {
    uint64_t at;
    uint32_t bytes, thread, epoch;
    unsigned char value[16];
};

static void write_out(const ptx_store *store)
{
    if (store->bytes == 4) {
        uint32_t word;
        memcpy(&word, store->value, 4);
        __atomic_store_n((uint32_t *)store->at, word, __ATOMIC_RELEASE);
    } else if (store->bytes == 8) {
        uint64_t word;
        memcpy(&word, store->value, 8);
        __atomic_store_n((uint64_t *)store->at, word, __ATOMIC_RELEASE);
    } else
        ptx_copy_bytes((void *)store->at, store->value, store->bytes);
}

void ptx_stores_flush(ptx_grid *grid)
{
    for (uint32_t i = 0; i < grid->n_stores; i++)
        write_out(&grid->stores[i]);
    grid->n_stores = 0;
}

/* What a thread's fence orders: its own stores, and those that a barrier has shown it. */
void ptx_stores_fence(ptx_warp *warp, uint32_t lane)
{
    ptx_grid *grid = warp->block->grid;
    const uint32_t thread = warp->index * PTX_LANES + lane;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < grid->n_stores; i++) {
        if (grid->stores[i].thread == thread || grid->stores[i].epoch != warp->block->epoch)
            write_out(&grid->stores[i]);
        else
            grid->stores[kept++] = grid->stores[i];
    }
    grid->n_stores = kept;
}

static bool overlap(const ptx_store *store, uint64_t at, uint32_t bytes)
{
    return store->at < at + bytes && at < store->at + store->bytes;
}

/* Stores to the same bytes stay in order. */
static void write_overlapping(ptx_grid *grid, uint64_t at, uint32_t bytes)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < grid->n_stores; i++) {
        if (overlap(&grid->stores[i], at, bytes))
            write_out(&grid->stores[i]);
        else
            grid->stores[kept++] = grid->stores[i];
    }
    grid->n_stores = kept;
}

void ptx_store_global(ptx_warp *warp, uint32_t lane, uint64_t at, const void *value, uint32_t bytes,
                      ptx_order order)
{
    ptx_grid *grid = warp->block->grid;
    const ptx_world *world = &grid->world;
    ptx_store store = {.at = at,
                       .bytes = bytes,
                       .thread = warp->index * PTX_LANES + lane,
                       .epoch = warp->block->epoch};
    ptx_copy_bytes(store.value, value, bytes);
    if (grid->n_stores)
        write_overlapping(grid, at, bytes);
    if (order == PTX_RELEASE)
        ptx_stores_fence(warp, lane);
    const bool late = order != PTX_RELEASE && grid->entry->talks && world->shows &&
                      world->shows(world->user, at) && ptx_random(&grid->random) % 4;
    if (!late) {
        write_out(&store);
        return;
    }
    grid->stores = ptx_more(grid->stores, grid->n_stores, &grid->cap_stores, sizeof *grid->stores);
    grid->stores[grid->n_stores++] = store;
}

void ptx_load_global(ptx_warp *warp, uint32_t lane, uint64_t at, void *value, uint32_t bytes,
                     ptx_order order)
{
    ptx_grid *grid = warp->block->grid;
    (void)lane;
    if (order && bytes == 4) {
        const uint32_t word = __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
        memcpy(value, &word, 4);
    } else
        ptx_copy_bytes(value, (const void *)at, bytes);
    for (uint32_t i = 0; i < grid->n_stores; i++) {
        const ptx_store *store = &grid->stores[i];
        for (uint32_t b = 0; overlap(store, at, bytes) && b < store->bytes; b++) {
            if (store->at + b >= at && store->at + b < at + bytes)
                ((unsigned char *)value)[store->at + b - at] = store->value[b];
        }
    }
}
