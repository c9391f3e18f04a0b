/* Many threads on one KV pool, each with sequences of its own: what one does never shows in
 * another's tokens. Meant for ThreadSanitizer as much as for its own assertions. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kv_tokens.h"
#include "testing.h"

enum { THREADS = 4, ROUNDS = 150, TOKENS = 40 };

static const uint32_t layer_bytes[] = {24, 5};

typedef struct worker {
    kv_tokens tokens;
    uint64_t random;
    uint32_t refused; /* for want of blocks: the pool holds less than all threads ask for */
    uint32_t rounds;  /* completed */
} worker;

static uint64_t draw(worker *w, uint64_t below)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (w->random >> 33) % below;
}

/* Appends one token at a time; true if all fitted. */
static bool extend(worker *w, moepage_seq seq, uint64_t from, uint64_t to, uint64_t *tags)
{
    for (uint64_t i = from; i < to; i++) {
        moepage_status status = moepage_kv_append(w->tokens.pool, seq, 1, NULL);
        w->refused += status == MOEPAGE_E_WOULD_NOT_FIT;
        if (status)
            return false;
        tags[i] = w->random + i;
        kv_tokens_write(&w->tokens, seq, i, 1, &tags[i]);
    }
    return true;
}

/* Forks in the middle, lets both branches write, swaps the parent, compares. */
static bool run_round(worker *w)
{
    moepage_kv_pool *pool = w->tokens.pool;
    uint64_t parent_tags[TOKENS], child_tags[TOKENS];
    moepage_seq parent = 0, child = 0;
    uint64_t middle = 1 + draw(w, TOKENS - 1);
    bool fine = true;
    if (moepage_kv_create(pool, &parent))
        return false;
    if (extend(w, parent, 0, middle, parent_tags)) {
        memcpy(child_tags, parent_tags, sizeof child_tags);
        fine &= !moepage_kv_fork(pool, parent, &child);
        draw(w, 2);
        if (extend(w, child, middle, TOKENS, child_tags))
            fine &= kv_tokens_match(&w->tokens, child, TOKENS, child_tags);
        fine &= !moepage_kv_swap_out(pool, parent, NULL);
        moepage_status status = moepage_kv_swap_in(pool, parent, NULL);
        if (!status)
            fine &= kv_tokens_match(&w->tokens, parent, middle, parent_tags);
        fine &= !status || status == MOEPAGE_E_WOULD_NOT_FIT;
        fine &= !moepage_kv_free(pool, child);
    }
    fine &= !moepage_kv_free(pool, parent);
    fine &= moepage_kv_free(pool, parent) == MOEPAGE_E_HANDLE;
    return fine;
}

static void *run_worker(void *user)
{
    worker *w = user;
    while (w->rounds < ROUNDS && run_round(w))
        w->rounds++;
    return NULL;
}

static void test_kv_threads_never_disturb_each_others_sequences(void **state)
{
    (void)state;
    moepage_device_config device_config = {
        .struct_size = sizeof device_config,
        .threads = 1,
        .budget_bytes = 16384 + 4096,
        .workspace_bytes = 4096,
    };
    moepage_kv_pool_config config = {
        .struct_size = sizeof config,
        .block_tokens = 4,
        .layers = 2,
        .bytes_per_token = layer_bytes,
        .blocks = 40,
    };
    moepage_device *device;
    moepage_kv_pool *pool;
    assert_int_equal(moepage_device_open("host", &device_config, &device), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_create(device, &config, &pool), MOEPAGE_OK);

    worker *workers = calloc(THREADS, sizeof *workers);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        kv_tokens_open(&workers[i].tokens, pool, 2, layer_bytes);
        workers[i].random = 1000 * i;
        assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(workers[i].rounds, ROUNDS);
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_kv_pool_get_info(pool, &info), MOEPAGE_OK);
    assert_int_equal(info.free_blocks, info.blocks);
    assert_int_equal(info.sequences, 0);
    assert_true(info.copies_on_write > 0);
    free(workers);
    assert_int_equal(moepage_kv_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_threads_never_disturb_each_others_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
