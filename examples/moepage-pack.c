/* moepage-pack — writes a model to a .moepack file, its experts in the forms asked for; or a model
 * of a published shape with random weights. docs/pack.md describes it. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "common/fail.h"
#include "common/forms.h"
#include "moepage.h"
#include "pack/pack_options.h"
#include "pack/progress.h"
#include "pack/synthetic.h"

/* The model, wherever it is from: exactly one of the two owns it. */
typedef struct source {
    moepage_model *opened;
    synthetic *made;
    moepage_model *model;
} source;

static void print_log(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level <= MOEPAGE_LOG_WARNING)
        fprintf(stderr, "moepage-pack: %s\n", text);
}

static int open_source(const pack_options *opts, source *out)
{
    if (opts->shape) {
        int code = synthetic_open(opts->shape, opts->layers, opts->weights, opts->seed, &out->made);
        if (!code)
            out->model = synthetic_model(out->made);
        return code;
    }
    moepage_model_config config = {.struct_size = sizeof config, .log = print_log};
    if (moepage_model_open(opts->model, &config, &out->opened))
        return fail_library(RUN_REFUSED, "model");
    out->model = out->opened;
    return RUN_OK;
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

static int write_pack(const pack_options *opts, moepage_model *model, moepage_pack_stats *stats)
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
                                  .progress_user = &shown};
    progress_begin(&shown, "packing");
    moepage_status status = moepage_pack_write(model, opts->out, &config, stats);
    progress_end(&shown);
    if (status == MOEPAGE_E_CALLBACK && progress_stopped())
        return fail(RUN_FAILED, "interrupted: %s is as it was", opts->out);
    if (status)
        return fail_library(is_refusal(status) ? RUN_REFUSED : RUN_FAILED, opts->out);
    return RUN_OK;
}

/* ---- Reporting --------------------------------------------------------------------------- */

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static double rate(const moepage_pack_stats *stats)
{
    return stats->wall_ns ? (double)stats->routed_bytes * 1e9 / (double)stats->wall_ns : 0;
}

static void print_table(const pack_options *opts, const moepage_model_info *info,
                        const moepage_pack_stats *stats)
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
    printf("the rest  %10.1f MiB\n", mib(stats->dense_bytes));
    printf("time      %10.1f s, %.0f MB/s of experts on %" PRIu32 " threads\n",
           (double)stats->wall_ns / 1e9, rate(stats) / 1e6, stats->threads);
}

/* The *_new setters of jansson take ownership and refuse NULL, so one check of each result finds
 * every allocation that failed. */
static int print_json(const pack_options *opts, const moepage_model_info *info,
                      const moepage_pack_stats *stats)
{
    const struct {
        const char *key;
        uint64_t value;
    } integers[] = {
        {"layers", info->layers},
        {"moe_layers", info->moe_layers},
        {"experts", info->experts},
        {"expert_bytes", info->expert_bytes},
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
            failed |= json_object_set_new(forms, form_name(form),
                                          json_integer((json_int_t)stats->form_bytes[form]));
    failed |= json_object_set_new(root, "path", json_string(opts->out));
    failed |= json_object_set_new(root, "architecture", json_string(info->architecture));
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        failed |=
            json_object_set_new(root, integers[i].key, json_integer((json_int_t)integers[i].value));
    failed |= json_object_set_new(root, "form_bytes", forms);
    failed |= json_object_set_new(root, "verified", json_boolean(opts->verify));
    failed |= json_object_set_new(root, "bytes_per_s", json_real(rate(stats)));
    if (!failed)
        failed = json_dumpf(root, stdout, JSON_COMPACT) || fputc('\n', stdout) == EOF;
    json_decref(root);
    return failed ? fail(RUN_FAILED, "cannot write the JSON output") : RUN_OK;
}

static int run(const pack_options *opts, const source *from)
{
    moepage_pack_stats stats = {.struct_size = sizeof stats};
    moepage_model_info info = {.struct_size = sizeof info};
    if (moepage_model_get_info(from->model, &info))
        return fail_library(RUN_FAILED, "model");
    int code = write_pack(opts, from->model, &stats);
    if (code)
        return code;
    if (opts->json)
        code = print_json(opts, &info, &stats);
    else
        print_table(opts, &info, &stats);
    if (!code && (fflush(stdout) || ferror(stdout)))
        code = fail(RUN_FAILED, "cannot write to standard output");
    return code;
}

int main(int argc, char **argv)
{
    pack_options opts;
    source from = {0};
    int code = pack_options_parse(argc, argv, &opts);
    if (code)
        return code;
    if (opts.help) {
        fputs(pack_options_usage(), stdout);
    } else if (opts.list_shapes) {
        shape_list(stdout);
    } else {
        code = open_source(&opts, &from);
        if (!code)
            code = run(&opts, &from);
    }
    close_source(&from);
    return code;
}
