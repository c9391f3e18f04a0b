/* The arena's two sides: numbering, refusal, accounting. */
#include <pthread.h>
#include <string.h>

#include "arena/arena.h"
#include "testing.h"

typedef struct fixture {
    unsigned char memory[1000];
    mp_ledger ledger;
    mp_arena arena;
} fixture;

static void open_arena(fixture *f)
{
    mp_ledger_init(&f->ledger, sizeof f->memory + 50);
    mp_arena_init(&f->arena, f->memory, sizeof f->memory, &f->ledger);
}

static void test_arena_numbers_both_sides_from_fixed_bases(void **state)
{
    (void)state;
    fixture f;
    open_arena(&f);
    assert_int_equal(mp_arena_attach(&f.arena, MP_SIDE_EXPERTS, 70), MOEPAGE_OK);
    assert_int_equal(mp_arena_attach(&f.arena, MP_SIDE_KV, 300), MOEPAGE_OK);
    assert_int_equal(mp_arena_side_max(&f.arena, MP_SIDE_EXPERTS), 14);
    assert_int_equal(mp_arena_side_max(&f.arena, MP_SIDE_KV), 3);
    for (uint64_t granules = 0; granules <= 3; granules++) {
        assert_int_equal(mp_arena_resize(&f.arena, MP_SIDE_KV, granules), MOEPAGE_OK);
        assert_ptr_equal(mp_arena_side_base(&f.arena, MP_SIDE_EXPERTS), f.memory);
        assert_ptr_equal(mp_arena_side_base(&f.arena, MP_SIDE_KV), f.memory + 100);
    }
    mp_arena_detach(&f.arena, MP_SIDE_KV);
    mp_arena_detach(&f.arena, MP_SIDE_EXPERTS);
    mp_arena_fini(&f.arena);
}

static void test_arena_refuses_a_claim_that_meets_the_other_side(void **state)
{
    (void)state;
    fixture f;
    open_arena(&f);
    mp_arena_attach(&f.arena, MP_SIDE_EXPERTS, 70);
    mp_arena_attach(&f.arena, MP_SIDE_KV, 300);
    assert_int_equal(mp_arena_room(&f.arena, MP_SIDE_KV), 3);
    assert_int_equal(mp_arena_resize(&f.arena, MP_SIDE_EXPERTS, 5), MOEPAGE_OK);
    assert_int_equal(mp_arena_room(&f.arena, MP_SIDE_KV), 2);
    assert_int_equal(mp_arena_resize(&f.arena, MP_SIDE_KV, 3), MOEPAGE_E_BUDGET);
    assert_int_equal(mp_arena_claimed(&f.arena, MP_SIDE_KV), 0);
    assert_int_equal(mp_arena_resize(&f.arena, MP_SIDE_KV, 2), MOEPAGE_OK);
    assert_int_equal(mp_arena_room(&f.arena, MP_SIDE_EXPERTS), 5);
    assert_int_equal(mp_arena_resize(&f.arena, MP_SIDE_EXPERTS, 6), MOEPAGE_E_BUDGET);
    assert_int_equal(mp_arena_resize(&f.arena, MP_SIDE_EXPERTS, UINT64_MAX), MOEPAGE_E_BUDGET);
    assert_int_equal(mp_arena_claimed(&f.arena, MP_SIDE_EXPERTS), 350);
    assert_int_equal(atomic_load(&f.ledger.used), 950);
    mp_arena_detach(&f.arena, MP_SIDE_KV);
    mp_arena_detach(&f.arena, MP_SIDE_EXPERTS);
    mp_arena_fini(&f.arena);
}

static void test_arena_charges_the_ledger_exactly_what_is_claimed(void **state)
{
    (void)state;
    fixture f;
    open_arena(&f);
    mp_arena_attach(&f.arena, MP_SIDE_EXPERTS, 100);
    assert_int_equal(atomic_load(&f.ledger.used), 0);
    mp_arena_resize(&f.arena, MP_SIDE_EXPERTS, 7);
    assert_int_equal(atomic_load(&f.ledger.used), 700);
    mp_arena_resize(&f.arena, MP_SIDE_EXPERTS, 2);
    assert_int_equal(atomic_load(&f.ledger.used), 200);
    mp_arena_detach(&f.arena, MP_SIDE_EXPERTS);
    assert_int_equal(atomic_load(&f.ledger.used), 0);
    assert_int_equal(atomic_load(&f.ledger.peak), 700);
    mp_arena_fini(&f.arena);
}

static void test_arena_refuses_a_claim_that_the_ledger_refuses(void **state)
{
    (void)state;
    fixture f;
    open_arena(&f);
    mp_arena_attach(&f.arena, MP_SIDE_KV, 100);
    assert_int_equal(mp_arena_resize(&f.arena, MP_SIDE_KV, 3), MOEPAGE_OK);
    assert_true(mp_ledger_try_reserve(&f.ledger, 600));
    assert_int_equal(mp_arena_resize(&f.arena, MP_SIDE_KV, 5), MOEPAGE_E_BUDGET);
    assert_int_equal(mp_arena_claimed(&f.arena, MP_SIDE_KV), 300);
    assert_int_equal(atomic_load(&f.ledger.used), 900);
    mp_arena_detach(&f.arena, MP_SIDE_KV);
    mp_arena_fini(&f.arena);
}

static void test_arena_side_has_one_owner_at_a_time(void **state)
{
    (void)state;
    fixture f;
    open_arena(&f);
    assert_int_equal(mp_arena_attach(&f.arena, MP_SIDE_KV, 10), MOEPAGE_OK);
    assert_int_equal(mp_arena_attach(&f.arena, MP_SIDE_KV, 20), MOEPAGE_E_BUSY);
    assert_int_equal(mp_arena_side_max(&f.arena, MP_SIDE_KV), 100);
    mp_arena_detach(&f.arena, MP_SIDE_KV);
    assert_int_equal(mp_arena_attach(&f.arena, MP_SIDE_KV, 20), MOEPAGE_OK);
    assert_int_equal(mp_arena_side_max(&f.arena, MP_SIDE_KV), 50);
    mp_arena_detach(&f.arena, MP_SIDE_KV);
    mp_arena_fini(&f.arena);
}

typedef struct mover {
    fixture *f;
    mp_side side;
    uint64_t units; /* asked for at most */
    uint64_t granted;
} mover;

/* Owns its side's bytes exclusively: writes its mark over all of them and finds it again. */
static void *move_side(void *user)
{
    mover *m = user;
    uint64_t random = 12345 + m->side;
    for (int i = 0; i < 20000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t units = (random >> 33) % (m->units + 1);
        if (mp_arena_resize(&m->f->arena, m->side, units))
            continue;
        m->granted++;
        uint64_t bytes = mp_arena_claimed(&m->f->arena, m->side);
        unsigned char *start =
            m->side == MP_SIDE_EXPERTS ? m->f->memory : m->f->memory + sizeof m->f->memory - bytes;
        memset(start, 1 + m->side, bytes);
        for (uint64_t j = 0; j < bytes; j++) {
            if (start[j] != 1 + m->side)
                return m;
        }
    }
    return NULL;
}

static void test_arena_sides_moved_by_two_threads_never_overlap(void **state)
{
    (void)state;
    fixture f;
    open_arena(&f);
    mp_arena_attach(&f.arena, MP_SIDE_EXPERTS, 8);
    mp_arena_attach(&f.arena, MP_SIDE_KV, 8);
    mover movers[MP_SIDES] = {{&f, MP_SIDE_EXPERTS, 100, 0}, {&f, MP_SIDE_KV, 100, 0}};
    pthread_t threads[MP_SIDES];
    void *broken[MP_SIDES];
    for (int i = 0; i < MP_SIDES; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, move_side, &movers[i]), 0);
    for (int i = 0; i < MP_SIDES; i++)
        pthread_join(threads[i], &broken[i]);
    for (int i = 0; i < MP_SIDES; i++) {
        assert_null(broken[i]);
        assert_true(movers[i].granted > 0);
    }
    assert_true(atomic_load(&f.ledger.peak) <= sizeof f.memory);
    assert_int_equal(atomic_load(&f.ledger.used), mp_arena_claimed(&f.arena, MP_SIDE_EXPERTS) +
                                                      mp_arena_claimed(&f.arena, MP_SIDE_KV));
    mp_arena_detach(&f.arena, MP_SIDE_EXPERTS);
    mp_arena_detach(&f.arena, MP_SIDE_KV);
    mp_arena_fini(&f.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_numbers_both_sides_from_fixed_bases),
        cmocka_unit_test(test_arena_refuses_a_claim_that_meets_the_other_side),
        cmocka_unit_test(test_arena_charges_the_ledger_exactly_what_is_claimed),
        cmocka_unit_test(test_arena_refuses_a_claim_that_the_ledger_refuses),
        cmocka_unit_test(test_arena_side_has_one_owner_at_a_time),
        cmocka_unit_test(test_arena_sides_moved_by_two_threads_never_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
