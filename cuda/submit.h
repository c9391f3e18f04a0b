/* submit.h — the vtable's streams: submitting in-order work with ticks, and waiting for it. */
#ifndef MP_CUDA_SUBMIT_H
#define MP_CUDA_SUBMIT_H

#include "context.h"

/* As the members of the same name in mp_device_ops. An mp_stream * of this device
 * is an mp_cuda_stream. */
moepage_status mp_cuda_stream_create(mp_device *device, mp_stream_class cls, mp_stream **out);
void mp_cuda_stream_destroy(mp_stream *stream);
moepage_status mp_cuda_stream_copy(mp_stream *stream, const mp_copy *copies, uint32_t n,
                                   mp_tick *out);
moepage_status mp_cuda_stream_launch(mp_stream *stream, mp_kernel kernel, const void *args,
                                     mp_tick *out);
moepage_status mp_cuda_stream_wait(mp_stream *stream, mp_stream *other, mp_tick tick);
moepage_status mp_cuda_stream_mark(mp_stream *stream, mp_tick *out);
moepage_status mp_cuda_stream_enter(mp_stream *stream, void *native);
moepage_status mp_cuda_stream_follow(void *native, mp_stream *stream, mp_tick tick);
mp_tick mp_cuda_stream_completed(const mp_stream *stream);
moepage_status mp_cuda_stream_settle(mp_stream *stream, mp_tick tick);
moepage_status mp_cuda_stream_sync(mp_stream *stream, mp_tick tick);
void mp_cuda_post(mp_device *device, mp_stream *stream, mp_tick tick, mp_task *task);

/* As the members of mp_cuda_ext; write32 in the order of the stream, without a tick of its own. */
moepage_status mp_cuda_stream_write32(mp_stream *stream, uint64_t at, uint32_t value);
moepage_status mp_cuda_stream_ask(mp_stream *stream);

/* What feeds the streams, cuda->issuer: at open, once the driver, the context, the GPU's attributes
 * and cuda->executor are there; at close, before the executor, when every stream has been
 * destroyed. NO_MEMORY; UNSUPPORTED when streams of this GPU cannot write 64-bit words. Destroying
 * what was never created is a no-op. */
moepage_status mp_cuda_issuer_create(mp_cuda *cuda);
void mp_cuda_issuer_destroy(mp_cuda *cuda);

#endif
