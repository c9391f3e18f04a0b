/* Entry points of predictors: check arguments, call down. */
#include "features/shared_predictor.h"

#include "base/config.h"
#include "base/status.h"

moepage_status moepage_predictor_create(const moepage_model *model,
                                        const moepage_predictor_config *config,
                                        moepage_predictor **out)
{
    moepage_predictor_config own;
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (!status && !out)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    if (!status)
        status = MP_CONFIG_READ(own, config);
    return status ? status : mp_predictor_create(model, &own, out);
}

moepage_status moepage_predictor_destroy(moepage_predictor *predictor)
{
    if (!predictor)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(predictor, MP_KIND_PREDICTOR);
    if (status)
        return status;
    uint32_t users = atomic_load(&predictor->users);
    if (users)
        return mp_fail(MOEPAGE_E_BUSY,
                       "%u session%s or controller%s still use%s the predictor: destroy %s first",
                       users, users == 1 ? "" : "s", users == 1 ? "" : "s", users == 1 ? "s" : "",
                       users == 1 ? "it" : "them");
    mp_predictor_free(predictor);
    return MOEPAGE_OK;
}

moepage_status moepage_predictor_get_info(moepage_predictor *predictor,
                                          moepage_predictor_info *info)
{
    moepage_status status = mp_handle_check(predictor, MP_KIND_PREDICTOR);
    if (status)
        return status;
    moepage_predictor_info own;
    mp_predictor_info(predictor, &own);
    return MP_CONFIG_WRITE(info, own);
}

static moepage_status check_path(moepage_predictor *predictor, const char *path)
{
    moepage_status status = mp_handle_check(predictor, MP_KIND_PREDICTOR);
    if (!status && (!path || !*path))
        status =
            mp_fail(MOEPAGE_E_ARGUMENT, "path is %s, it must name a file", path ? "empty" : "NULL");
    return status;
}

moepage_status moepage_predictor_save(moepage_predictor *predictor, const char *path)
{
    moepage_status status = check_path(predictor, path);
    return status ? status : mp_predictor_save(predictor, path);
}

moepage_status moepage_predictor_load(moepage_predictor *predictor, const char *path)
{
    moepage_status status = check_path(predictor, path);
    return status ? status : mp_predictor_load(predictor, path);
}

moepage_status moepage_predictor_rightsize(moepage_predictor *predictor, moepage_rightsize *size)
{
    moepage_rightsize own;
    moepage_status status = mp_handle_check(predictor, MP_KIND_PREDICTOR);
    if (!status)
        status = MP_CONFIG_CHECK(size);
    if (!status)
        status = MP_CONFIG_READ(own, size);
    if (!status)
        status = mp_predictor_rightsize(predictor, &own);
    return status ? status : MP_CONFIG_WRITE(size, own);
}
