/* A session over several devices whose work outlasts its calls: one layer's rows cross from the first device
 * to the others, and their results back.
 *
 *   first     enter | convert x -------------------------------------------- | combine | follow
 *                             \ x to each                                   / rows' results
 *   another                    wait | copy x | experts that are there ------
 *
 * The caller's x, y and stream are the first device's, and no other is told of them: x is converted into
 * the first one's workspace, and what the others wait for is its stream. They copy x from there, and write the
 * rows' results to the lines there that the sum is taken of; where the driver gives them no access to that
 * workspace, x and all devices' lines are in host memory that every device reaches.
 *
 * A stream waits for another device's by ticks, as for one of its own device: no thread waits. The sum waits
 * for all devices' experts, and the next layer's x for the sum: so nothing that crosses is overwritten while
 * it is read. */
#include "base/status.h"
#include "device/cuda_ext.h"
#include "session/inside.h"

/* ---- life ---- */

moepage_status mp_exchange_open(struct moepage_session *session, uint64_t x_bytes,
                                uint64_t partial_bytes)
{
    mp_device_scratch *first = &session->scratch[0];
    mp_exchange *exchange = &session->exchange;
    exchange->x = first->x;
    exchange->partial = first->partial;
    if (session->step.shape.indirect == 0 || x_bytes == 0)
        return MOEPAGE_OK;
    moepage_status status =
        first->device->ops->cuda->shared_alloc(first->device, x_bytes + partial_bytes,
                                               &exchange->host);
    if (status)
        return mp_fail_within(status, "rows that cross between devices by way of the host");
    exchange->x = (void *)(uintptr_t)exchange->host.device;
    exchange->partial = (float *)(uintptr_t)(exchange->host.device + x_bytes);
    return MOEPAGE_OK;
}

void mp_exchange_close(struct moepage_session *session)
{
    mp_device *first = session->scratch[0].device;
    if (session->exchange.host.host)
        first->ops->cuda->shared_free(first, &session->exchange.host);
}

/* ---- the caller's stream ---- */

moepage_status mp_exchange_enter(struct moepage_session *session, void *native)
{
    mp_device_scratch *first = &session->scratch[0];
    const mp_device_ops *ops = first->device->ops;
    moepage_status status = ops->enter(first->compute, native);
    if (!status && mp_exchange_crosses(session))
        status = ops->mark(first->compute, &first->last);
    for (uint32_t d = 1;
         d < session->step.shape.n_devices && mp_exchange_crosses(session) && !status; d++)
        status = ops->wait(session->scratch[d].compute, first->compute, first->last);
    return status;
}

moepage_status mp_exchange_mark(struct moepage_session *session)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t d = 0; d < session->step.shape.n_devices && !status; d++) {
        mp_device_scratch *scratch = &session->scratch[d];
        status = scratch->device->ops->mark(scratch->compute, &scratch->last);
    }
    return status;
}

/* Puts the first device's later work behind another's so far, which has not failed. */
static moepage_status await_device(struct moepage_session *session, uint32_t device)
{
    const mp_device_scratch *other = &session->scratch[device];
    const mp_device_ops *ops = other->device->ops;
    moepage_status status = ops->settle(other->compute, other->last);
    return status ? status : ops->wait(session->scratch[0].compute, other->compute, other->last);
}

moepage_status mp_exchange_follow(struct moepage_session *session, void *native)
{
    mp_device_scratch *first = &session->scratch[0];
    const mp_device_ops *ops = first->device->ops;
    moepage_status status = mp_exchange_mark(session);
    for (uint32_t d = 1; d < session->step.shape.n_devices && !status; d++)
        status = await_device(session, d);
    if (!status && mp_exchange_crosses(session))
        status = ops->mark(first->compute, &first->last);
    return status ? status : ops->follow(native, first->compute, first->last);
}

moepage_status mp_exchange_ask(struct moepage_session *session)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t d = 0;
         d < session->step.shape.n_devices && mp_exchange_crosses(session) && !status; d++) {
        const mp_device_scratch *scratch = &session->scratch[d];
        status = scratch->device->ops->cuda->ask(scratch->compute);
    }
    return status;
}

/* ---- a layer ---- */

moepage_status mp_exchange_spread(struct moepage_session *session, const mp_flight *flight)
{
    const uint64_t bytes = mp_exchange_x_bytes(session, flight->n_tokens);
    mp_device_scratch *first = &session->scratch[0];
    const mp_device_ops *ops = first->device->ops;
    moepage_status status = MOEPAGE_OK;
    if (!mp_exchange_crosses(session))
        return status;
    mp_copy copy = {.dst = session->exchange.x, .src = first->x, .bytes = bytes};
    if (session->step.shape.indirect > 0)
        status = ops->copy(first->compute, &copy, 1, &first->last);
    for (uint32_t d = 1; d < session->step.shape.n_devices && !status; d++) {
        mp_device_scratch *scratch = &session->scratch[d];
        if (!flight->takes_part[d])
            continue;
        copy = (mp_copy){.dst = scratch->x, .src = session->exchange.x, .bytes = bytes};
        status = ops->wait(scratch->compute, first->compute, first->last);
        if (!status)
            status = ops->copy(scratch->compute, &copy, 1, &scratch->last);
    }
    return status;
}

moepage_status mp_exchange_gather(struct moepage_session *session, const mp_flight *flight)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t d = 1;
         d < session->step.shape.n_devices && mp_exchange_crosses(session) && !status; d++)
        if (flight->takes_part[d])
            status = await_device(session, d);
    return status;
}
