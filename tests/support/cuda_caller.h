/* cuda_caller.h — what a program does with CUDA beside the library: on a device's context, by the same driver. */
#ifndef CUDA_CALLER_H
#define CUDA_CALLER_H

#include "arena/home.h"
#include "gpu.h"
#include "testing.h"

static inline const mp_cuda_driver *cuda_caller_driver(const moepage_device *device)
{
    return mp_cuda_of(device->device)->driver;
}

/* Makes the device's context current, and the one before it. */
static inline void cuda_caller_enter(const moepage_device *device)
{
    assert_int_equal(mp_cuda_enter(mp_cuda_of(device->device)), MOEPAGE_OK);
}

static inline void cuda_caller_leave(const moepage_device *device)
{
    mp_cuda_leave(mp_cuda_of(device->device));
}

static inline mp_cu_stream cuda_caller_stream(const moepage_device *device)
{
    mp_cu_stream stream;
    cuda_caller_enter(device);
    assert_int_equal(cuda_caller_driver(device)->stream_create(&stream, MP_CU_STREAM_NON_BLOCKING,
                                                               0),
                     MP_CU_SUCCESS);
    cuda_caller_leave(device);
    return stream;
}

/* `says`: what the driver says to it. */
static inline void cuda_caller_give_up(const moepage_device *device, mp_cu_stream stream,
                                       mp_cu_result says)
{
    cuda_caller_enter(device);
    assert_int_equal(cuda_caller_driver(device)->stream_destroy(stream), says);
    cuda_caller_leave(device);
}

static inline void cuda_caller_sync(const moepage_device *device, mp_cu_stream stream)
{
    cuda_caller_enter(device);
    assert_int_equal(cuda_caller_driver(device)->stream_sync(stream), MP_CU_SUCCESS);
    cuda_caller_leave(device);
}

#endif
