/* The host device's own functions, with the caller's side of them replaced. */
#include "late_device.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/status.h"

static mp_device_ops late_ops;
static const mp_device_ops *host_ops;
static bool late_settles;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t countdown, failures, waits;
static bool persistent;

/* ---- failures ---- */

void late_fail(uint64_t nth, bool for_good)
{
    pthread_mutex_lock(&lock);
    countdown = nth;
    persistent = for_good;
    failures = waits = 0;
    pthread_mutex_unlock(&lock);
}

static uint64_t read_counter(const uint64_t *counter)
{
    pthread_mutex_lock(&lock);
    uint64_t value = *counter;
    pthread_mutex_unlock(&lock);
    return value;
}

uint64_t late_failures(void)
{
    return read_counter(&failures);
}

uint64_t late_waits(void)
{
    return read_counter(&waits);
}

static moepage_status accept_call(moepage_status refusal, const char *what)
{
    pthread_mutex_lock(&lock);
    bool strikes = countdown && !--countdown;
    if (strikes) {
        countdown = persistent;
        failures++;
    }
    pthread_mutex_unlock(&lock);
    return strikes ? mp_fail(refusal, "the device was told to refuse this %s", what) : MOEPAGE_OK;
}

/* ---- the vtable ---- */

static moepage_status late_copy(mp_stream *stream, const mp_copy *copies, uint32_t n, mp_tick *out)
{
    moepage_status status = accept_call(MOEPAGE_E_DEVICE, "copy");
    return status ? status : host_ops->copy(stream, copies, n, out);
}

static moepage_status late_launch(mp_stream *stream, mp_kernel kernel, const void *args,
                                  mp_tick *out)
{
    moepage_status status = accept_call(MOEPAGE_E_DEVICE, "launch");
    return status ? status : host_ops->launch(stream, kernel, args, out);
}

static moepage_status late_wait_call(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    pthread_mutex_lock(&lock);
    waits++;
    pthread_mutex_unlock(&lock);
    moepage_status status = accept_call(MOEPAGE_E_DEVICE, "wait");
    return status ? status : host_ops->wait(stream, other, tick);
}

static moepage_status late_mark(mp_stream *stream, mp_tick *out)
{
    moepage_status status = accept_call(MOEPAGE_E_DEVICE, "mark");
    return status ? status : host_ops->mark(stream, out);
}

static moepage_status late_enter(mp_stream *stream, void *native)
{
    const late_caller *caller = native;
    mp_tick tick;
    moepage_status status = accept_call(MOEPAGE_E_DEVICE, "enter");
    if (!status)
        status = host_ops->mark(caller->stream, &tick);
    return status ? status : host_ops->wait(stream, caller->stream, tick);
}

static moepage_status late_follow(void *native, mp_stream *stream, mp_tick tick)
{
    const late_caller *caller = native;
    moepage_status status = accept_call(MOEPAGE_E_DEVICE, "follow");
    return status ? status : host_ops->wait(caller->stream, stream, tick);
}

static moepage_status late_settle(mp_stream *stream, mp_tick tick)
{
    moepage_status status = accept_call(MOEPAGE_E_DEVICE, "settle");
    return status || !late_settles ? status : host_ops->settle(stream, tick);
}

static moepage_status late_stream_create(mp_device *device, mp_stream_class cls, mp_stream **out)
{
    moepage_status status = accept_call(MOEPAGE_E_NO_MEMORY, "stream");
    return status ? status : host_ops->stream_create(device, cls, out);
}

static moepage_status late_alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes, void **out)
{
    moepage_status status = accept_call(MOEPAGE_E_NO_MEMORY, "allocation");
    return status ? status : host_ops->alloc(device, kind, bytes, out);
}

static moepage_status late_view_reserve(mp_device *device, uint64_t bytes, void **out)
{
    moepage_status status = accept_call(MOEPAGE_E_NO_MEMORY, "reservation");
    return status ? status : host_ops->view_reserve(device, bytes, out);
}

static moepage_status late_view_map(mp_device *device, void *at, uint64_t offset, uint64_t bytes)
{
    moepage_status status = accept_call(MOEPAGE_E_NO_MEMORY, "view");
    return status ? status : host_ops->view_map(device, at, offset, bytes);
}

/* ---- life ---- */

struct moepage_device *late_home_open(const moepage_device_config *config, bool settles)
{
    moepage_device *home = NULL;
    moepage_status status = moepage_device_open("host", config, &home);
    assert(!status);
    (void)status;
    host_ops = home->device->ops;
    late_settles = settles;
    late_fail(0, false);
    late_ops = *host_ops;
    late_ops.copy = late_copy;
    late_ops.launch = late_launch;
    late_ops.wait = late_wait_call;
    late_ops.mark = late_mark;
    late_ops.enter = late_enter;
    late_ops.follow = late_follow;
    late_ops.settle = late_settle;
    late_ops.stream_create = late_stream_create;
    late_ops.alloc = late_alloc;
    late_ops.view_reserve = late_view_reserve;
    late_ops.view_map = late_view_map;
    home->device->ops = &late_ops;
    home->device->caps &= ~(uint64_t)MP_CAP_SYNC_CALLER;
    return home;
}

void late_home_close(struct moepage_device *home)
{
    home->device->ops = host_ops;
    moepage_status status = moepage_device_close(home);
    assert(!status);
    (void)status;
}

/* ---- callers ---- */

#define CHECKED(call)                    \
    do {                                 \
        moepage_status checked = (call); \
        assert(!checked);                \
        (void)checked;                   \
    } while (0)

void late_caller_open(late_caller *caller, struct moepage_device *home)
{
    *caller = (late_caller){.home = home};
    sem_init(&caller->open, 0, 0);
    CHECKED(host_ops->stream_create(home->device, MP_STREAM_COMPUTE, &caller->stream));
    CHECKED(host_ops->stream_create(home->device, MP_STREAM_COLD, &caller->gate));
}

void late_caller_close(late_caller *caller)
{
    late_gate_open(caller);
    host_ops->stream_destroy(caller->stream);
    host_ops->stream_destroy(caller->gate);
    sem_destroy(&caller->open);
}

void late_read(late_caller *caller, void *dst, const void *src, uint64_t bytes)
{
    mp_copy copy = {.dst = dst, .src = src, .bytes = bytes};
    mp_tick tick;
    CHECKED(host_ops->copy(caller->stream, &copy, 1, &tick));
}

static moepage_status hold(const mp_copy *copy, void *out)
{
    late_caller *caller = (late_caller *)(uintptr_t)copy->fill_user;
    (void)out;
    while (sem_wait(&caller->open))
        ;
    return MOEPAGE_OK;
}

void late_gate_shut(late_caller *caller)
{
    mp_copy copy = {.dst = &caller->nothing, .bytes = 1, .fill = hold, .fill_user = caller};
    mp_tick tick;
    assert(!caller->gated);
    CHECKED(host_ops->copy(caller->gate, &copy, 1, &tick));
    CHECKED(host_ops->wait(caller->stream, caller->gate, tick));
    caller->gated = true;
}

void late_gate_open(late_caller *caller)
{
    if (caller->gated)
        sem_post(&caller->open);
    caller->gated = false;
}

void late_wait(late_caller *caller)
{
    mp_tick tick;
    assert(!caller->gated);
    CHECKED(host_ops->mark(caller->stream, &tick));
    CHECKED(host_ops->sync(caller->stream, tick));
}
