/* Entry points of KV pools: arguments are checked here. */
#include <stddef.h>

#include "base/config.h"
#include "base/status.h"
#include "kv/kv.h"

#define DEFAULT_BLOCK_TOKENS 16u
#define DEFAULT_SEQUENCES 4096u

/* The first published form of the info ends before this member. */
#define INFO_MIN_BYTES offsetof(moepage_kv_pool_info, refused)

static moepage_status check_arguments(const moepage_kv_pool *pool, const void *pointer,
                                      const char *name)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    if (status)
        return status;
    return pointer ? MOEPAGE_OK : mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", name);
}

static moepage_status check_config(moepage_kv_pool_config *config)
{
    if (!config->layers || !config->bytes_per_token)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s: say how many bytes one token takes in each layer",
                       config->layers ? "bytes_per_token is NULL" : "layers is 0");
    if (config->max_sequences > MP_KV_MAX_SEQUENCES)
        return mp_fail(MOEPAGE_E_ARGUMENT, "max_sequences is %llu, the most is %u",
                       (unsigned long long)config->max_sequences, MP_KV_MAX_SEQUENCES);
    if (!config->block_tokens)
        config->block_tokens = DEFAULT_BLOCK_TOKENS;
    if (!config->max_sequences)
        config->max_sequences = DEFAULT_SEQUENCES;
    return MOEPAGE_OK;
}

moepage_status moepage_kv_pool_create(moepage_device *device, const moepage_kv_pool_config *config,
                                      moepage_kv_pool **out)
{
    moepage_kv_pool_config own;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (status)
        return status;
    if (!out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    status = MP_CONFIG_READ(own, config);
    if (!status)
        status = check_config(&own);
    if (status)
        return status;
    return mp_kv_pool_create(device, &own, out);
}

moepage_status moepage_kv_pool_sizes(const moepage_kv_pool_config *config, uint64_t *arena_bytes)
{
    moepage_kv_pool_config own;
    uint64_t bytes;
    moepage_status status = MP_CONFIG_READ(own, config);
    if (!status)
        status = check_config(&own);
    if (!status && (!own.blocks || !arena_bytes))
        status = mp_fail(MOEPAGE_E_ARGUMENT, "%s",
                         arena_bytes ? "blocks is 0: say how many the pool is to have"
                                     : "arena_bytes is NULL");
    if (!status)
        status = mp_kv_shape_claim(&own, &bytes);
    if (!status)
        *arena_bytes = bytes;
    return status;
}

moepage_status moepage_kv_pool_destroy(moepage_kv_pool *pool)
{
    if (!pool)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    if (status)
        return status;
    uint32_t users = mp_kv_pool_readers(pool);
    if (users)
        return mp_fail(MOEPAGE_E_BUSY, "%u session%s still use%s the KV pool: destroy %s first",
                       users, users == 1 ? "" : "s", users == 1 ? "s" : "",
                       users == 1 ? "it" : "them");
    if (mp_kv_pool_is_watched(pool))
        return mp_fail(MOEPAGE_E_BUSY, "a controller watches the KV pool: destroy it first");
    mp_kv_pool_destroy(pool);
    return MOEPAGE_OK;
}

moepage_status moepage_kv_pool_get_info(moepage_kv_pool *pool, moepage_kv_pool_info *info)
{
    moepage_kv_pool_info own;
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    if (status)
        return status;
    mp_kv_pool_info(pool, &own);
    return mp_config_write(info, &own, sizeof own, INFO_MIN_BYTES, "info");
}

moepage_status moepage_kv_pool_get_layer(moepage_kv_pool *pool, uint32_t layer,
                                         moepage_kv_layer_view *view)
{
    moepage_kv_layer_view own;
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    if (status)
        return status;
    uint32_t layers = mp_kv_pool_shape(pool)->layers;
    if (layer >= layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the pool has layers 0..%u", layer,
                       layers - 1);
    mp_kv_pool_layer(pool, layer, &own);
    return MP_CONFIG_WRITE(view, own);
}

moepage_status moepage_kv_create(moepage_kv_pool *pool, moepage_seq *out)
{
    moepage_status status = check_arguments(pool, out, "out");
    return status ? status : mp_kv_create(pool, out);
}

moepage_status moepage_kv_append(moepage_kv_pool *pool, moepage_seq seq, uint64_t n_tokens,
                                 void *stream)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    return status ? status : mp_kv_append(pool, seq, n_tokens, stream);
}

moepage_status moepage_kv_truncate(moepage_kv_pool *pool, moepage_seq seq, uint64_t n_tokens)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    return status ? status : mp_kv_truncate(pool, seq, n_tokens);
}

moepage_status moepage_kv_fork(moepage_kv_pool *pool, moepage_seq parent, moepage_seq *out)
{
    moepage_status status = check_arguments(pool, out, "out");
    return status ? status : mp_kv_fork(pool, parent, out);
}

moepage_status moepage_kv_free(moepage_kv_pool *pool, moepage_seq seq)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    return status ? status : mp_kv_free(pool, seq);
}

moepage_status moepage_kv_swap_out(moepage_kv_pool *pool, moepage_seq seq, void *stream)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    return status ? status : mp_kv_swap_out(pool, seq, stream);
}

moepage_status moepage_kv_swap_in(moepage_kv_pool *pool, moepage_seq seq, void *stream)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    return status ? status : mp_kv_swap_in(pool, seq, stream);
}

moepage_status moepage_kv_get_table(moepage_kv_pool *pool, moepage_seq seq, moepage_kv_table *table)
{
    moepage_kv_table own;
    moepage_status status = mp_handle_check(pool, MP_KIND_KV);
    if (!status)
        status = mp_kv_get_table(pool, seq, &own);
    return status ? status : MP_CONFIG_WRITE(table, own);
}

/* Of moepage_kv_admission as first published. */
#define ADMISSION_MIN_BYTES offsetof(moepage_kv_admission, target_running)

moepage_status moepage_kv_admit(moepage_kv_pool *pool, const uint64_t *tokens, uint32_t n_sequences,
                                moepage_kv_admission *out)
{
    moepage_kv_admission own;
    moepage_status status = check_arguments(pool, tokens || !n_sequences ? pool : NULL, "tokens");
    if (!status)
        status = mp_kv_pool_admit(pool, tokens, n_sequences, &own);
    return status ? status : mp_config_write(out, &own, sizeof own, ADMISSION_MIN_BYTES, "out");
}
