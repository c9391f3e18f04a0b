/* KV pools as a whole: creation, refusal, layer views, admission, destruction. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "kv/kv_pool.h"
#include "kv_fixture.h"
#include "late_device.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void test_kv_pool_rounds_its_size_up_to_granules(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 7);
    moepage_kv_pool_info info = kv_fixture_info(&f);
    assert_int_equal(info.block_bytes, KV_BLOCK_BYTES);
    assert_int_equal(info.granule_bytes, KV_RUN * KV_BLOCK_BYTES);
    assert_int_equal(info.blocks_per_granule, KV_RUN);
    assert_int_equal(info.blocks, 8);
    assert_int_equal(info.free_blocks, 8);
    assert_int_equal(mp_arena_claimed(&f.home->arena, MP_SIDE_KV), 8 * KV_BLOCK_BYTES);
    assert_int_equal(atomic_load(&f.home->ledger.used), 8 * KV_BLOCK_BYTES);
    assert_int_equal(atomic_load(&f.home->residents), 1);
    kv_fixture_close(&f);
}

static void test_kv_pool_takes_what_the_arena_still_has_by_default(void **state)
{
    (void)state;
    kv_fixture f;
    fake_device_init(&f.fake);
    f.home = fake_home_open(&f.fake, KV_ARENA, 0);
    assert_int_equal(mp_arena_attach(&f.home->arena, MP_SIDE_EXPERTS, 1000), MOEPAGE_OK);
    assert_int_equal(mp_arena_resize(&f.home->arena, MP_SIDE_EXPERTS, 4), MOEPAGE_OK);
    moepage_kv_pool_config config = kv_fixture_config(0);
    config.block_tokens = 0;
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_OK);
    moepage_kv_pool_info info = kv_fixture_info(&f);
    assert_int_equal(info.block_tokens, 16);
    assert_int_equal(info.block_bytes, 256 + 64 + 192);
    assert_int_equal(info.blocks, (KV_ARENA - 4000) / 1024 * 2);
    assert_int_equal(moepage_kv_pool_destroy(f.pool), MOEPAGE_OK);
    mp_arena_detach(&f.home->arena, MP_SIDE_EXPERTS);
    fake_home_close(f.home);
}

static void test_kv_pool_create_refuses_bad_configs_and_leaves_the_device_empty(void **state)
{
    (void)state;
    kv_fixture f;
    moepage_kv_pool *untouched = (moepage_kv_pool *)&f;
    fake_device_init(&f.fake);
    f.home = fake_home_open(&f.fake, KV_ARENA, 0);
    f.pool = untouched;
    moepage_kv_pool_config config = kv_fixture_config(8);
    assert_int_equal(moepage_kv_pool_create(NULL, &config, &f.pool), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_pool_create(f.home, NULL, &f.pool), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_pool_create(f.home, &config, NULL), MOEPAGE_E_ARGUMENT);
    config.layers = 0;
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_E_ARGUMENT);
    config = kv_fixture_config(8);
    config.bytes_per_token = NULL;
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_E_ARGUMENT);
    config = kv_fixture_config(8);
    config.max_sequences = UINT32_MAX;
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_E_ARGUMENT);
    config = kv_fixture_config(43);
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_E_BUDGET);
    config = kv_fixture_config(8);
    config.struct_size = 4;
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_E_VERSION);
    assert_ptr_equal(f.pool, untouched);
    fake_home_close(f.home);
}

static void test_kv_pool_is_one_per_device(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_kv_pool *second = NULL;
    moepage_kv_pool_config config = kv_fixture_config(8);
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &second), MOEPAGE_E_BUSY);
    assert_null(second);
    assert_int_equal(atomic_load(&f.home->residents), 1);
    assert_int_equal(kv_fixture_info(&f).blocks, 8);
    kv_fixture_close(&f);
}

static void test_kv_pool_destroy_waits_for_sessions_and_leaves_a_dead_handle(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq swapped = kv_fixture_fill(&f, 5);
    kv_fixture_fill(&f, 9);
    assert_int_equal(moepage_kv_swap_out(f.pool, swapped, NULL), MOEPAGE_OK);
    atomic_fetch_add(&f.pool->n_readers, 1);
    assert_int_equal(moepage_kv_pool_destroy(f.pool), MOEPAGE_E_BUSY);
    assert_int_equal(kv_fixture_info(&f).sequences, 2);
    atomic_fetch_sub(&f.pool->n_readers, 1);
    assert_int_equal(moepage_kv_pool_destroy(f.pool), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_destroy(NULL), MOEPAGE_OK);
    assert_int_equal(atomic_load(&f.home->residents), 0);

    moepage_seq seq;
    assert_int_equal(moepage_kv_pool_destroy(f.pool), MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_kv_create(f.pool, &seq), MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_kv_append(f.pool, swapped, 1, NULL), MOEPAGE_E_HANDLE);
    fake_home_close(f.home);
}

static void *open_gate(void *caller)
{
    usleep(20000); /* a call that does not wait has returned by then */
    late_gate_open(caller);
    return NULL;
}

/* Only while the pool knows of a session does it wait for what that submitted, before blocks move. */
static void test_kv_pool_forgets_no_session_whose_work_goes_on(void **state)
{
    (void)state;
    const moepage_device_config room = {.struct_size = sizeof room,
                                        .threads = 1,
                                        .budget_bytes = KV_ARENA + (1 << 20),
                                        .workspace_bytes = 1 << 20,
                                        .max_budget_bytes = KV_ARENA + (1 << 20),
                                        .io_threads = 1};
    struct moepage_device *home = late_home_open(&room, false);
    const moepage_kv_pool_config config = kv_fixture_config(8);
    moepage_kv_pool *pool = NULL;
    mp_kv_reader *reader = NULL;
    late_caller caller;
    pthread_t other;
    mp_tick tick = 0;
    unsigned char from = 7, to = 0;
    late_caller_open(&caller, home);
    assert_int_equal(moepage_kv_pool_create(home, &config, &pool), MOEPAGE_OK);
    assert_int_equal(mp_kv_reader_open(pool, 1, caller.stream, &reader), MOEPAGE_OK);
    assert_int_equal(mp_kv_reader_begin(reader, &MOEPAGE_STEP(1)), MOEPAGE_OK);
    late_gate_shut(&caller);
    late_read(&caller, &to, &from, 1);
    assert_int_equal(home->device->ops->mark(caller.stream, &tick), MOEPAGE_OK);
    mp_kv_reader_end(reader, tick);
    assert_int_equal(pthread_create(&other, NULL, open_gate, &caller), 0);
    mp_kv_reader_close(reader);
    assert_int_equal(to, from);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(moepage_kv_pool_destroy(pool), MOEPAGE_OK);
    late_caller_close(&caller);
    late_home_close(home);
}

static void test_kv_pool_layers_without_kv_have_no_address(void **state)
{
    (void)state;
    kv_fixture f;
    fake_device_init(&f.fake);
    f.home = fake_home_open(&f.fake, KV_ARENA, 0);
    const uint32_t bytes[] = {0, 16, 0, 16};
    moepage_kv_pool_config config = kv_fixture_config(8);
    config.layers = COUNT(bytes);
    config.bytes_per_token = bytes;
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_OK);
    moepage_kv_layer_view view = {.struct_size = sizeof view};
    assert_int_equal(moepage_kv_pool_get_layer(f.pool, 2, &view), MOEPAGE_OK);
    assert_null(view.base);
    assert_int_equal(view.block_bytes, 0);
    assert_int_equal(moepage_kv_pool_get_layer(f.pool, 3, &view), MOEPAGE_OK);
    assert_non_null(view.base);
    assert_int_equal(view.id_stride, 2 * KV_RUN);
    assert_int_equal(moepage_kv_pool_get_layer(f.pool, 4, &view), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_pool_get_layer(f.pool, 3, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_pool_destroy(f.pool), MOEPAGE_OK);
    fake_home_close(f.home);
}

static void test_kv_pool_blocks_lie_inside_the_side_that_the_pool_owns(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    moepage_seq seq = kv_fixture_fill(&f, 8 * KV_BLOCK_TOKENS);
    moepage_kv_table table = kv_fixture_table(&f, seq);
    unsigned char *top = f.home->arena.base + KV_ARENA;
    for (uint64_t i = 0; i < table.n_blocks; i++) {
        for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
            unsigned char *block = kv_tokens_block(&f.tokens, layer, table.blocks[i]);
            assert_true(block >= top - 8 * KV_BLOCK_BYTES && block + 64 <= top);
        }
    }
    kv_fixture_close(&f);
}

static void test_kv_create_stops_at_max_sequences(void **state)
{
    (void)state;
    kv_fixture f;
    fake_device_init(&f.fake);
    f.home = fake_home_open(&f.fake, KV_ARENA, 0);
    moepage_kv_pool_config config = kv_fixture_config(8);
    config.max_sequences = 19;
    assert_int_equal(moepage_kv_pool_create(f.home, &config, &f.pool), MOEPAGE_OK);
    moepage_seq seqs[19], more = 7;
    const uint64_t one_token[] = {1, 1};
    moepage_kv_admission answer = {.struct_size = sizeof answer};
    for (size_t i = 0; i < COUNT(seqs); i++) {
        uint32_t places = (uint32_t)(COUNT(seqs) - i < 2 ? COUNT(seqs) - i : 2);
        assert_int_equal(moepage_kv_admit(f.pool, one_token, 2, &answer), MOEPAGE_OK);
        assert_int_equal(answer.fits, places == 2);
        assert_int_equal(moepage_kv_create(f.pool, &seqs[i]), MOEPAGE_OK);
    }
    assert_int_equal(moepage_kv_create(f.pool, &more), MOEPAGE_E_WOULD_NOT_FIT);
    assert_int_equal(moepage_kv_fork(f.pool, seqs[0], &more), MOEPAGE_E_WOULD_NOT_FIT);
    assert_int_equal(more, 7);
    assert_int_equal(moepage_kv_free(f.pool, seqs[3]), MOEPAGE_OK);
    assert_int_equal(moepage_kv_fork(f.pool, seqs[0], &more), MOEPAGE_OK);
    assert_int_equal(kv_fixture_info(&f).sequences, 19);
    kv_fixture_close(&f);
}

static void test_kv_admit_compares_whole_blocks_with_what_is_free(void **state)
{
    (void)state;
    kv_fixture f;
    kv_fixture_open(&f, 8);
    kv_fixture_fill(&f, 5);
    moepage_kv_admission answer = {.struct_size = sizeof answer};
    const uint64_t fits[] = {4, 1, 0, 13};
    assert_int_equal(moepage_kv_admit(f.pool, fits, COUNT(fits), &answer), MOEPAGE_OK);
    assert_int_equal(answer.fits, 1);
    assert_int_equal(answer.needed_blocks, 6);
    assert_int_equal(answer.free_blocks, 6);
    const uint64_t exceeds[] = {5, 17};
    assert_int_equal(moepage_kv_admit(f.pool, exceeds, COUNT(exceeds), &answer), MOEPAGE_OK);
    assert_int_equal(answer.fits, 0);
    assert_int_equal(answer.needed_blocks, 7);
    const uint64_t absurd[] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    assert_int_equal(moepage_kv_admit(f.pool, absurd, COUNT(absurd), &answer), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_admit(f.pool, NULL, 2, &answer), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_admit(f.pool, fits, 1, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_kv_admit(f.pool, NULL, 0, &answer), MOEPAGE_OK);
    assert_int_equal(answer.fits, 1);
    assert_int_equal(kv_fixture_info(&f).free_blocks, 6);
    kv_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_pool_rounds_its_size_up_to_granules),
        cmocka_unit_test(test_kv_pool_takes_what_the_arena_still_has_by_default),
        cmocka_unit_test(test_kv_pool_create_refuses_bad_configs_and_leaves_the_device_empty),
        cmocka_unit_test(test_kv_pool_is_one_per_device),
        cmocka_unit_test(test_kv_pool_destroy_waits_for_sessions_and_leaves_a_dead_handle),
        cmocka_unit_test(test_kv_pool_forgets_no_session_whose_work_goes_on),
        cmocka_unit_test(test_kv_pool_layers_without_kv_have_no_address),
        cmocka_unit_test(test_kv_pool_blocks_lie_inside_the_side_that_the_pool_owns),
        cmocka_unit_test(test_kv_create_stops_at_max_sequences),
        cmocka_unit_test(test_kv_admit_compares_whole_blocks_with_what_is_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
