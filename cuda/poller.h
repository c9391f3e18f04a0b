/* poller.h — threads that look at shared memory: mp_cuda_poller in device/cuda_ext.h. */
#ifndef MP_CUDA_POLLER_H
#define MP_CUDA_POLLER_H

#include "device/cuda_ext.h"

moepage_status mp_cuda_poller_start(mp_device *device, mp_cuda_poll_fn poll, void *user,
                                    mp_cuda_poller **out);
/* Returns after the last poll has returned; must not be called from a poll. NULL is a no-op. */
void mp_cuda_poller_stop(mp_cuda_poller *poller);

/* How long to sleep after `silence_ns` in which nothing happened; 0 = not at all. */
uint64_t mp_cuda_poller_sleep_ns(uint64_t silence_ns);

#endif
