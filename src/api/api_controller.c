/* Entry points of controllers: check arguments, call down. */
#include "controllers/controller.h"

#include "base/config.h"
#include "base/status.h"

/* As first published. */
#define CONFIG_MIN_BYTES offsetof(moepage_controller_config, target_ttft_ns)
#define INFO_MIN_BYTES offsetof(moepage_controller_info, target_tokens_per_s)

moepage_status moepage_controller_create(moepage_expert_pool *experts, moepage_kv_pool *kv,
                                         const moepage_controller_config *config,
                                         moepage_controller **out)
{
    moepage_controller_config own;
    moepage_status status = mp_handle_check(experts, MP_KIND_EXPERTS);
    if (!status && kv)
        status = mp_handle_check(kv, MP_KIND_KV);
    if (!status && !out)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    if (!status)
        status = mp_config_read(&own, sizeof own, CONFIG_MIN_BYTES, config, "config");
    return status ? status : mp_controller_create(experts, kv, &own, out);
}

moepage_status moepage_controller_destroy(moepage_controller *controller)
{
    if (!controller)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(controller, MP_KIND_CONTROLLER);
    if (!status)
        mp_controller_destroy(controller);
    return status;
}

moepage_status moepage_controller_tick(moepage_controller *controller, void *stream,
                                       moepage_controller_report *report)
{
    moepage_status status = mp_handle_check(controller, MP_KIND_CONTROLLER);
    if (!status && report)
        status = MP_REPORT_CHECK(report);
    return status ? status : mp_controller_tick(controller, stream, report);
}

moepage_status moepage_controller_kv_use(moepage_controller *controller, uint64_t key,
                                         uint64_t tokens)
{
    moepage_status status = mp_handle_check(controller, MP_KIND_CONTROLLER);
    if (!status && !controller->kv)
        status = mp_fail(MOEPAGE_E_STATE, "the controller watches no KV pool");
    if (!status)
        mp_controller_kv_use(controller, key, tokens);
    return status;
}

moepage_status moepage_controller_rightsize(moepage_controller *controller,
                                            moepage_predictor *const *predictors, uint32_t n,
                                            uint32_t coverage_permille)
{
    moepage_status status = mp_handle_check(controller, MP_KIND_CONTROLLER);
    if (!status && n && !predictors)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "predictors is NULL for %u users", n);
    for (uint32_t i = 0; i < n && !status; i++) {
        status = mp_handle_check(predictors[i], MP_KIND_PREDICTOR);
        if (status)
            status = mp_fail_within(status, "predictors[%u]", i);
    }
    return status ? status : mp_controller_rightsize(controller, predictors, n, coverage_permille);
}

moepage_status moepage_controller_get_rightsize(moepage_controller *controller, uint32_t user,
                                                moepage_rightsize *size)
{
    moepage_rightsize own;
    moepage_status status = mp_handle_check(controller, MP_KIND_CONTROLLER);
    if (!status)
        status = MP_CONFIG_CHECK(size);
    if (!status)
        status = mp_controller_user(controller, user, &own);
    return status ? status : MP_CONFIG_WRITE(size, own);
}

moepage_status moepage_controller_get_info(moepage_controller *controller,
                                           moepage_controller_info *info)
{
    moepage_status status = mp_handle_check(controller, MP_KIND_CONTROLLER);
    if (status)
        return status;
    moepage_controller_info own;
    mp_controller_info(controller, &own);
    return mp_config_write(info, &own, sizeof own, INFO_MIN_BYTES, "info");
}

moepage_status moepage_controller_get_curve(moepage_controller *controller, uint32_t kv,
                                            const uint64_t *sizes, uint32_t n, double *misses)
{
    moepage_status status = mp_handle_check(controller, MP_KIND_CONTROLLER);
    if (!status && kv > 1)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "kv is %u, it must be 0 or 1", kv);
    if (!status && n && (!sizes || !misses))
        status = mp_fail(MOEPAGE_E_ARGUMENT, "sizes or misses is NULL for %u sizes", n);
    if (!status && kv && !controller->kv)
        status = mp_fail(MOEPAGE_E_STATE, "the controller watches no KV pool");
    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++)
        misses[i] = mp_controller_misses(controller, kv != 0, sizes[i]);
    return MOEPAGE_OK;
}
