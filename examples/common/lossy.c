/* Parses the options for approximate results, and applies them to a model. */
#include "common/lossy.h"

#include <math.h>
#include <string.h>

#include "common/fail.h"
#include "common/forms.h"

#define SLOT_ALIGN 256u /* of the library's slots */

/* ---- --precision ------------------------------------------------------------------------- */

/* Reads the form that `text` begins with, up to one of `ends`; *text advances to its end. */
static uint32_t take_form(const char **text, const char *ends)
{
    static const uint32_t forms[] = {MOEPAGE_FORM_DENSE, MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4,
                                     MOEPAGE_FORM_INT2};
    size_t length = strcspn(*text, ends);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *name = form_name(forms[i]);
        if (strlen(name) == length && !memcmp(name, *text, length)) {
            *text += length;
            return forms[i];
        }
    }
    return MOEPAGE_FORM_NONE;
}

/* Reads the budget behind "HI/LO@". */
static bool take_budget(const char *text, precision_spec *out)
{
    if (flag_is_bytes(text, &out->bytes))
        return out->bytes > 0;
    out->bytes = 0;
    out->as_form = take_form(&text, "-");
    return out->as_form && !strcmp(text, "-bytes");
}

bool precision_parse(const char *text, precision_spec *out)
{
    *out = (precision_spec){.text = text};
    uint32_t first = take_form(&text, "/");
    if (!first)
        return false;
    if (!*text) { /* "dense" alone is every model's default */
        *out = (precision_spec){.text = first == MOEPAGE_FORM_DENSE ? NULL : out->text,
                                .lo_form = first == MOEPAGE_FORM_DENSE ? 0 : first};
        return true;
    }
    text++;
    out->hi_form = first;
    out->lo_form = take_form(&text, ":@");
    if (out->lo_form <= out->hi_form) /* the high form has more bits than the low one */
        return false;
    if (*text == '@')
        return take_budget(text + 1, out);
    if (*text++ != ':' || !flag_take_real(&text, &out->percent))
        return false;
    return !strcmp(text, "%") && out->percent > 0 && out->percent <= 100;
}

uint32_t precision_forms(const precision_spec *spec)
{
    return spec->text ? 1u << spec->lo_form | (spec->hi_form ? 1u << spec->hi_form : 0) : 0;
}

static int check_form(const moepage_model *model, uint32_t form, moepage_form_info *info)
{
    *info = (moepage_form_info){.struct_size = sizeof *info};
    if (moepage_model_get_form(model, form, info))
        return fail_library(RUN_FAILED, "model");
    if (!info->present)
        return fail(RUN_REFUSED,
                    "the model's experts are not stored as %s: moepage-pack --expert-versions "
                    "dense,%s adds that",
                    form_name(form), form_name(form));
    return RUN_OK;
}

/* Computes the device memory of both versions. */
static int count_bytes(const moepage_model *model, const moepage_precision_config *config,
                       uint64_t *bytes)
{
    const moepage_expert_pool_config pool = {.struct_size = sizeof pool, .precision = config};
    uint64_t staging;
    return moepage_expert_pool_sizes(model, &pool, 1, &staging, bytes)
               ? fail_library(RUN_REFUSED, "--precision")
               : RUN_OK;
}

/* Computes the most high versions per layer that fit into the memory of `spec`. */
static int fill_bytes(const precision_spec *spec, const moepage_model *model, uint32_t experts,
                      moepage_precision_config *out)
{
    uint64_t room = spec->bytes, needed = 0;
    moepage_form_info as;
    int code = spec->as_form ? check_form(model, spec->as_form, &as) : RUN_OK;
    if (!code && spec->as_form)
        room = as.image_bytes;
    for (out->hi_experts = experts; !code && out->hi_experts; out->hi_experts--) {
        code = count_bytes(model, out, &needed);
        if (!code && needed <= room)
            return RUN_OK;
    }
    return code
               ? code
               : fail(RUN_REFUSED,
                      "--precision %s: %llu bytes do not hold the low versions and one high one in "
                      "each layer, which take %llu",
                      spec->text, (unsigned long long)room, (unsigned long long)needed);
}

int precision_slot_bytes(const precision_spec *spec, const moepage_model *model,
                         uint64_t *slot_bytes)
{
    moepage_form_info form;
    int code = precision_is_uniform(spec) ? check_form(model, spec->lo_form, &form) : RUN_OK;
    if (!code && precision_is_uniform(spec))
        *slot_bytes = (form.most_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    return code;
}

int precision_settle(const precision_spec *spec, const moepage_model *model,
                     const moepage_precision_config *given, moepage_precision_config *out)
{
    moepage_model_info info = {.struct_size = sizeof info};
    moepage_form_info form;
    *out = *given;
    out->struct_size = sizeof *out;
    out->hi_form = spec->hi_form;
    out->lo_form = spec->lo_form;
    if (moepage_model_get_info(model, &info))
        return fail_library(RUN_FAILED, "model");
    int code = check_form(model, spec->lo_form, &form);
    if (!code)
        code = check_form(model, spec->hi_form, &form);
    if (code || out->serve == MOEPAGE_SERVE_CACHE)
        return code;
    if (spec->percent <= 0)
        return fill_bytes(spec, model, info.experts, out);
    out->hi_experts = (uint32_t)floor(spec->percent * info.experts / 100 + 1e-9);
    if (!out->hi_experts)
        return fail(RUN_REFUSED, "--precision %s: that is not one of %u experts", spec->text,
                    info.experts);
    return RUN_OK;
}

int flag_precision(const flag *self, const char *text, void *out)
{
    if (precision_parse(text, flag_field(self, out)))
        return RUN_OK;
    return flag_refuse(self, text,
                       "dense, int8, int4, int2, or two of them and how much is in the first: "
                       "dense/int2:10%, int4/int2@64M, dense/int2@int4-bytes");
}

/* ---- --remap ----------------------------------------------------------------------------- */

int flag_remap(const flag *self, const char *text, void *out)
{
    remap_spec *spec = flag_field(self, out);
    const char *rest = text;
    bool read = flag_take_real(&rest, &spec->alpha) && *rest == ',';
    rest += read;
    if (!read || !flag_take_real(&rest, &spec->beta) || *rest || spec->alpha <= 0 ||
        spec->beta <= 0)
        return flag_refuse(self, text, "alpha and beta above 0, such as 2,4");
    return RUN_OK;
}

int flag_resident(const flag *self, const char *text, void *out)
{
    const char *rest = text;
    if (!flag_take_real(&rest, flag_field(self, out)) || *rest)
        return flag_refuse(self, text, "a number of logits, 0 or more");
    return RUN_OK;
}

int remap_set(const remap_spec *spec, moepage_session *session)
{
    const moepage_remap_config config = {.struct_size = sizeof config,
                                         .gate = MOEPAGE_GATE_SOFTMAX,
                                         .alpha = spec->alpha,
                                         .beta = spec->beta,
                                         .resident = spec->resident};
    if (spec->alpha > 0 && moepage_session_set_remap(session, &config))
        return fail_library(RUN_REFUSED, "--remap");
    return RUN_OK;
}
