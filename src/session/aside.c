/* Experts that the host computes for an asynchronous device that lacks them (MOEPAGE_MISS_HOST).
 *
 *   device   convert x | copy x to the host | experts in slots, loads as they land | rows | combine
 *   host                                     \ experts where they lie, by this thread's team
 *
 * The device is given all that it can do before this thread waits for x, which the device had to have anyway
 * before it could name the layer's experts. A row's result goes to the line that the device's sum is taken of. What
 * the host reads and writes is pinned memory of the session's own: copies from and to it are work of the device's
 * stream, so the next layer's x is there when the last one's rows have left.
 *
 * Which of the absent experts are computed, and which loaded, follows from what either has taken so far
 * (planning/host_share.h). */
#include "base/alloc.h"
#include "base/status.h"
#include "planning/host_share.h"
#include "planning/rate.h"
#include "pool/hints.h"
#include "session/inside.h"

#define MOST_WITHOUT 16

struct mp_aside {
    mp_device *host; /* a host device of its own, for its kernels and threads */
    mp_stream *stream;
    mp_cuda_shared memory;  /* of the first device: operands, then lines */
    void *x;                /* [max_tokens][hidden] operand type */
    float *partial;         /* [max_rows][hidden] */
    void *inner;            /* [max_rows][intermediate] operand type */
    mp_ffn_expert *experts; /* [max_entries] */
    uint32_t *rows, *which; /* [max_entries] scratch */
    mp_copy *copies;        /* [max_rows] */
    mp_rate cost;           /* ns of a row, as host_share.h counts them */
    bool is_warm;           /* it has computed before */
    uint32_t n_without;     /* sets of absent experts since, of which it had none */
    mp_tick arrived;        /* when x is there */
};

/* ---- life ---- */

static moepage_status open_parts(struct moepage_session *session, mp_aside *aside, uint64_t x_bytes,
                                 uint64_t partial_bytes)
{
    const moepage_device_config config = {.struct_size = sizeof config, .io_threads = 1};
    const mp_step_view *step = &session->step;
    mp_device *first = session->scratch[0].device;
    const uint64_t inner_bytes =
        (uint64_t)step->max_rows * step->shape.model->info.expert_intermediate * sizeof(float);
    aside->experts = mp_alloc_array(session->max_entries, sizeof *aside->experts);
    aside->rows = mp_alloc_array(session->max_entries, sizeof *aside->rows);
    aside->which = mp_alloc_array(session->max_entries, sizeof *aside->which);
    aside->copies = mp_alloc_array(step->max_rows, sizeof *aside->copies);
    aside->inner = mp_alloc(inner_bytes);
    if (!aside->experts || !aside->rows || !aside->which || !aside->copies || !aside->inner)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for experts that the host computes");
    const bool has_lines = step->shape.indirect == 0;
    moepage_status status =
        first->ops->cuda->shared_alloc(first, has_lines ? x_bytes + partial_bytes : x_bytes,
                                       &aside->memory);
    if (status)
        return mp_fail_within(status, "rows that the host computes");
    aside->x = aside->memory.host;
    char *lines = has_lines ? aside->memory.host : session->exchange.host.host;
    aside->partial = (float *)(void *)(lines + x_bytes);
    status = mp_device_open("host", &config, &aside->host);
    return status ? status
                  : aside->host->ops->stream_create(aside->host, MP_STREAM_COMPUTE, &aside->stream);
}

moepage_status mp_aside_open(struct moepage_session *session, uint64_t x_bytes,
                             uint64_t partial_bytes)
{
    session->aside = mp_alloc(sizeof *session->aside);
    return session->aside
               ? open_parts(session, session->aside, x_bytes, partial_bytes)
               : mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for experts that the host computes");
}

void mp_aside_close(struct moepage_session *session)
{
    mp_aside *aside = session->aside;
    mp_device *first = session->scratch[0].device;
    if (!aside)
        return;
    if (aside->stream)
        aside->host->ops->stream_destroy(aside->stream);
    if (aside->host)
        aside->host->ops->close(aside->host);
    if (aside->memory.host)
        first->ops->cuda->shared_free(first, &aside->memory);
    mp_free(aside->experts);
    mp_free(aside->rows);
    mp_free(aside->which);
    mp_free(aside->copies);
    mp_free(aside->inner);
    mp_free(aside);
    session->aside = NULL;
}

/* ---- what to compute here ---- */

void mp_aside_choose(struct moepage_session *session, const mp_flight *flight, mp_hold *holds,
                     uint32_t n)
{
    mp_aside *aside = session->aside;
    const uint32_t *first_row = flight->first_row + (holds - flight->holds);
    uint32_t absent = 0;
    double load_ns;
    mp_pool_weigh_miss(session->step.pool, &load_ns);
    for (uint32_t i = 0; i < n; i++) {
        aside->rows[i] = first_row[i + 1] - first_row[i];
        if (holds[i].kind == MP_HOLD_NONE)
            aside->which[absent++] = i;
    }
    uint32_t k = mp_host_share(mp_rate_ns(&aside->cost, 0), load_ns / session->step.shape.n_devices,
                               aside->rows, aside->which, absent);
    if (k == 0 && absent > 0 && ++aside->n_without == MOST_WITHOUT)
        k = 1; /* for another figure: what was slow then may be fast by now */
    if (k > 0)
        aside->n_without = 0;
    for (uint32_t i = 0; i < k; i++)
        holds[aside->which[i]].may_run_in_place = true;
}

/* ---- a layer ---- */

moepage_status mp_aside_fetch(struct moepage_session *session, const mp_flight *flight,
                              const void *x)
{
    mp_aside *aside = session->aside;
    mp_device_scratch *first = &session->scratch[0];
    const mp_copy copy = {.dst = aside->x,
                          .src = x,
                          .bytes = mp_exchange_x_bytes(session, flight->n_tokens)};
    moepage_status status = first->device->ops->copy(first->compute, &copy, 1, &first->last);
    aside->arrived = first->last;
    return status;
}

mp_ffn_expert *mp_aside_experts(struct moepage_session *session)
{
    return session->aside->experts;
}

/* Describes how the lines of `args`' experts get to those that are summed; returns the number of copies. */
static uint32_t list_lines(const struct moepage_session *session,
                           const mp_kernel_experts_args *args)
{
    const mp_aside *aside = session->aside;
    const uint64_t line = args->hidden * sizeof(float);
    uint32_t n = 0;
    for (uint32_t e = 0; e < args->n_experts; e++)
        for (uint32_t i = 0; i < args->experts[e].n_rows; i++) {
            const uint64_t at = args->rows[args->experts[e].first_row + i] * line;
            mp_copy *last = n > 0 ? &aside->copies[n - 1] : NULL;
            if (last && (char *)last->dst + last->bytes == (char *)session->exchange.partial + at)
                last->bytes += line;
            else
                aside->copies[n++] = (mp_copy){.dst = (char *)session->exchange.partial + at,
                                               .src = (char *)aside->partial + at,
                                               .bytes = line};
        }
    return n;
}

moepage_status mp_aside_run(struct moepage_session *session, const mp_kernel_experts_args *args)
{
    mp_aside *aside = session->aside;
    mp_device_scratch *first = &session->scratch[0];
    const mp_device_ops *ops = first->device->ops, *host = aside->host->ops;
    mp_kernel_experts_args own = *args;
    double rows = 0;
    mp_tick tick = 0;
    own.math = own.math == MOEPAGE_MATH_BF16_FAST ? MOEPAGE_MATH_BF16 : own.math;
    own.x = aside->x;
    own.experts = aside->experts;
    own.inner = aside->inner;
    own.partial = aside->partial;
    for (uint32_t e = 0; e < own.n_experts; e++)
        rows += mp_host_rows(own.experts[e].n_rows);
    moepage_status status = ops->sync(first->compute, aside->arrived);
    const uint64_t began_ns = host->now_ns(aside->host);
    if (!status)
        status = host->launch(aside->stream, MP_KERNEL_EXPERTS, &own, &tick);
    if (!status)
        status = host->sync(aside->stream, tick);
    if (status)
        return status;
    if (aside->is_warm) /* the first time memory and threads are cold */
        mp_rate_add(&aside->cost, rows, (double)(host->now_ns(aside->host) - began_ns));
    aside->is_warm = true;
    const uint32_t n = session->step.shape.indirect > 0 ? 0 : list_lines(session, &own);
    return n > 0 ? ops->copy(first->compute, aside->copies, n, &first->last) : MOEPAGE_OK;
}
