/* Random operations on KV pools against a model that keeps every sequence's tokens in a plain
 * array. Each token's bytes are written once, when it is appended; from then on they must be found
 * wherever forks, copies, swaps and moves of the boundary have taken them. Memory that the pool
 * does not own is overwritten all the time, as experts would. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_device.h"
#include "kv/kv_pool.h"
#include "kv_tokens.h"
#include "testing.h"

enum { MAX_SEQUENCES = 24, MAX_TOKENS = 400, STALE = 8 };

typedef struct model_sequence {
    moepage_seq id; /* 0: no such sequence */
    bool swapped;
    uint64_t n_tokens;
    uint64_t tags[MAX_TOKENS];
} model_sequence;

typedef struct geometry {
    uint32_t block_tokens;
    uint32_t run;
    uint32_t layers;
    uint32_t bytes_per_token[4];
    uint64_t blocks;
    uint64_t max_blocks; /* that resizes ask for */
} geometry;

typedef struct world {
    struct moepage_device *home;
    fake_device *fake; /* NULL: a real device, whose copies cannot be made to fail */
    moepage_kv_pool *pool;
    kv_tokens tokens;
    const geometry *shape;
    uint64_t random;
    uint64_t next_tag;
    moepage_seq stale[STALE];
    model_sequence sequences[MAX_SEQUENCES];
    uint64_t done[8]; /* operations that succeeded, by kind */
} world;

static uint64_t draw(world *w, uint64_t below)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random % below;
}

static moepage_kv_pool_info info_of(world *w)
{
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_kv_pool_get_info(w->pool, &info), MOEPAGE_OK);
    return info;
}

static moepage_kv_table table_of(world *w, const model_sequence *sequence)
{
    moepage_kv_table table = {.struct_size = sizeof table};
    assert_int_equal(moepage_kv_get_table(w->pool, sequence->id, &table), MOEPAGE_OK);
    return table;
}

static model_sequence *pick(world *w, bool live)
{
    size_t start = draw(w, MAX_SEQUENCES);
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        model_sequence *sequence = &w->sequences[(start + i) % MAX_SEQUENCES];
        if ((sequence->id != 0) == live)
            return sequence;
    }
    return NULL;
}

/* How many tables hold this block, counted the slow way. */
static uint32_t holders_of(world *w, uint32_t block)
{
    uint32_t holders = 0;
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        const model_sequence *sequence = &w->sequences[i];
        if (!sequence->id || sequence->swapped)
            continue;
        moepage_kv_table table = table_of(w, sequence);
        for (uint64_t j = 0; j < table.n_blocks; j++)
            holders += table.blocks[j] == block;
    }
    return holders;
}

static uint64_t blocks_for(const world *w, uint64_t tokens)
{
    return (tokens + w->shape->block_tokens - 1) / w->shape->block_tokens;
}

static int compare_ids(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

/* Distinct blocks over all tables; each must lie in memory that the pool owns. */
static uint64_t count_held_blocks(world *w)
{
    static uint32_t ids[MAX_SEQUENCES * MAX_TOKENS];
    size_t n = 0;
    uint64_t distinct = 0;
    unsigned char *top = w->home->arena.base + w->home->arena.bytes;
    unsigned char *bottom = top - mp_arena_claimed(&w->home->arena, MP_SIDE_KV);
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        const model_sequence *sequence = &w->sequences[i];
        if (!sequence->id || sequence->swapped)
            continue;
        moepage_kv_table table = table_of(w, sequence);
        for (uint64_t j = 0; j < table.n_blocks; j++)
            ids[n++] = table.blocks[j];
    }
    qsort(ids, n, sizeof *ids, compare_ids);
    for (size_t i = 0; i < n; i++) {
        if (i && ids[i] == ids[i - 1])
            continue;
        distinct++;
        for (uint32_t layer = 0; layer < w->shape->layers; layer++) {
            if (!w->shape->bytes_per_token[layer])
                continue;
            unsigned char *block = kv_tokens_block(&w->tokens, layer, ids[i]);
            assert_true(block >= bottom && block + w->tokens.views[layer].block_bytes <= top);
        }
    }
    return distinct;
}

static void check_sequence(world *w, const model_sequence *sequence)
{
    moepage_kv_table table = table_of(w, sequence);
    assert_int_equal(table.n_tokens, sequence->n_tokens);
    assert_int_equal(table.swapped, sequence->swapped);
    if (!sequence->swapped)
        assert_true(kv_tokens_match(&w->tokens, sequence->id, sequence->n_tokens, sequence->tags));
}

static void check_accounts(world *w)
{
    moepage_kv_pool_info info = info_of(w);
    uint64_t held = count_held_blocks(w);
    uint32_t live = 0, swapped = 0;
    uint64_t swapped_blocks = 0;
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        live += w->sequences[i].id != 0;
        swapped += w->sequences[i].id && w->sequences[i].swapped;
        if (w->sequences[i].id && w->sequences[i].swapped)
            swapped_blocks += blocks_for(w, w->sequences[i].n_tokens);
    }
    assert_int_equal(info.blocks - info.free_blocks, held);
    assert_true(info.peak_blocks >= held);
    assert_int_equal(info.sequences, live);
    assert_int_equal(info.swapped, swapped);
    assert_true(info.swap_bytes >= swapped_blocks * info.block_bytes);
    assert_int_equal(info.blocks * info.block_bytes, mp_arena_claimed(&w->home->arena, MP_SIDE_KV));
    assert_true(atomic_load(&w->home->ledger.peak) <= w->home->ledger.limit);
}

static void check_everything(world *w)
{
    check_accounts(w);
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        if (w->sequences[i].id)
            check_sequence(w, &w->sequences[i]);
    }
}

static void overwrite_what_is_not_kv(world *w)
{
    memset(w->home->arena.base, (int)draw(w, 256),
           w->home->arena.bytes - mp_arena_claimed(&w->home->arena, MP_SIDE_KV));
}

/* Sometimes lets one of the next copies fail; says whether one is armed. */
static bool arm_fault(world *w)
{
    if (!w->fake || draw(w, 20))
        return false;
    uint64_t *fault = draw(w, 2) ? &w->fake->faults.submit : &w->fake->faults.transfer;
    *fault = 1 + draw(w, 6);
    return true;
}

/* True if the call failed by an armed fault; the state must then be what it was. */
static bool struck(world *w, bool armed, moepage_status status)
{
    if (w->fake)
        w->fake->faults = (fake_faults){0};
    if (status == MOEPAGE_E_DEVICE) {
        assert_true(armed);
        return true;
    }
    return false;
}

static void do_create(world *w)
{
    model_sequence *sequence = pick(w, false);
    moepage_seq id = 0;
    moepage_status status = moepage_kv_create(w->pool, &id);
    if (!sequence) {
        assert_int_equal(status, MOEPAGE_E_WOULD_NOT_FIT);
        return;
    }
    assert_int_equal(status, MOEPAGE_OK);
    *sequence = (model_sequence){.id = id};
}

static void do_append(world *w)
{
    model_sequence *sequence = pick(w, true);
    uint64_t n = draw(w, 4) ? 1 + draw(w, 3) : draw(w, 60);
    if (!sequence || sequence->n_tokens + n > MAX_TOKENS)
        return;
    if (sequence->swapped) {
        assert_int_equal(moepage_kv_append(w->pool, sequence->id, n, NULL), MOEPAGE_E_STATE);
        return;
    }
    uint64_t needed = blocks_for(w, sequence->n_tokens + n) - blocks_for(w, sequence->n_tokens);
    moepage_kv_table table = table_of(w, sequence);
    if (n && sequence->n_tokens % w->shape->block_tokens)
        needed += holders_of(w, table.blocks[table.n_blocks - 1]) > 1;
    uint64_t free_blocks = info_of(w).blocks - count_held_blocks(w);

    bool armed = arm_fault(w);
    moepage_status status = moepage_kv_append(w->pool, sequence->id, n, NULL);
    if (struck(w, armed, status))
        return;
    assert_int_equal(status, needed <= free_blocks ? MOEPAGE_OK : MOEPAGE_E_WOULD_NOT_FIT);
    if (status)
        return;
    for (uint64_t i = 0; i < n; i++)
        sequence->tags[sequence->n_tokens + i] = w->next_tag++;
    kv_tokens_write(&w->tokens, sequence->id, sequence->n_tokens, n,
                    &sequence->tags[sequence->n_tokens]);
    sequence->n_tokens += n;
    w->done[0]++;
}

static void do_truncate(world *w)
{
    model_sequence *sequence = pick(w, true);
    if (!sequence)
        return;
    uint64_t n = draw(w, sequence->n_tokens + 2);
    moepage_status status = moepage_kv_truncate(w->pool, sequence->id, n);
    assert_int_equal(status, n <= sequence->n_tokens ? MOEPAGE_OK : MOEPAGE_E_ARGUMENT);
    if (!status)
        sequence->n_tokens = n;
    w->done[1] += !status;
}

static void do_fork(world *w)
{
    model_sequence *parent = pick(w, true);
    model_sequence *child = pick(w, false);
    moepage_seq id = 0;
    if (!parent)
        return;
    moepage_status status = moepage_kv_fork(w->pool, parent->id, &id);
    if (parent->swapped || !child) {
        assert_int_equal(status, parent->swapped ? MOEPAGE_E_STATE : MOEPAGE_E_WOULD_NOT_FIT);
        return;
    }
    assert_int_equal(status, MOEPAGE_OK);
    *child = *parent;
    child->id = id;
    w->done[2]++;
}

static void do_free(world *w)
{
    model_sequence *sequence = pick(w, true);
    moepage_seq stale = w->stale[draw(w, STALE)];
    assert_int_equal(moepage_kv_free(w->pool, stale), MOEPAGE_E_HANDLE);
    if (!sequence)
        return;
    assert_int_equal(moepage_kv_free(w->pool, sequence->id), MOEPAGE_OK);
    w->stale[draw(w, STALE)] = sequence->id;
    sequence->id = 0;
    w->done[3]++;
}

static void do_swap(world *w)
{
    model_sequence *sequence = pick(w, true);
    if (!sequence)
        return;
    uint64_t needed = blocks_for(w, sequence->n_tokens);
    uint64_t free_blocks = info_of(w).blocks - count_held_blocks(w);
    bool armed = arm_fault(w);
    moepage_status status = sequence->swapped ? moepage_kv_swap_in(w->pool, sequence->id, NULL)
                                              : moepage_kv_swap_out(w->pool, sequence->id, NULL);
    if (struck(w, armed, status))
        return;
    if (sequence->swapped && needed > free_blocks) {
        assert_int_equal(status, MOEPAGE_E_WOULD_NOT_FIT);
        return;
    }
    assert_int_equal(status, MOEPAGE_OK);
    sequence->swapped = !sequence->swapped;
    w->done[4]++;
}

/* The experts move their side as well, so that growth sometimes meets them. */
static void do_resize(world *w)
{
    uint64_t unit = w->home->arena.unit[MP_SIDE_EXPERTS];
    uint64_t slots = draw(w, w->home->arena.bytes / unit / 2);
    (void)mp_arena_resize(&w->home->arena, MP_SIDE_EXPERTS, slots);
    uint64_t blocks = 1 + draw(w, w->shape->max_blocks);
    uint64_t run = w->shape->run;
    uint64_t rounded = (blocks + run - 1) / run * run;
    uint64_t held = count_held_blocks(w);
    moepage_kv_pool_info before = info_of(w);
    uint64_t room = w->home->arena.bytes - mp_arena_claimed(&w->home->arena, MP_SIDE_EXPERTS);
    bool fits = rounded * before.block_bytes <= room && held <= rounded;

    bool armed = arm_fault(w);
    moepage_status status = mp_kv_pool_resize(w->pool, blocks, NULL);
    if (struck(w, armed, status))
        return;
    assert_int_equal(status, fits ? MOEPAGE_OK : MOEPAGE_E_BUDGET);
    assert_int_equal(info_of(w).blocks, fits ? rounded : before.blocks);
    w->done[5] += fits;
}

static void run_operation(world *w)
{
    uint64_t kind = draw(w, 100);
    if (kind < 8)
        do_create(w);
    else if (kind < 58)
        do_append(w);
    else if (kind < 68)
        do_truncate(w);
    else if (kind < 78)
        do_fork(w);
    else if (kind < 84)
        do_free(w);
    else if (kind < 94)
        do_swap(w);
    else
        do_resize(w);
}

static void run_world(world *w, const geometry *shape, uint64_t seed, int operations)
{
    moepage_kv_pool_config config = {
        .struct_size = sizeof config,
        .block_tokens = shape->block_tokens,
        .layers = shape->layers,
        .blocks_per_granule = shape->run,
        .bytes_per_token = shape->bytes_per_token,
        .blocks = shape->blocks,
        .max_sequences = MAX_SEQUENCES,
    };
    w->shape = shape;
    w->random = seed * 0x9e3779b97f4a7c15u + 1;
    assert_int_equal(moepage_kv_pool_create(w->home, &config, &w->pool), MOEPAGE_OK);
    assert_int_equal(mp_arena_attach(&w->home->arena, MP_SIDE_EXPERTS, 1000), MOEPAGE_OK);
    kv_tokens_open(&w->tokens, w->pool, shape->layers, shape->bytes_per_token);
    for (int i = 0; i < operations; i++) {
        run_operation(w);
        overwrite_what_is_not_kv(w);
        check_accounts(w);
        if (i % 16 == 0)
            check_everything(w);
    }
    check_everything(w);
    moepage_kv_pool_info info = info_of(w);
    for (int kind = 0; kind < 6; kind++)
        assert_true(w->done[kind] > 0);
    assert_int_equal(info.copies_on_write > 0, shape->block_tokens > 1);
    assert_true(info.relocated_blocks > 0);
    assert_true(info.swapped_out_blocks > 0 && info.swapped_in_blocks > 0);
    assert_int_equal(moepage_kv_pool_destroy(w->pool), MOEPAGE_OK);
    mp_arena_detach(&w->home->arena, MP_SIDE_EXPERTS);
}

static const geometry geometries[] = {
    {4, 1, 1, {16}, 40, 60},          {4, 3, 3, {16, 16, 16}, 30, 48},
    {16, 4, 4, {8, 0, 8, 8}, 24, 40}, {3, 5, 3, {7, 30, 0}, 50, 80},
    {1, 2, 2, {5, 64}, 90, 150},
};

static int rounds(int usual)
{
    const char *more = getenv("MP_TEST_LONG");
    return more && *more == '1' ? usual * 10 : usual;
}

enum { ARENA = 65536, SEEDS = 4, OPERATIONS = 5000 };

static void
test_kv_pool_keeps_every_token_through_random_operations_and_failing_copies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
        for (int seed = 1; seed <= rounds(SEEDS); seed++) {
            fake_device fake;
            fake_device_init(&fake);
            world *w = calloc(1, sizeof *w);
            w->home = fake_home_open(&fake, ARENA, 0);
            w->fake = &fake;
            print_message("geometry %zu, seed %d\n", i, seed);
            run_world(w, &geometries[i], (uint64_t)seed, OPERATIONS);
            fake_home_close(w->home);
            free(w);
        }
    }
}

static void test_kv_pool_keeps_every_token_on_the_host_device(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
        for (int seed = 1; seed <= rounds(1); seed++) {
            moepage_device_config config = {
                .struct_size = sizeof config,
                .threads = 1,
                .budget_bytes = ARENA + 4096,
                .workspace_bytes = 4096,
            };
            moepage_device_info info = {.struct_size = sizeof info};
            world *w = calloc(1, sizeof *w);
            assert_int_equal(moepage_device_open("host", &config, &w->home), MOEPAGE_OK);
            print_message("geometry %zu, seed %d\n", i, seed);
            run_world(w, &geometries[i], 1000 + (uint64_t)seed, OPERATIONS / 2);
            assert_int_equal(moepage_device_get_info(w->home, &info), MOEPAGE_OK);
            assert_true(info.peak_bytes <= config.budget_bytes && info.peak_bytes > 0);
            assert_int_equal(info.used_bytes, 0);
            assert_int_equal(moepage_device_close(w->home), MOEPAGE_OK);
            free(w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_kv_pool_keeps_every_token_through_random_operations_and_failing_copies),
        cmocka_unit_test(test_kv_pool_keeps_every_token_on_the_host_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
