/* Entry point of the metrics: reads each object's counters, one object after the other, and renders
 * the text. */
#include <stddef.h>

#include "arena/home.h"
#include "base/config.h"
#include "base/status.h"
#include "metrics/metrics.h"
#include "moepage_cuda.h"

/* The structs to report, as the objects filled them in. */
typedef struct report {
    moepage_device_info device;
    moepage_cuda_info cuda;
    moepage_expert_pool_info experts;
    moepage_session_stats sessions;
    moepage_kv_pool_info kv;
    moepage_controller_info controller;
    moepage_predictor_info predictor;
} report;

/* Returns true for a live CUDA device. */
static bool is_cuda(const moepage_device *device)
{
    return device && device->device->ops->cuda;
}

static moepage_status gather(const moepage_stats_source *source, report *out)
{
    moepage_status status = MOEPAGE_OK;
    *out = (report){.device = {.struct_size = sizeof out->device},
                    .cuda = {.struct_size = sizeof out->cuda},
                    .experts = {.struct_size = sizeof out->experts},
                    .sessions = {.struct_size = sizeof out->sessions},
                    .kv = {.struct_size = sizeof out->kv},
                    .controller = {.struct_size = sizeof out->controller},
                    .predictor = {.struct_size = sizeof out->predictor}};
    if (source->device)
        status = moepage_device_get_info(source->device, &out->device);
    if (!status && is_cuda(source->device))
        status = moepage_cuda_get_info(source->device, &out->cuda);
    if (!status && source->experts)
        status = moepage_expert_pool_get_info(source->experts, &out->experts);
    if (!status && source->experts)
        status = moepage_expert_pool_get_stats(source->experts, &out->sessions);
    if (!status && source->kv)
        status = moepage_kv_pool_get_info(source->kv, &out->kv);
    if (!status && source->controller)
        status = moepage_controller_get_info(source->controller, &out->controller);
    if (!status && source->predictor)
        status = moepage_predictor_get_info(source->predictor, &out->predictor);
    return status;
}

static moepage_status check(const moepage_stats_source *source, const char *out, uint64_t capacity)
{
    if (source->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "source: reserved is %u, it must be 0",
                       source->reserved);
    if (!out && capacity)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "out is NULL for a capacity of %llu: give both, or NULL and 0",
                       (unsigned long long)capacity);
    return mp_metrics_check_labels(source->labels);
}

moepage_status moepage_stats_text(const moepage_stats_source *source, char *out, uint64_t capacity,
                                  uint64_t *length)
{
    moepage_stats_source own;
    report all;
    if (!source)
        return mp_fail(MOEPAGE_E_ARGUMENT, "source is NULL: say what to report on");
    moepage_status status = MP_CONFIG_READ(own, source);
    if (!status)
        status = check(&own, out, capacity);
    if (!status)
        status = gather(&own, &all);
    if (status)
        return status;
    const mp_metrics metrics = {
        .of = {[MP_METRICS_OF_BUILD] = &all,
               [MP_METRICS_OF_DEVICE] = own.device ? &all.device : NULL,
               [MP_METRICS_OF_CUDA] = is_cuda(own.device) ? &all.cuda : NULL,
               [MP_METRICS_OF_EXPERTS] = own.experts ? &all.experts : NULL,
               [MP_METRICS_OF_SESSIONS] = own.experts ? &all.sessions : NULL,
               [MP_METRICS_OF_KV] = own.kv ? &all.kv : NULL,
               [MP_METRICS_OF_CONTROLLER] = own.controller ? &all.controller : NULL,
               [MP_METRICS_OF_PREDICTOR] = own.predictor ? &all.predictor : NULL},
        .labels = own.labels,
    };
    uint64_t n = mp_metrics_render(&metrics, NULL, 0);
    if (out && n >= capacity)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "capacity is %llu, and the text takes %llu bytes with its NUL: "
                       "MOEPAGE_STATS_TEXT_BYTES is always enough",
                       (unsigned long long)capacity, (unsigned long long)n + 1);
    if (out)
        (void)mp_metrics_render(&metrics, out, capacity);
    if (length)
        *length = n;
    return MOEPAGE_OK;
}
