/* The ring of keys in runs of equal count. */
#include "policy/counts.h"

#include <assert.h>
#include <stddef.h>

#include "policy/ring.h"

#define NO_RUN UINT32_MAX

typedef struct run {
    uint64_t count;
    uint32_t last;      /* last key of the run */
    uint32_t next_free; /* while the run is unused */
} run;

struct mp_counts {
    uint32_t keys; /* also the sentinel's index */
    uint32_t resident;
    run *runs;        /* [keys] */
    mp_link *links;   /* [keys + 1] */
    uint32_t *run_of; /* [keys + 1]; NO_RUN: not resident, or the sentinel */
    uint32_t free_run;
    uint32_t reserved;
};

uint64_t mp_counts_bytes(uint32_t keys)
{
    uint64_t nodes = (uint64_t)keys + 1;
    uint64_t bytes = sizeof(mp_counts) + keys * (uint64_t)sizeof(run) +
                     nodes * (sizeof(mp_link) + sizeof(uint32_t));
    return (bytes + 7) & ~UINT64_C(7);
}

void mp_counts_init(mp_counts *counts, uint32_t keys)
{
    *counts = (mp_counts){.keys = keys, .free_run = keys ? 0 : NO_RUN};
    counts->runs = (run *)(counts + 1);
    counts->links = (mp_link *)(counts->runs + keys);
    counts->run_of = (uint32_t *)(counts->links + keys + 1);
    for (uint32_t key = 0; key < keys; key++) {
        counts->runs[key] = (run){.next_free = key + 1 < keys ? key + 1 : NO_RUN};
        counts->run_of[key] = NO_RUN;
    }
    counts->run_of[keys] = NO_RUN;
    mp_ring_reset(counts->links, keys);
}

static bool is_resident(const mp_counts *counts, uint32_t key)
{
    return key < counts->keys && counts->run_of[key] != NO_RUN;
}

/* Puts `key`, which is in no list, behind `at`. */
static void insert_after(mp_link *links, uint32_t at, uint32_t key)
{
    mp_ring_append(links, links[at].next, key);
}

/* Makes `key` the last of an existing run. */
static void join_run(mp_counts *counts, uint32_t index, uint32_t key)
{
    insert_after(counts->links, counts->runs[index].last, key);
    counts->runs[index].last = key;
    counts->run_of[key] = index;
}

/* Makes `key` a run of its own behind `at`. */
static void start_run(mp_counts *counts, uint32_t at, uint64_t count, uint32_t key)
{
    uint32_t index = counts->free_run;
    assert(index != NO_RUN);
    counts->free_run = counts->runs[index].next_free;
    counts->runs[index] = (run){.count = count, .last = key, .next_free = NO_RUN};
    counts->run_of[key] = index;
    insert_after(counts->links, at, key);
}

static void free_run(mp_counts *counts, uint32_t index)
{
    counts->runs[index].next_free = counts->free_run;
    counts->free_run = index;
}

/* Puts `key` into the run if its count matches; otherwise starts a run behind `at`. */
static void place(mp_counts *counts, uint32_t at, uint32_t index, uint64_t count, uint32_t key)
{
    if (index != NO_RUN && counts->runs[index].count == count)
        join_run(counts, index, key);
    else
        start_run(counts, at, count, key);
}

/* Takes `key` out of its run and the ring; frees the run if it is empty then. */
static void leave_run(mp_counts *counts, uint32_t key)
{
    uint32_t index = counts->run_of[key], before = counts->links[key].prev;
    if (counts->runs[index].last == key) {
        if (counts->run_of[before] == index)
            counts->runs[index].last = before;
        else
            free_run(counts, index);
    }
    mp_ring_unlink(counts->links, key);
    counts->run_of[key] = NO_RUN;
}

void mp_counts_insert(mp_counts *counts, uint32_t key)
{
    assert(key < counts->keys && !is_resident(counts, key));
    place(counts, counts->keys, counts->run_of[counts->links[counts->keys].next], 1, key);
    counts->resident++;
}

void mp_counts_use(mp_counts *counts, uint32_t key)
{
    assert(is_resident(counts, key));
    const run *own = &counts->runs[counts->run_of[key]];
    uint64_t count = own->count + 1;
    uint32_t next_run = counts->run_of[counts->links[own->last].next];
    uint32_t at = own->last == key ? counts->links[key].prev : own->last;
    leave_run(counts, key);
    place(counts, at, next_run, count, key);
}

void mp_counts_remove(mp_counts *counts, uint32_t key)
{
    assert(is_resident(counts, key));
    leave_run(counts, key);
    counts->resident--;
}

/* Merges the following run into this one. */
static void absorb(mp_counts *counts, uint32_t into, uint32_t index)
{
    uint32_t last = counts->runs[index].last;
    for (uint32_t key = counts->links[counts->runs[into].last].next;;
         key = counts->links[key].next) {
        counts->run_of[key] = into;
        if (key == last)
            break;
    }
    counts->runs[into].last = last;
    free_run(counts, index);
}

void mp_counts_halve(mp_counts *counts)
{
    uint32_t before = NO_RUN;
    uint32_t key = counts->links[counts->keys].next;
    while (key != counts->keys) {
        uint32_t index = counts->run_of[key];
        run *this = &counts->runs[index];
        key = counts->links[this->last].next;
        this->count -= this->count / 2;
        if (before != NO_RUN && counts->runs[before].count == this->count)
            absorb(counts, before, index);
        else
            before = index;
    }
}

uint32_t mp_counts_resident(const mp_counts *counts)
{
    return counts->resident;
}

uint32_t mp_counts_victim(const mp_counts *counts, mp_may_evict_fn may_evict, void *ctx)
{
    const mp_link *links = counts->links;
    for (uint32_t key = links[counts->keys].next; key != counts->keys; key = links[key].next)
        if (may_evict(ctx, key))
            return key;
    return MP_NO_KEY;
}
