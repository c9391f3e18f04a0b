/* What a session computes over a pool with two versions of its experts: bit for bit what the versions
 * that the step's plan shows say, decoded one weight at a time, in the device's order of sums. */
#include <sched.h>

#include <stdlib.h>
#include <string.h>

#include "device/host_kernels.h"
#include "device_rig.h"
#include "model/model.h"
#include "numbers.h"
#include "testing.h"
#include "versions_rig.h"

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 3
#define TOKENS 9
#define MOST_HIDDEN 72
#define MOST_INTERMEDIATE 48
#define ROWS (TOKENS * TOP_K)
#define MOST_STEPS 100000

static uint32_t hidden, intermediate; /* no multiples of a vector's width */

/* ---- device memory of the test's ---- */

#define ROOM_BYTES (1u << 20)
#define ROOM_ALIGN 256u

static struct {
    moepage_device *device;
    mp_stream *stream; /* of a GPU */
    unsigned char *memory;
    uint64_t used;
} room;

static void open_room(moepage_device *device)
{
    const mp_device_ops *ops = device->device->ops;
    room.device = device;
    room.memory = device_rig_alloc(device, ROOM_BYTES);
    if (device_rig_is_cuda())
        assert_int_equal(ops->stream_create(device->device, MP_STREAM_COMPUTE, &room.stream),
                         MOEPAGE_OK);
}

static void close_room(void)
{
    if (device_rig_is_cuda())
        room.device->device->ops->stream_destroy(room.stream);
    device_rig_free(room.device, room.memory, ROOM_BYTES);
}

/* Until `used` goes back; filled with `bytes`, if not NULL. */
static void *take_room(uint64_t n, const void *bytes)
{
    unsigned char *memory = room.memory + room.used;
    room.used += (n + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
    assert_true(room.used <= ROOM_BYTES);
    if (bytes)
        device_rig_write(room.device, memory, bytes, n);
    return memory;
}

/* On the host by its portable kernels. */
static void run_kernel(mp_kernel kernel, const mp_kernel_args *args)
{
    const mp_host_kernel_set *set = mp_host_kernels_find("portable");
    mp_tick tick = 0;
    if (device_rig_is_cuda()) {
        assert_int_equal(room.device->device->ops->launch(room.stream, kernel, args, &tick),
                         MOEPAGE_OK);
        assert_int_equal(room.device->device->ops->sync(room.stream, tick), MOEPAGE_OK);
        return;
    }
    for (uint32_t phase = 0; phase < mp_host_kernel_phases(kernel); phase++)
        mp_host_kernel_run(set, kernel, args, phase, 0, 1);
}

/* ---- one expert, as F32 ---- */

typedef struct plain_expert {
    const float *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
} plain_expert;

static uint32_t form_of(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_INT8: return MOEPAGE_FORM_INT8;
    case MOEPAGE_DTYPE_INT4: return MOEPAGE_FORM_INT4;
    case MOEPAGE_DTYPE_INT2: return MOEPAGE_FORM_INT2;
    default: return MOEPAGE_FORM_DENSE;
    }
}

/* Matrices are in the version's form, biases in the checkpoint's. */
static void widen(const versions_rig *rig, const moepage_expert_tensor *tensor, uint32_t form,
                  const void *in, float *out)
{
    const uint64_t columns = tensor->rank == 2 ? tensor->shape[1] : 1;
    if (form == MOEPAGE_FORM_DENSE || tensor->rank != 2) {
        for (uint64_t i = 0; i < tensor->shape[0] * columns; i++)
            out[i] = num_get(tensor->dtype, in, i);
        return;
    }
    const mp_quant_shape shape = {tensor->shape[0], columns, mp_quant_bits_of(form),
                                  mp_model_group(rig->bank.model, form)};
    for (uint64_t r = 0; r < tensor->shape[0]; r++)
        mp_quant_decode_row(&shape, in, r, 0, columns, out + r * columns);
}

static void take(plain_expert *to, uint32_t role, const float *values)
{
    switch (role) {
    case MOEPAGE_ROLE_GATE_UP:
        to->gate = values;
        to->up = values + intermediate * hidden;
        break;
    case MOEPAGE_ROLE_GATE: to->gate = values; break;
    case MOEPAGE_ROLE_UP: to->up = values; break;
    case MOEPAGE_ROLE_DOWN: to->down = values; break;
    case MOEPAGE_ROLE_GATE_UP_BIAS:
        to->gate_bias = values;
        to->up_bias = values + intermediate;
        break;
    case MOEPAGE_ROLE_GATE_BIAS: to->gate_bias = values; break;
    case MOEPAGE_ROLE_UP_BIAS: to->up_bias = values; break;
    case MOEPAGE_ROLE_DOWN_BIAS: to->down_bias = values; break;
    default: fail_msg("role %u", role);
    }
}

/* No form takes more bytes than F32. */
static void open_plain(const versions_rig *rig, const moepage_plan_expert *expert,
                       plain_expert *out)
{
    static unsigned char shown[2 * MOST_INTERMEDIATE * MOST_HIDDEN * sizeof(float)];
    static float wide[2 * MOST_INTERMEDIATE * MOST_HIDDEN];
    *out = (plain_expert){0};
    for (uint32_t t = 0; t < rig->bank.n_tensors; t++) {
        const moepage_expert_tensor *tensor = &rig->bank.tensors[t];
        const uint64_t n = tensor->shape[0] * (tensor->rank == 2 ? tensor->shape[1] : 1);
        const uint64_t bytes = versions_rig_tensor(rig, expert, t, shown, sizeof shown);
        assert_true(bytes > 0 && n <= 2 * intermediate * hidden);
        widen(rig, tensor, form_of(expert->dtype), shown, wide);
        take(out, tensor->role, take_room(n * sizeof *wide, wide));
    }
}

/* ---- a layer by the definition ---- */

typedef struct inputs {
    float x[TOKENS * MOST_HIDDEN];
    int32_t ids[ROWS];
    float weights[ROWS];
} inputs;

/* One expert at a time. */
static void add_expert(const versions_rig *rig, const moepage_plan_expert *shown, uint32_t math,
                       const inputs *in, const void *x, float *partial)
{
    plain_expert plain;
    uint32_t rows[ROWS], n = 0;
    const uint64_t used = room.used;
    void *inner = take_room(ROWS * intermediate * sizeof(float), NULL);
    for (uint32_t r = 0; r < ROWS; r++)
        if (in->ids[r] == (int32_t)shown->expert)
            rows[n++] = r;
    assert_int_equal(n, shown->n_rows);
    open_plain(rig, shown, &plain);
    const mp_ffn_expert expert = {.gate = plain.gate,
                                  .up = plain.up,
                                  .down = plain.down,
                                  .gate_bias = plain.gate_bias,
                                  .up_bias = plain.up_bias,
                                  .down_bias = plain.down_bias,
                                  .n_rows = n};
    const mp_kernel_args args = {.experts = {.x = x,
                                             .experts = &expert,
                                             .rows = rows,
                                             .inner = inner,
                                             .partial = partial,
                                             .n_experts = 1,
                                             .top_k = TOP_K,
                                             .hidden = hidden,
                                             .intermediate = intermediate,
                                             MP_ONE_DTYPE(MOEPAGE_DTYPE_F32),
                                             .math = math}};
    run_kernel(MP_KERNEL_EXPERTS, &args);
    room.used = used;
}

static void run_layer(const versions_rig *rig, const moepage_plan *plan, uint32_t math,
                      const inputs *in, float *y)
{
    room.used = 0;
    float *partial = take_room(ROWS * hidden * sizeof *partial, NULL);
    void *x = take_room(TOKENS * hidden * sizeof(float), NULL);
    float *out = take_room(TOKENS * hidden * sizeof *out, NULL);
    const mp_kernel_args enter = {.convert = {.x = take_room(sizeof in->x, in->x),
                                              .x_stride = hidden,
                                              .x_dtype = MOEPAGE_DTYPE_F32,
                                              .math = math,
                                              .n_tokens = TOKENS,
                                              .hidden = hidden,
                                              .out = x}};
    run_kernel(MP_KERNEL_CONVERT, &enter);
    for (uint32_t e = 0; e < plan->n_experts; e++)
        add_expert(rig, &plan->experts[e], math, in, x, partial);
    const mp_kernel_args leave = {.combine = {.partial = partial,
                                              .weights = in->weights,
                                              .ids = in->ids,
                                              .y = out,
                                              .y_stride = hidden,
                                              .y_dtype = MOEPAGE_DTYPE_F32,
                                              .n_tokens = TOKENS,
                                              .top_k = TOP_K,
                                              .hidden = hidden}};
    run_kernel(MP_KERNEL_COMBINE, &leave);
    device_rig_read(room.device, out, y, TOKENS * hidden * sizeof *y);
}

/* ---- a session ---- */

/* Tokens keep to the lower ids at first, then to the upper ones. */
static void fill_inputs(const versions_rig *rig, uint64_t *random, uint32_t step, inputs *in)
{
    bank_model_route(&rig->bank, random, TOKENS, TOP_K, true, in->ids, in->weights);
    for (uint32_t r = 0; r < ROWS; r++)
        if (in->ids[r] >= 0 && bank_below(random, 8) > 0)
            in->ids[r] = (int32_t)(r % TOP_K) + (step / 12 % 2 ? 4 : 0);
    for (uint32_t t = 0; t < TOKENS; t++) /* no id twice */
        for (uint32_t k = 1; k < TOP_K; k++)
            for (uint32_t j = 0; j < k; j++)
                if (in->ids[t * TOP_K + k] == in->ids[t * TOP_K + j])
                    in->ids[t * TOP_K + k] = MOEPAGE_NO_EXPERT;
    for (uint32_t i = 0; i < TOKENS * hidden; i++)
        in->x[i] = num_random();
}

/* How many of the layer's experts were in either version. */
typedef struct seen {
    uint32_t high, low, mixed;
} seen;

static void check_layer(versions_rig *rig, moepage_session *session, uint32_t layer, uint32_t math,
                        const inputs *in, seen *counts)
{
    float y[TOKENS * MOST_HIDDEN], want[TOKENS * MOST_HIDDEN];
    room.used = 0;
    void *own_x = take_room(sizeof in->x, in->x), *own_y = take_room(sizeof y, NULL);
    moepage_plan plan = {.struct_size = sizeof plan};
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = TOP_K,
                                     .ids = in->ids,
                                     .weights = in->weights};
    const moepage_ffn ffn = {.struct_size = sizeof ffn,
                             .dtype = MOEPAGE_DTYPE_F32,
                             .x = own_x,
                             .y = own_y};
    assert_int_equal(moepage_session_route(session, layer, &routing, &plan), MOEPAGE_OK);
    assert_int_equal(plan.n_groups, 1);
    uint32_t low = 0;
    for (uint32_t e = 0; e < plan.n_experts; e++)
        low += versions_rig_check(rig, layer, &plan.experts[e]) == rig->precision.lo_form;
    if (moepage_session_ffn(session, layer, &ffn))
        fail_msg("%s", moepage_last_error());
    device_rig_read(rig->device, own_y, y, sizeof y);
    run_layer(rig, &plan, math, in, want);
    assert_memory_equal(y, want, TOKENS * hidden * sizeof *y);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    counts->low += low;
    counts->high += plan.n_experts - low;
    counts->mixed += low > 0 && low < plan.n_experts;
}

/* So many high versions per layer from now on. */
static void move_split(versions_rig *rig, uint32_t n_high)
{
    if (moepage_split_set(rig->pool, NULL, n_high * LAYERS, 0, NULL))
        fail_msg("%s", moepage_last_error());
}

static void run_steps(versions_rig *rig, uint32_t math)
{
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = TOKENS,
                                     .max_top_k = TOP_K,
                                     .math = math,
                                     .regime = MOEPAGE_REGIME_CACHE};
    moepage_session *session = NULL;
    if (moepage_session_create(rig->pool, NULL, &config, &session))
        fail_msg("%s", moepage_last_error());
    uint64_t random = 17;
    seen all = {0};
    uint32_t step = 0;
    for (; step < 24 || (all.mixed < 10 && step < MOST_STEPS); step++) {
        const moepage_step begin = {.struct_size = sizeof begin, .n_tokens = TOKENS};
        moepage_session_stats stats = {.struct_size = sizeof stats};
        seen now = {0};
        inputs in;
        fill_inputs(rig, &random, step, &in);
        if (rig->spare_bytes && step % 3 == 0)
            move_split(rig, 1 + bank_below(&random, 6));
        assert_int_equal(moepage_session_begin(session, &begin), MOEPAGE_OK);
        for (uint32_t l = 0; l < LAYERS; l++)
            check_layer(rig, session, l, math, &in, &now);
        assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
        assert_int_equal(stats.low_experts, now.low);
        assert_int_equal(stats.routed, now.low + now.high);
        assert_int_equal(stats.demand_bytes, 0);
        all.low += now.low;
        all.high += now.high;
        all.mixed += now.mixed;
        sched_yield();
    }
    assert_true(all.mixed >= 10); /* launches of both forms in one layer */
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
}

static void try_shape(bool split, bool bias, uint32_t dtype, const moepage_precision_config *how,
                      uint32_t math, uint32_t n_devices, uint64_t spare_bytes)
{
    versions_rig rig;
    hidden = device_rig_is_cuda() ? MOST_HIDDEN : 70; /* whose integers come eight by eight */
    intermediate = device_rig_is_cuda() ? 40 : 45;
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = hidden,
                        .intermediate = intermediate,
                        .dtype = dtype,
                        .split = split,
                        .bias = bias,
                        .seed = 5};
    versions_rig_open_on(&rig, n_devices, &shape, how, spare_bytes);
    open_room(rig.device);
    run_steps(&rig, math);
    close_room();
    versions_rig_close(&rig);
}

/* ---- tests ---- */

static void test_version_outputs_are_those_of_the_versions_shown(void **state)
{
    (void)state;
    static const uint32_t low[] = {MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2};
    const uint32_t every = device_rig_is_cuda() ? 5 : 1; /* one of each form: they take long */
    for (uint32_t i = 0; i < 12; i += every) {
        const moepage_precision_config how = {.lo_form = low[i % 3], .hi_experts = 3};
        try_shape(i & 1, i & 2, i & 4 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32, &how,
                  i < 6 ? MOEPAGE_MATH_FP32 : MOEPAGE_MATH_BF16, 1, 0);
    }
}

static void test_version_outputs_high_versions_may_be_integers_too(void **state)
{
    (void)state;
    const moepage_precision_config how[] = {
        {.hi_form = MOEPAGE_FORM_INT8, .lo_form = MOEPAGE_FORM_INT4, .hi_experts = 3},
        {.hi_form = MOEPAGE_FORM_INT4, .lo_form = MOEPAGE_FORM_INT2, .hi_experts = 3},
        {.hi_form = MOEPAGE_FORM_INT8, .lo_form = MOEPAGE_FORM_INT2, .hi_experts = 3}};
    for (uint32_t i = 0; i < 3; i++)
        try_shape(i & 1, !(i & 1), MOEPAGE_DTYPE_BF16, &how[i],
                  i == 1 ? MOEPAGE_MATH_FP32 : MOEPAGE_MATH_BF16, 1, 0);
}

static void test_version_outputs_are_those_of_the_versions_shown_while_the_split_moves(void **state)
{
    (void)state;
    const moepage_precision_config how = {.lo_form = MOEPAGE_FORM_INT4, .hi_experts = 3};
    for (uint32_t i = 0; i < 4; i++)
        try_shape(i & 1, !(i & 1), MOEPAGE_DTYPE_BF16, &how,
                  i & 2 ? MOEPAGE_MATH_FP32 : MOEPAGE_MATH_BF16, 1, 1u << 20);
}

static void test_version_outputs_are_those_of_the_versions_shown_on_several_devices(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const moepage_precision_config how = {.lo_form =
                                                  i & 1 ? MOEPAGE_FORM_INT4 : MOEPAGE_FORM_INT2,
                                              .hi_experts = 4,
                                              .lo_fetched = i / 2};
        try_shape(i & 1, !(i & 1), MOEPAGE_DTYPE_BF16, &how,
                  i & 2 ? MOEPAGE_MATH_FP32 : MOEPAGE_MATH_BF16, 2 + i % 2, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_outputs_are_those_of_the_versions_shown),
        cmocka_unit_test(test_version_outputs_high_versions_may_be_integers_too),
        cmocka_unit_test(
            test_version_outputs_are_those_of_the_versions_shown_while_the_split_moves),
        cmocka_unit_test(test_version_outputs_are_those_of_the_versions_shown_on_several_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
