/* The command line: a table of flags, each with the function that reads its value. */
#include "common/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "moepage.h"

#define MAX_GENERATED (1u << 24)
#define MAX_STEP_TOKENS (1u << 16)
#define MAX_THREADS 1024u

const char *options_usage(void)
{
    return "usage: moepage-generate --model DIR (--prompt TEXT | --tokens 1,2,3)... [flags]\n"
           "\n"
           "  --model DIR           checkpoint directory\n"
           "  --prompt TEXT         a prompt for a byte-level model; repeatable\n"
           "  --tokens 1,2,3        a prompt as token ids; repeatable\n"
           "  --max-tokens N        tokens to generate for each prompt (default 64)\n"
           "  --budget BYTES|P%     BYTES: experts and KV together; P%: that share of the routed\n"
           "                        experts, the KV on top (default 100%). Suffixes K, M, G\n"
           "  --policy lru|lfu      which expert to evict (default lru)\n"
           "  --prefetch on|off     load likely experts ahead (default off)\n"
           "  --math fp32|bf16      arithmetic (default fp32)\n"
           "  --temperature T       0 = greedy (default 0)\n"
           "  --top-p P             nucleus of that probability, 0 < P <= 1 (default 1)\n"
           "  --seed S              seed of the sampler (default 0)\n"
           "  --threads T           0 = one per CPU (default 0)\n"
           "  --device NAME         where the experts live (default host)\n"
           "  --bus BYTES/S         throttle copies to the device (default 0 = off)\n"
           "  --trace-out FILE      record the routing\n"
           "  --logits-out FILE     write float32 logits, prompt by prompt\n"
           "  --json                print one JSON object instead of text\n"
           "\n"
           "study switches:\n"
           "  --max-group-experts N experts held at once for one layer (default 0 = no limit)\n"
           "  --scope global|layer  whether layers compete for slots (default global)\n"
           "  --scan-percent P      share of slots that prefill may take, 0 = off (default 0)\n"
           "  --prefetch-depth N    layers ahead (default 0 = the library's choice)\n"
           "  --batch-prefill N     most prompt tokens in one step (default 128)\n";
}

/* ---- Values ------------------------------------------------------------------------------ */

static int bad_value(const char *flag, const char *text, const char *wanted)
{
    return fail(RUN_REFUSED, "%s %s: expected %s", flag, text, wanted);
}

/* Decimal digits only, so that "-1", " 1" and "0x1" are refused. Advances *text. */
static bool take_number(const char **text, uint64_t *out)
{
    if (!isdigit((unsigned char)**text))
        return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(*text, &end, 10);
    *text = end;
    *out = value;
    return errno == 0;
}

static bool read_number(const char *text, uint64_t most, uint64_t *out)
{
    return take_number(&text, out) && *text == '\0' && *out <= most;
}

static bool read_real(const char *text, double *out)
{
    char *end;
    if (!isdigit((unsigned char)*text) && *text != '.')
        return false;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

/* A byte count: digits and perhaps K, M or G. */
static bool read_bytes(const char *text, uint64_t *out)
{
    if (!take_number(&text, out))
        return false;
    static const char suffixes[] = "KMG";
    unsigned shift = 0;
    const char *suffix = *text ? strchr(suffixes, *text) : NULL;
    if (suffix) {
        shift = 10u * (unsigned)(suffix - suffixes + 1);
        text++;
    }
    if (*text != '\0' || *out > UINT64_MAX >> shift)
        return false;
    *out <<= shift;
    return true;
}

/* ---- Flags ------------------------------------------------------------------------------- */

typedef struct flag flag;
struct flag {
    const char *name;
    int (*read)(const flag *self, const char *text, options *out); /* NULL: a switch */
    size_t offset;                                                 /* of the field in options */
    uint64_t least, most;
    const char *choice[2];
};

static void *field(const flag *self, options *out)
{
    return (char *)out + self->offset;
}

static int read_text(const flag *self, const char *text, options *out)
{
    if (!*text)
        return bad_value(self->name, "''", "a value");
    *(const char **)field(self, out) = text;
    return RUN_OK;
}

static int read_u32(const flag *self, const char *text, options *out)
{
    uint64_t value;
    if (!read_number(text, self->most, &value) || value < self->least)
        return fail(RUN_REFUSED, "%s %s: expected a whole number from %llu to %llu", self->name,
                    text, (unsigned long long)self->least, (unsigned long long)self->most);
    *(uint32_t *)field(self, out) = (uint32_t)value;
    return RUN_OK;
}

/* The position in `choice` is the value. */
static int read_choice(const flag *self, const char *text, options *out)
{
    for (uint32_t i = 0; i < 2; i++)
        if (!strcmp(text, self->choice[i])) {
            *(uint32_t *)field(self, out) = i;
            return RUN_OK;
        }
    return fail(RUN_REFUSED, "%s %s: expected %s or %s", self->name, text, self->choice[0],
                self->choice[1]);
}

static int read_prefetch(const flag *self, const char *text, options *out)
{
    if (strcmp(text, "on") && strcmp(text, "off"))
        return bad_value(self->name, text, "on or off");
    out->prefetch = !strcmp(text, "on");
    return RUN_OK;
}

static int read_budget(const flag *self, const char *text, options *out)
{
    size_t length = strlen(text);
    if (length > 1 && text[length - 1] == '%') {
        char number[32];
        double percent;
        if (length > sizeof number)
            return bad_value(self->name, text, "a shorter percentage");
        memcpy(number, text, length - 1);
        number[length - 1] = '\0';
        if (!read_real(number, &percent) || percent <= 0 || percent > 100)
            return bad_value(self->name, text, "a percentage above 0% and up to 100%");
        out->budget_bytes = 0;
        out->budget_percent = percent;
        return RUN_OK;
    }
    if (!read_bytes(text, &out->budget_bytes) || out->budget_bytes == 0)
        return bad_value(self->name, text, "bytes (digits, perhaps K, M or G) or a percentage");
    return RUN_OK;
}

static int read_bus(const flag *self, const char *text, options *out)
{
    if (!read_bytes(text, &out->bus_bytes_per_s))
        return bad_value(self->name, text, "bytes per second (digits, perhaps K, M or G)");
    return RUN_OK;
}

static int read_seed(const flag *self, const char *text, options *out)
{
    if (!read_number(text, UINT64_MAX, &out->seed))
        return bad_value(self->name, text, "a whole number below 2^64");
    return RUN_OK;
}

static int read_temperature(const flag *self, const char *text, options *out)
{
    if (!read_real(text, &out->temperature))
        return bad_value(self->name, text, "a number, 0 or more");
    return RUN_OK;
}

static int read_top_p(const flag *self, const char *text, options *out)
{
    if (!read_real(text, &out->top_p) || out->top_p <= 0 || out->top_p > 1)
        return bad_value(self->name, text, "a number above 0 and up to 1");
    return RUN_OK;
}

/* ---- Prompts ----------------------------------------------------------------------------- */

static int add_prompt(options *out, prompt added)
{
    prompt *grown = realloc(out->prompts, (out->n_prompts + 1u) * sizeof *grown);
    if (!grown) {
        free(added.tokens);
        return fail_memory();
    }
    grown[out->n_prompts++] = added;
    out->prompts = grown;
    return RUN_OK;
}

static int read_prompt(const flag *self, const char *text, options *out)
{
    if (!*text)
        return bad_value(self->name, "''", "at least one byte");
    return add_prompt(out, (prompt){.text = text});
}

static int read_tokens(const flag *self, const char *text, options *out)
{
    size_t most = 1;
    for (const char *c = text; *c; c++)
        most += *c == ',';
    prompt added = {.tokens = malloc(most * sizeof(uint32_t))};
    if (!added.tokens)
        return fail_memory();
    const char *rest = text;
    uint64_t value;
    while (take_number(&rest, &value) && value <= INT32_MAX) {
        added.tokens[added.n_tokens++] = (uint32_t)value;
        if (*rest == '\0')
            return add_prompt(out, added);
        if (*rest++ != ',')
            break;
    }
    free(added.tokens);
    return bad_value(self->name, text, "token ids separated by commas, such as 1,2,3");
}

/* ---- The command line -------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(options, member)

static const flag flags[] = {
    {"--model", read_text, AT(model)},
    {"--device", read_text, AT(device)},
    {"--policy", read_text, AT(policy)},
    {"--trace-out", read_text, AT(trace_out)},
    {"--logits-out", read_text, AT(logits_out)},
    {"--prompt", read_prompt, AT(prompts)},
    {"--tokens", read_tokens, AT(prompts)},
    {"--budget", read_budget, AT(budget_bytes)},
    {"--max-tokens", read_u32, AT(max_tokens), .least = 1, .most = MAX_GENERATED},
    {"--math", read_choice, AT(math), .choice = {"fp32", "bf16"}},
    {"--temperature", read_temperature, AT(temperature)},
    {"--top-p", read_top_p, AT(top_p)},
    {"--seed", read_seed, AT(seed)},
    {"--threads", read_u32, AT(threads), .most = MAX_THREADS},
    {"--prefetch", read_prefetch, AT(prefetch)},
    {"--bus", read_bus, AT(bus_bytes_per_s)},
    {"--max-group-experts", read_u32, AT(max_group_experts), .most = UINT32_MAX},
    {"--scope", read_choice, AT(scope), .choice = {"global", "layer"}},
    {"--scan-percent", read_u32, AT(scan_percent), .most = 99},
    {"--prefetch-depth", read_u32, AT(prefetch_depth), .most = UINT32_MAX},
    {"--batch-prefill", read_u32, AT(prefill_tokens), .least = 1, .most = MAX_STEP_TOKENS},
    {"--json", NULL, AT(json)},
    {"--help", NULL, AT(help)},
};

_Static_assert(MOEPAGE_MATH_FP32 == 0 && MOEPAGE_MATH_BF16 == 1, "--math reads a position");
_Static_assert(MOEPAGE_SCOPE_GLOBAL == 0 && MOEPAGE_SCOPE_LAYER == 1, "--scope reads a position");

static const flag *find_flag(const char *word, size_t length)
{
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strlen(flags[i].name) == length && !memcmp(flags[i].name, word, length))
            return &flags[i];
    return NULL;
}

/* Reads the flag at argv[*at] and its value, and leaves *at on the last word used. */
static int read_flag(int argc, char **argv, int *at, options *out)
{
    const char *word = argv[*at];
    const char *equals = strchr(word, '=');
    const flag *found = find_flag(word, equals ? (size_t)(equals - word) : strlen(word));
    if (!found)
        return fail(RUN_REFUSED, "%s '%s': see --help",
                    word[0] == '-' ? "unknown flag" : "unexpected argument", word);
    if (!found->read) {
        if (equals)
            return fail(RUN_REFUSED, "%s takes no value", found->name);
        *(bool *)field(found, out) = true;
        return RUN_OK;
    }
    if (equals)
        return found->read(found, equals + 1, out);
    if (*at + 1 >= argc)
        return fail(RUN_REFUSED, "%s needs a value", found->name);
    return found->read(found, argv[++*at], out);
}

int options_parse(int argc, char **argv, options *out)
{
    *out = (options){.device = "host",
                     .policy = "lru",
                     .budget_percent = 100,
                     .max_tokens = 64,
                     .top_p = 1,
                     .prefill_tokens = 128};
    for (int at = 1; at < argc; at++) {
        int code = read_flag(argc, argv, &at, out);
        if (code)
            return code;
    }
    if (out->help)
        return RUN_OK;
    if (!out->model)
        return fail(RUN_REFUSED, "--model DIR is missing: see --help");
    if (!out->n_prompts)
        return fail(RUN_REFUSED, "no prompt: give --prompt TEXT or --tokens 1,2,3");
    return RUN_OK;
}

void options_free(options *opts)
{
    for (uint32_t i = 0; i < opts->n_prompts; i++)
        free(opts->prompts[i].tokens);
    free(opts->prompts);
}
