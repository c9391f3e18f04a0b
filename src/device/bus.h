/* bus.h — the throttle: a bus of a given speed, represented by the time at which it will be free.
 *
 * The bus is virtual: it carries one transfer after another, each for bytes / speed. The real copy
 * runs inside that time, and its thread then waits for the virtual end. A thread's lateness does
 * not add up: a transfer that was ready starts, in virtual time, when the one before it ended, so
 * that a busy bus moves exactly its speed. */
#ifndef MP_DEVICE_BUS_H
#define MP_DEVICE_BUS_H

#include <stdint.h>

typedef struct mp_bus {
    uint64_t bytes_per_s; /* 0 = no throttle */
    uint64_t free_ns;     /* end of the last transfer */
} mp_bus;

/* Books a transfer of `bytes` that has been ready since `ready_ns`; returns the time at which it
 * will have passed. Called by one thread at a time, for a throttled bus. */
uint64_t mp_bus_book(mp_bus *bus, uint64_t ready_ns, uint64_t bytes);

/* Waits for the booked end; after a copy that took much longer, moves the bus's time forward. */
void mp_bus_settle(mp_bus *bus, uint64_t end_ns);

#endif
