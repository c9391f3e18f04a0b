/* bus.h — the throttle: a bus of a given speed, as a time at which it will be free.
 *
 * The bus is a virtual one that carries one transfer after another, each for bytes / speed. The
 * real copy runs inside its virtual time; whoever runs it then waits for the virtual end. Lateness
 * of a thread is not passed on: a transfer that was ready starts, virtually, when the one before
 * it ended, so that a busy bus moves exactly its speed. */
#ifndef MP_DEVICE_BUS_H
#define MP_DEVICE_BUS_H

#include <stdint.h>

typedef struct mp_bus {
    uint64_t bytes_per_s; /* 0 = no throttle */
    uint64_t free_ns;     /* end of the last transfer */
} mp_bus;

/* When a transfer of `bytes` that has been ready since `ready_ns` will have passed; books it. By
 * one thread at a time. The bus is throttled. */
uint64_t mp_bus_book(mp_bus *bus, uint64_t ready_ns, uint64_t bytes);

/* Waits for the booked end, or notes that the copy itself took much longer. */
void mp_bus_settle(mp_bus *bus, uint64_t end_ns);

#endif
