/* Signals: the first of either is noted and breaks nothing off, the next ends the program. */
#include <signal.h>

#include "serve/interrupt.h"
#include "testing.h"

static struct sigaction action_of(int signal_number)
{
    struct sigaction action = {.sa_flags = 0};
    assert_int_equal(sigaction(signal_number, NULL, &action), 0);
    return action;
}

static void test_interrupt_notes_one_and_restarts_calls(void **state)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    (void)state;
    for (int i = 0; i < 2; i++) {
        interrupt_open();
        assert_true(action_of(SIGINT).sa_flags & SA_RESTART);
        assert_true(action_of(SIGTERM).sa_flags & SA_RESTART);
        assert_int_equal(raise(numbers[i]), 0);
        assert_int_equal(interrupt_seen(), numbers[i]);
        assert_ptr_equal(action_of(SIGINT).sa_handler, SIG_DFL);
        assert_ptr_equal(action_of(SIGTERM).sa_handler, SIG_DFL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interrupt_notes_one_and_restarts_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
