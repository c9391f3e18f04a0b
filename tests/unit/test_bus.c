/* Bookings on the throttled bus, in numbers worked out by hand. */

#include "device/bus.h"
#include "device/thread.h"
#include "testing.h"

static void test_bus_transfers_queue_behind_each_other(void **state)
{
    (void)state;
    mp_bus bus = {.bytes_per_s = 1000000000}; /* a byte per nanosecond */
    assert_int_equal(mp_bus_book(&bus, 1000, 500), 1500);
    assert_int_equal(mp_bus_book(&bus, 1100, 500), 2000); /* was ready before the bus was free */
    assert_int_equal(mp_bus_book(&bus, 2000, 1), 2001);
    assert_int_equal(mp_bus_book(&bus, 9000, 500), 9500); /* idle time is not saved up */
}

static void test_bus_is_never_faster_than_its_speed(void **state)
{
    (void)state;
    mp_bus bus = {.bytes_per_s = 3};
    assert_int_equal(mp_bus_book(&bus, 0, 1), 333333334); /* rounded up */
    bus = (mp_bus){.bytes_per_s = 7000000000};
    uint64_t end = 0;
    for (uint32_t i = 0; i < 1000; i++)
        end = mp_bus_book(&bus, 0, 48);
    assert_in_range(end, 48000 / 7, 48000 / 7 + 1000);
}

static void test_bus_counts_large_transfers_without_overflow(void **state)
{
    (void)state;
    mp_bus bus = {.bytes_per_s = 1ull << 40};
    assert_int_equal(mp_bus_book(&bus, 0, 1ull << 50), 1024ull * 1000000000);
}

static void test_bus_waits_for_the_end_of_a_transfer(void **state)
{
    (void)state;
    mp_bus bus = {.bytes_per_s = 1000000000};
    uint64_t start = mp_clock_ns();
    uint64_t end = mp_bus_book(&bus, start, 300000);
    mp_bus_settle(&bus, end);
    assert_true(mp_clock_ns() >= start + 300000);
    assert_int_equal(bus.free_ns, end);
}

static void test_bus_is_held_by_a_copy_that_takes_much_longer(void **state)
{
    (void)state;
    mp_bus bus = {.bytes_per_s = 1000000000};
    uint64_t now = mp_clock_ns();
    uint64_t end = mp_bus_book(&bus, now - 1000000000, 1); /* ended a second ago */
    mp_bus_settle(&bus, end);
    assert_true(bus.free_ns > now - 100000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bus_transfers_queue_behind_each_other),
        cmocka_unit_test(test_bus_is_never_faster_than_its_speed),
        cmocka_unit_test(test_bus_counts_large_transfers_without_overflow),
        cmocka_unit_test(test_bus_waits_for_the_end_of_a_transfer),
        cmocka_unit_test(test_bus_is_held_by_a_copy_that_takes_much_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
