/* Entry points that only CUDA devices have, except those of paths: check arguments, and submit
 * nothing for a wrong or empty request. */
#include <math.h>
#include <stdbool.h>

#include "arena/home.h"
#include "base/config.h"
#include "base/status.h"
#include "codec/quant.h"
#include "device/cuda_ext.h"
#include "model/dtype.h"

#define MAX_SIDE 0x7fffffffull    /* rows or columns of a matrix */
#define MAX_ELEMENTS (1ull << 34) /* dequantised by one call */
#define MAX_EXPERTS 1024u
#define MAX_TOP_K 32u
#define MAX_REMAP_TOKENS 1024u
#define MAX_GEMV_TOKENS 16u
#define MAX_BETA 63

/* For arguments without defaults: NULL is an error. */
#define MP_ARGS_READ(own, args) \
    ((args) ? MP_CONFIG_READ(own, args) : mp_fail(MOEPAGE_E_ARGUMENT, "args is NULL"))

/* ---- Checks ---- */

static moepage_status check_cuda(moepage_device *device)
{
    if (device->device->ops->cuda)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "the device is \"%s\": only CUDA devices (\"cuda:0\") do this",
                   device->device->name);
}

/* Checks a non-NULL pointer aligned to `to`, a power of two. */
static moepage_status check_pointer(const void *memory, uint64_t to, const char *name)
{
    if (!memory)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", name);
    if ((uintptr_t)memory & (to - 1))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is %p, it must be aligned to %llu bytes", name,
                       memory, (unsigned long long)to);
    return MOEPAGE_OK;
}

static moepage_status check_range(uint64_t value, uint64_t least, uint64_t most, const char *name)
{
    if (value >= least && value <= most)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT, "%s is %llu, it must be %llu to %llu", name,
                   (unsigned long long)value, (unsigned long long)least, (unsigned long long)most);
}

static moepage_status check_zero(uint64_t value, const char *name)
{
    return value ? mp_fail(MOEPAGE_E_ARGUMENT, "%s is %llu, it must be 0", name,
                           (unsigned long long)value)
                 : MOEPAGE_OK;
}

/* Checks a dtype of activations. */
static moepage_status check_dtype(uint32_t dtype, const char *name)
{
    if (mp_dtype_is_float(dtype))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT, "%s is %u, it must be F32 (%u), F16 (%u) or BF16 (%u)", name,
                   dtype, MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16);
}

static uint64_t dtype_bytes(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 ? 4 : 2;
}

static moepage_status check_matrix(uint64_t rows, uint64_t columns)
{
    moepage_status status = check_range(rows, 1, MAX_SIDE, "rows");
    return status ? status : check_range(columns, 1, MAX_SIDE, "columns");
}

/* A matrix in an integer form. */
static moepage_status check_quantised(uint32_t form, uint32_t group, uint64_t rows,
                                      uint64_t columns)
{
    moepage_status status = check_matrix(rows, columns);
    if (status)
        return status;
    if (group != 32 && group != 64 && group != 128)
        return mp_fail(MOEPAGE_E_ARGUMENT, "group is %u, it must be 32, 64 or 128", group);
    mp_quant_layout layout;
    const mp_quant_shape shape = {.rows = rows,
                                  .columns = columns,
                                  .bits = mp_quant_bits_of(form),
                                  .group = group};
    if (!mp_quant_layout_of(&shape, &layout))
        return mp_fail(MOEPAGE_E_ARGUMENT, "[%llu, %llu] is more than 2^48 bytes",
                       (unsigned long long)rows, (unsigned long long)columns);
    return MOEPAGE_OK;
}

/* ---- The device ---- */

moepage_status moepage_cuda_get_info(moepage_device *device, moepage_cuda_info *info)
{
    moepage_cuda_info own = {0};
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = MP_CONFIG_CHECK(info);
    if (!status)
        status = check_cuda(device);
    if (!status)
        status = device->device->ops->cuda->get_info(device->device, &own);
    return status ? status : MP_CONFIG_WRITE(info, own);
}

/* Hands checked arguments to the device; does nothing if `anything` is false. */
static moepage_status call(moepage_device *device, mp_cuda_call which, const void *args,
                           bool anything, void *stream)
{
    moepage_status status = check_cuda(device);
    if (status || !anything)
        return status;
    return device->device->ops->cuda->call(device->device, which, args, stream);
}

/* ---- Weights ---- */

moepage_status moepage_cuda_exph_decode(moepage_device *device, const moepage_cuda_decode *args,
                                        void *stream)
{
    moepage_cuda_decode own;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = MP_ARGS_READ(own, args);
    if (!status && own.n_jobs)
        status = check_pointer(own.jobs, 8, "jobs");
    return status ? status : call(device, MP_CUDA_CALL_DECODE, &own, own.n_jobs > 0, stream);
}

static moepage_status check_dequant_integers(const moepage_cuda_dequant *args)
{
    moepage_status status = check_quantised(args->form, args->group, args->rows, args->columns);
    if (!status)
        status = check_zero(args->src_dtype, "src_dtype of an integer form");
    if (!status)
        status = check_zero(args->scale_dtype, "scale_dtype of an integer form");
    if (!status)
        status = check_zero(args->block_rows, "block_rows of an integer form");
    if (!status && args->scales)
        status = mp_fail(MOEPAGE_E_ARGUMENT,
                         "scales is set, it must be NULL: an integer form's scales are in src");
    return status ? status : check_pointer(args->src, 16, "src");
}

static moepage_status check_f8_scales(const moepage_cuda_dequant *args)
{
    if (args->scale_dtype == MOEPAGE_DTYPE_NONE) {
        if (args->scales)
            return mp_fail(MOEPAGE_E_ARGUMENT, "scales is set, but scale_dtype is NONE");
        moepage_status status = check_zero(args->group, "group without scales");
        return status ? status : check_zero(args->block_rows, "block_rows without scales");
    }
    if (args->scale_dtype != MOEPAGE_DTYPE_F32 && args->scale_dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "scale_dtype is %u, it must be F32 (%u), BF16 (%u) or NONE (0)",
                       args->scale_dtype, MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_BF16);
    moepage_status status = check_range(args->group, 1, MAX_SIDE, "group");
    if (!status)
        status = check_range(args->block_rows, 1, MAX_SIDE, "block_rows");
    return status ? status : check_pointer(args->scales, dtype_bytes(args->scale_dtype), "scales");
}

static moepage_status check_dequant(const moepage_cuda_dequant *args)
{
    moepage_status status = MOEPAGE_OK;
    if (mp_quant_bits_of(args->form)) {
        status = check_dequant_integers(args);
    } else if (args->form != MOEPAGE_FORM_DENSE) {
        status = mp_fail(MOEPAGE_E_ARGUMENT,
                         "form is %u, it must be INT8 (%u), INT4 (%u), INT2 (%u) or DENSE (%u)",
                         args->form, MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2,
                         MOEPAGE_FORM_DENSE);
    } else if (args->src_dtype != MOEPAGE_DTYPE_F8_E4M3) {
        status = mp_fail(MOEPAGE_E_ARGUMENT, "src_dtype is %u, of DENSE it must be F8_E4M3 (%u)",
                         args->src_dtype, MOEPAGE_DTYPE_F8_E4M3);
    } else {
        status = check_matrix(args->rows, args->columns);
        if (!status)
            status = check_f8_scales(args);
        if (!status)
            status = check_pointer(args->src, 1, "src");
    }
    if (!status && args->rows * args->columns > MAX_ELEMENTS)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "rows * columns is %llu, it must be at most 2^34",
                         (unsigned long long)(args->rows * args->columns));
    if (!status)
        status = check_dtype(args->dst_dtype, "dst_dtype");
    return status ? status : check_pointer(args->dst, dtype_bytes(args->dst_dtype), "dst");
}

moepage_status moepage_cuda_dequantise(moepage_device *device, const moepage_cuda_dequant *args,
                                       void *stream)
{
    moepage_cuda_dequant own;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = MP_ARGS_READ(own, args);
    if (!status)
        status = check_dequant(&own);
    return status ? status : call(device, MP_CUDA_CALL_DEQUANT, &own, true, stream);
}

static moepage_status check_gemv(const moepage_cuda_gemv *args)
{
    if (!mp_quant_bits_of(args->form))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "form is %u, it must be INT8 (%u), INT4 (%u) or INT2 (%u)", args->form,
                       MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2);
    moepage_status status = check_dtype(args->dtype, "dtype");
    if (!status)
        status = check_range(args->n_tokens, 0, MAX_GEMV_TOKENS, "n_tokens");
    if (!status)
        status = check_zero(args->reserved, "reserved");
    if (!status)
        status = check_quantised(args->form, args->group, args->rows, args->columns);
    if (status || !args->n_tokens)
        return status;
    status = check_pointer(args->w, 16, "w");
    if (!status)
        status = check_pointer(args->x, dtype_bytes(args->dtype), "x");
    return status ? status : check_pointer(args->y, dtype_bytes(args->dtype), "y");
}

moepage_status moepage_cuda_gemv_run(moepage_device *device, const moepage_cuda_gemv *args,
                                     void *stream)
{
    moepage_cuda_gemv own;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = MP_ARGS_READ(own, args);
    if (!status)
        status = check_gemv(&own);
    return status ? status : call(device, MP_CUDA_CALL_GEMV, &own, own.n_tokens > 0, stream);
}

/* ---- Rows ---- */

static moepage_status check_stride(uint64_t stride, uint32_t row_bytes, const char *name)
{
    if (stride && (stride < row_bytes || stride % 2))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "%s is %llu, it must be 0, or even and at least row_bytes (%u)", name,
                       (unsigned long long)stride, row_bytes);
    return MOEPAGE_OK;
}

static moepage_status check_rows(const moepage_cuda_rows *args)
{
    if (!args->row_bytes || args->row_bytes % 2)
        return mp_fail(MOEPAGE_E_ARGUMENT, "row_bytes is %u, it must be even and not 0",
                       args->row_bytes);
    moepage_status status = check_range(args->limit, 0, MAX_SIDE, "limit");
    if (!status)
        status = check_stride(args->in_stride, args->row_bytes, "in_stride");
    if (!status)
        status = check_stride(args->out_stride, args->row_bytes, "out_stride");
    if (status || !args->n)
        return status;
    status = check_pointer(args->index, 4, "index");
    if (!status)
        status = check_pointer(args->in, 2, "in");
    return status ? status : check_pointer(args->out, 2, "out");
}

static moepage_status move_rows(moepage_device *device, mp_cuda_call which,
                                const moepage_cuda_rows *args, void *stream)
{
    moepage_cuda_rows own;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = MP_ARGS_READ(own, args);
    if (!status)
        status = check_rows(&own);
    return status ? status : call(device, which, &own, own.n > 0, stream);
}

moepage_status moepage_cuda_gather(moepage_device *device, const moepage_cuda_rows *args,
                                   void *stream)
{
    return move_rows(device, MP_CUDA_CALL_GATHER, args, stream);
}

moepage_status moepage_cuda_scatter(moepage_device *device, const moepage_cuda_rows *args,
                                    void *stream)
{
    return move_rows(device, MP_CUDA_CALL_SCATTER, args, stream);
}

/* ---- Routing ---- */

/* Checks the router's description, common to both kernels over logits. */
static moepage_status check_gate(const moepage_cuda_topk *args)
{
    if (args->gate > MOEPAGE_CUDA_GATE_SIGMOID_NORM)
        return mp_fail(MOEPAGE_E_ARGUMENT, "gate is %u, it must be MOEPAGE_CUDA_GATE_*: 0 to %u",
                       args->gate, MOEPAGE_CUDA_GATE_SIGMOID_NORM);
    moepage_status status = check_dtype(args->dtype, "dtype");
    if (!status)
        status = check_range(args->experts, 1, MAX_EXPERTS, "experts");
    if (!status)
        status = check_range(args->top_k, 1, args->experts < MAX_TOP_K ? args->experts : MAX_TOP_K,
                             "top_k");
    if (!status && !isfinite(args->scale))
        status = mp_fail(MOEPAGE_E_ARGUMENT, "scale is %g, it must be finite", (double)args->scale);
    if (!status && args->bias && args->gate != MOEPAGE_CUDA_GATE_SIGMOID_NORM)
        status = mp_fail(MOEPAGE_E_ARGUMENT,
                         "bias is set, but gate is %u: only SIGMOID_NORM (%u) "
                         "has one",
                         args->gate, MOEPAGE_CUDA_GATE_SIGMOID_NORM);
    if (status || !args->n_tokens)
        return status;
    status = check_pointer(args->logits, dtype_bytes(args->dtype), "logits");
    if (!status && args->bias)
        status = check_pointer(args->bias, 4, "bias");
    if (!status)
        status = check_pointer(args->ids, 4, "ids");
    return status ? status : check_pointer(args->weights, 4, "weights");
}

moepage_status moepage_cuda_topk_run(moepage_device *device, const moepage_cuda_topk *args,
                                     void *stream)
{
    moepage_cuda_topk own;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = MP_ARGS_READ(own, args);
    if (!status)
        status = check_zero(own.reserved, "reserved");
    if (!status)
        status = check_gate(&own);
    return status ? status : call(device, MP_CUDA_CALL_TOPK, &own, own.n_tokens > 0, stream);
}

static moepage_status check_bins(const moepage_cuda_remap *args)
{
    if (!(args->alpha > 0) || !isfinite(args->alpha))
        return mp_fail(MOEPAGE_E_ARGUMENT, "alpha is %g, it must be finite and more than 0",
                       (double)args->alpha);
    if (!(args->beta >= 1 && args->beta <= MAX_BETA) || args->beta != floorf(args->beta))
        return mp_fail(MOEPAGE_E_ARGUMENT, "beta is %g, it must be a whole number, 1 to %d",
                       (double)args->beta, MAX_BETA);
    if (args->beta > 3 * args->alpha)
        return mp_fail(MOEPAGE_E_ARGUMENT, "beta is %g, it must be at most 3 * alpha, which is %g",
                       (double)args->beta, 3 * (double)args->alpha);
    if (args->base != 0 && (!(args->base >= 1) || !isfinite(args->base)))
        return mp_fail(MOEPAGE_E_ARGUMENT, "base is %g, it must be finite and at least 1, or 0",
                       (double)args->base);
    if (!(args->bonus >= 0) || !isfinite(args->bonus))
        return mp_fail(MOEPAGE_E_ARGUMENT, "bonus is %g, it must be finite and not negative",
                       (double)args->bonus);
    if (args->bonus > 0 && !args->preferred)
        return mp_fail(MOEPAGE_E_ARGUMENT, "bonus is %g, but preferred is NULL",
                       (double)args->bonus);
    return MOEPAGE_OK;
}

static moepage_status check_remap(const moepage_cuda_remap *args)
{
    const moepage_cuda_topk router = {
        .gate = args->gate,
        .dtype = args->dtype,
        .n_tokens = args->n_tokens,
        .experts = args->experts,
        .top_k = args->top_k,
        .logits = args->logits,
        .bias = args->bias,
        .scale = args->scale,
        .ids = args->ids,
        .weights = args->weights,
    };
    moepage_status status = check_gate(&router);
    if (!status)
        status = check_range(args->n_tokens, 0, MAX_REMAP_TOKENS, "n_tokens");
    if (!status && args->keep && args->keep < args->top_k)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "keep is %u, it must be 0 or at least top_k (%u)",
                         args->keep, args->top_k);
    if (!status)
        status = check_bins(args);
    return status || !args->n_tokens ? status : check_pointer(args->scratch, 64, "scratch");
}

uint64_t moepage_cuda_remap_scratch(uint32_t n_tokens, uint32_t experts)
{
    if (n_tokens > MAX_REMAP_TOKENS || experts > MAX_EXPERTS)
        return 0;
    return mp_cuda_remap_layout_of(n_tokens, experts).bytes;
}

moepage_status moepage_cuda_remap_run(moepage_device *device, const moepage_cuda_remap *args,
                                      void *stream)
{
    moepage_cuda_remap own;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = MP_ARGS_READ(own, args);
    if (!status)
        status = check_remap(&own);
    return status ? status : call(device, MP_CUDA_CALL_REMAP, &own, own.n_tokens > 0, stream);
}
