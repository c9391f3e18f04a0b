/* A KV pool's life with every allocation, device allocation, stream, submission and transfer failed
 * in turn, once and for good: the failing call says so, changes nothing, and succeeds when it is
 * made again. */
#include <stdlib.h>
#include <string.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "fake_device.h"
#include "kv/kv_pool.h"
#include "kv_tokens.h"
#include "testing.h"

static uint64_t fail_alloc_in; /* as in fake_faults */
static bool alloc_persistent;
static uint64_t alloc_failures;

static bool alloc_strikes(size_t bytes)
{
    (void)bytes;
    if (!fail_alloc_in || --fail_alloc_in)
        return false;
    fail_alloc_in = alloc_persistent;
    alloc_failures++;
    return true;
}

enum { LAYERS = 2, TOKENS = 70, SEQUENCES = 40 };

static const uint32_t layer_bytes[LAYERS] = {16, 3};

typedef struct life {
    fake_device fake;
    struct moepage_device *home;
    moepage_kv_pool *pool;
    kv_tokens tokens;
    uint64_t tags[TOKENS];
    moepage_seq parent, child;
    moepage_seq others[SEQUENCES];
    uint32_t failures; /* calls that failed by a fault */
} life;

static void disarm(life *l)
{
    fail_alloc_in = 0;
    l->fake.faults = (fake_faults){0};
}

static moepage_kv_pool_info info_of(life *l)
{
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_kv_pool_get_info(l->pool, &info), MOEPAGE_OK);
    return info;
}

typedef moepage_status (*step_fn)(life *l);

/* Makes the call; if a fault strikes it, nothing may have changed and the repetition must work. */
static void attempt(life *l, step_fn step)
{
    moepage_kv_pool_info before, after;
    uint64_t used = atomic_load(&l->home->ledger.used);
    uint64_t host = l->fake.held_bytes[MP_MEMORY_HOST];
    if (l->pool)
        before = info_of(l);
    moepage_status status = step(l);
    if (!status)
        return;
    assert_true(status == MOEPAGE_E_NO_MEMORY || status == MOEPAGE_E_DEVICE);
    l->failures++;
    assert_int_equal(atomic_load(&l->home->ledger.used), used);
    assert_int_equal(l->fake.held_bytes[MP_MEMORY_HOST], host);
    if (l->pool) {
        after = info_of(l);
        before.peak_blocks = after.peak_blocks; /* a copy's target was in use while it failed */
        assert_memory_equal(&before, &after, sizeof before);
    } else {
        assert_int_equal(l->fake.streams, 0);
    }
    disarm(l);
    assert_int_equal(step(l), MOEPAGE_OK);
}

static moepage_status create_pool(life *l)
{
    moepage_kv_pool_config config = {
        .struct_size = sizeof config,
        .block_tokens = 4,
        .layers = LAYERS,
        .blocks_per_granule = 2,
        .bytes_per_token = layer_bytes,
        .blocks = 60,
    };
    return moepage_kv_pool_create(l->home, &config, &l->pool);
}

static moepage_status create_parent(life *l)
{
    return moepage_kv_create(l->pool, &l->parent);
}

static moepage_status append_parent(life *l)
{
    return moepage_kv_append(l->pool, l->parent, TOKENS - 3, NULL);
}

static moepage_status fork_parent(life *l)
{
    return moepage_kv_fork(l->pool, l->parent, &l->child);
}

static moepage_status append_child(life *l)
{
    return moepage_kv_append(l->pool, l->child, 3, NULL);
}

static moepage_status swap_out_parent(life *l)
{
    return moepage_kv_swap_out(l->pool, l->parent, NULL);
}

static moepage_status swap_in_parent(life *l)
{
    return moepage_kv_swap_in(l->pool, l->parent, NULL);
}

static moepage_status create_other(life *l)
{
    size_t i = 0;
    while (l->others[i])
        i++;
    return moepage_kv_create(l->pool, &l->others[i]);
}

static moepage_status shrink_pool(life *l)
{
    return mp_kv_pool_resize(l->pool, 38, NULL);
}

static moepage_status grow_pool(life *l)
{
    return mp_kv_pool_resize(l->pool, 60, NULL);
}

static void check_tokens(life *l)
{
    assert_true(kv_tokens_match(&l->tokens, l->parent, TOKENS - 3, l->tags));
    assert_true(kv_tokens_match(&l->tokens, l->child, TOKENS, l->tags));
}

/* Opens what the faults are armed against afterwards. */
static void begin_life(life *l)
{
    memset(l, 0, sizeof *l);
    fake_device_init(&l->fake);
    l->home = fake_home_open(&l->fake, 16384, 0);
    for (uint64_t i = 0; i < TOKENS; i++)
        l->tags[i] = 7 * i;
}

static void live(life *l)
{
    attempt(l, create_pool);
    kv_tokens_open(&l->tokens, l->pool, LAYERS, layer_bytes);
    attempt(l, create_parent);
    attempt(l, append_parent);
    kv_tokens_write(&l->tokens, l->parent, 0, TOKENS - 3, l->tags);
    attempt(l, fork_parent);
    attempt(l, append_child);
    kv_tokens_write(&l->tokens, l->child, TOKENS - 3, 3, &l->tags[TOKENS - 3]);
    check_tokens(l);
    for (int i = 0; i < SEQUENCES; i++)
        attempt(l, create_other);
    attempt(l, swap_out_parent);
    attempt(l, swap_in_parent);
    check_tokens(l);
    attempt(l, shrink_pool);
    memset(l->home->arena.base, 0xee, l->home->arena.bytes - info_of(l).granule_bytes * 19);
    check_tokens(l);
    attempt(l, grow_pool);
    check_tokens(l);
}

static void end_life(life *l)
{
    disarm(l);
    assert_int_equal(moepage_kv_pool_destroy(l->pool), MOEPAGE_OK);
    fake_home_close(l->home);
}

enum fault_kind { FAULT_ALLOC, FAULT_DEVICE_ALLOC, FAULT_STREAM, FAULT_SUBMIT, FAULT_TRANSFER };

static void arm(life *l, enum fault_kind kind, uint64_t countdown, bool persistent)
{
    l->fake.faults.persistent = persistent;
    alloc_persistent = persistent;
    switch (kind) {
    case FAULT_ALLOC: fail_alloc_in = countdown; break;
    case FAULT_DEVICE_ALLOC: l->fake.faults.alloc = countdown; break;
    case FAULT_STREAM: l->fake.faults.stream = countdown; break;
    case FAULT_SUBMIT: l->fake.faults.submit = countdown; break;
    case FAULT_TRANSFER: l->fake.faults.transfer = countdown; break;
    }
}

/* Fails the 1st, 2nd, 3rd ... occurrence until a life sees none; says how many there were. */
static uint32_t fail_each(enum fault_kind kind, bool persistent)
{
    uint32_t lives = 0;
    for (;; lives++) {
        life l;
        begin_life(&l);
        arm(&l, kind, lives + 1, persistent);
        live(&l);
        end_life(&l);
        assert_true(l.failures <= 1);
        if (!l.failures)
            return lives;
    }
}

static void fail_each_both_ways(enum fault_kind kind, uint32_t at_least)
{
    uint32_t once = fail_each(kind, false);
    assert_true(once >= at_least);
    assert_int_equal(fail_each(kind, true), once);
}

static void test_kv_alloc_failures_change_nothing(void **state)
{
    (void)state;
    alloc_failures = 0;
    fail_each_both_ways(FAULT_ALLOC, 10);
    assert_true(alloc_failures >= 20);
}

static void test_kv_device_allocation_failures_change_nothing(void **state)
{
    (void)state;
    fail_each_both_ways(FAULT_DEVICE_ALLOC, 1);
}

static void test_kv_stream_failures_change_nothing(void **state)
{
    (void)state;
    fail_each_both_ways(FAULT_STREAM, 2);
}

static void test_kv_refused_submissions_lose_no_token(void **state)
{
    (void)state;
    fail_each_both_ways(FAULT_SUBMIT, 30);
}

static void test_kv_failed_transfers_lose_no_token(void **state)
{
    (void)state;
    fail_each_both_ways(FAULT_TRANSFER, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_alloc_failures_change_nothing),
        cmocka_unit_test(test_kv_device_allocation_failures_change_nothing),
        cmocka_unit_test(test_kv_stream_failures_change_nothing),
        cmocka_unit_test(test_kv_refused_submissions_lose_no_token),
        cmocka_unit_test(test_kv_failed_transfers_lose_no_token),
    };
    alloc_fault_strikes = alloc_strikes;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
