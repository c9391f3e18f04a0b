/* Opening the machine of round numbers, and giving it something to do. */
#include "machine_rig.h"

#include "testing.h"

mp_sim_profile machine_profile(void)
{
    return (mp_sim_profile){
        .name = "by hand",
        .memory_bytes = 1ull << 40,
        .memory_bytes_per_s = 4000000000,
        .compute_flops = 2000000000,
        .bus_bytes_per_s = 1000000000,
        .bus_latency_ns = 100,
        .decode_bytes_per_s = 2000000000,
        .decode_latency_ns = 50,
        .cold_bytes_per_s = 1000000000,
        .cold_latency_ns = 1000,
        .launch_ns = 10,
        .host_memory_bytes = 1ull << 42,
    };
}

mp_device *machine_open_with(const moepage_device_config *config)
{
    mp_sim_profile profile = machine_profile();
    mp_device *device = NULL;
    assert_int_equal(mp_sim_open(&profile, config, &device), MOEPAGE_OK);
    assert_int_equal(device->caps, MP_CAP_SYNC_CALLER | MP_CAP_NO_BYTES);
    return device;
}

mp_device *machine_open(void)
{
    moepage_device_config config = {.struct_size = sizeof config};
    return machine_open_with(&config);
}

mp_stream *machine_stream(mp_device *device, mp_stream_class cls)
{
    mp_stream *stream = NULL;
    assert_int_equal(device->ops->stream_create(device, cls, &stream), MOEPAGE_OK);
    return stream;
}

uint64_t machine_now_ns(mp_device *device)
{
    return device->ops->now_ns(device);
}

mp_sim_usage machine_usage(const mp_device *device)
{
    mp_sim_usage usage;
    mp_sim_get_usage(device, &usage);
    return usage;
}

mp_tick machine_copy(mp_device *device, mp_stream *stream, uint64_t bytes)
{
    mp_copy copy = {.dst = (void *)16, .src = (void *)32, .bytes = bytes};
    mp_tick tick = 0;
    assert_int_equal(device->ops->copy(stream, &copy, 1, &tick), MOEPAGE_OK);
    return tick;
}

mp_tick machine_convert(mp_device *device, mp_stream *stream, uint32_t elements)
{
    mp_kernel_convert_args args = {.x_dtype = MOEPAGE_DTYPE_F32,
                                   .math = MOEPAGE_MATH_FP32,
                                   .n_tokens = 1,
                                   .hidden = elements};
    mp_tick tick = 0;
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_CONVERT, &args, &tick), MOEPAGE_OK);
    return tick;
}

mp_tick machine_decode(mp_device *device, mp_stream *stream, uint64_t elements,
                       const _Atomic int32_t *skip)
{
    /* Tables live until their ticks: more launches than this are never under way. */
    static mp_decode_job jobs[1024];
    static const _Atomic int32_t *skips[1024];
    static uint32_t next;
    const uint32_t at = next++ % (sizeof jobs / sizeof *jobs);
    mp_decode_job *job = &jobs[at];
    *job = (mp_decode_job){.elements = elements,
                           .form = MOEPAGE_FORM_EXPH,
                           .dtype = MOEPAGE_DTYPE_BF16};
    skips[at] = skip;
    mp_kernel_decode_args args = {.jobs = job, .n_jobs = 1, .skips = skip ? &skips[at] : NULL};
    mp_tick tick = 0;
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_DECODE, &args, &tick), MOEPAGE_OK);
    return tick;
}

void machine_sync(mp_device *device, mp_stream *stream, mp_tick tick)
{
    assert_int_equal(device->ops->sync(stream, tick), MOEPAGE_OK);
    assert_true(device->ops->completed(stream) >= tick);
}

uint64_t machine_time(mp_device *device, mp_stream *stream, mp_tick tick)
{
    uint64_t began = machine_now_ns(device);
    machine_sync(device, stream, tick);
    return machine_now_ns(device) - began;
}
