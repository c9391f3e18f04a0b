/* Lists, searched and shifted. */
#include <string.h>

#include "testing.h"

#include "naive_cache.h"

/* ---- Lists ----------------------------------------------------------------------------------- */

static uint32_t find(const naive_list *list, uint32_t key)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (list->keys[i] == key)
            return i;
    return NAIVE_NONE;
}

static bool has(const naive_list *list, uint32_t key)
{
    return find(list, key) != NAIVE_NONE;
}

static void put_at(naive_list *list, uint32_t at, uint32_t key)
{
    memmove(list->keys + at + 1, list->keys + at, (list->n - at) * sizeof *list->keys);
    list->keys[at] = key;
    list->n++;
}

static void put_last(naive_list *list, uint32_t key)
{
    list->keys[list->n++] = key;
}

static void drop(naive_list *list, uint32_t key)
{
    uint32_t at = find(list, key);
    if (at == NAIVE_NONE)
        return;
    list->n--;
    memmove(list->keys + at, list->keys + at + 1, (list->n - at) * sizeof *list->keys);
}

static uint32_t first_not_refused(const naive_cache *c, const naive_list *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (!c->refused[list->keys[i]])
            return list->keys[i];
    return NAIVE_NONE;
}

/* ---- LRU, LFU, MIN, cycle -------------------------------------------------------------------- */

static uint32_t least_often(const naive_cache *c)
{
    uint32_t best = NAIVE_NONE;
    for (uint32_t i = 0; i < c->lists[0].n; i++) {
        uint32_t key = c->lists[0].keys[i];
        if (!c->refused[key] && (best == NAIVE_NONE || c->count[key] < c->count[best]))
            best = key; /* of equals the one used earlier */
    }
    return best;
}

/* The highest 1/(p freq); of equals the one used earlier. */
static uint32_t least_likely(const naive_cache *c)
{
    uint32_t best = NAIVE_NONE;
    for (uint32_t i = 0; i < c->lists[0].n; i++) {
        uint32_t key = c->lists[0].keys[i];
        if (c->refused[key])
            continue;
        double priority = 1 / ((double)c->p[key] * (double)c->count[key]);
        if (best == NAIVE_NONE || priority > 1 / ((double)c->p[best] * (double)c->count[best]))
            best = key;
    }
    return best;
}

static uint32_t farthest(const naive_cache *c)
{
    uint32_t best = NAIVE_NONE;
    for (uint32_t i = 0; i < c->lists[0].n; i++) {
        uint32_t key = c->lists[0].keys[i];
        if (!c->refused[key] && (best == NAIVE_NONE || c->next_use[key] > c->next_use[best]))
            best = key;
    }
    return best;
}

static uint32_t worth_least(naive_cache *c)
{
    bool may_go[NAIVE_KEYS];
    for (uint32_t key = 0; key < c->keys; key++)
        may_go[key] = c->here[key] && !c->refused[key];
    c->cycle.resident = c->resident;
    uint32_t key = naive_cycle_victim(&c->cycle, may_go);
    return key < c->keys ? key : NAIVE_NONE;
}

/* ---- LFU with ageing ------------------------------------------------------------------------- */

/* Behind all others that were not used more often; then, when keys have had two uses on average,
 * all counts are halved. */
static void rank(naive_cache *c, uint32_t key)
{
    naive_list *list = &c->lists[0];
    uint32_t at = 0;
    while (at < list->n && c->count[list->keys[at]] <= c->count[key])
        at++;
    put_at(list, at, key);
    if (++c->uses >= 2 * (uint64_t)list->n) {
        for (uint32_t i = 0; i < list->n; i++)
            c->count[list->keys[i]] = (c->count[list->keys[i]] + 1) / 2;
        c->uses = 0;
    }
}

/* ---- SIEVE ----------------------------------------------------------------------------------- */

static uint32_t sieve(naive_cache *c)
{
    const naive_list *list = &c->lists[0];
    if (first_not_refused(c, list) == NAIVE_NONE)
        return NAIVE_NONE;
    uint32_t at = c->hand == NAIVE_NONE ? 0 : find(list, c->hand);
    while (c->refused[list->keys[at]] || c->count[list->keys[at]] > 0) {
        if (!c->refused[list->keys[at]])
            c->count[list->keys[at]] = 0;
        at = (at + 1) % list->n;
    }
    c->hand = list->keys[at];
    return c->hand;
}

static void sieve_leaves(naive_cache *c, uint32_t key)
{
    const naive_list *list = &c->lists[0];
    uint32_t at = find(list, key);
    if (c->hand == key)
        c->hand = at + 1 < list->n ? list->keys[at + 1] : NAIVE_NONE;
}

/* ---- S3-FIFO --------------------------------------------------------------------------------- */

static bool small_is_full(const naive_cache *c)
{
    uint32_t small = c->lists[0].n, main = c->lists[1].n;
    return small > 0 && (double)small >= 0.1 * (double)(small + main) - 1e-9;
}

/* One step with small's oldest; NAIVE_NONE where it went over to main. */
static uint32_t try_small(naive_cache *c)
{
    uint32_t key = first_not_refused(c, &c->lists[0]);
    if (c->count[key] <= 1)
        return key;
    drop(&c->lists[0], key);
    put_last(&c->lists[1], key);
    c->count[key] = 0;
    return NAIVE_NONE;
}

static uint32_t from_main(naive_cache *c)
{
    for (;;) {
        uint32_t key = first_not_refused(c, &c->lists[1]);
        if (key == NAIVE_NONE || c->count[key] == 0)
            return key;
        c->count[key]--;
        drop(&c->lists[1], key);
        put_last(&c->lists[1], key);
    }
}

static uint32_t s3_fifo(naive_cache *c)
{
    uint32_t key = NAIVE_NONE;
    while (key == NAIVE_NONE && small_is_full(c) &&
           first_not_refused(c, &c->lists[0]) != NAIVE_NONE)
        key = try_small(c);
    if (key == NAIVE_NONE)
        key = from_main(c);
    while (key == NAIVE_NONE && first_not_refused(c, &c->lists[0]) != NAIVE_NONE)
        key = try_small(c);
    return key != NAIVE_NONE ? key : from_main(c);
}

static void s3_leaves(naive_cache *c, uint32_t key)
{
    uint32_t ghosts = c->resident * 9 / 10;
    if (has(&c->lists[0], key))
        put_last(&c->lists[2], key);
    drop(&c->lists[0], key);
    drop(&c->lists[1], key);
    while (c->lists[2].n > ghosts)
        drop(&c->lists[2], c->lists[2].keys[0]);
}

/* ---- LIRS ------------------------------------------------------------------------------------ */

static uint32_t count_low(const naive_cache *c)
{
    uint32_t n = 0;
    for (uint32_t key = 0; key < c->keys; key++)
        n += c->low[key];
    return n;
}

static uint32_t most_low(const naive_cache *c)
{
    uint32_t share = c->resident / 100;
    return c->resident - (share == 0 ? 1 : share);
}

static void prune(naive_cache *c)
{
    naive_list *stack = &c->lists[0];
    while (stack->n > 0 && !c->low[stack->keys[0]])
        drop(stack, stack->keys[0]);
}

static void bottom_to_queue(naive_cache *c)
{
    uint32_t key = c->lists[0].keys[0];
    drop(&c->lists[0], key);
    c->low[key] = false;
    put_last(&c->lists[1], key);
    prune(c);
}

/* A key is used that is resident, or, if it is new, has just become so. */
static void lirs_use(naive_cache *c, uint32_t key, bool is_new)
{
    naive_list *stack = &c->lists[0], *queue = &c->lists[1];
    bool was_low = c->low[key];
    bool becomes_low = has(stack, key) || count_low(c) == 0 || (is_new && !c->something_left);
    drop(stack, key);
    put_last(stack, key);
    if (was_low) {
        prune(c);
        return;
    }
    drop(queue, key);
    if (!becomes_low) {
        put_last(queue, key);
        return;
    }
    c->low[key] = true;
    if (c->something_left && count_low(c) > 1 && count_low(c) > most_low(c))
        bottom_to_queue(c);
}

static uint32_t lirs(naive_cache *c)
{
    bool empty = c->lists[1].n == 0;
    while (empty && count_low(c) > 0 && count_low(c) > most_low(c))
        bottom_to_queue(c);
    uint32_t key = first_not_refused(c, &c->lists[1]);
    for (uint32_t i = 0; i < c->lists[0].n && key == NAIVE_NONE; i++)
        if (c->low[c->lists[0].keys[i]] && !c->refused[c->lists[0].keys[i]])
            key = c->lists[0].keys[i];
    return key;
}

static void lirs_leaves(naive_cache *c, uint32_t key)
{
    c->something_left = true;
    c->low[key] = false;
    drop(&c->lists[1], key);
    prune(c);
}

/* ---- All ------------------------------------------------------------------------------------- */

void naive_open(naive_cache *c, const char *policy, uint32_t keys, uint32_t experts)
{
    static const char *const names[] = {"lru",  "lfu",     "lfu-aged", "sieve", "s3fifo",
                                        "lirs", "finemoe", "cycle",    "belady"};
    memset(c, 0, offsetof(naive_cache, cycle));
    assert_true(keys < NAIVE_KEYS);
    c->keys = keys;
    c->hand = NAIVE_NONE;
    while (strcmp(names[c->kind], policy) != 0)
        if (c->kind++ == NAIVE_BELADY)
            fail_msg("no model of %s", policy);
    for (uint32_t key = 0; key < keys; key++)
        c->p[key] = 1.0f / (float)experts;
    if (c->kind == NAIVE_CYCLE)
        naive_cycle_open(&c->cycle, keys, experts);
}

void naive_cache_route(naive_cache *c, const uint32_t *set, uint32_t n)
{
    c->cycle.resident = c->resident;
    if (c->kind == NAIVE_CYCLE)
        naive_cycle_route(&c->cycle, set, n);
}

void naive_insert(naive_cache *c, uint32_t key)
{
    c->here[key] = true;
    c->resident++;
    c->count[key] = c->kind == NAIVE_LFU || c->kind == NAIVE_LFU_AGED || c->kind == NAIVE_FINEMOE;
    if (c->kind == NAIVE_LFU_AGED) {
        rank(c, key);
    } else if (c->kind == NAIVE_S3FIFO) {
        put_last(&c->lists[has(&c->lists[2], key)], key);
        drop(&c->lists[2], key);
    } else if (c->kind == NAIVE_LIRS) {
        lirs_use(c, key, true);
    } else {
        put_last(&c->lists[0], key);
    }
}

void naive_touch(naive_cache *c, uint32_t key)
{
    c->count[key]++;
    if (c->kind == NAIVE_S3FIFO && c->count[key] > 3)
        c->count[key] = 3;
    if (c->kind == NAIVE_LRU || c->kind == NAIVE_LFU || c->kind == NAIVE_FINEMOE) {
        drop(&c->lists[0], key);
        put_last(&c->lists[0], key);
    } else if (c->kind == NAIVE_LFU_AGED) {
        drop(&c->lists[0], key);
        rank(c, key);
    } else if (c->kind == NAIVE_LIRS) {
        lirs_use(c, key, false);
    }
}

void naive_remove(naive_cache *c, uint32_t key)
{
    if (c->kind == NAIVE_SIEVE)
        sieve_leaves(c, key);
    if (c->kind == NAIVE_S3FIFO)
        s3_leaves(c, key);
    else if (c->kind == NAIVE_LIRS)
        lirs_leaves(c, key);
    else
        drop(&c->lists[0], key);
    c->here[key] = false;
    c->resident--;
}

uint32_t naive_victim(naive_cache *c)
{
    switch (c->kind) {
    case NAIVE_LFU: return least_often(c);
    case NAIVE_SIEVE: return sieve(c);
    case NAIVE_S3FIFO: return s3_fifo(c);
    case NAIVE_LIRS: return lirs(c);
    case NAIVE_FINEMOE: return least_likely(c);
    case NAIVE_CYCLE: return worth_least(c);
    case NAIVE_BELADY: return farthest(c);
    default: return first_not_refused(c, &c->lists[0]);
    }
}

uint32_t naive_serve(naive_cache *c, uint32_t capacity, const uint32_t *set, uint32_t n,
                     uint32_t *victims, uint32_t *n_victims)
{
    bool was_refused[NAIVE_KEYS];
    uint32_t misses = 0;
    *n_victims = 0;
    for (uint32_t i = 0; i < n; i++) {
        misses += !c->here[set[i]];
        was_refused[i] = c->refused[set[i]];
        c->refused[set[i]] = true;
    }
    naive_cache_route(c, set, n);
    while (c->resident + misses > capacity) {
        uint32_t key = naive_victim(c);
        assert_int_not_equal(key, NAIVE_NONE);
        naive_remove(c, key);
        victims[(*n_victims)++] = key;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (c->here[set[i]])
            naive_touch(c, set[i]);
        else
            naive_insert(c, set[i]);
        c->refused[set[i]] = was_refused[i];
    }
    return misses;
}
