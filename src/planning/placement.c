/* Deals whole experts in proportion to bandwidth: full backends first, the rest
 * by largest remainder. */
#include "planning/placement.h"

#include <assert.h>
#include <stdbool.h>

#define MAX_BACKENDS 8u

/* A backend's share of `experts`, among backends with `total` bytes per second together, is whole +
 * part / total. Products of 32 and 64 bits are compared exactly. */
typedef unsigned __int128 wide;

typedef struct open_set {
    bool has[MAX_BACKENDS]; /* not yet full and with bandwidth */
    wide total;             /* sum of their bandwidths */
} open_set;

static void close_backend(open_set *open, const mp_backend *backends, uint32_t k)
{
    open->has[k] = false;
    open->total -= backends[k].bytes_per_s;
}

/* Fills one backend whose share exceeds its capacity; returns the experts it takes, 0 if there is
 * no such backend. */
static uint32_t fill_one(open_set *open, mp_backend *backends, uint32_t n, uint32_t experts)
{
    for (uint32_t k = 0; k < n; k++) {
        wide share = (wide)experts * backends[k].bytes_per_s;
        if (!open->has[k] || share <= backends[k].capacity * open->total)
            continue;
        backends[k].experts = backends[k].capacity;
        close_backend(open, backends, k);
        return backends[k].capacity;
    }
    return 0;
}

/* Deals all of `experts` to the open backends: no share exceeds its backend's capacity, and so
 * neither does a share rounded up. */
static void deal(open_set *open, mp_backend *backends, uint32_t n, uint32_t experts)
{
    wide part[MAX_BACKENDS] = {0};
    uint32_t left = experts;
    for (uint32_t k = 0; k < n; k++) {
        if (!open->has[k])
            continue;
        wide share = (wide)experts * backends[k].bytes_per_s;
        backends[k].experts = (uint32_t)(share / open->total);
        part[k] = share % open->total;
        left -= backends[k].experts;
    }
    for (; left > 0; left--) {
        uint32_t most = 0;
        for (uint32_t k = 1; k < n; k++)
            if (part[k] > part[most])
                most = k;
        assert(part[most] > 0 && backends[most].experts < backends[most].capacity);
        backends[most].experts++;
        part[most] = 0;
    }
}

uint32_t mp_place(mp_backend *backends, uint32_t n, uint32_t experts)
{
    open_set open = {.total = 0};
    assert(n <= MAX_BACKENDS);
    for (uint32_t k = 0; k < n; k++) {
        backends[k].experts = 0;
        open.has[k] = backends[k].bytes_per_s > 0 && backends[k].capacity > 0;
        open.total += open.has[k] ? backends[k].bytes_per_s : 0;
    }
    uint32_t filled;
    while ((filled = fill_one(&open, backends, n, experts)))
        experts -= filled;
    if (open.total == 0)
        return experts;
    deal(&open, backends, n, experts);
    return 0;
}

uint32_t mp_place_decoded(uint64_t decode_bytes_per_s, uint64_t bus_bytes_per_s, uint32_t capacity,
                          uint32_t experts)
{
    if (bus_bytes_per_s >= decode_bytes_per_s)
        return 0;
    uint32_t crossing = (uint32_t)((wide)experts * bus_bytes_per_s / decode_bytes_per_s);
    return experts - crossing < capacity ? experts - crossing : capacity;
}
