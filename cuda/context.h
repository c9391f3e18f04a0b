/* context.h — the CUDA device inside: the struct that the files of this directory share, and the
 * driver's context.
 *
 * Every driver call is made with the device's primary context current: between mp_cuda_enter and
 * mp_cuda_leave, which put the caller's own context back. */
#ifndef MP_CUDA_CONTEXT_H
#define MP_CUDA_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "blas.h"
#include "device/cuda_ext.h"
#include "device/executor.h"
#include "device/seam.h"
#include "driver.h"
#include "functions.h"
#include "ranges.h"

typedef struct mp_cuda_arena mp_cuda_arena;   /* vmm.c */
typedef struct mp_cuda_issuer mp_cuda_issuer; /* issue.c: threads that feed streams */
typedef struct mp_cuda_stream mp_cuda_stream; /* issue.h; what an mp_stream * points to */

/* Tells whether the device still works, and if not, why. Written by mp_cuda_poison alone. */
typedef struct mp_cuda_health {
    _Atomic bool failing; /* poisoned, or about to be: set before all else */
    _Atomic bool lost;    /* after a sticky result: the GPU does nothing more for the context */
    /* The first sticky mp_cu_result, or the negative status of a transfer; 0 = well; set
     * after the text. */
    _Atomic int32_t poisoned;
    atomic_flag is_taken; /* by the thread with the first reason, which writes the text */
    char text[256];
} mp_cuda_health;

/* cuBLAS's handle: fast.c. */
typedef struct mp_cuda_fast {
    pthread_mutex_t lock;  /* taken last of all */
    mp_blas_handle handle; /* [lock] NULL until a session asks for it */
    _Atomic bool is_ready; /* the handle is there, and has refused nothing */
} mp_cuda_fast;

typedef struct mp_cuda {
    mp_device device; /* first */
    const mp_cuda_driver *driver;
    const mp_cuda_blas *blas; /* NULL: not there; blas_missing says why */
    const char *blas_missing;
    mp_cu_device gpu;
    mp_cu_context context;
    char name[16];         /* "cuda:0" */
    char architecture[16]; /* "sm_90" */
    /* The parts that do not change; those of the arena from its allocation on. */
    moepage_cuda_info info;
    bool has_vmm;
    uint64_t pin_bytes;            /* see mp_cuda_pin_end */
    _Atomic uint64_t memory_calls; /* driver calls that took or gave memory */
    _Atomic uint64_t
        handle_ns; /* to map a handle of the arena, when some were mapped last; 0 = none were */
    _Atomic uint32_t guests; /* threads, another device's perhaps, that issue from its streams */
    mp_cuda_health health;
    mp_executor *executor; /* host threads: COLD streams and tasks */
    mp_cuda_arena *arena;
    mp_cuda_kernels kernels;
    mp_cuda_issuer *issuer;
    const mp_cuda_ranges *ranges; /* NULL: off */
    mp_cuda_fast fast;
} mp_cuda;

static inline mp_cuda *mp_cuda_of(mp_device *device)
{
    return (mp_cuda *)(void *)device;
}

/* Make the context current, and put the caller's back. They are cheap, and they nest. In between,
 * the thread may make calls that are unsafe during a stream capture: a capture of the caller's
 * involves none of the library's streams, so that it neither forbids such a call nor is
 * invalidated by one. */
moepage_status mp_cuda_enter(mp_cuda *cuda);
void mp_cuda_leave(mp_cuda *cuda);

/* Turns a driver call's result into a status. Success is MOEPAGE_OK. Errors that stick to the
 * context poison the device (logged once): DEVICE from then on, for every call. Out of memory is
 * NO_MEMORY; the rest DEVICE. The sentence: "cuda:0: <what> failed: CUDA_ERROR_X (text)". */
moepage_status mp_cuda_check(mp_cuda *cuda, mp_cu_result result, const char *what);
/* Logs a failure during cleanup. Sets no last error: the failure that led to the cleanup may have
 * set one. Sticky errors poison the device. */
void mp_cuda_log_failure(mp_cuda *cuda, mp_cu_result result, const char *what);
/* Fails with NO_MEMORY: "cuda:0: <what> takes X bytes, and Y of the GPU's Z are free: <advice>".
 * Context current. */
moepage_status mp_cuda_no_memory(mp_cuda *cuda, const char *what, uint64_t bytes,
                                 const char *advice);

/* Poisons the device for the reason `said`, a sentence that begins with the device's name: work is
 * skipped from now on. The first reason is the one that is reported. */
void mp_cuda_poison(mp_cuda *cuda, mp_cu_result result, const char *said);
/* Poisons the device if `status` is a failure, with this thread's last error as the reason: for
 * work that has no caller to report to, and on which later work depends. */
void mp_cuda_poison_on(mp_cuda *cuda, moepage_status status);
/* Returns DEVICE, with the sentence of what poisoned the device, or MOEPAGE_OK. */
moepage_status mp_cuda_check_health(mp_cuda *cuda);

/* Context current. Destroying NULL is a no-op. */
moepage_status mp_cuda_event_create(mp_cuda *cuda, mp_cu_event *out);
void mp_cuda_event_destroy(mp_cuda *cuda, mp_cu_event *event);

/* Host tiers are registered with the driver in pieces that end at multiples of this many bytes, and
 * no transfer may reach from one registration into the next. The function returns where the piece
 * around `at` ends. Device memory, and memory pinned in one piece, may be cut there as well. */
#define MP_CUDA_PIN_BYTES (64ull << 30)
static inline uint64_t mp_cuda_pin_end(const mp_cuda *cuda, uint64_t at)
{
    return (at / cuda->pin_bytes + 1) * cuda->pin_bytes;
}

/* Counts a driver call that takes or gives memory: before each of them. */
static inline void mp_cuda_count_memory_call(mp_cuda *cuda)
{
    atomic_fetch_add_explicit(&cuda->memory_calls, 1, memory_order_relaxed);
}

#endif
