/* moepage-inspect — prints the contents of a checkpoint or a pack, and how compressible its experts
 * are. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "common/fail.h"
#include "common/flags.h"
#include "common/open_model.h"
#include "common/standard.h"
#include "inspect/inspect_report.h"

/* Bytes of experts to read by default, without --sample. */
#define SAMPLE_BYTES (256u << 20)

typedef struct inspect_options {
    const char *path;
    uint32_t layer;
    const char *one_layer; /* "--layer", or NULL where it is not given */
    uint64_t sample;       /* 0 = not given */
    bool json;
    bool help;
} inspect_options;

static const char usage[] =
    "usage: moepage-inspect MODEL_DIR|X.gguf|X.moepack [flags]\n"
    "\n"
    "Shape, sizes, forms and the tensors of an expert; then what exponents its weights have, and\n"
    "how small an exponent code could make them and does.\n"
    "\n"
    "  --layer L     look at the experts of MoE layer L only, counted from 0\n"
    "  --sample N    read N experts, evenly spread (default: all, or 256 MiB of them)\n"
    "  --json        print one JSON object instead of text\n";

static int set_path(const char *text, void *out)
{
    inspect_options *opts = out;
    if (opts->path)
        return fail(RUN_REFUSED, "unexpected argument '%s': see --help", text);
    opts->path = text;
    return RUN_OK;
}

#define AT(member) .offset = offsetof(inspect_options, member)

static int parse(int argc, char **argv, inspect_options *out)
{
    static const flag flags[] = {
        {"--layer", flag_u32, AT(layer), .most = INT32_MAX,
         .note = offsetof(inspect_options, one_layer)},
        {"--sample", flag_u64, AT(sample), .least = 1, .most = UINT32_MAX},
        {"--json", NULL, AT(json)},
        {"--help", NULL, AT(help)},
    };
    *out = (inspect_options){0};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, set_path, out);
    if (!code && !out->help && !out->path)
        code = fail(RUN_REFUSED, "MODEL_DIR, X.gguf or X.moepack is missing: see --help");
    return code;
}

static int describe(const moepage_model *model, inspection *out)
{
    out->info.struct_size = sizeof out->info;
    if (moepage_model_get_info(model, &out->info))
        return fail_library(RUN_FAILED, "model");
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= LAST_FORM; form++) {
        out->forms[form].struct_size = sizeof out->forms[form];
        if (moepage_model_get_form(model, form, &out->forms[form]))
            return fail_library(RUN_FAILED, "form");
    }
    char name[4096];
    moepage_status status;
    while ((status = moepage_model_get_tensor_name(model, out->n_dense, name, sizeof name)) !=
           MOEPAGE_E_NOT_FOUND) {
        if (status && status != MOEPAGE_E_ARGUMENT)
            return fail_library(RUN_FAILED, "tensor names");
        out->n_dense++;
    }
    return RUN_OK;
}

static int sample(const moepage_model *model, const inspect_options *opts, inspection *out)
{
    uint64_t most = SAMPLE_BYTES / (out->info.expert_bytes + 1) + 1;
    out->census.n_layers = out->info.moe_layers;
    if (opts->one_layer) {
        if (opts->layer >= out->info.moe_layers)
            return fail(RUN_REFUSED, "--layer %" PRIu32 ": %s has %" PRIu32 " MoE layers",
                        opts->layer, opts->path, out->info.moe_layers);
        out->census.first_layer = opts->layer;
        out->census.n_layers = 1;
        out->one_layer = true;
    }
    if (moepage_model_get_layer_tensors(model, out->census.first_layer, out->tensors,
                                        MOEPAGE_MAX_EXPERT_TENSORS))
        return fail_library(RUN_FAILED, "model");
    return census_take(model, opts->path, opts->sample ? opts->sample : most,
                       out->forms[MOEPAGE_FORM_EXPH].present, &out->census);
}

static const char *kind_of(const char *path)
{
    struct stat found;
    char first[4] = "";
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        return "checkpoint";
    FILE *file = fopen(path, "rb");
    const bool gguf = file && fread(first, 1, 4, file) == 4 && memcmp(first, "GGUF", 4) == 0;
    if (file)
        fclose(file);
    return gguf ? "gguf" : "pack";
}

static int run(const inspect_options *opts)
{
    static inspection i;
    moepage_model *model = NULL;
    int code = open_model(opts->path, &model);
    if (code)
        return code;
    i.path = opts->path;
    i.kind = kind_of(opts->path);
    code = describe(model, &i);
    if (!code)
        code = sample(model, opts, &i);
    if (!code && opts->json)
        code = inspect_print_json(stdout, &i);
    else if (!code)
        inspect_print(stdout, &i);
    code = standard_finish(code);
    if (!code && i.census.damaged)
        code = fail(RUN_FAILED, "%s: %" PRIu64 " of %" PRIu64 " experts cannot be read", opts->path,
                    i.census.damaged, i.census.sampled);
    moepage_model_close(model);
    return code;
}

int main(int argc, char **argv)
{
    inspect_options opts;
    standard_open();
    int code = parse(argc, argv, &opts);
    if (!code && opts.help)
        code = standard_print(usage);
    else if (!code)
        code = run(&opts);
    return code;
}
