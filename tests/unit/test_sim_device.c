/* The simulated device, in times worked out by hand. */

#include <stdlib.h>
#include <string.h>

#include "machine_rig.h"
#include "testing.h"

/* ---- one thing at a time ---- */

static void test_sim_device_transfer_takes_latency_and_its_bytes(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *stream = machine_stream(device, MP_STREAM_DEMAND);
    mp_tick tick = machine_copy(device, stream, 1000);
    assert_int_equal(machine_now_ns(device), 0); /* nobody has waited */
    assert_int_equal(device->ops->completed(stream), 0);
    machine_sync(device, stream, tick);
    assert_int_equal(machine_now_ns(device), 1100);
    assert_int_equal(machine_time(device, stream, machine_copy(device, stream, 1)), 101);
    mp_sim_usage usage = machine_usage(device);
    assert_int_equal(usage.now_ns, 1201);
    assert_int_equal(usage.bus_ns, 1201);
    assert_int_equal(usage.bus_bytes, 1001);
    assert_int_equal(usage.events, 2);
    device->ops->stream_destroy(stream);
    device->ops->close(device);
}

static void test_sim_device_config_replaces_the_bus_speed(void **state)
{
    (void)state;
    moepage_device_config config = {.struct_size = sizeof config, .bus_bytes_per_s = 300};
    mp_device *device = machine_open_with(&config);
    assert_int_equal(device->bus_bytes_per_s, 300);
    mp_stream *stream = machine_stream(device, MP_STREAM_PREFETCH);
    assert_int_equal(machine_time(device, stream, machine_copy(device, stream, 1)), 100 + 3333334);
    /* Far past what 64 bits hold on the way. */
    uint64_t bytes = 1ull << 40;
    assert_int_equal(machine_time(device, stream, machine_copy(device, stream, bytes)),
                     100 + bytes / 3 * 10000000 + 3333334);
    device->ops->stream_destroy(stream);
    device->ops->close(device);
}

static void test_sim_device_kernels_take_arithmetic_or_memory(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *stream = machine_stream(device, MP_STREAM_COMPUTE);
    assert_int_equal(machine_time(device, stream, machine_convert(device, stream, 300)), 10 + 600);

    /* H 10, I 4: 120 weights of 2 bytes per expert; 6 * 40 operations per row. */
    mp_ffn_expert experts[2] = {{.n_rows = 3}, {.n_rows = 2}};
    mp_kernel_experts_args args = {.experts = experts,
                                   .n_experts = 2,
                                   .hidden = 10,
                                   .intermediate = 4,
                                   MP_ONE_DTYPE(MOEPAGE_DTYPE_BF16),
                                   .math = MOEPAGE_MATH_BF16};
    mp_tick tick = 0;
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_EXPERTS, &args, &tick), MOEPAGE_OK);
    assert_int_equal(machine_time(device, stream, tick), 10 + 5 * 240 / 2); /* more than 880 / 4 */
    args.n_experts = 1;
    experts[0].n_rows = 0;
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_EXPERTS, &args, &tick), MOEPAGE_OK);
    assert_int_equal(machine_time(device, stream, tick), 10 + 240 / 4); /* its weights alone */
    experts[0].n_rows = 1;
    args = (mp_kernel_experts_args){.experts = experts,
                                    .n_experts = 1,
                                    MP_ONE_DTYPE(MOEPAGE_DTYPE_F8_E4M3),
                                    .math = MOEPAGE_MATH_BF16};
    args.hidden = 1;
    args.intermediate = 100; /* 300 bytes of weights; 6 + 400 of the row; 600 operations */
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_EXPERTS, &args, &tick), MOEPAGE_OK);
    assert_int_equal(machine_time(device, stream, tick), 10 + 300);

    /* Of integers, no rows: three matrices of 2048 weights, and 64 scales of 2 bytes for each. */
    static const uint32_t forms[] = {MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2};
    experts[0].n_rows = 0;
    args.hidden = 64;
    args.intermediate = 32;
    args.group = 32;
    for (uint32_t f = 0; f < 3; f++) {
        args.form = forms[f];
        assert_int_equal(device->ops->launch(stream, MP_KERNEL_EXPERTS, &args, &tick), MOEPAGE_OK);
        assert_int_equal(machine_time(device, stream, tick), 10 + 3 * ((2048 >> f) + 128) / 4);
    }

    /* Of blocks, a format for each matrix: 32 rows of 256 weights twice, 256 rows of 32. */
    args = (mp_kernel_experts_args){
        .experts = experts,
        .n_experts = 1,
        .hidden = 256,
        .intermediate = 32,
        .dtypes = {MOEPAGE_DTYPE_Q4_K, MOEPAGE_DTYPE_Q6_K, MOEPAGE_DTYPE_Q8_0},
    };
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_EXPERTS, &args, &tick), MOEPAGE_OK);
    assert_int_equal(machine_time(device, stream, tick), 10 + (32 * (144 + 210) + 256 * 34) / 4);

    /* Partial sums of 4 bytes are read, y is written, and read if it is added to. */
    mp_kernel_combine_args combine = {.n_tokens = 3,
                                      .top_k = 2,
                                      .hidden = 10,
                                      .y_dtype = MOEPAGE_DTYPE_F16};
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_COMBINE, &combine, &tick), MOEPAGE_OK);
    assert_int_equal(machine_time(device, stream, tick), 10 + (240 + 60) / 4);
    combine.accumulate = 1;
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_COMBINE, &combine, &tick), MOEPAGE_OK);
    assert_int_equal(machine_time(device, stream, tick), 10 + (240 + 120) / 4);

    /* A copy inside the device reads and writes. */
    assert_int_equal(machine_time(device, stream, machine_copy(device, stream, 400)), 10 + 200);
    assert_int_equal(machine_usage(device).compute_ns, machine_now_ns(device));
    assert_int_equal(machine_usage(device).bus_bytes, 0);
    device->ops->stream_destroy(stream);
    device->ops->close(device);
}

static void test_sim_device_decoder_writes_dense_bytes(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *stream = machine_stream(device, MP_STREAM_COMPUTE);
    mp_decode_job jobs[2] = {
        {.elements = 500, .src_bytes = 7, .form = MOEPAGE_FORM_EXPH, .dtype = MOEPAGE_DTYPE_BF16},
        {.src_bytes = 200, .elements = 50, .form = MOEPAGE_FORM_DENSE, .dtype = MOEPAGE_DTYPE_F32}};
    mp_kernel_decode_args args = {.jobs = jobs, .n_jobs = 2};
    mp_tick tick = 0;
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_DECODE, &args, &tick), MOEPAGE_OK);
    assert_int_equal(machine_time(device, stream, tick), 50 + 1200 / 2);
    assert_int_equal(machine_usage(device).decode_bytes, 1200);

    /* What was given up is not decoded; whether it was, is asked when its turn comes. */
    _Atomic int32_t skip = 0;
    tick = machine_decode(device, stream, 1000, &skip);
    atomic_store(&skip, MOEPAGE_E_IO);
    assert_int_equal(machine_time(device, stream, tick), 50);
    assert_int_equal(machine_usage(device).decode_bytes, 1200);

    /* The same of each job: the launch is for the others. */
    _Atomic int32_t results[2] = {0};
    args.skips = (const _Atomic int32_t *const[]){&results[0], &results[1]};
    assert_int_equal(device->ops->launch(stream, MP_KERNEL_DECODE, &args, &tick), MOEPAGE_OK);
    atomic_store(&results[0], MOEPAGE_E_IO);
    assert_int_equal(machine_time(device, stream, tick), 50 + 200 / 2);
    assert_int_equal(machine_usage(device).decode_bytes, 1400);
    assert_int_equal(machine_usage(device).decode_ns, machine_now_ns(device));
    device->ops->stream_destroy(stream);
    device->ops->close(device);
}

static void test_sim_device_kernels_need_a_stream_for_kernels(void **state)
{
    (void)state;
    static const mp_stream_class classes[] = {MP_STREAM_DEMAND, MP_STREAM_PREFETCH, MP_STREAM_COLD};
    mp_device *device = machine_open();
    for (uint32_t i = 0; i < 3; i++) {
        mp_stream *stream = machine_stream(device, classes[i]);
        mp_kernel_convert_args args = {.n_tokens = 1};
        mp_tick tick = 77;
        assert_int_equal(device->ops->launch(stream, MP_KERNEL_CONVERT, &args, &tick),
                         MOEPAGE_E_ARGUMENT);
        assert_int_equal(tick, 77);
        device->ops->stream_destroy(stream);
    }
    device->ops->close(device);
}

/* ---- in turn, and side by side ---- */

static void test_sim_device_demand_goes_before_prefetch(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *prefetch = machine_stream(device, MP_STREAM_PREFETCH);
    mp_stream *demand = machine_stream(device, MP_STREAM_DEMAND);
    mp_tick late = 0, urgent = 0;
    for (int i = 0; i < 3; i++)
        late = machine_copy(device, prefetch, 900);
    for (int i = 0; i < 2; i++)
        urgent = machine_copy(device, demand, 400);
    assert_int_equal(machine_time(device, demand, urgent), 2 * 500);
    assert_int_equal(device->ops->completed(prefetch), 0);

    /* What runs is not interrupted. */
    mp_sim_pass(device, 300);
    urgent = machine_copy(device, demand, 400);
    assert_int_equal(machine_time(device, demand, urgent), 700 + 500);
    assert_int_equal(device->ops->completed(prefetch), 1);
    machine_sync(device, prefetch, late);
    assert_int_equal(machine_now_ns(device), 3 * 1000 + 3 * 500);
    device->ops->stream_destroy(prefetch);
    device->ops->stream_destroy(demand);
    device->ops->close(device);
}

static void test_sim_device_background_yields_to_compute(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *background = machine_stream(device, MP_STREAM_BACKGROUND);
    mp_stream *compute = machine_stream(device, MP_STREAM_COMPUTE);
    mp_tick low = machine_convert(device, background, 45); /* 100 ns */
    low = machine_convert(device, background, 45);
    mp_tick high = machine_convert(device, compute, 20); /* 50 ns */
    high = machine_convert(device, compute, 20);
    assert_int_equal(machine_time(device, compute, high), 100);
    mp_sim_pass(device, 1);
    high = machine_convert(device, compute, 20);
    assert_int_equal(machine_time(device, compute, high), 99 + 50);
    assert_int_equal(device->ops->completed(background), 1);
    machine_sync(device, background, low);
    assert_int_equal(machine_now_ns(device), 350);
    device->ops->stream_destroy(background);
    device->ops->stream_destroy(compute);
    device->ops->close(device);
}

static void test_sim_device_units_work_side_by_side(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *bus = machine_stream(device, MP_STREAM_DEMAND);
    mp_stream *compute = machine_stream(device, MP_STREAM_COMPUTE);
    mp_stream *decoder = machine_stream(device, MP_STREAM_COMPUTE);
    mp_stream *cold = machine_stream(device, MP_STREAM_COLD);
    mp_tick a = machine_copy(device, bus, 900);              /* 1000 */
    mp_tick b = machine_convert(device, compute, 995);       /* 2000 */
    mp_tick c = machine_decode(device, decoder, 2950, NULL); /* 3000 */
    mp_tick d = machine_copy(device, cold, 3000);            /* 4000 */
    machine_sync(device, bus, a);
    assert_int_equal(machine_now_ns(device), 1000);
    machine_sync(device, compute, b);
    assert_int_equal(machine_now_ns(device), 2000);
    machine_sync(device, decoder, c);
    assert_int_equal(machine_now_ns(device), 3000);
    machine_sync(device, cold, d);
    assert_int_equal(machine_now_ns(device), 4000);
    mp_sim_usage usage = machine_usage(device);
    assert_int_equal(usage.bus_ns, 1000);
    assert_int_equal(usage.compute_ns, 2000);
    assert_int_equal(usage.decode_ns, 3000);
    assert_int_equal(usage.cold_ns, 4000);
    assert_int_equal(usage.cold_bytes, 3000);
    device->ops->stream_destroy(bus);
    device->ops->stream_destroy(compute);
    device->ops->stream_destroy(decoder);
    device->ops->stream_destroy(cold);
    device->ops->close(device);
}

static void test_sim_device_streams_wait_for_ticks(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    const mp_device_ops *ops = device->ops;
    mp_stream *bus = machine_stream(device, MP_STREAM_DEMAND);
    mp_stream *decoder = machine_stream(device, MP_STREAM_COMPUTE);
    mp_stream *compute = machine_stream(device, MP_STREAM_COMPUTE);
    mp_stream *other = machine_stream(device, MP_STREAM_COMPUTE);
    mp_tick moved = machine_copy(device, bus, 900); /* to 1000 */
    machine_copy(device, bus, 900);
    assert_int_equal(ops->wait(decoder, bus, moved), MOEPAGE_OK);
    mp_tick decoded = machine_decode(device, decoder, 450, NULL); /* to 1500 */
    assert_int_equal(ops->wait(compute, decoder, decoded), MOEPAGE_OK);
    mp_tick held = machine_convert(device, compute, 45); /* to 1600 */
    mp_tick free_one = machine_convert(device, other, 45), marked = 0, nothing = 0;
    assert_int_equal(ops->mark(compute, &marked), MOEPAGE_OK);
    assert_int_equal(marked, held + 1);
    assert_int_equal(ops->mark(other, &nothing), MOEPAGE_OK);

    machine_sync(device, other, free_one); /* kernels of streams that wait hold nobody up */
    assert_int_equal(machine_now_ns(device), 100);
    assert_int_equal(ops->completed(other), nothing); /* a mark takes no time */
    assert_int_equal(ops->completed(compute), 0);
    machine_sync(device, compute, held);
    assert_int_equal(machine_now_ns(device), 1600);
    assert_int_equal(ops->completed(compute), marked);
    assert_int_equal(ops->completed(bus), moved);

    /* Over a stream that is no more when its tick is looked for. */
    assert_int_equal(ops->wait(other, bus, 2), MOEPAGE_OK);
    assert_int_equal(ops->wait(other, decoder, machine_decode(device, decoder, 1, NULL)),
                     MOEPAGE_OK);
    mp_tick last = machine_convert(device, other, 45);
    ops->stream_destroy(decoder);
    assert_int_equal(machine_now_ns(device), 1651);
    machine_sync(device, other, last);
    assert_int_equal(machine_now_ns(device), 2100);
    assert_int_equal(ops->wait(other, compute, marked), MOEPAGE_OK); /* and no work behind it */
    ops->stream_destroy(other);
    ops->stream_destroy(compute);
    ops->stream_destroy(bus);
    ops->close(device);
}

static void test_sim_device_takes_any_number_of_submissions(void **state)
{
    (void)state;
    enum { N = 5000 };
    mp_device *device = machine_open();
    mp_stream *streams[3] = {machine_stream(device, MP_STREAM_DEMAND),
                             machine_stream(device, MP_STREAM_COLD),
                             machine_stream(device, MP_STREAM_PREFETCH)};
    mp_copy *copies = calloc(N, sizeof *copies);
    mp_tick tick = 0;
    assert_non_null(copies);
    for (uint32_t i = 0; i < N; i++)
        copies[i].bytes = i;
    machine_copy(device, streams[0], 1);
    machine_sync(device, streams[0], 1); /* the ring does not begin at its start */
    assert_int_equal(device->ops->copy(streams[0], copies, N, &tick), MOEPAGE_OK);
    assert_int_equal(tick, N + 1);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(device->ops->wait(streams[2], streams[0], 1 + i), MOEPAGE_OK);
        machine_copy(device, streams[1], 1);
    }
    assert_int_equal(machine_now_ns(device), 101);
    machine_sync(device, streams[2], machine_copy(device, streams[2], 0));
    assert_int_equal(machine_now_ns(device), 101 + N * 100 + (uint64_t)N * (N - 1) / 2 + 100);
    machine_sync(device, streams[1], N);
    assert_int_equal(machine_usage(device).cold_bytes, N);
    for (int i = 0; i < 3; i++)
        device->ops->stream_destroy(streams[i]);
    device->ops->close(device);
    free(copies);
}

/* ---- cold storage ---- */

typedef struct fills {
    mp_device *device;
    uint32_t order[16];
    uint64_t at_ns[16];
    uint32_t n;
} fills;

static moepage_status note_fill(const mp_copy *copy, void *out)
{
    fills *f = (fills *)copy->fill_user;
    assert_ptr_equal(out, copy->dst);
    f->order[f->n] = copy->fill_key[0];
    f->at_ns[f->n++] = machine_now_ns(f->device);
    return (moepage_status)copy->fill_offset ? MOEPAGE_E_IO : MOEPAGE_OK;
}

static mp_tick read_cold(fills *f, mp_stream *stream, uint32_t number, uint64_t bytes, bool fails,
                         _Atomic int32_t *result)
{
    mp_copy copy = {.dst = (void *)64,
                    .bytes = bytes,
                    .fill = note_fill,
                    .fill_user = f,
                    .fill_key = {number},
                    .fill_offset = fails,
                    .result = result};
    mp_tick tick = 0;
    assert_int_equal(f->device->ops->copy(stream, &copy, 1, &tick), MOEPAGE_OK);
    return tick;
}

static void test_sim_device_cold_reads_share_the_storage(void **state)
{
    (void)state;
    moepage_device_config config = {.struct_size = sizeof config, .io_threads = 3};
    fills f = {.device = machine_open_with(&config)};
    mp_stream *streams[4];
    for (int i = 0; i < 4; i++)
        streams[i] = machine_stream(f.device, MP_STREAM_COLD);
    /* Alone until 1500; then two move half as fast each. */
    mp_tick first = read_cold(&f, streams[0], 0, 2000, false, NULL); /* moves from 1000 on */
    mp_sim_pass(f.device, 500);
    mp_tick second = read_cold(&f, streams[1], 1, 500, false, NULL); /* moves from 1500 on */
    machine_sync(f.device, streams[1], second);
    assert_int_equal(machine_now_ns(f.device), 1500 + 2 * 500);
    machine_sync(f.device, streams[0], first);
    assert_int_equal(machine_now_ns(f.device), 3500); /* 500 + 500 of it had moved; 1000 alone */
    assert_int_equal(machine_usage(f.device).cold_ns, 3500);
    assert_int_equal(machine_usage(f.device).cold_bytes, 2500);

    /* Three at a time, equal ones in the order of their submission; the fourth then has it for
     * itself, after a latency of its own. */
    uint64_t began = machine_now_ns(f.device);
    f.n = 0;
    mp_tick last = 0;
    for (uint32_t i = 0; i < 4; i++)
        last = read_cold(&f, streams[i], i, 600, false, NULL);
    machine_sync(f.device, streams[3], last);
    assert_int_equal(f.n, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(f.order[i], i);
        assert_int_equal(f.at_ns[i] - began, i < 3 ? 1000 + 3 * 600 : 2800 + 1000 + 600);
    }
    for (int i = 0; i < 4; i++)
        f.device->ops->stream_destroy(streams[i]);
    f.device->ops->close(f.device);
}

static void test_sim_device_cold_failures_stay_with_their_reads(void **state)
{
    (void)state;
    fills f = {.device = machine_open()};
    const mp_device_ops *ops = f.device->ops;
    mp_stream *cold = machine_stream(f.device, MP_STREAM_COLD);
    mp_stream *bus = machine_stream(f.device, MP_STREAM_DEMAND);
    _Atomic int32_t results[3] = {12345, 12345, 12345};
    read_cold(&f, cold, 0, 10, false, &results[0]);
    read_cold(&f, cold, 1, 10, true, &results[1]);
    mp_tick tick = read_cold(&f, cold, 2, 10, false, &results[2]);
    assert_int_equal(results[1], 12345);
    assert_int_equal(ops->settle(cold, tick), MOEPAGE_OK);
    assert_int_equal(results[0], 12345);
    assert_int_equal(results[1], MOEPAGE_E_IO);
    assert_int_equal(results[2], 12345);

    /* With nobody to tell it is the device's end: reads are skipped, ticks still come. */
    tick = read_cold(&f, cold, 3, 10, true, NULL);
    assert_int_equal(ops->sync(cold, tick), MOEPAGE_E_DEVICE);
    assert_non_null(strstr(moepage_last_error(), "expert"));
    tick = read_cold(&f, cold, 4, 10, false, &results[0]);
    assert_int_equal(ops->sync(cold, tick), MOEPAGE_E_DEVICE);
    assert_int_equal(ops->completed(cold), tick);
    assert_int_equal(results[0], MOEPAGE_E_DEVICE);
    assert_int_equal(f.n, 4);
    assert_int_equal(ops->sync(bus, machine_copy(f.device, bus, 1)), MOEPAGE_E_DEVICE);
    assert_int_equal(ops->completed(bus), 1);
    ops->stream_destroy(cold);
    ops->stream_destroy(bus);
    ops->close(f.device);
}

static moepage_status never(const mp_copy *copy, void *out)
{
    (void)copy;
    (void)out;
    fail_msg("a transfer over the bus asked for bytes");
    return MOEPAGE_OK;
}

static void test_sim_device_bus_transfers_ask_for_no_bytes(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *stream = machine_stream(device, MP_STREAM_DEMAND);
    mp_copy copy = {.bytes = 10, .fill = never};
    mp_tick tick = 0;
    assert_int_equal(device->ops->copy(stream, &copy, 1, &tick), MOEPAGE_OK);
    machine_sync(device, stream, tick);
    device->ops->stream_destroy(stream);
    device->ops->close(device);
}

/* ---- what the caller does ---- */

static void test_sim_device_work_occupies_compute(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *compute = machine_stream(device, MP_STREAM_COMPUTE);
    mp_stream *background = machine_stream(device, MP_STREAM_BACKGROUND);
    mp_sim_work(device, 1000, 0);
    assert_int_equal(machine_now_ns(device), 500);
    mp_sim_work(device, 1000, 4000);
    assert_int_equal(machine_now_ns(device), 1500);
    mp_sim_work(device, 0, 0);
    assert_int_equal(machine_now_ns(device), 1500);
    /* Behind all that was launched before, one stream's two kernels included; before background. */
    machine_convert(device, background, 45);
    machine_convert(device, compute, 45);
    machine_convert(device, compute, 45);
    mp_sim_work(device, 1000, 0);
    assert_int_equal(machine_now_ns(device), 1500 + 200 + 500);
    assert_int_equal(device->ops->completed(background), 0);
    assert_int_equal(machine_usage(device).compute_ns, machine_now_ns(device));
    device->ops->stream_destroy(background);
    device->ops->stream_destroy(compute);
    device->ops->close(device);
}

static void test_sim_device_transfer_of_the_caller_takes_its_turn(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *demand = machine_stream(device, MP_STREAM_DEMAND);
    mp_stream *prefetch = machine_stream(device, MP_STREAM_PREFETCH);
    machine_copy(device, prefetch, 900);
    machine_copy(device, demand, 900);
    mp_sim_transfer(device, 400);
    assert_int_equal(machine_now_ns(device), 1500);
    assert_int_equal(device->ops->completed(prefetch), 0);
    assert_int_equal(machine_usage(device).bus_bytes, 1300);
    device->ops->stream_destroy(prefetch);
    device->ops->stream_destroy(demand);
    assert_int_equal(machine_now_ns(device), 2500);
    device->ops->close(device);
}

static void test_sim_device_time_passes_for_everybody(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *bus = machine_stream(device, MP_STREAM_PREFETCH);
    mp_stream *cold = machine_stream(device, MP_STREAM_COLD);
    machine_copy(device, bus, 900);
    machine_copy(device, bus, 900);
    machine_copy(device, cold, 4000);
    mp_sim_idle_until(device, 1600);
    assert_int_equal(machine_now_ns(device), 1600);
    assert_int_equal(device->ops->completed(bus), 1);
    mp_sim_usage usage = machine_usage(device); /* of what runs, what has run */
    assert_int_equal(usage.bus_ns, 1600);
    assert_int_equal(usage.cold_ns, 1600);
    mp_sim_idle_until(device, 10); /* long past */
    assert_int_equal(machine_now_ns(device), 1600);
    mp_sim_pass(device, 400);
    assert_int_equal(device->ops->completed(bus), 2);
    mp_sim_pass(device, 10000);
    assert_int_equal(machine_now_ns(device), 12000);
    assert_int_equal(device->ops->completed(cold), 1);
    usage = machine_usage(device);
    assert_int_equal(usage.bus_ns, 2000);
    assert_int_equal(usage.cold_ns, 5000);
    device->ops->stream_destroy(bus);
    device->ops->stream_destroy(cold);
    device->ops->close(device);
}

/* ---- memory ---- */

static void test_sim_device_memory_is_addresses(void **state)
{
    (void)state;
    const uint64_t most = 256ull << 30;
    mp_sim_profile profile = machine_profile();
    moepage_device_config config = {.struct_size = sizeof config};
    mp_device *device = NULL;
    profile.memory_bytes = most;
    profile.host_memory_bytes = 2 * most;
    assert_int_equal(mp_sim_open(&profile, &config, &device), MOEPAGE_OK);
    const mp_device_ops *ops = device->ops;
    void *arena = NULL, *second = NULL, *workspace = NULL, *host = NULL;
    mp_host_memory tier;
    assert_int_equal(ops->alloc(device, MP_MEMORY_ARENA, most - 4096, &arena), MOEPAGE_OK);
    assert_int_equal((uintptr_t)arena % 4096, 0);
    assert_int_equal(ops->alloc(device, MP_MEMORY_ARENA, 4096, &second), MOEPAGE_E_STATE);
    assert_int_equal(ops->alloc(device, MP_MEMORY_WORKSPACE, 4096, &workspace), MOEPAGE_OK);
    assert_int_equal((uintptr_t)workspace % 64, 0);
    assert_int_equal(ops->alloc(device, MP_MEMORY_WORKSPACE, 1, &second), MOEPAGE_E_NO_MEMORY);
    assert_non_null(strstr(moepage_last_error(), "by hand"));
    ops->free(device, MP_MEMORY_WORKSPACE, workspace, 4096);
    assert_int_equal(ops->alloc(device, MP_MEMORY_WORKSPACE, 1, &workspace), MOEPAGE_OK);

    /* The host's is another. */
    assert_int_equal(ops->host_map(device, most, &tier), MOEPAGE_OK);
    assert_true(tier.bytes >= most);
    assert_int_equal((uintptr_t)tier.base % tier.page_bytes, 0);
    assert_int_equal(ops->alloc(device, MP_MEMORY_HOST, most + 1, &host), MOEPAGE_E_NO_MEMORY);
    assert_int_equal(ops->alloc(device, MP_MEMORY_HOST, UINT64_MAX, &host), MOEPAGE_E_NO_MEMORY);
    assert_int_equal(ops->alloc(device, MP_MEMORY_HOST, 100, &host), MOEPAGE_OK);
    ops->free(device, MP_MEMORY_HOST, host, 100);
    ops->host_unmap(device, &tier);
    ops->free(device, MP_MEMORY_WORKSPACE, workspace, 1);
    ops->free(device, MP_MEMORY_ARENA, arena, most - 4096);
    assert_int_equal(ops->alloc(device, MP_MEMORY_ARENA, most, &arena), MOEPAGE_OK);
    ops->free(device, MP_MEMORY_ARENA, arena, most);
    ops->close(device);
}

static void test_sim_device_refuses_too_many_io_threads(void **state)
{
    (void)state;
    mp_sim_profile profile = machine_profile();
    moepage_device_config config = {.struct_size = sizeof config, .io_threads = 65};
    mp_device *device = NULL;
    assert_int_equal(mp_sim_open(&profile, &config, &device), MOEPAGE_E_ARGUMENT);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_device_transfer_takes_latency_and_its_bytes),
        cmocka_unit_test(test_sim_device_config_replaces_the_bus_speed),
        cmocka_unit_test(test_sim_device_kernels_take_arithmetic_or_memory),
        cmocka_unit_test(test_sim_device_decoder_writes_dense_bytes),
        cmocka_unit_test(test_sim_device_kernels_need_a_stream_for_kernels),
        cmocka_unit_test(test_sim_device_demand_goes_before_prefetch),
        cmocka_unit_test(test_sim_device_background_yields_to_compute),
        cmocka_unit_test(test_sim_device_units_work_side_by_side),
        cmocka_unit_test(test_sim_device_streams_wait_for_ticks),
        cmocka_unit_test(test_sim_device_takes_any_number_of_submissions),
        cmocka_unit_test(test_sim_device_cold_reads_share_the_storage),
        cmocka_unit_test(test_sim_device_cold_failures_stay_with_their_reads),
        cmocka_unit_test(test_sim_device_bus_transfers_ask_for_no_bytes),
        cmocka_unit_test(test_sim_device_work_occupies_compute),
        cmocka_unit_test(test_sim_device_transfer_of_the_caller_takes_its_turn),
        cmocka_unit_test(test_sim_device_time_passes_for_everybody),
        cmocka_unit_test(test_sim_device_memory_is_addresses),
        cmocka_unit_test(test_sim_device_refuses_too_many_io_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
