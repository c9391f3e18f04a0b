/* machine_rig.h — a simulated machine whose times can be worked out by hand.
 *
 * The bus takes 100 ns and 1 ns per byte; kernels 10 ns, and then 1 ns per 2 operations or per
 * 4 bytes; the decoder 50 ns and 1 ns per 2 bytes; cold storage 1000 ns and 1 ns per byte, shared. */
#ifndef MACHINE_RIG_H
#define MACHINE_RIG_H

#include "simulated/sim.h"

mp_sim_profile machine_profile(void);

mp_device *machine_open(void);
mp_device *machine_open_with(const moepage_device_config *config);
mp_stream *machine_stream(mp_device *device, mp_stream_class cls);
uint64_t machine_now_ns(mp_device *device);
mp_sim_usage machine_usage(const mp_device *device);

/* Each submits one operation. This one is a transfer between places that are never examined. */
mp_tick machine_copy(mp_device *device, mp_stream *stream, uint64_t bytes);
/* A kernel of 10 ns and 2 per element: it reads 4 bytes and writes 4. */
mp_tick machine_convert(mp_device *device, mp_stream *stream, uint32_t elements);
/* 50 ns and 1 per element of BF16. */
mp_tick machine_decode(mp_device *device, mp_stream *stream, uint64_t elements,
                       const _Atomic int32_t *skip);

/* Waits for a tick; how long that took. */
void machine_sync(mp_device *device, mp_stream *stream, mp_tick tick);
uint64_t machine_time(mp_device *device, mp_stream *stream, mp_tick tick);

#endif
