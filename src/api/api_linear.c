/* Entry point of dense products. */
#include "arena/home.h"
#include "base/config.h"
#include "base/status.h"
#include "codec/blocks.h"
#include "model/dtype.h"

#define LINEAR_MIN_BYTES offsetof(moepage_linear, scales)

static moepage_status check_types(const moepage_linear *l)
{
    const mp_block_format *format = mp_block_format_of(l->w_dtype);
    const bool plain = mp_dtype_is_float(l->w_dtype) || l->w_dtype == MOEPAGE_DTYPE_F8_E4M3;
    if (l->math > MOEPAGE_MATH_INT8)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: math is %u, it must be a MOEPAGE_MATH_*",
                       l->math);
    if (l->x_dtype != MOEPAGE_DTYPE_F32 && l->x_dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: x_dtype is %u, it must be F32 or BF16",
                       l->x_dtype);
    if (!plain && !format)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "linear: w_dtype is %u, it must be F32, F16, BF16, F8_E4M3 or a block format",
            l->w_dtype);
    if (!mp_dtype_is_float(l->bias_dtype))
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: bias_dtype is %u, it must be F32, F16 or BF16",
                       l->bias_dtype);
    if (format && l->n_in % format->weights)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "linear: n_in is %u, it must be a multiple of %u for weights of %s", l->n_in,
                       format->weights, format->name);
    return MOEPAGE_OK;
}

/* Weights of 8 bits have scales, no others do. */
static moepage_status check_scales(const moepage_linear *l)
{
    if (l->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: reserved is %u, it must be 0", l->reserved);
    if (l->w_dtype != MOEPAGE_DTYPE_F8_E4M3) {
        if (!l->scales && !l->scale_dtype && !l->block_rows && !l->block_columns)
            return MOEPAGE_OK;
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "linear: w_dtype is %u, only weights of F8_E4M3 have scales and their blocks",
            l->w_dtype);
    }
    if (!l->scales)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: scales is NULL, weights of F8_E4M3 need them");
    if (l->scale_dtype > MOEPAGE_DTYPE_F32 && l->scale_dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: scale_dtype is %u, it must be F32 or BF16",
                       l->scale_dtype);
    if (!l->block_rows || !l->block_columns)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: %s is 0, it must be 1 or more",
                       l->block_rows ? "block_columns" : "block_rows");
    return MOEPAGE_OK;
}

/* Kernels round sizes up in 32 bits. */
static moepage_status check_most(const char *name, uint32_t value)
{
    if (value > INT32_MAX)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: %s is %u, it must be at most %d", name, value,
                       INT32_MAX);
    return MOEPAGE_OK;
}

static moepage_status check_shape(const moepage_linear *l)
{
    moepage_status status = check_most("n_rows", l->n_rows);
    if (!status)
        status = check_most("n_in", l->n_in);
    if (!status)
        status = check_most("n_out", l->n_out);
    if (status)
        return status;
    if (!l->n_in || !l->n_out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: %s is 0", l->n_in ? "n_out" : "n_in");
    if (l->x_stride < l->n_in)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: x_stride is %llu, below n_in of %u",
                       (unsigned long long)l->x_stride, l->n_in);
    if (l->n_rows && (!l->x || !l->w || !l->out))
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear: %s is NULL", !l->x ? "x" : !l->w ? "w" : "out");
    return MOEPAGE_OK;
}

/* Reads the caller's struct, fills in what is left 0, and checks it. */
static moepage_status read_linear(const moepage_linear *linear, moepage_linear *own)
{
    if (!linear)
        return mp_fail(MOEPAGE_E_ARGUMENT, "linear is NULL");
    moepage_status status = mp_config_read(own, sizeof *own, LINEAR_MIN_BYTES, linear, "linear");
    if (status)
        return status;
    own->x_dtype = own->x_dtype ? own->x_dtype : MOEPAGE_DTYPE_F32;
    own->bias_dtype = own->bias_dtype ? own->bias_dtype : MOEPAGE_DTYPE_F32;
    own->x_stride = own->x_stride ? own->x_stride : own->n_in;
    status = check_types(own);
    if (!status)
        status = check_scales(own);
    own->math = mp_matrix_math(own->math, own->w_dtype);
    return status ? status : check_shape(own);
}

/* Brings x to rows of operands in workspace. */
static moepage_status convert(mp_device *device, mp_stream *stream, const moepage_linear *l,
                              void *operands)
{
    const mp_kernel_convert_args args = {.x = l->x,
                                         .x_stride = l->x_stride,
                                         .x_dtype = l->x_dtype,
                                         .math = l->math,
                                         .n_tokens = l->n_rows,
                                         .hidden = l->n_in,
                                         .out = operands};
    mp_tick tick;
    return device->ops->launch(stream, MP_KERNEL_CONVERT, &args, &tick);
}

/* How the kernel finds a weight's scale; of nothing for weights that have none. */
static mp_block_scale scale_of(const moepage_linear *l)
{
    const uint32_t dtype = l->scale_dtype ? l->scale_dtype : MOEPAGE_DTYPE_F32;
    return l->scales ? (mp_block_scale){dtype, l->block_rows, l->block_columns}
                     : (mp_block_scale){0};
}

static moepage_status multiply(mp_device *device, mp_stream *stream, const moepage_linear *l,
                               const void *operands)
{
    const mp_kernel_linear_args args = {.x = operands,
                                        .w = l->w,
                                        .bias = l->bias,
                                        .scales = l->scales,
                                        .out = l->out,
                                        .n_rows = l->n_rows,
                                        .n_in = l->n_in,
                                        .n_out = l->n_out,
                                        .dtype = l->w_dtype,
                                        .bias_dtype = l->bias_dtype,
                                        .math = l->math,
                                        .scale = scale_of(l)};
    mp_tick tick;
    moepage_status status = device->ops->launch(stream, MP_KERNEL_LINEAR, &args, &tick);
    return status ? status : device->ops->sync(stream, tick);
}

static moepage_status multiply_converted(moepage_device *home, mp_stream *stream,
                                         const moepage_linear *l, uint64_t bytes)
{
    void *operands;
    moepage_status status = mp_home_workspace_alloc(home, bytes, &operands);
    if (status)
        return status;
    status = convert(home->device, stream, l, operands);
    if (!status)
        status = multiply(home->device, stream, l, operands);
    mp_home_workspace_free(home, operands, bytes);
    return status;
}

moepage_status moepage_device_linear(moepage_device *device, const moepage_linear *linear)
{
    moepage_linear own;
    mp_stream *stream;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = read_linear(linear, &own);
    if (status)
        return status;
    if ((device->device->caps & (MP_CAP_ON_HOST | MP_CAP_NO_BYTES)) != MP_CAP_ON_HOST)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: dense products run on host devices only: use a library of the GPU's",
                       device->device->name);
    if (!own.n_rows)
        return MOEPAGE_OK;
    status = mp_home_compute(device, &stream);
    if (status)
        return status;
    const bool wide = own.math == MOEPAGE_MATH_FP32, rounded = own.math == MOEPAGE_MATH_INT8;
    const uint32_t operand = wide ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_BF16;
    if (own.x_dtype == operand && own.x_stride == own.n_in && !rounded)
        return multiply(device->device, stream, &own, own.x);
    return multiply_converted(device, stream, &own,
                              (uint64_t)own.n_rows * own.n_in * (wide || rounded ? 4 : 2));
}
