/* Entry points for experts' forms, reading experts, and writing .moepack files. */
#include <string.h>

#include "base/config.h"
#include "base/first_forms.h"
#include "base/status.h"
#include "device/team.h"
#include "device/thread.h"
#include "model/bounce.h"
#include "model/model.h"
#include "model/pack.h"
#include "model/pack_write.h"

#define MAX_THREADS 1024u
#define MAX_COLD_LEVEL 19
#define LOSSLESS_FORMS (1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_EXPH)
#define INTEGER_FORMS (1u << MOEPAGE_FORM_INT8 | 1u << MOEPAGE_FORM_INT4 | 1u << MOEPAGE_FORM_INT2)
#define ALL_FORMS (LOSSLESS_FORMS | INTEGER_FORMS)

/* ---- forms and experts ---- */

static void describe_form(const moepage_model *model, uint32_t form, moepage_form_info *out)
{
    *out = (moepage_form_info){.struct_size = sizeof *out, .form = form};
    out->present = mp_model_has_form(model, form);
    if (!out->present)
        return;
    if (model->pack) {
        const mp_pack_form *of = &model->pack->forms[form];
        out->group_size = of->group;
        out->image_bytes = of->image_bytes;
        out->most_bytes = of->most_bytes;
        out->stored_bytes = of->stored_bytes;
        return;
    }
    out->most_bytes = mp_model_most_bytes(model, form);
    for (uint32_t layer = 0; layer < model->info.moe_layers; layer++) {
        mp_image image;
        mp_model_find_image(model, layer, 0, form, &image);
        out->image_bytes += image.bytes * model->info.experts;
    }
    out->stored_bytes = model->phantom ? out->image_bytes : model->info.routed_bytes;
}

moepage_status moepage_model_get_form(const moepage_model *model, uint32_t form,
                                      moepage_form_info *info)
{
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (status)
        return status;
    if (form < MOEPAGE_FORM_DENSE || form > MOEPAGE_FORM_INT2)
        return mp_fail(MOEPAGE_E_ARGUMENT, "form is %u, it must be a MOEPAGE_FORM_* from %d to %d",
                       form, MOEPAGE_FORM_DENSE, MOEPAGE_FORM_INT2);
    moepage_form_info own;
    describe_form(model, form, &own);
    return MP_CONFIG_WRITE(info, own);
}

static moepage_status check_expert(const moepage_model *model, uint32_t layer, uint32_t expert,
                                   const void *out, uint64_t capacity)
{
    const moepage_model_info *info = &model->info;
    if (layer >= info->moe_layers || expert >= info->experts)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "layer %u, expert %u: the model has %u MoE layers of %u experts", layer,
                       expert, info->moe_layers, info->experts);
    if (!out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    if (capacity < info->slot_bytes)
        return mp_fail(MOEPAGE_E_ARGUMENT, "capacity is %llu, a slot has %llu bytes",
                       (unsigned long long)capacity, (unsigned long long)info->slot_bytes);
    return MOEPAGE_OK;
}

/* Reads through a private buffer: whole pages do not fit the caller's memory, and a failed read
 * must not leave bytes there. */
moepage_status moepage_model_read_expert(const moepage_model *model, uint32_t layer,
                                         uint32_t expert, void *out, uint64_t capacity)
{
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (!status)
        status = check_expert(model, layer, expert, out, capacity);
    if (status)
        return status;
    uint64_t room = mp_model_image_room(model, MOEPAGE_FORM_DENSE), read_bytes;
    mp_image image;
    mp_bounce bounce;
    if (!mp_bounce_alloc(room, &bounce))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to read an expert of %llu bytes",
                       (unsigned long long)model->info.expert_bytes);
    mp_model_find_image(model, layer, expert, MOEPAGE_FORM_DENSE, &image);
    status = mp_model_read_image(model, layer, expert, MOEPAGE_FORM_DENSE, bounce.bytes, room,
                                 &read_bytes);
    if (!status)
        memcpy(out, bounce.bytes + image.skew, mp_model_layout(model, layer)->slot_bytes);
    mp_bounce_free(&bounce);
    return status;
}

moepage_status moepage_model_get_tensor_name(const moepage_model *model, uint64_t index, char *out,
                                             uint64_t capacity)
{
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (status)
        return status;
    if (!out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    mp_dense_tensor tensor;
    if (!mp_model_dense_at(model, index, &tensor))
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "the model has fewer than %llu tensors that are never "
                       "paged",
                       (unsigned long long)index + 1);
    size_t n = strlen(tensor.name) + 1;
    if (capacity < n)
        return mp_fail(MOEPAGE_E_ARGUMENT, "capacity is %llu, the name of tensor %llu takes %zu",
                       (unsigned long long)capacity, (unsigned long long)index, n);
    memcpy(out, tensor.name, n);
    return MOEPAGE_OK;
}

/* ---- writing ---- */

static moepage_status check_config(const moepage_pack_config *config)
{
    if (config->forms & ~ALL_FORMS || !(config->forms & LOSSLESS_FORMS))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "forms is %#x, it must be a set within %#x with DENSE or EXPH",
                       config->forms, ALL_FORMS);
    if (config->cold_level < 0 || config->cold_level > MAX_COLD_LEVEL)
        return mp_fail(MOEPAGE_E_ARGUMENT, "cold_level is %d, it must be 0 to %d",
                       config->cold_level, MAX_COLD_LEVEL);
    if (config->cold_level && !(config->forms & 1u << MOEPAGE_FORM_DENSE))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "cold_level is %d, but forms %#x has no DENSE for zstd to store",
                       config->cold_level, config->forms);
    if (config->scale_search == 1 && !(config->forms & INTEGER_FORMS))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "scale_search is 1, but forms %#x has no integer form to search scales for",
                       config->forms);
    if (config->moments && !(config->forms & INTEGER_FORMS))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "moments are given, but forms %#x has no integer form to round by them",
                       config->forms);
    if (config->group_size && !(config->forms & INTEGER_FORMS))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "group_size is %u, but forms %#x has no integer form with groups",
                       config->group_size, config->forms);
    if (config->group_size && config->group_size != 32 && config->group_size != 64 &&
        config->group_size != 128)
        return mp_fail(MOEPAGE_E_ARGUMENT, "group_size is %u, it must be 32, 64 or 128",
                       config->group_size);
    if (config->threads > MAX_THREADS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "threads is %u, it must be at most %u", config->threads,
                       MAX_THREADS);
    if (config->verify > 1 || config->scale_search > 1 || config->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "verify is %u, scale_search %u and reserved %u: they must be 0 or 1, and 0",
                       config->verify, config->scale_search, config->reserved);
    return MOEPAGE_OK;
}

static void run_on_team(void *user, void (*part)(void *context, uint32_t part, uint32_t n),
                        void *context, uint32_t n)
{
    mp_team_run(user, part, context, n);
}

static moepage_status write_pack(const moepage_model *model, const char *path,
                                 const moepage_pack_config *config, moepage_pack_stats *stats)
{
    mp_team *team;
    uint64_t begin = mp_clock_ns();
    stats->threads = config->threads ? config->threads : mp_thread_cpus();
    moepage_status status = mp_team_create(stats->threads, &team);
    if (status)
        return status;
    const mp_pack_options options = {
        .forms = config->forms,
        .cold_level = config->cold_level,
        .group = config->group_size,
        .search = config->scale_search,
        .verify = config->verify,
        .threads = stats->threads,
        .run = run_on_team,
        .run_user = team,
        .moments = config->moments,
        .moments_user = config->moments_user,
        .progress = config->progress,
        .progress_user = config->progress_user,
    };
    status = mp_pack_write(model, path, &options, stats);
    mp_team_destroy(team);
    stats->wall_ns = mp_clock_ns() - begin;
    return status;
}

moepage_status moepage_pack_write(const moepage_model *model, const char *path,
                                  const moepage_pack_config *config, moepage_pack_stats *stats)
{
    moepage_pack_config own;
    moepage_pack_stats filled = {.struct_size = sizeof filled};
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (status)
        return status;
    if (!path || !*path)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the pack's path is %s: name a file",
                       path ? "empty" : "NULL");
    status = mp_config_read(&own, sizeof own, MP_PACK_CONFIG_MIN_BYTES, config, "config");
    if (!status && stats)
        status = MP_CONFIG_CHECK(stats); /* a failing call must not leave a pack behind */
    if (status)
        return status;
    if (!own.forms)
        own.forms = 1u << mp_pack_default_form(model);
    status = check_config(&own);
    if (!own.group_size)
        own.group_size = 64;
    if (!status)
        status = write_pack(model, path, &own, &filled);
    if (!status && stats)
        status = MP_CONFIG_WRITE(stats, filled);
    return status;
}
