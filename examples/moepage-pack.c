/* moepage-pack — writes a model to a .moepack file with its experts in the requested forms; or a
 * model of a published shape with random weights. docs/pack.md describes it. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "common/fail.h"
#include "common/forms.h"
#include "common/json_out.h"
#include "common/open_model.h"
#include "common/standard.h"
#include "common/units.h"
#include "moepage.h"
#include "pack/moments.h"
#include "pack/pack_options.h"
#include "pack/progress.h"
#include "pack/synthetic.h"

/* The model from either source: exactly one of the two owns it. */
typedef struct source {
    moepage_model *opened;
    synthetic *made;
    moepage_model *model;
} source;

static int open_source(const pack_options *opts, source *out)
{
    if (opts->shape) {
        int code = synthetic_open(opts->shape, opts->layers, opts->weights, opts->seed, &out->made);
        if (!code)
            out->model = synthetic_model(out->made);
        return code;
    }
    int code = open_model(opts->model, &out->opened);
    out->model = out->opened;
    return code;
}

static void close_source(source *s)
{
    moepage_model_close(s->opened);
    synthetic_close(s->made);
}

/* ---- Packing ----------------------------------------------------------------------------- */

static bool is_refusal(moepage_status status)
{
    return status == MOEPAGE_E_ARGUMENT || status == MOEPAGE_E_UNSUPPORTED ||
           status == MOEPAGE_E_NOT_FOUND;
}

/* Checks the types that bf16 and fp16 promise; no expert is converted. */
static int check_dtypes(const pack_options *opts, const moepage_model *model,
                        const moepage_model_info *info)
{
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    if (!opts->dtypes)
        return RUN_OK;
    if (moepage_model_get_expert_tensors(model, tensors, MOEPAGE_MAX_EXPERT_TENSORS))
        return fail_library(RUN_FAILED, "model");
    for (uint32_t t = 0; t < info->expert_tensors; t++) {
        bool weights = tensors[t].role <= MOEPAGE_ROLE_DOWN;
        uint32_t others = opts->dtypes & ~(1u << tensors[t].dtype);
        if (weights && others)
            return fail(RUN_REFUSED,
                        "--expert-versions %s: the model's experts have another type; dense "
                        "stores them as they are",
                        others & 1u << MOEPAGE_DTYPE_BF16 ? "bf16" : "fp16");
    }
    return RUN_OK;
}

static int interrupted(const pack_options *opts)
{
    return access(opts->out, F_OK) == 0
               ? fail(RUN_FAILED, "interrupted: %s is as it was", opts->out)
               : fail(RUN_FAILED, "interrupted: nothing was written");
}

/* Reports a failure, which may concern the model being read or the file being written. */
static int explain(const pack_options *opts, moepage_status status)
{
    int code = is_refusal(status) ? RUN_REFUSED : RUN_FAILED;
    if (status == MOEPAGE_E_CALLBACK && progress_stopped())
        return interrupted(opts);
    if (opts->model && fail_names(opts->model))
        return fail_file(code, opts->model);
    return fail_file(code, opts->out);
}

/* What --calibrate adds. */
typedef struct calibrated {
    calibration inputs;
    moments moments;
} calibrated;

static int calibrate(const pack_options *opts, const moepage_model *model, calibrated *out)
{
    progress shown;
    const calibration_config config = {.run = opts->run,
                                       .files = opts->texts,
                                       .n_files = opts->n_texts,
                                       .token_ids = opts->token_ids,
                                       .window = opts->calibrate_window,
                                       .tokens = opts->calibrate_tokens,
                                       .progress = progress_show,
                                       .progress_user = &shown};
    int code = moments_check(model);
    if (code)
        return code;
    progress_begin(&shown, "calibrating");
    code = calibration_open(&config, &out->inputs);
    progress_end(&shown);
    if (code && progress_stopped())
        return interrupted(opts);
    return code ? code : moments_open(model, &out->inputs, &out->moments);
}

static void close_calibrated(calibrated *c)
{
    moments_close(&c->moments);
    calibration_close(&c->inputs);
}

static int write_pack(const pack_options *opts, moepage_model *model, calibrated *by,
                      moepage_pack_stats *stats)
{
    progress shown;
    moepage_pack_config config = {.struct_size = sizeof config,
                                  .forms = opts->forms,
                                  .cold_level = (int32_t)opts->cold_level,
                                  .group_size = opts->group_size,
                                  .threads = opts->threads,
                                  .verify = opts->verify,
                                  .scale_search = opts->scale_search,
                                  .progress = progress_show,
                                  .progress_user = &shown,
                                  .moments = opts->n_texts ? moments_fill : NULL,
                                  .moments_user = &by->moments};
    progress_begin(&shown, "packing");
    moepage_status status = moepage_pack_write(model, opts->out, &config, stats);
    progress_end(&shown);
    if (status == MOEPAGE_E_CALLBACK && by->moments.failure)
        return fail(RUN_FAILED, "--calibrate: %s", by->moments.failure);
    return status ? explain(opts, status) : RUN_OK;
}

/* ---- Reporting --------------------------------------------------------------------------- */

static double rate(const moepage_pack_stats *stats)
{
    return stats->wall_ns ? (double)stats->routed_bytes * 1e9 / (double)stats->wall_ns : 0;
}

static void print_calibration(const pack_options *opts, const calibrated *by)
{
    const calibration *c = &by->inputs;
    printf("calibrated %9" PRIu64 " tokens of %" PRIu32 " texts; %" PRIu64 " of %" PRIu64
           " experts were chosen by fewer than %" PRIu32 ", one by %" PRIu64 "\n",
           c->n_tokens, opts->n_texts, by->moments.n_few, (uint64_t)c->moe_layers * c->experts,
           c->hidden, by->moments.least);
}

static void print_table(const pack_options *opts, const moepage_model_info *info,
                        const calibrated *by, const moepage_pack_stats *stats)
{
    printf("%s: %s, %" PRIu32 " layers of %" PRIu32 " experts, %.1f MiB%s\n", opts->out,
           info->architecture, info->moe_layers, info->experts, mib(stats->file_bytes),
           opts->verify ? ", read back and compared" : "");
    printf("experts   %10.1f MiB in the model\n", mib(stats->routed_bytes));
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= LAST_FORM; form++)
        if (stats->form_bytes[form])
            printf("%-9s %10.1f MiB, %.2f%%\n", form_name(form), mib(stats->form_bytes[form]),
                   100.0 * (double)stats->form_bytes[form] / (double)stats->routed_bytes);
    if (stats->raw_parts)
        printf("kept raw  %10" PRIu64 " tensors of experts that exph would not have made smaller\n",
               stats->raw_parts);
    if (opts->n_texts)
        print_calibration(opts, by);
    printf("the rest  %10.1f MiB\n", mib(stats->dense_bytes));
    printf("time      %10.1f s, %.0f MB/s of experts on %" PRIu32 " threads\n",
           (double)stats->wall_ns / 1e9, rate(stats) / 1e6, stats->threads);
}

static int put_calibration(const calibrated *by, json_t *root)
{
    const put_count_row counts[] = {
        {"tokens", by->inputs.n_tokens},
        {"few", by->inputs.hidden},
        {"experts_with_few", by->moments.n_few},
        {"least", by->moments.least},
    };
    json_t *of = json_object();
    int failed = PUT_COUNTS(of, counts);
    return json_object_set_new(root, "calibration", of) | failed;
}

static int print_json(const pack_options *opts, const moepage_model_info *info,
                      const calibrated *by, const moepage_pack_stats *stats)
{
    const put_count_row counts[] = {
        {"layers", info->layers},
        {"moe_layers", info->moe_layers},
        {"experts", info->experts},
        {"expert_bytes", info->expert_bytes},
        {"slot_bytes", info->slot_bytes},
        {"file_bytes", stats->file_bytes},
        {"dense_bytes", stats->dense_bytes},
        {"routed_bytes", stats->routed_bytes},
        {"raw_parts", stats->raw_parts},
        {"threads", stats->threads},
        {"wall_ns", stats->wall_ns},
    };
    json_t *root = json_object(), *forms = json_object();
    int failed = 0;
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= LAST_FORM; form++)
        if (stats->form_bytes[form])
            failed |= put_count(forms, form_name(form), stats->form_bytes[form]);
    failed |= put_text(root, "path", opts->out);
    failed |= put_text(root, "architecture", info->architecture);
    failed |= PUT_COUNTS(root, counts);
    failed |= json_object_set_new(root, "form_bytes", forms);
    if (opts->cold_level)
        failed |= put_count(root, "cold_level", opts->cold_level);
    if (opts->group_size)
        failed |= put_count(root, "group_size", opts->group_size);
    if (opts->n_texts)
        failed |= put_calibration(by, root);
    failed |= json_object_set_new(root, "verified", json_boolean(opts->verify));
    failed |= json_object_set_new(root, "bytes_per_s", json_real(rate(stats)));
    return put_print(stdout, failed, root);
}

static int run(const pack_options *opts, const source *from)
{
    moepage_pack_stats stats = {.struct_size = sizeof stats};
    moepage_model_info info = {.struct_size = sizeof info};
    calibrated by = {.inputs = {.fd = -1}};
    if (moepage_model_get_info(from->model, &info))
        return fail_library(RUN_FAILED, "model");
    int code = check_dtypes(opts, from->model, &info);
    if (!code && opts->n_texts)
        code = calibrate(opts, from->model, &by);
    if (!code)
        code = write_pack(opts, from->model, &by, &stats);
    if (!code && opts->json)
        code = print_json(opts, &info, &by, &stats);
    else if (!code)
        print_table(opts, &info, &by, &stats);
    close_calibrated(&by);
    return code ? code : standard_finish(code);
}

int main(int argc, char **argv)
{
    pack_options opts;
    source from = {0};
    standard_open();
    int code = pack_options_parse(argc, argv, &opts);
    if (!code && opts.help) {
        code = standard_print(pack_options_usage());
    } else if (!code && opts.list_shapes) {
        shape_list(stdout);
        code = standard_finish(RUN_OK);
    } else if (!code) {
        code = open_source(&opts, &from);
        if (!code)
            code = run(&opts, &from);
    }
    close_source(&from);
    pack_options_free(&opts);
    return code;
}
