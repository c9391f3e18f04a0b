/* The driver's context: entering and leaving it, and turning the driver's errors into statuses. */
#include "context.h"

#include <assert.h>
#include <stdio.h>

#include "base/status.h"

/* ---- Errors ----------------------------------------------------------------------------- */

/* Returns true for errors after which no call on the context succeeds any more. */
static bool is_sticky(mp_cu_result result)
{
    switch (result) {
    case MP_CU_DEINITIALIZED:
    case MP_CU_ECC_UNCORRECTABLE:
    case MP_CU_NVLINK_UNCORRECTABLE:
    case MP_CU_CONTAINED:
    case MP_CU_ILLEGAL_ADDRESS:
    case MP_CU_LAUNCH_TIMEOUT:
    case MP_CU_CONTEXT_IS_DESTROYED:
    case MP_CU_ASSERT:
    case MP_CU_HARDWARE_STACK_ERROR:
    case MP_CU_ILLEGAL_INSTRUCTION:
    case MP_CU_MISALIGNED_ADDRESS:
    case MP_CU_INVALID_ADDRESS_SPACE:
    case MP_CU_INVALID_PC:
    case MP_CU_LAUNCH_FAILED:
    case MP_CU_TENSOR_MEMORY_LEAK:
    case MP_CU_MPS_CLIENT_TERMINATED:
    case MP_CU_EXTERNAL_DEVICE:
    case MP_CU_UNKNOWN: return true;
    default: return false;
    }
}

typedef struct sentence {
    char text[256];
} sentence;

static sentence describe(const mp_cuda_driver *driver, const char *device, mp_cu_result result,
                         const char *what)
{
    const char *name = NULL, *text = NULL;
    sentence out;
    if (driver->error_name(result, &name) || !name)
        name = "an unknown error";
    if (driver->error_string(result, &text) || !text)
        text = "the driver has no words for it";
    snprintf(out.text, sizeof out.text, "%s: %s failed: %s (%d: %s)", device, what, name, result,
             text);
    return out;
}

moepage_status mp_cuda_check_health(mp_cuda *cuda)
{
    if (!atomic_load_explicit(&cuda->health.poisoned, memory_order_acquire))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_DEVICE, "%s; the device has to be closed", cuda->health.text);
}

/* Keeps the first reason, because failures that follow are its consequences. `poisoned` is set
 * after the text, so that a thread that sees it may read the text; `failing` is set before all
 * else, so that no work is issued in between. */
void mp_cuda_poison(mp_cuda *cuda, mp_cu_result result, const char *said)
{
    atomic_store(&cuda->health.failing, true);
    if (is_sticky(result))
        atomic_store(&cuda->health.lost, true);
    if (atomic_flag_test_and_set(&cuda->health.is_taken))
        return;
    snprintf(cuda->health.text, sizeof cuda->health.text, "%s", said);
    atomic_store_explicit(&cuda->health.poisoned, result, memory_order_release);
    mp_log_write(&cuda->device.log, MOEPAGE_LOG_ERROR, "%s; the device has to be closed", said);
}

void mp_cuda_poison_on(mp_cuda *cuda, moepage_status status)
{
    if (status)
        mp_cuda_poison(cuda, status, moepage_last_error());
}

moepage_status mp_cuda_check(mp_cuda *cuda, mp_cu_result result, const char *what)
{
    if (result == MP_CU_SUCCESS)
        return MOEPAGE_OK;
    sentence said = describe(cuda->driver, cuda->name, result, what);
    if (is_sticky(result)) {
        mp_cuda_poison(cuda, result, said.text);
        if (atomic_load_explicit(&cuda->health.poisoned, memory_order_acquire))
            return mp_cuda_check_health(cuda);
    }
    return mp_fail(result == MP_CU_OUT_OF_MEMORY ? MOEPAGE_E_NO_MEMORY : MOEPAGE_E_DEVICE, "%s",
                   said.text);
}

void mp_cuda_log_failure(mp_cuda *cuda, mp_cu_result result, const char *what)
{
    if (result == MP_CU_SUCCESS || (atomic_load(&cuda->health.poisoned) && !is_sticky(result)))
        return;
    sentence said = describe(cuda->driver, cuda->name, result, what);
    if (is_sticky(result))
        mp_cuda_poison(cuda, result, said.text);
    else
        mp_log_write(&cuda->device.log, MOEPAGE_LOG_WARNING, "%s", said.text);
}

moepage_status mp_cuda_no_memory(mp_cuda *cuda, const char *what, uint64_t bytes,
                                 const char *advice)
{
    size_t free_bytes = 0, total_bytes = 0;
    moepage_status status = mp_cuda_check(cuda, cuda->driver->mem_info(&free_bytes, &total_bytes),
                                          "asking for free memory");
    if (status)
        return status;
    return mp_fail(MOEPAGE_E_NO_MEMORY,
                   "%s: %s takes %llu bytes, and %llu of the GPU's %llu are free: %s", cuda->name,
                   what, (unsigned long long)bytes, (unsigned long long)free_bytes,
                   (unsigned long long)total_bytes, advice);
}

/* ---- The context ------------------------------------------------------------------------ */

/* How many times this thread has entered a context without leaving it, and the capture mode that
 * it had before. */
static _Thread_local struct {
    uint32_t depth;
    int mode;
} inside;

moepage_status mp_cuda_enter(mp_cuda *cuda)
{
    mp_cu_result result = cuda->driver->context_push(cuda->context);
    if (result)
        return mp_cuda_check(cuda, result, "entering the context");
    if (inside.depth) {
        inside.depth++;
        return MOEPAGE_OK;
    }
    inside.mode = MP_CU_CAPTURE_MODE_RELAXED;
    result = cuda->driver->capture_mode(&inside.mode);
    if (result) {
        mp_cu_context own;
        mp_cuda_log_failure(cuda, cuda->driver->context_pop(&own), "leaving the context");
        return mp_cuda_check(cuda, result, "entering the context");
    }
    inside.depth = 1;
    return MOEPAGE_OK;
}

void mp_cuda_leave(mp_cuda *cuda)
{
    mp_cu_context own;
    assert(inside.depth > 0);
    if (!--inside.depth)
        mp_cuda_log_failure(cuda, cuda->driver->capture_mode(&inside.mode), "leaving the context");
    mp_cuda_log_failure(cuda, cuda->driver->context_pop(&own), "leaving the context");
}

/* ---- Events ----------------------------------------------------------------------------- */

/* BLOCKING_SYNC makes threads that wait for an event sleep, since they may wait for long. */
moepage_status mp_cuda_event_create(mp_cuda *cuda, mp_cu_event *out)
{
    const unsigned flags = MP_CU_EVENT_DISABLE_TIMING | MP_CU_EVENT_BLOCKING_SYNC;
    return mp_cuda_check(cuda, cuda->driver->event_create(out, flags), "creating an event");
}

void mp_cuda_event_destroy(mp_cuda *cuda, mp_cu_event *event)
{
    if (*event)
        mp_cuda_log_failure(cuda, cuda->driver->event_destroy(*event), "giving back an event");
    *event = NULL;
}
