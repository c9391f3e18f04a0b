/* Entry points of device-driven paths: check handles and structs, call down. */
#include "base/config.h"
#include "base/status.h"
#include "device_paths/path.h"

moepage_status moepage_cuda_path_workspace(const moepage_model *model,
                                           const moepage_session_config *session,
                                           const moepage_cuda_path_config *config, uint64_t *bytes)
{
    moepage_session_config own_session;
    moepage_cuda_path_config own;
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (!status)
        status = MP_CONFIG_READ(own_session, session);
    if (!status)
        status = MP_CONFIG_READ(own, config);
    if (!status && !bytes)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "bytes is NULL");
    return status ? status : mp_path_workspace(model, &own_session, &own, bytes);
}

moepage_status moepage_cuda_path_create(moepage_session *session,
                                        const moepage_cuda_path_config *config,
                                        moepage_cuda_path **out)
{
    moepage_cuda_path_config own;
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && !out)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    if (!status)
        status = MP_CONFIG_READ(own, config);
    return status ? status : mp_path_create(session, &own, out);
}

moepage_status moepage_cuda_path_destroy(moepage_cuda_path *path)
{
    if (!path)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(path, MP_KIND_PATH);
    if (!status)
        mp_path_destroy(path);
    return status;
}

moepage_status moepage_cuda_path_layer(moepage_cuda_path *path, const moepage_cuda_layer *layer,
                                       void *stream)
{
    moepage_cuda_layer own;
    moepage_status status = mp_handle_check(path, MP_KIND_PATH);
    if (!status && !layer)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "layer is NULL");
    if (!status)
        status = MP_CONFIG_READ(own, layer);
    return status ? status : mp_path_layer(path, &own, stream);
}

moepage_status moepage_cuda_path_check(moepage_cuda_path *path, moepage_cuda_path_stats *stats)
{
    moepage_status status = mp_handle_check(path, MP_KIND_PATH);
    return status ? status : mp_path_check(path, stats);
}
