/* Pollers: threads that look until they are stopped, and sleep only when nothing happens. */

#include <stdatomic.h>
#include <stdlib.h>

#include "device/thread.h"
#include "device_paths/path.h"
#include "poller.h"
#include "testing.h"

static mp_device device = {.name = "cuda:0"};

/* A mailbox as a kernel would write it: requests are counted up, and answered. */
typedef struct mailbox {
    _Atomic uint32_t asked, answered;
    _Atomic uint64_t polls;
    uint32_t wrong; /* the poller's own until it is stopped */
    uint32_t last;
} mailbox;

static bool answer(void *user)
{
    mailbox *box = user;
    atomic_fetch_add_explicit(&box->polls, 1, memory_order_relaxed);
    uint32_t asked = atomic_load(&box->asked);
    if (asked == box->last)
        return false;
    box->wrong += asked != box->last + 1;
    box->last = asked;
    atomic_store(&box->answered, asked);
    return true;
}

static void start(mailbox *box, mp_cuda_poller **out)
{
    assert_int_equal(mp_cuda_poller_start(&device, answer, box, out), MOEPAGE_OK);
}

static void test_poller_finds_every_request(void **state)
{
    (void)state;
    enum { BOXES = 3 };
    const uint32_t rounds = getenv("MP_TEST_LONG") ? 3000 : 100;
    mailbox boxes[BOXES] = {0};
    mp_cuda_poller *pollers[BOXES];
    for (uint32_t i = 0; i < BOXES; i++)
        start(&boxes[i], &pollers[i]);
    for (uint32_t round = 1; round <= rounds; round++) {
        for (uint32_t i = 0; i < BOXES; i++)
            atomic_store(&boxes[i].asked, round);
        for (uint32_t i = 0; i < BOXES; i++) {
            while (atomic_load(&boxes[i].answered) != round)
                mp_thread_relax();
        }
    }
    for (uint32_t i = 0; i < BOXES; i++) {
        mp_cuda_poller_stop(pollers[i]);
        assert_int_equal(boxes[i].last, rounds);
        assert_int_equal(boxes[i].wrong, 0);
    }
}

/* What the poller uses may be freed then. */
static void test_poller_has_polled_for_the_last_time_when_it_is_stopped(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        mailbox *box = calloc(1, sizeof *box);
        mp_cuda_poller *poller;
        assert_non_null(box);
        start(box, &poller);
        if (i % 2) {
            while (!atomic_load_explicit(&box->polls, memory_order_relaxed))
                mp_thread_relax();
        }
        mp_cuda_poller_stop(poller);
        box->last = 1; /* a race, were it still there */
        free(box);
    }
    mp_cuda_poller_stop(NULL);
}

static void test_poller_sleeps_only_after_a_long_silence(void **state)
{
    (void)state;
    const struct {
        uint64_t silence, sleep;
    } cases[] = {{0, 0}, {50000, 0}, {19999999, 0}, {20000000, 200000}, {3600000000000, 200000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(mp_cuda_poller_sleep_ns(cases[i].silence), cases[i].sleep);
}

static void test_poller_hears_of_a_path_that_goes_on_without_messages(void **state)
{
    (void)state;
    mp_path_mail mail = {.sequence = 0};
    moepage_cuda_path path = {.mail = &mail};
    assert_false(mp_path_poll(&path));
    for (uint64_t layers = 48; layers <= 3 * 48; layers += 48) {
        mail.layers = layers;
        assert_true(mp_path_poll(&path));
        assert_false(mp_path_poll(&path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poller_finds_every_request),
        cmocka_unit_test(test_poller_has_polled_for_the_last_time_when_it_is_stopped),
        cmocka_unit_test(test_poller_sleeps_only_after_a_long_silence),
        cmocka_unit_test(test_poller_hears_of_a_path_that_goes_on_without_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
