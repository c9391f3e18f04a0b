/* The configuration of a pool with two versions of its experts: what is allowed, and what it takes. */
#include "ahead/versions_inside.h"
#include "base/config.h"
#include "base/status.h"

#define DEFAULT_INTERVAL_US 1000000u
#define DEFAULT_TRANSITIONS 4u
#define MAX_TRANSITIONS 1024u

/* ---- config ---- */

static moepage_status check_values(const moepage_precision_config *config)
{
    if (config->serve > MOEPAGE_SERVE_CACHE)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "precision: serve is %u, it must be MOEPAGE_SERVE_VERSIONS or _CACHE",
                       config->serve);
    if (config->hi_form != MOEPAGE_FORM_DENSE && config->hi_form != MOEPAGE_FORM_INT8 &&
        config->hi_form != MOEPAGE_FORM_INT4)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "precision: hi_form is %u, it must be 0, MOEPAGE_FORM_DENSE, _INT8 or _INT4",
                       config->hi_form);
    if (config->lo_form < MOEPAGE_FORM_INT8 || config->lo_form > MOEPAGE_FORM_INT2 ||
        config->lo_form <= config->hi_form)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "precision: lo_form is %u, it must be MOEPAGE_FORM_INT8, _INT4 or _INT2, and "
            "smaller than hi_form (%u)",
            config->lo_form, config->hi_form);
    if (!(config->alpha >= 0 && config->alpha < 1) || !(config->margin <= 1e9))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "precision: alpha is %g and margin %g: 0 <= alpha < 1, and the margin is a "
                       "number",
                       config->alpha, config->margin);
    if (config->lo_fetched > 1 || config->hotness > MOEPAGE_HOTNESS_WEIGHTS)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "precision: lo_fetched is %u and hotness %u: they must be 0 or 1, and "
                       "MOEPAGE_HOTNESS_CHOICES or _WEIGHTS",
                       config->lo_fetched, config->hotness);
    if (config->transitions > MAX_TRANSITIONS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "precision: transitions is %u, at most %u",
                       config->transitions, MAX_TRANSITIONS);
    return MOEPAGE_OK;
}

/* Checks the fields that only SERVE_VERSIONS can use. */
static moepage_status check_serve(const moepage_precision_config *config, uint64_t slots,
                                  uint32_t experts)
{
    if (config->serve == MOEPAGE_SERVE_CACHE) {
        if (config->hi_form != MOEPAGE_FORM_DENSE || config->lo_fetched || config->hi_experts)
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "precision: with SERVE_CACHE hi_form must be DENSE, lo_fetched and "
                           "hi_experts 0 (they are %u, %u and %u)",
                           config->hi_form, config->lo_fetched, config->hi_experts);
        return MOEPAGE_OK;
    }
    if (slots)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "slots is %llu, with SERVE_VERSIONS it must be 0: precision.hi_experts says "
                       "how many",
                       (unsigned long long)slots);
    if (config->hi_experts > experts)
        return mp_fail(MOEPAGE_E_ARGUMENT, "precision: hi_experts is %u, a layer has %u",
                       config->hi_experts, experts);
    return MOEPAGE_OK;
}

static moepage_status check_rest(const moepage_expert_pool_config *config,
                                 const moepage_precision_config *precision, uint32_t n_devices)
{
    if (precision->hi_experts > 0 && precision->hi_experts < n_devices)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "precision: hi_experts is %u: each of %u devices needs one of its own of every "
            "layer",
            precision->hi_experts, n_devices);
    if (config->bus_form && config->bus_form != precision->hi_form)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "bus_form is %u: beside precision it must be 0 or hi_form (%u)",
                       config->bus_form, precision->hi_form);
    if (config->compressed_experts || config->placement != MOEPAGE_PLACEMENT_EXPLICIT)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "compressed_experts is %u and placement %u: beside precision both must be 0",
                       config->compressed_experts, config->placement);
    return MOEPAGE_OK;
}

static moepage_status check_forms(const struct moepage_model *model,
                                  const moepage_precision_config *config)
{
    const uint32_t forms[2] = {config->hi_form, config->lo_form};
    static const char *const names[MP_FORMS] = {"", "DENSE", "EXPH", "INT8", "INT4", "INT2"};
    for (int i = 0; i < 2; i++)
        if (forms[i] != MOEPAGE_FORM_DENSE && !mp_model_has_form(model, forms[i]))
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "precision: the model's experts are not stored as %s: pack it with that "
                           "form",
                           names[forms[i]]);
    return MOEPAGE_OK;
}

moepage_status mp_versions_read_config(const struct moepage_model *model,
                                       const moepage_expert_pool_config *config, uint32_t n_devices,
                                       moepage_precision_config *out)
{
    moepage_status status =
        mp_config_read(out, sizeof *out, sizeof *out, config->precision, "precision");
    if (status)
        return status;
    if (!out->hi_form)
        out->hi_form = MOEPAGE_FORM_DENSE;
    status = check_values(out);
    if (!status && model->n_layouts > 1)
        status =
            mp_fail(MOEPAGE_E_UNSUPPORTED,
                    "the experts of this %s model differ in type from layer to layer: a pool has "
                    "two versions of experts that are alike",
                    model->info.architecture);
    if (!status)
        status = check_serve(out, config->slots, model->info.experts);
    if (!status)
        status = check_rest(config, out, n_devices);
    if (!status)
        status = check_forms(model, out);
    if (status)
        return status;
    out->interval_us = out->interval_us ? out->interval_us : DEFAULT_INTERVAL_US;
    out->window_steps = out->window_steps ? out->window_steps : 1;
    out->alpha = out->alpha > 0 ? out->alpha : 0.5;
    out->margin = out->margin > 0 ? out->margin : out->margin < 0 ? 0 : 0.1;
    out->transitions = out->transitions ? out->transitions : DEFAULT_TRANSITIONS;
    return MOEPAGE_OK;
}

/* ---- sizes ---- */

uint64_t mp_version_places(const struct moepage_model *model,
                           const moepage_precision_config *precision, uint32_t members,
                           uint32_t n_high)
{
    uint64_t per_layer = members;
    if (precision->lo_fetched)
        per_layer = per_layer + MP_SPARE_PER_LAYER - n_high;
    return per_layer * model->info.moe_layers;
}

uint64_t mp_version_slots(const struct moepage_model *model,
                          const moepage_precision_config *precision, uint64_t places)
{
    uint64_t slot_bytes = mp_model_slot_bytes(model, precision->hi_form);
    return (places * mp_model_slot_bytes(model, precision->lo_form) + slot_bytes - 1) / slot_bytes;
}

/* Returns the part that one of n devices has of a number of experts, if they are alike. */
static uint32_t even_part(uint32_t experts, uint32_t device, uint32_t n)
{
    return experts / n + (device < experts % n);
}

moepage_status mp_versions_sizes(const struct moepage_model *model,
                                 const moepage_expert_pool_config *config, uint32_t n_devices,
                                 uint32_t *slot_form, uint64_t *low_slots, uint64_t *slots)
{
    moepage_precision_config precision;
    moepage_status status = mp_versions_read_config(model, config, n_devices, &precision);
    if (status)
        return status;
    const uint64_t asked = precision.serve == MOEPAGE_SERVE_VERSIONS ? 0 : *slots;
    *slot_form = precision.hi_form;
    *low_slots = *slots = 0;
    for (uint32_t d = 0; d < n_devices; d++) {
        uint32_t high = even_part(precision.hi_experts, d, n_devices);
        uint32_t members = even_part(model->info.experts, d, n_devices);
        uint64_t low = mp_version_slots(model, &precision,
                                        mp_version_places(model, &precision, members, high));
        uint64_t rest = asked ? asked : (uint64_t)high * model->info.moe_layers;
        if (low + rest <= *low_slots + *slots)
            continue;
        *low_slots = low;
        *slots = rest;
    }
    return MOEPAGE_OK;
}
