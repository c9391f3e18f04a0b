/* The flags, and which of them go together. */
#include "decode/decode_options.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/flags.h"
#include "moepage.h"

const char *decode_usage(void)
{
    return "usage: cuda_decode [flags]\n"
           "\n"
           "Decodes with the routed experts of a model of a published shape, with random weights\n"
           "and random routing, at several budgets of device memory: tokens in a second, and what\n"
           "crossed the bus. Everything but routed experts, such as attention, is left out.\n"
           "\n"
           "  --device NAME         cuda:N or host (default cuda:0)\n"
           "  --shape NAME          toy, qwen3-30b-a3b, mixtral-8x7b ...: moepage-pack\n"
           "                        --list-shapes prints them (default qwen3-30b-a3b)\n"
           "  --model X.moepack     a pack instead: its experts are in host memory, as the file\n"
           "  --layers N            the first N MoE layers (default: all; of shapes alone)\n"
           "  --distinct N          experts whose weights are really there, the others repeat "
           "them\n"
           "                        (default 64; of shapes alone)\n"
           "  --budgets P,P...      percent of the experts that fit the device (default\n"
           "                        100,75,50,25)\n"
           "  --mode session        the CPU announces each layer's routing (default)\n"
           "  --mode path           the device looks its experts up itself\n"
           "  --mode graph          the same, a whole step captured into one CUDA graph\n"
           "  --batch N             tokens in a step, 1 to 256 (default 1)\n"
           "  --steps N             steps measured, after half as many (default 64)\n"
           "  --math bf16|fast|fp32 (default bf16)\n"
           "  --prefetch on|off     of sessions: what a layer used in the last step (default off)\n"
           "  --seed S              of routing and weights (default 0)\n"
           "  --check               compare all results, bit for bit, with those of a session "
           "that\n"
           "                        has everything resident; not with --math fast\n";
}

static int read_budgets(const flag *self, const char *text, void *out)
{
    static const char *const wanted = "up to 16 percentages from 1 to 100, commas between";
    decode_options *o = out;
    const char *rest = text;
    uint64_t percent;
    o->n_budgets = 0;
    for (;; rest++) {
        if (o->n_budgets == DECODE_MAX_BUDGETS || !flag_take_number(&rest, &percent) || !percent ||
            percent > 100)
            return flag_refuse(self, text, wanted);
        o->budgets[o->n_budgets++] = (uint32_t)percent;
        if (*rest != ',')
            return *rest ? flag_refuse(self, text, wanted) : RUN_OK;
    }
}

#define AT(field) .offset = offsetof(decode_options, field)
static const flag flags[] = {
    {.name = "--device", .read = flag_text, AT(device)},
    {.name = "--shape", .read = flag_text, AT(shape_name)},
    {.name = "--model", .read = flag_text, AT(model)},
    {.name = "--layers", .read = flag_u32, AT(layers), .least = 1, .most = 4096},
    {.name = "--distinct", .read = flag_u32, AT(distinct), .least = 1, .most = 65536},
    {.name = "--budgets", .read = read_budgets},
    {.name = "--mode", .read = flag_choice, AT(mode), .choice = {"session", "path", "graph"}},
    {.name = "--batch", .read = flag_u32, AT(batch), .least = 1, .most = 256},
    {.name = "--steps", .read = flag_u32, AT(steps), .least = 1, .most = 1000000},
    {.name = "--math", .read = flag_choice, AT(math), .choice = {"fp32", "bf16", "fast"}},
    {.name = "--prefetch", .read = flag_choice, AT(prefetch), .choice = {"off", "on"}},
    {.name = "--seed", .read = flag_u64, AT(seed), .most = UINT64_MAX},
    {.name = "--check", AT(check)},
    {.name = "--help", AT(help)},
};
_Static_assert(MOEPAGE_MATH_FP32 == 0 && MOEPAGE_MATH_BF16 == 1 && MOEPAGE_MATH_BF16_FAST == 2,
               "--math's choices");

static int check_together(decode_options *o)
{
    const bool cuda = !strncmp(o->device, "cuda:", 5);
    if (o->model && (o->shape_name || o->layers || o->distinct))
        return fail(RUN_REFUSED, "--model: a pack has a shape, layers and experts of its own");
    if (o->mode != DECODE_SESSION && !cuda)
        return fail(RUN_REFUSED, "--mode %s: only CUDA devices run layers by themselves, not %s",
                    o->mode == DECODE_PATH ? "path" : "graph", o->device);
    if (o->mode != DECODE_SESSION && o->prefetch)
        return fail(RUN_REFUSED, "--prefetch: of sessions, not of --mode path or graph");
    if (o->check && o->math == MOEPAGE_MATH_BF16_FAST)
        return fail(RUN_REFUSED, "--check: --math fast does not promise the same bits");
    return RUN_OK;
}

int decode_options_read(int argc, char **argv, decode_options *out)
{
    *out = (decode_options){.device = "cuda:0",
                            .batch = 1,
                            .steps = 64,
                            .math = MOEPAGE_MATH_BF16,
                            .budgets = {100, 75, 50, 25},
                            .n_budgets = 4};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, NULL, out);
    if (code || out->help)
        return code;
    code = check_together(out);
    if (code || out->model)
        return code;
    out->shape = shape_find(out->shape_name ? out->shape_name : "qwen3-30b-a3b");
    if (!out->shape)
        return fail(RUN_REFUSED,
                    "--shape %s: unknown shape; moepage-pack "
                    "--list-shapes prints them",
                    out->shape_name);
    uint32_t most = out->shape->layers - out->shape->first_dense;
    if (out->layers > most)
        return fail(RUN_REFUSED, "--layers %" PRIu32 ": %s has %" PRIu32 " layers with experts",
                    out->layers, out->shape->name, most);
    out->layers = out->layers ? out->layers : most;
    out->distinct = out->distinct ? out->distinct : 64;
    return RUN_OK;
}
