/* conformance.h — what every device must do, as tests that take the device as a parameter.
 *
 * A device's own program says how to open it and calls conformance_run; see test_host.c. The suite
 * sees the device through its vtable alone and moves bytes in and out with transfers. */
#ifndef MP_TESTS_CONFORMANCE_H
#define MP_TESTS_CONFORMANCE_H

#include "device/seam.h"

typedef struct conformance_subject {
    const char *name;

    /* A fresh device, or NULL with moepage_last_error() set. `threads` is for its kernels,
     * `bus_bytes_per_s` 0 = unthrottled. */
    mp_device *(*open)(uint32_t threads, uint64_t bus_bytes_per_s);

    /* Called when a device has been closed; NULL: nothing is to be done then. */
    void (*closed)(void);

    /* Work goes on while nobody waits for it. Tests that hold a transfer up on purpose need it. */
    bool asynchronous;
    /* Transfers move bytes, from fill callbacks too where they cross the bus, and kernels compute. */
    bool holds_bytes;
    /* Its functions may be called from any thread. */
    bool any_thread;
    /* The throttle given to `open` is obeyed. */
    bool has_throttle;
    /* It is simulated: long tests take a part of their cases, all of them when MP_TEST_LONG is set. */
    bool slow;
} conformance_subject;

/* Runs the suite; the number of failed tests. Tests that the subject's traits rule out are
 * reported as skipped. */
int conformance_run(const conformance_subject *subject);

#endif
