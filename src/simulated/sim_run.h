/* sim_run.h — the simulated device from the inside: its units at work, and its clock. */
#ifndef MP_SIMULATED_SIM_RUN_H
#define MP_SIMULATED_SIM_RUN_H

#include "simulated/sim.h"
#include "simulated/sim_stream.h"

#define MP_SIM_MOST_READS 64u

/* A unit that does one thing at a time. */
typedef struct mp_sim_engine {
    mp_stream *stream; /* whose oldest entry it runs; NULL = idle */
    uint64_t end_ns;
} mp_sim_engine;

/* One read from cold storage: first its latency, then its bytes move. */
typedef struct mp_sim_read {
    mp_stream *stream;
    bool moving;
    uint64_t moves_ns;      /* when the latency ends */
    unsigned __int128 left; /* of its bytes, in parts of 10^9 */
} mp_sim_read;

/* Reads share the bandwidth: each of n that move has one nth of it. */
typedef struct mp_sim_cold {
    mp_sim_read reads[MP_SIM_MOST_READS];
    uint32_t n, n_moving, most;
    uint64_t as_of_ns; /* the time that `left` is valid for */
    uint64_t next_ns;  /* when something happens; UINT64_MAX = never */
    uint32_t next;     /* to which read */
    uint64_t since_ns; /* busy, while n > 0 */
} mp_sim_cold;

typedef struct mp_sim {
    mp_device device;
    mp_sim_profile profile; /* with the bus speed that the device was opened with */
    mp_sim_queues queues;
    uint64_t now_ns;
    mp_sim_engine engines[MP_SIM_COLD];
    mp_sim_cold cold;
    mp_sim_usage usage; /* busy times count running work to its end */
    bool in_task;
    bool poisoned;
    char poison_text[160];
    uint64_t device_bytes, host_bytes; /* given out */
    bool has_arena;
    uint64_t arena_backed;                  /* of device_bytes, the arena's */
    mp_stream *caller_compute, *caller_bus; /* of mp_sim_work and mp_sim_transfer */
} mp_sim;

/* Let time pass until the tick has completed, or until a moment. Not callable from a task. */
void mp_sim_run_to_tick(mp_sim *sim, const mp_stream *stream, mp_tick tick);
void mp_sim_run_to_time(mp_sim *sim, uint64_t ns);
/* Lets time pass until the stream's work is done and the tasks that follow it have run; NULL: until all
 * tasks have run. */
void mp_sim_run_out(mp_sim *sim, const mp_stream *stream);

/* ---- costs (sim_cost.c) ---- */

/* Returns the duration of work on the device: that of its arithmetic or of its memory,
 * whichever is longer. */
uint64_t mp_sim_compute_ns(const mp_sim_profile *profile, uint64_t flops, uint64_t bytes);

/* Returns the duration of DECODE as its jobs are now, and the bytes that those write which are not
 * skipped. */
uint64_t mp_sim_decode_ns(const mp_sim_profile *profile, const mp_kernel_decode_args *args,
                          uint64_t *out_bytes);
/* Describes a kernel as work; `args` are those of its launch. */
mp_sim_entry mp_sim_kernel_work(const mp_sim_profile *profile, mp_kernel kernel, const void *args);
/* Describes a transfer on a stream of this class as work. */
mp_sim_entry mp_sim_copy_work(const mp_sim_profile *profile, mp_stream_class cls, uint64_t bytes);

#endif
