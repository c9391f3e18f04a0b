/* sim.h — the simulated device: a machine made of numbers, in virtual time, without bytes.
 *
 * Implements device/seam.h on one thread. A virtual clock stands still while the caller or the
 * library computes, and moves during waits (sync, settle, mp_sim_work, mp_sim_idle_until): then
 * events run in the order of their times, ties in the order of their submission, so that a run is
 * the same every time. Tasks run at their virtual time from inside such a wait. Work starts only
 * during waits, so that all that is submitted at one moment is considered together.
 *
 * The resources, each with its own queue rules (device/seam.h): the bus (DEMAND before PREFETCH;
 * running transfers are not interrupted), compute (COMPUTE kernels and mp_sim_work; BACKGROUND
 * kernels only if neither is ready), the decoder (DECODE kernels; a unit of its own beside
 * compute), and cold storage (COLD streams, several at a time, which share its bandwidth). A
 * transfer takes latency + bytes / bandwidth; a kernel takes launch + max(flops / compute, bytes /
 * memory bandwidth). EXPERTS on the host takes the time of its bytes on the bus, both ways, and of
 * the host's own figures, in turn with the device's kernels.
 *
 * The arena and workspaces are addresses that nothing backs: MP_CAP_NO_BYTES. Fill callbacks are
 * called for COLD transfers (they check and account), and for no others.
 *
 * Threads: all calls come from one thread, or under one lock of the caller's. */
#ifndef MP_SIMULATED_SIM_H
#define MP_SIMULATED_SIM_H

#include "device/seam.h"

/* A machine, as its file describes it: docs/format-machine.md. */
typedef struct mp_sim_profile {
    char name[64];
    uint64_t memory_bytes;       /* of the device */
    uint64_t memory_bytes_per_s; /* the part that kernels achieve */
    /* A BF16 multiply-add counts as two; the part of the peak that kernels achieve. */
    uint64_t compute_flops;
    uint64_t bus_bytes_per_s;
    uint64_t bus_latency_ns;     /* per transfer */
    uint64_t decode_bytes_per_s; /* dense bytes out */
    uint64_t decode_latency_ns;  /* per launch */
    uint64_t cold_bytes_per_s;
    uint64_t cold_latency_ns;
    uint64_t launch_ns; /* per kernel */
    uint64_t host_memory_bytes;
    /* The part that kernels on the host's processor achieve; 0 = not known. */
    uint64_t host_memory_bytes_per_s;
    uint64_t host_compute_flops; /* the same for its arithmetic */
} mp_sim_profile;

/* Reads a profile file (JSON). NOT_FOUND, IO, FORMAT with a sentence that names file and field. */
moepage_status mp_sim_profile_read(const char *path, mp_sim_profile *out);

/* Registers the simulated device, so that moepage_device_open knows "sim:PATH". Idempotent. */
void mp_sim_register(void);

/* Opens a machine. config->bus_bytes_per_s, if given, replaces the profile's. */
moepage_status mp_sim_open(const mp_sim_profile *profile, const moepage_device_config *config,
                           mp_device **out);

/* Runs the caller's own kernels (attention, router, dense layers): occupies compute for max(flops /
 * compute, bytes / memory bandwidth), behind earlier launches, and waits for that. */
void mp_sim_work(mp_device *device, uint64_t flops, uint64_t bytes);
/* Runs the caller's own copy over the bus, in turn with the device's DEMAND transfers, and
 * waits for it. */
void mp_sim_transfer(mp_device *device, uint64_t bytes);
/* Let time pass: for `ns`, or until a moment. */
void mp_sim_pass(mp_device *device, uint64_t ns);
void mp_sim_idle_until(mp_device *device, uint64_t ns);

/* The time that each resource has been busy, and the bytes moved, since the device was opened. */
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
