/* The host tier against a naive cache: a list of experts in order of use. First with every
 * interleaving of calls and reads in the test's hands, then with real I/O threads and several loads
 * at once. Reads fail and are refused on the way. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cold_rig.h"
#include "testing.h"

/* ---- The naive cache -------------------------------------------------------------------- */

typedef enum item_state { ITEM_READING, ITEM_LANDED, ITEM_VALID, ITEM_FAILED } item_state;

typedef struct item {
    uint32_t key, entry, users, lane;
    item_state state;
    bool fails; /* READING, LANDED: the read will have failed, or has */
    bool refused;
} item;

/* VALID items are in order of use, oldest first, the others in order of their fetches. */
typedef struct naive {
    item items[COLD_RIG_KEYS];
    uint32_t n, capacity;
    uint64_t hits, reads, ended;
} naive;

static uint32_t index_of(const naive *cache, uint32_t key)
{
    for (uint32_t i = 0; i < cache->n; i++)
        if (cache->items[i].key == key && cache->items[i].state != ITEM_FAILED)
            return i;
    return UINT32_MAX;
}

static void erase(naive *cache, uint32_t i)
{
    cache->n--;
    memmove(&cache->items[i], &cache->items[i + 1], (cache->n - i) * sizeof *cache->items);
}

static void make_newest(naive *cache, uint32_t i)
{
    item moved = cache->items[i];
    erase(cache, i);
    cache->items[cache->n++] = moved;
}

static void naive_settle(naive *cache, uint32_t i)
{
    item *at = &cache->items[i];
    if (at->state != ITEM_LANDED)
        return;
    cache->ended += !at->refused && !at->fails;
    at->state = at->fails ? ITEM_FAILED : ITEM_VALID;
    if (at->state == ITEM_VALID)
        make_newest(cache, i);
    else if (at->users == 0)
        erase(cache, i);
}

static bool naive_find(naive *cache, uint32_t key)
{
    uint32_t i = index_of(cache, key);
    if (i == UINT32_MAX)
        return false;
    naive_settle(cache, i);
    i = index_of(cache, key);
    if (i == UINT32_MAX)
        return false;
    if (cache->items[i].state == ITEM_VALID)
        make_newest(cache, i);
    cache->hits++;
    return true;
}

static uint32_t first_landed_of(const naive *cache, uint32_t lane)
{
    for (uint32_t i = 0; i < cache->n; i++)
        if (cache->items[i].lane == lane && cache->items[i].state <= ITEM_LANDED)
            return cache->items[i].state == ITEM_LANDED ? i : UINT32_MAX;
    return UINT32_MAX;
}

/* Room for one more; false when there is none. */
static bool naive_make_room(naive *cache, uint32_t lanes)
{
    if (cache->n < cache->capacity)
        return true;
    for (uint32_t lane = 0; lane < lanes; lane++)
        for (uint32_t i; (i = first_landed_of(cache, lane)) != UINT32_MAX;)
            naive_settle(cache, i);
    for (uint32_t i = 0; i < cache->n && cache->n == cache->capacity; i++)
        if (cache->items[i].state == ITEM_VALID && cache->items[i].users == 0)
            erase(cache, i);
    return cache->n < cache->capacity;
}

/* ---- One history ------------------------------------------------------------------------ */

typedef struct history {
    cold_rig rig;
    mp_host_tier *tier;
    naive cache;
    uint64_t random;
} history;

static const mp_entry_state state_of_item[] = {
    [ITEM_READING] = MP_ENTRY_READING,
    [ITEM_LANDED] = MP_ENTRY_READING,
    [ITEM_VALID] = MP_ENTRY_VALID,
    [ITEM_FAILED] = MP_ENTRY_FAILED,
};

static void check_item(const history *h, const item *at)
{
    const mp_host_entry *entry = &h->tier->entries[at->entry];
    assert_int_equal(entry->key, at->key);
    assert_int_equal(entry->users, at->users);
    assert_int_equal(entry->state, state_of_item[at->state]);
    assert_int_equal(mp_host_tier_landed(h->tier, at->entry), at->state != ITEM_READING);
    if (at->state == ITEM_FAILED)
        assert_int_equal(atomic_load(&entry->result),
                         at->refused ? MOEPAGE_E_DEVICE : MOEPAGE_E_CALLBACK);
    if (at->state == ITEM_VALID)
        assert_true(
            cold_rig_matches(&h->rig.bank, at->key, mp_host_tier_image(h->tier, at->entry)));
}

static void check(const history *h)
{
    uint32_t valid = h->tier->links[h->tier->valid].next, n_valid = 0;
    for (uint32_t i = 0; i < h->cache.n; i++) {
        const item *at = &h->cache.items[i];
        check_item(h, at);
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(at->entry, h->cache.items[j].entry);
        if (at->state == ITEM_VALID) {
            assert_int_equal(valid, at->entry);
            valid = h->tier->links[valid].next;
            n_valid++;
        }
    }
    assert_int_equal(valid, h->tier->valid);
    assert_int_equal(h->tier->n_valid, n_valid);
    assert_int_equal(h->tier->n_empty, h->cache.capacity - h->cache.n);
    assert_int_equal(h->tier->hits, h->cache.hits);
    assert_int_equal(h->tier->reads, h->cache.reads);
    assert_true(h->tier->cold_bytes >= h->cache.ended * h->rig.bank.expert_bytes);
    for (uint32_t key = 0; key < COLD_RIG_KEYS; key++)
        assert_true((h->tier->entry_of[key] == MP_NO_ENTRY) ==
                    (index_of(&h->cache, key) == UINT32_MAX));
}

static uint32_t under_way(const naive *cache, uint32_t lane)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cache->n; i++)
        n += cache->items[i].lane == lane && cache->items[i].state == ITEM_READING;
    return n;
}

static void try_fetch(history *h, uint32_t key)
{
    naive *cache = &h->cache;
    bool refused = bank_below(&h->random, 8) == 0;
    bool fits = naive_make_room(cache, h->tier->n_lanes);
    h->rig.refuse_in = refused;
    uint32_t entry = mp_host_tier_fetch(h->tier, key, false);
    h->rig.refuse_in = 0;
    assert_int_equal(fits, entry != MP_NO_ENTRY);
    if (!fits)
        return;
    item fetched = {.key = key,
                    .entry = entry,
                    .lane = h->tier->entries[entry].lane,
                    .state = refused ? ITEM_LANDED : ITEM_READING,
                    .fails = refused,
                    .refused = refused};
    for (uint32_t lane = 0; lane < h->tier->n_lanes; lane++)
        assert_true(under_way(cache, fetched.lane) <= under_way(cache, lane));
    cache->items[cache->n++] = fetched;
    cache->reads += !refused;
}

static void find_or_fetch(history *h)
{
    uint32_t key = bank_below(&h->random, COLD_RIG_KEYS);
    bool there = naive_find(&h->cache, key);
    uint32_t entry = mp_host_tier_find(h->tier, key);
    assert_int_equal(there, entry != MP_NO_ENTRY);
    if (there)
        assert_int_equal(entry, h->cache.items[index_of(&h->cache, key)].entry);
    else if (bank_below(&h->random, 4))
        try_fetch(h, key);
}

static void use_or_let_go(history *h)
{
    if (h->cache.n == 0)
        return;
    uint32_t i = bank_below(&h->random, h->cache.n);
    item *at = &h->cache.items[i];
    if (at->state != ITEM_FAILED && at->users < 2 && bank_below(&h->random, 2)) {
        mp_host_tier_use(h->tier, at->entry);
        at->users++;
    } else if (at->users > 0) {
        mp_host_tier_let_go(h->tier, at->entry);
        if (--at->users == 0 && at->state == ITEM_FAILED)
            erase(&h->cache, i);
    }
}

static void land_one(history *h)
{
    naive *cache = &h->cache;
    uint32_t lane = bank_below(&h->random, h->tier->n_lanes), i = 0;
    while (i < cache->n && !(cache->items[i].lane == lane && cache->items[i].state == ITEM_READING))
        i++;
    bool fails = bank_below(&h->random, 6) == 0;
    atomic_store(&h->rig.bank.fail_call, fails);
    assert_int_equal(cold_rig_land(h->tier, lane), i < cache->n);
    atomic_store(&h->rig.bank.fail_call, 0);
    if (i < cache->n) {
        cache->items[i].state = ITEM_LANDED;
        cache->items[i].fails = fails;
    }
}

static void settle_one(history *h)
{
    if (h->cache.n == 0)
        return;
    uint32_t i = bank_below(&h->random, h->cache.n);
    mp_host_tier_settle(h->tier, h->cache.items[i].entry);
    naive_settle(&h->cache, i);
}

static void run_history(uint64_t seed, uint32_t steps)
{
    history *h = calloc(1, sizeof *h);
    assert_non_null(h);
    h->random = seed;
    cold_rig_open(&h->rig, 1 + bank_below(&h->random, 4));
    h->cache.capacity = 1 + bank_below(&h->random, COLD_RIG_KEYS);
    h->tier = cold_rig_tier(&h->rig, h->cache.capacity);
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t what = bank_below(&h->random, 10);
        if (what < 4)
            find_or_fetch(h);
        else if (what < 6)
            use_or_let_go(h);
        else if (what < 9)
            land_one(h);
        else
            settle_one(h);
        check(h);
    }
    mp_host_tier_destroy(h->tier);
    cold_rig_close(&h->rig);
    free(h);
}

static void test_host_tier_behaves_like_a_list_in_order_of_use(void **state)
{
    (void)state;
    uint32_t histories = getenv("MP_TEST_LONG") ? 4000 : 200;
    for (uint32_t seed = 1; seed <= histories; seed++)
        run_history(seed, 400);
}

/* ---- Real threads ----------------------------------------------------------------------- */

enum { LOADERS = 3, LAYERS = 4, EXPERTS = 8, KEYS = LAYERS * EXPERTS, ENTRIES = 6 };

typedef struct world {
    bank_model bank;
    mp_host_tier *tier;
    pthread_mutex_t lock; /* stands for the pool's */
    uint32_t rounds;
    _Atomic uint32_t loaded, failed, wrong;
    _Atomic uint64_t seed;
} world;

/* Finds or fetches an expert and uses its entry. All entries are never in use at once. */
static uint32_t begin_load(world *w, uint32_t key)
{
    for (;;) {
        pthread_mutex_lock(&w->lock);
        uint32_t entry = mp_host_tier_find(w->tier, key);
        if (entry == MP_NO_ENTRY)
            entry = mp_host_tier_fetch(w->tier, key, false);
        if (entry != MP_NO_ENTRY)
            mp_host_tier_use(w->tier, entry);
        pthread_mutex_unlock(&w->lock);
        if (entry != MP_NO_ENTRY)
            return entry;
        sched_yield(); /* every entry is being read */
    }
}

/* Waits as a session does, or looks now and then as the prefetcher does. */
static void await(world *w, uint32_t entry, bool sync)
{
    pthread_mutex_lock(&w->lock);
    mp_stream *stream = w->tier->lanes[w->tier->entries[entry].lane].stream;
    mp_tick tick = w->tier->entries[entry].tick;
    pthread_mutex_unlock(&w->lock);
    if (sync)
        (void)w->tier->home->device->ops->sync(stream, tick);
    while (!mp_host_tier_landed(w->tier, entry))
        sched_yield();
}

static void end_load(world *w, uint32_t key, uint32_t entry)
{
    pthread_mutex_lock(&w->lock);
    mp_host_tier_settle(w->tier, entry);
    mp_entry_state state = w->tier->entries[entry].state;
    int32_t result = atomic_load(&w->tier->entries[entry].result);
    const unsigned char *image = mp_host_tier_image(w->tier, entry);
    pthread_mutex_unlock(&w->lock);
    /* Read without the lock, as a copy out of the tier reads it. */
    if (state == MP_ENTRY_VALID)
        w->wrong += !cold_rig_matches(&w->bank, key, image);
    else
        w->wrong += state != MP_ENTRY_FAILED || result != MOEPAGE_E_CALLBACK;
    if (state == MP_ENTRY_VALID)
        w->loaded++;
    else
        w->failed++;
    pthread_mutex_lock(&w->lock);
    mp_host_tier_let_go(w->tier, entry);
    pthread_mutex_unlock(&w->lock);
}

static void *run_loader(void *arg)
{
    world *w = arg;
    uint64_t random = atomic_fetch_add(&w->seed, 1);
    for (uint32_t i = 0; i < w->rounds; i++) {
        uint32_t key = bank_below(&random, KEYS), other = bank_below(&random, KEYS);
        uint32_t entry = begin_load(w, key);
        if (bank_below(&random, 8) == 0) { /* a read that is given up */
            uint32_t idle = begin_load(w, other);
            pthread_mutex_lock(&w->lock);
            mp_host_tier_let_go(w->tier, idle);
            pthread_mutex_unlock(&w->lock);
        }
        await(w, entry, bank_below(&random, 2));
        end_load(w, key, entry);
    }
    return NULL;
}

static void test_host_tier_serves_whole_experts_to_many_threads(void **state)
{
    (void)state;
    moepage_device_config config = {.struct_size = sizeof config,
                                    .budget_bytes = 1 << 20,
                                    .threads = 1,
                                    .io_threads = 3};
    moepage_device *device;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
    world w = {.rounds = getenv("MP_TEST_LONG") ? 20000 : 400, .seed = 1};
    bank_model_open(&w.bank, &(bank_shape){.layers = LAYERS,
                                           .experts = EXPERTS,
                                           .top_k = 1,
                                           .hidden = 24,
                                           .intermediate = 20,
                                           .callback = true});
    atomic_store(&w.bank.fail_every, 11);
    uint64_t bytes = ENTRIES * mp_model_image_room(w.bank.model, MOEPAGE_FORM_DENSE);
    assert_int_equal(mp_host_tier_create(device, w.bank.model, MOEPAGE_FORM_DENSE, bytes, &w.tier),
                     MOEPAGE_OK);
    pthread_mutex_init(&w.lock, NULL);
    pthread_t threads[LOADERS];
    for (uint32_t i = 0; i < LOADERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_loader, &w), 0);
    for (uint32_t i = 0; i < LOADERS; i++)
        pthread_join(threads[i], NULL);

    assert_int_equal(w.wrong, 0);
    assert_int_equal(w.loaded + w.failed, LOADERS * w.rounds);
    assert_true(w.loaded > 0 && w.failed > 0 && w.tier->hits > 0);
    for (uint32_t i = 0; i < w.tier->n_entries; i++)
        assert_int_equal(w.tier->entries[i].users, 0);
    uint64_t reads = w.tier->reads, loads = 0;
    mp_host_tier_destroy(w.tier);
    for (uint32_t key = 0; key < KEYS; key++)
        loads += atomic_load(&w.bank.loads[key]);
    assert_int_equal(loads, reads);
    pthread_mutex_destroy(&w.lock);
    bank_model_close(&w.bank);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_tier_behaves_like_a_list_in_order_of_use),
        cmocka_unit_test(test_host_tier_serves_whole_experts_to_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
