/* device_rig.h — the device that a test runs on: the host; or, where MP_TEST_DEVICE says so, a
 * CUDA device over the simulated driver ("sim") or a real one ("cuda:0").
 *
 * Tests that take their device and its memory from here run unchanged on all three. */
#ifndef MP_TESTS_DEVICE_RIG_H
#define MP_TESTS_DEVICE_RIG_H

#include <stdbool.h>

#include "moepage.h"

/* Is it not the host? Then memory is not the test's, and work outlasts calls. */
bool device_rig_is_cuda(void);
/* Is it the simulated driver? Then its memory is the test's all the same. */
bool device_rig_is_simulated(void);

/* Opens it, or fails the running test. Several may be open at a time; simulated ones, but for the first, on
 * GPUs of their own where `ordinal` says so. */
moepage_device *device_rig_open(const moepage_device_config *config);
moepage_device *device_rig_open_nth(const moepage_device_config *config, uint32_t ordinal);
/* Whether simulated GPUs reach each other's memory, from now on; they do at first. */
void device_rig_allow_peers(bool allow);
void device_rig_close(moepage_device *device);

/* Device memory outside the budget, for a caller's x and y. */
void *device_rig_alloc(moepage_device *device, uint64_t bytes);
void device_rig_free(moepage_device *device, void *memory, uint64_t bytes);

/* Bytes in and out; what the NULL stream holds is done before, and they are there on return. */
void device_rig_write(moepage_device *device, void *memory, const void *from, uint64_t bytes);
void device_rig_read(moepage_device *device, const void *memory, void *to, uint64_t bytes);
/* Waits for what the NULL stream holds. A plan is promised to the first device's: what is then read of another's
 * memory waits for that stream first. */
void device_rig_wait(moepage_device *device);

#endif
