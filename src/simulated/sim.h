/* sim.h — the simulated device: a machine made of numbers, in virtual time, without bytes.
 *
 * Implements device/seam.h on one thread. A virtual clock stands still while the caller or the library
 * computes, and moves during waits (sync, settle, mp_sim_work, mp_sim_idle_until): then events run in the
 * order of their times, ties in the order of their submission, so that a run is the same every time.
 * Tasks run at their virtual time from inside such a wait. Work starts only during waits, so that all
 * that is submitted at one moment is considered together.
 *
 * Resources, each in turn by its own queue rules (device/seam.h): the bus (DEMAND before PREFETCH, what
 * runs is not interrupted), compute (COMPUTE kernels and what mp_sim_work says, BACKGROUND kernels
 * only when neither is ready), the decoder (DECODE kernels; a unit of its own beside compute), cold storage
 * (COLD streams, several at a time, which share its bandwidth). A transfer takes latency + bytes /
 * bandwidth; a kernel takes launch + max(flops / compute, bytes / memory bandwidth). EXPERTS on the
 * host takes what crosses the bus both ways and the same of the host's figures, in turn with the
 * device's kernels.
 *
 * The arena and workspaces are addresses that nothing backs: MP_CAP_NO_BYTES. Fill callbacks of COLD
 * transfers are called (they check and account), those of others are not.
 *
 * Threads: all calls from one thread, or under one lock of the caller's. */
#ifndef MP_SIMULATED_SIM_H
#define MP_SIMULATED_SIM_H

#include "device/seam.h"

/* A machine, as its file describes it: docs/format-machine.md. */
typedef struct mp_sim_profile {
    char name[64];
    uint64_t memory_bytes;       /* of the device */
    uint64_t memory_bytes_per_s; /* what kernels get of it */
    uint64_t compute_flops;      /* BF16 multiply-adds count two; what kernels get of the peak */
    uint64_t bus_bytes_per_s;
    uint64_t bus_latency_ns;     /* per transfer */
    uint64_t decode_bytes_per_s; /* dense bytes out */
    uint64_t decode_latency_ns;  /* per launch */
    uint64_t cold_bytes_per_s;
    uint64_t cold_latency_ns;
    uint64_t launch_ns; /* per kernel */
    uint64_t host_memory_bytes;
    uint64_t host_memory_bytes_per_s; /* what kernels on the host's processor get; 0 = not known */
    uint64_t host_compute_flops;      /* and of its arithmetic */
} mp_sim_profile;

/* Reads a profile file (JSON). NOT_FOUND, IO, FORMAT with a sentence that names file and field. */
moepage_status mp_sim_profile_read(const char *path, mp_sim_profile *out);

/* Registers the simulated device, so that moepage_device_open knows "sim:PATH". Idempotent. */
void mp_sim_register(void);

/* config->bus_bytes_per_s, when given, replaces the profile's. */
moepage_status mp_sim_open(const mp_sim_profile *profile, const moepage_device_config *config,
                           mp_device **out);

/* The caller's own kernels (attention, router, dense layers): occupies compute for
 * max(flops / compute, bytes / memory bandwidth), behind what was launched before, and waits for it. */
void mp_sim_work(mp_device *device, uint64_t flops, uint64_t bytes);
/* The caller's own copy over the bus, in turn with the device's DEMAND transfers; waits for it. */
void mp_sim_transfer(mp_device *device, uint64_t bytes);
/* Let time pass: for `ns`, or until a moment. */
void mp_sim_pass(mp_device *device, uint64_t ns);
void mp_sim_idle_until(mp_device *device, uint64_t ns);

/* How long each resource has been busy, and bytes moved, since the device was opened. */
typedef struct mp_sim_usage {
    uint64_t now_ns;
    uint64_t bus_ns, bus_bytes;
    uint64_t compute_ns;
    uint64_t decode_ns, decode_bytes; /* dense bytes out */
    uint64_t cold_ns, cold_bytes;
    uint64_t events;
} mp_sim_usage;
void mp_sim_get_usage(const mp_device *device, mp_sim_usage *out);

#endif
