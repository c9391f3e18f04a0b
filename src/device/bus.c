/* Bookings on the throttled bus. */
#include "device/bus.h"

#include "device/thread.h"

/* A thread can lose its CPU for some milliseconds. The transfers behind it make up for a
 * delay of up to this much; beyond it, the copy itself is slower than the bus, and the
 * bus stays occupied. */
#define CATCH_UP_NS 5000000u

/* Rounded up, so that no transfer is faster than the bus. */
static uint64_t transfer_ns(const mp_bus *bus, uint64_t bytes)
{
    unsigned __int128 ns = (unsigned __int128)bytes * 1000000000u + bus->bytes_per_s - 1;
    return (uint64_t)(ns / bus->bytes_per_s);
}

uint64_t mp_bus_book(mp_bus *bus, uint64_t ready_ns, uint64_t bytes)
{
    uint64_t start = ready_ns > bus->free_ns ? ready_ns : bus->free_ns;
    bus->free_ns = start + transfer_ns(bus, bytes);
    return bus->free_ns;
}

void mp_bus_settle(mp_bus *bus, uint64_t end_ns)
{
    uint64_t now = mp_clock_ns();
    if (now < end_ns)
        mp_clock_wait(end_ns);
    else if (now - end_ns > CATCH_UP_NS)
        bus->free_ns = now - CATCH_UP_NS;
}
