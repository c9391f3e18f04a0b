/* Products of one matrix of a plan's experts, in shares that the caller's threads compute: what
 * moepage_session_convert and moepage_session_multiply are.
 *
 * A product is the second phase of EXPERTS alone: it reads rows of operands and writes sums. Its rows of
 * operands are in the order of the group's, so that each expert's are one behind the other. Nothing of the
 * session is written: any number of threads may be here at once. */
#include "base/status.h"
#include "codec/blocks.h"
#include "model/dtype.h"
#include "session/inside.h"

#define ALIGNMENT 64
#define SOME_EXPERTS 64 /* of one launch, on the stack */

/* A checked product. */
typedef struct plan_product {
    mp_device *device;
    const mp_flight *flight;
    const mp_group *group;
    const moepage_plan_expert *experts; /* [n_entries] */
    const uint32_t *rows;               /* [n_rows] */
    uint32_t n_rows;
    uint32_t math, dtype;
    uint32_t n_in, n_out;
} plan_product;

static moepage_status check_fields(const moepage_product *p, uint32_t n_tensors, uint32_t share,
                                   uint32_t n_shares)
{
    if (p->math > MOEPAGE_MATH_INT8)
        return mp_fail(MOEPAGE_E_ARGUMENT, "product: math is %u, it must be a MOEPAGE_MATH_*",
                       p->math);
    if (p->tensor >= n_tensors)
        return mp_fail(MOEPAGE_E_ARGUMENT, "product: tensor is %u, experts have %u tensors",
                       p->tensor, n_tensors);
    if (p->x_rows > MOEPAGE_ROWS_GROUP || p->out_rows > MOEPAGE_ROWS_GROUP ||
        p->out_rows == MOEPAGE_ROWS_TOKENS)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "product: x_rows is %u, out_rows %u: they must be MOEPAGE_ROWS_*, and a token has "
            "no one row of out",
            p->x_rows, p->out_rows);
    if (p->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "product: reserved is not 0");
    if (!p->x || !p->out || !p->operands || (uintptr_t)p->operands % ALIGNMENT)
        return mp_fail(MOEPAGE_E_ARGUMENT, "product: %s",
                       !p->x          ? "x is NULL"
                       : !p->out      ? "out is NULL"
                       : !p->operands ? "operands is NULL"
                                      : "operands is not at a multiple of 64 bytes");
    if (share >= n_shares)
        return mp_fail(MOEPAGE_E_ARGUMENT, "product: share is %u of %u", share, n_shares);
    return MOEPAGE_OK;
}

/* Looks up the matrix, and checks that kernels know its dtype. */
static moepage_status check_matrix(const moepage_product *p, const moepage_expert_tensor *tensor,
                                   plan_product *out)
{
    const uint32_t dtype = tensor->dtype;
    if (tensor->rank != 2 || (!mp_dtype_is_float(dtype) && !mp_block_format_of(dtype)))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "product: tensor %u is no matrix of F32, F16, BF16 or blocks", p->tensor);
    out->dtype = dtype;
    out->n_out = (uint32_t)tensor->shape[0];
    out->n_in = (uint32_t)tensor->shape[1];
    out->math = mp_matrix_math(p->math, dtype);
    if (p->x_stride && p->x_stride < out->n_in)
        return mp_fail(MOEPAGE_E_ARGUMENT, "product: x_stride is %llu, below %u, the rows' length",
                       (unsigned long long)p->x_stride, out->n_in);
    return MOEPAGE_OK;
}

static moepage_status check_group(struct moepage_session *session, const mp_flight *flight)
{
    const mp_device *device = session->step.device;
    const mp_group *group = &flight->groups[flight->group];
    if (!flight->planned || flight->dropped)
        return mp_fail(MOEPAGE_E_STATE,
                       "layer %u has no plan: it was routed without, or has failed", flight->layer);
    if (session->step.shape.n_devices > 1 || !device->ops->run_part)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "products of a plan's experts need one host device; these are on %s",
                       device->name);
    for (uint32_t e = 0; e < group->n_entries; e++)
        if (flight->holds[group->first_entry + e].form != MOEPAGE_FORM_DENSE)
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "layer %u: expert %u is held in another form than the model's",
                           flight->layer, flight->plan_experts[group->first_entry + e].expert);
    return MOEPAGE_OK;
}

static moepage_status check(struct moepage_session *session, uint32_t layer,
                            const moepage_product *p, uint32_t share, uint32_t n_shares,
                            plan_product *out)
{
    const mp_flight *flight = mp_session_flight(session, layer);
    if (!flight)
        return MOEPAGE_E_STATE;
    moepage_status status =
        check_fields(p, session->step.shape.model->info.expert_tensors, share, n_shares);
    if (!status)
        status = check_group(session, flight);
    if (!status)
        status = check_matrix(p, &session->step.layouts[layer]->tensors[p->tensor], out);
    if (status)
        return status;
    const mp_group *group = &flight->groups[flight->group];
    const uint32_t first = flight->first_row[group->first_entry];
    out->device = session->step.device;
    out->flight = flight;
    out->group = group;
    out->experts = &flight->plan_experts[group->first_entry];
    out->rows = &flight->rows[first];
    out->n_rows = flight->first_row[group->first_entry + group->n_entries] - first;
    return MOEPAGE_OK;
}

/* The row of x that row r of the group is. */
static uint64_t x_row(const plan_product *of, uint32_t x_rows, uint32_t r)
{
    switch (x_rows) {
    case MOEPAGE_ROWS_TOKENS: return of->rows[r] / of->flight->top_k;
    case MOEPAGE_ROWS_CHOICES: return of->rows[r];
    default: return r;
    }
}

moepage_status mp_session_convert(struct moepage_session *session, uint32_t layer,
                                  const moepage_product *p, uint32_t share, uint32_t n_shares)
{
    plan_product of;
    moepage_status status = check(session, layer, p, share, n_shares, &of);
    if (status)
        return status;
    const uint64_t stride = p->x_stride ? p->x_stride : of.n_in;
    const uint64_t row_bytes = of.n_in * (of.math == MOEPAGE_MATH_BF16 ? 2ull : 4ull);
    const uint32_t end = (uint32_t)((share + 1ull) * of.n_rows / n_shares);
    for (uint32_t r = (uint32_t)((uint64_t)share * of.n_rows / n_shares); r < end; r++) {
        const mp_kernel_args args = {.convert = {.x = p->x + x_row(&of, p->x_rows, r) * stride,
                                                 .x_stride = of.n_in,
                                                 .x_dtype = MOEPAGE_DTYPE_F32,
                                                 .math = of.math,
                                                 .n_tokens = 1,
                                                 .hidden = of.n_in,
                                                 .out = (char *)p->operands + r * row_bytes}};
        of.device->ops->run_part(of.device, MP_KERNEL_CONVERT, &args, 0, 0, 1);
    }
    return MOEPAGE_OK;
}

moepage_status mp_session_multiply(struct moepage_session *session, uint32_t layer,
                                   const moepage_product *p, uint32_t share, uint32_t n_shares)
{
    plan_product of;
    mp_ffn_expert experts[SOME_EXPERTS];
    moepage_status status = check(session, layer, p, share, n_shares, &of);
    if (status)
        return status;
    mp_kernel_args args = {.experts = {.experts = experts,
                                       .rows = p->out_rows == MOEPAGE_ROWS_CHOICES ? of.rows : NULL,
                                       .inner = p->operands,
                                       .partial = p->out,
                                       .top_k = of.flight->top_k,
                                       .hidden = of.n_out,
                                       .intermediate = of.n_in,
                                       .dtypes[MP_DOWN] = of.dtype,
                                       .bias_dtype = MOEPAGE_DTYPE_F32,
                                       .math = of.math}};
    for (uint32_t first = 0; first < of.group->n_entries; first += args.experts.n_experts) {
        const uint32_t left = of.group->n_entries - first;
        args.experts.n_experts = left < SOME_EXPERTS ? left : SOME_EXPERTS;
        for (uint32_t e = 0; e < args.experts.n_experts; e++) {
            const moepage_plan_expert *expert = &of.experts[first + e];
            experts[e] = (mp_ffn_expert){.down = expert->tensors[p->tensor],
                                         .first_row = expert->first_row,
                                         .n_rows = expert->n_rows};
        }
        of.device->ops->run_part(of.device, MP_KERNEL_EXPERTS, &args, 1, share, n_shares);
    }
    return MOEPAGE_OK;
}
