/* The flags of moepage-pack, and which of them go together. */
#include "pack/pack_options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/flags.h"
#include "common/forms.h"

#define MAX_THREADS 1024u
#define MAX_COLD_LEVEL 19u
#define MAX_WINDOW (1u << 20)
#define IO_THREADS 4u
#define DEFAULT_WINDOW 256u
#define DEFAULT_TOKENS 32768u
#define DEFAULT_GROUP_SIZE 64u
#define INTEGER_FORMS (1u << MOEPAGE_FORM_INT8 | 1u << MOEPAGE_FORM_INT4 | 1u << MOEPAGE_FORM_INT2)
#define LOSSLESS_FORMS (1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_EXPH)

const char *pack_options_usage(void)
{
    return "usage: moepage-pack MODEL_DIR|X.gguf OUT.moepack [flags]\n"
           "       moepage-pack --synthetic SHAPE OUT.moepack [flags]\n"
           "\n"
           "Writes a model, with its experts in the forms asked for, to one file.\n"
           "\n"
           "  --expert-versions LIST  of dense, exph, int8, int4, int2, with commas between;\n"
           "                        dense or exph must be there (default exph; dense for types\n"
           "                        that exph does not code). bf16 or fp16: dense, of experts\n"
           "                        that have this type\n"
           "  --cold-level N        compress dense images with zstd, 1 to 19 (default: plain)\n"
           "  --group-size N        weights per scale of the integer forms: 32, 64 or 128\n"
           "                        (default 64)\n"
           "  --scale-search        scales of least squared error, more slowly\n"
           "  --calibrate FILES     integer forms for the least error of what experts compute when "
           "the\n"
           "                        model reads these texts, with commas between\n"
           "  --calibrate-tokens N  of all files (default 32768)\n"
           "  --calibrate-window N  tokens read from an empty context (default 256)\n"
           "  --token-ids           the files hold 32-bit token ids\n"
           "  --budget BYTES|P%     memory of experts while reading (default 100%)\n"
           "  --threads T           threads that encode; 0 = one per CPU (default 0)\n"
           "  --verify              read the file back and compare before it gets its name\n"
           "  --json                print one JSON object instead of text\n"
           "\n"
           "random weights:\n"
           "  --synthetic SHAPE     the shape of a published model: --list-shapes\n"
           "  --layers N            the first N of its layers (default: all)\n"
           "  --seed S              default 0\n"
           "  --weights gaussian|heavy  heavy: Student's t, 4 degrees of freedom (default\n"
           "                        gaussian)\n"
           "  --list-shapes         print them and end; alone\n";
}

static int read_forms(const flag *self, const char *text, void *out)
{
    pack_options *opts = out;
    opts->forms = forms_of(text, &opts->dtypes);
    if (!opts->forms)
        return flag_refuse(self, text, "names out of dense, exph, int8, int4 and int2");
    if (!(opts->forms & LOSSLESS_FORMS))
        return flag_refuse(self, text, "dense or exph too: one form must be lossless");
    return RUN_OK;
}

static int read_group_size(const flag *self, const char *text, void *out)
{
    pack_options *opts = out;
    const char *rest = text;
    uint64_t value;
    if (!flag_take_number(&rest, &value) || *rest || (value != 32 && value != 64 && value != 128))
        return flag_refuse(self, text, "32, 64 or 128");
    opts->group_size = (uint32_t)value;
    return RUN_OK;
}

static int read_shape(const flag *self, const char *text, void *out)
{
    pack_options *opts = out;
    opts->shape = shape_find(text);
    return opts->shape ? RUN_OK : flag_refuse(self, text, "a name that --list-shapes prints");
}

/* Reads names of files with commas between. */
static int read_texts(const flag *self, const char *text, void *out)
{
    pack_options *opts = out;
    free(opts->text_names);
    opts->n_texts = 0;
    opts->text_names = strdup(text);
    if (!opts->text_names)
        return fail_memory();
    for (char *rest = opts->text_names, *name; (name = strsep(&rest, ","));) {
        if (!*name || opts->n_texts == PACK_MAX_TEXTS)
            return flag_refuse(self, text, "up to 64 files, with commas between");
        opts->texts[opts->n_texts++] = name;
    }
    return RUN_OK;
}

static int read_budget(const flag *self, const char *text, void *out)
{
    return options_read_budget(self, text, &((pack_options *)out)->run);
}

static int add_word(const char *text, void *out)
{
    pack_options *opts = out;
    if (opts->n_words == 2)
        return fail(RUN_REFUSED, "unexpected argument '%s': see --help", text);
    opts->words[opts->n_words++] = text;
    return RUN_OK;
}

#define AT(member) .offset = offsetof(pack_options, member)
#define NOTE(member) .note = offsetof(pack_options, member)

static const flag flags[] = {
    {"--expert-versions", read_forms, AT(forms)},
    {"--cold-level", flag_u32, AT(cold_level), .least = 1, .most = MAX_COLD_LEVEL},
    {"--group-size", read_group_size, AT(group_size), NOTE(for_integers)},
    {"--scale-search", NULL, AT(scale_search), NOTE(for_integers)},
    {"--calibrate", read_texts, AT(texts), NOTE(for_integers)},
    {"--calibrate-tokens", flag_u64, AT(calibrate_tokens), .least = 1, .most = UINT64_MAX,
     NOTE(for_calibration)},
    {"--calibrate-window", flag_u32, AT(calibrate_window), .least = 1, .most = MAX_WINDOW,
     NOTE(for_calibration)},
    {"--token-ids", NULL, AT(token_ids), NOTE(for_calibration)},
    {"--budget", read_budget, AT(run), NOTE(for_calibration)},
    {"--threads", flag_u32, AT(threads), .most = MAX_THREADS},
    {"--verify", NULL, AT(verify)},
    {"--json", NULL, AT(json)},
    {"--synthetic", read_shape, AT(shape)},
    {"--layers", flag_u32, AT(layers), .least = 1, .most = UINT32_MAX, NOTE(for_synthetic)},
    {"--seed", flag_u64, AT(seed), .most = UINT64_MAX, NOTE(for_synthetic)},
    {"--weights", flag_choice, AT(weights), .choice = {"gaussian", "heavy"}, NOTE(for_synthetic)},
    {"--list-shapes", NULL, AT(list_shapes)},
    {"--help", NULL, AT(help)},
};

_Static_assert(WEIGHTS_GAUSSIAN == 0 && WEIGHTS_HEAVY == 1, "--weights reads a position");

/* Refuses flags without an effect instead of ignoring them. */
static int check_use(const pack_options *opts)
{
    if (opts->cold_level && !(opts->forms & 1u << MOEPAGE_FORM_DENSE))
        return fail(RUN_REFUSED, "--cold-level compresses dense images: name dense in "
                                 "--expert-versions");
    if (opts->for_integers && !(opts->forms & INTEGER_FORMS))
        return fail(RUN_REFUSED, "%s is about integer forms: name one in --expert-versions",
                    opts->for_integers);
    if (opts->for_calibration && !opts->n_texts)
        return fail(RUN_REFUSED, "%s goes with --calibrate", opts->for_calibration);
    if (opts->n_texts && opts->shape)
        return fail(RUN_REFUSED,
                    "--calibrate: random weights have read nothing, not with --synthetic");
    if (opts->for_synthetic && !opts->shape)
        return fail(RUN_REFUSED, "%s goes with --synthetic", opts->for_synthetic);
    return RUN_OK;
}

int pack_options_parse(int argc, char **argv, pack_options *out)
{
    *out = (pack_options){
        .calibrate_window = DEFAULT_WINDOW,
        .calibrate_tokens = DEFAULT_TOKENS,
        .run = {.device = "host", .policy = "lru", .max_tokens = 1, .io_threads = IO_THREADS}};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, add_word, out);
    if (code || out->help)
        return code;
    if (out->list_shapes)
        return argc == 2 ? RUN_OK : fail(RUN_REFUSED, "--list-shapes is given alone");
    uint32_t wanted = out->shape ? 1 : 2;
    if (out->n_words < wanted)
        return fail(RUN_REFUSED, "%s is missing: see --help",
                    out->n_words + 1 == wanted ? "OUT.moepack" : "MODEL_DIR");
    if (out->n_words > wanted)
        return fail(RUN_REFUSED, "'%s': --synthetic makes the model, no MODEL_DIR is read",
                    out->words[0]);
    out->model = out->shape ? NULL : out->words[0];
    out->out = out->words[wanted - 1];
    out->run.model = out->model;
    out->run.threads = out->threads;
    out->run.prefill_tokens = out->calibrate_window;
    if (!out->run.budget_bytes && out->run.budget_percent <= 0)
        out->run.budget_percent = 100;
    code = check_use(out);
    if (!code && !out->group_size && out->forms & INTEGER_FORMS)
        out->group_size = DEFAULT_GROUP_SIZE;
    return code;
}

void pack_options_free(pack_options *opts)
{
    free(opts->text_names);
}
