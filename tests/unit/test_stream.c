/* The queues of a lane, without threads: which job is next at what time, and the effect of a
 * waiting thread. */

#include "device/stream.h"
#include "testing.h"

static mp_lane lane;

static mp_stream *open_stream(uint32_t urgency)
{
    mp_stream *stream = mp_stream_new(NULL, &lane, urgency, NULL);
    assert_non_null(stream);
    return stream;
}

static void push(mp_stream *stream, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        mp_stream_push(stream, &(mp_op){.kind = MP_OP_CALL}, NULL);
}

/* Runs the lane's next operation; it must be that stream's. */
static void expect_next(mp_stream *stream)
{
    assert_ptr_equal(mp_lane_take(&lane), stream);
    mp_stream_finish(stream);
}

static int reset(void **state)
{
    (void)state;
    lane = (mp_lane){0};
    return 0;
}

static void test_stream_background_yields_to_all_that_comes(void **state)
{
    (void)state;
    mp_stream *background = open_stream(1), *a = open_stream(0), *b = open_stream(0);
    push(background, 1);
    push(a, 2);
    push(b, 2);
    expect_next(a);
    expect_next(b);
    expect_next(a);
    expect_next(b);
    expect_next(background);
    mp_stream_release(background);
    mp_stream_release(a);
    mp_stream_release(b);
}

/* It takes its turn among the urgent ones, however much these still have. */
static void test_stream_that_a_thread_waits_for_takes_its_turn(void **state)
{
    (void)state;
    mp_stream *background = open_stream(1), *a = open_stream(0), *b = open_stream(0);
    push(background, 2);
    push(a, 3);
    push(b, 3);
    mp_stream_lend(background);
    mp_stream_lend(background); /* a second thread */
    expect_next(a);
    expect_next(b);
    expect_next(background);
    mp_stream_unlend(background);
    expect_next(a);
    expect_next(b);
    expect_next(background);
    mp_stream_unlend(background);
    push(background, 1);
    expect_next(a);
    expect_next(b);
    expect_next(background);
    assert_null(mp_lane_take(&lane));
    mp_stream_release(background);
    mp_stream_release(a);
    mp_stream_release(b);
}

static void test_stream_lent_while_idle_is_urgent_when_it_has_work(void **state)
{
    (void)state;
    mp_stream *background = open_stream(1), *a = open_stream(0);
    mp_stream_lend(background);
    push(background, 1);
    push(a, 1);
    expect_next(background);
    mp_stream_unlend(background);
    push(background, 1);
    push(a, 1);
    expect_next(a);
    expect_next(a);
    expect_next(background);
    mp_stream_release(background);
    mp_stream_release(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_stream_background_yields_to_all_that_comes, reset),
        cmocka_unit_test_setup(test_stream_that_a_thread_waits_for_takes_its_turn, reset),
        cmocka_unit_test_setup(test_stream_lent_while_idle_is_urgent_when_it_has_work, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
