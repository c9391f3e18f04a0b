/* Reads an engine's options text: "budget=8G policy=cycle host_tier=16G". A table row per key says
 * which setting it is and what its value looks like. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "engine/engine.h"

#define SEPARATORS " \t\n"

typedef enum option_kind {
    OPTION_BUDGET,
    OPTION_BYTES, /* uint64_t */
    OPTION_U64,
    OPTION_U32,
    OPTION_NAME,   /* const char * into the text */
    OPTION_CHOICE, /* uint32_t: `first` plus the word's position */
} option_kind;

typedef struct option {
    const char *key;
    option_kind kind;
    uint32_t first;    /* CHOICE: value of the first word */
    size_t offset;     /* of the setting */
    const char *words; /* CHOICE: separated by '|' */
} option;

#define AT(field) offsetof(mp_engine_settings, field)

static const option options_known[] = {
    {"budget", OPTION_BUDGET, 0, 0, NULL},
    {"device", OPTION_NAME, 0, AT(device_name), NULL},
    {"policy", OPTION_NAME, 0, AT(experts.policy), NULL},
    {"slots", OPTION_U64, 0, AT(experts.slots), NULL},
    {"host_tier", OPTION_BYTES, 0, AT(experts.host_tier_bytes), NULL},
    {"bus_form", OPTION_CHOICE, 0, AT(experts.bus_form), "auto|dense|exph"},
    {"slot_form", OPTION_CHOICE, 0, AT(experts.slot_form), "auto|dense|exph|int8|int4|int2"},
    {"compressed", OPTION_U32, 0, AT(experts.compressed_experts), NULL},
    {"staging", OPTION_U32, 0, AT(experts.staging_experts), NULL},
    {"scope", OPTION_CHOICE, 0, AT(experts.scope), "global|layer"},
    {"scan_percent", OPTION_U32, 0, AT(experts.scan_percent), NULL},
    {"max_tokens", OPTION_U32, 0, AT(session.max_tokens), NULL},
    {"max_sequences", OPTION_U32, 0, AT(session.max_sequences), NULL},
    {"max_top_k", OPTION_U32, 0, AT(session.max_top_k), NULL},
    {"math", OPTION_CHOICE, 0, AT(session.math), "fp32|bf16|bf16-fast|int8"},
    {"prefetch", OPTION_CHOICE, 0, AT(session.prefetch), "off|hint|previous|predictor"},
    {"prefetch_depth", OPTION_U32, 0, AT(session.prefetch_depth), NULL},
    {"predictor", OPTION_NAME, 0, AT(predictor.name), NULL},
    {"regime", OPTION_CHOICE, 0, AT(session.regime), "auto|cache|stream"},
    {"miss", OPTION_CHOICE, 0, AT(session.miss), "wait|low|host"},
    {"dtype", OPTION_CHOICE, MOEPAGE_DTYPE_F32, AT(dtype), "f32|f16|bf16"},
    {"threads", OPTION_U32, 0, AT(device.threads), NULL},
    {"io_threads", OPTION_U32, 0, AT(device.io_threads), NULL},
    {"bus", OPTION_BYTES, 0, AT(device.bus_bytes_per_s), NULL},
    {"workspace", OPTION_BYTES, 0, AT(extra_workspace_bytes), NULL},
    {"sessions", OPTION_U32, 0, AT(sessions), NULL},
    {"kv_blocks", OPTION_U64, 0, AT(kv.blocks), NULL},
    {"kv_block_tokens", OPTION_U32, 0, AT(kv.block_tokens), NULL},
    {"max_budget", OPTION_BYTES, 0, AT(device.max_budget_bytes), NULL},
    {"reserve", OPTION_BYTES, 0, AT(device.reserve_bytes), NULL},
};

#define N_OPTIONS (sizeof options_known / sizeof *options_known)

static moepage_status refuse(const option *o, const char *value, const char *wanted)
{
    return mp_fail(MOEPAGE_E_ARGUMENT, "options: %s=%.64s: expected %s", o->key, value, wanted);
}

/* ---- Values -------------------------------------------------------------------------------- */

/* Decimal digits alone: no sign, space or base. Advances *text. */
static bool take_digits(const char **text, uint64_t *out)
{
    const char *at = *text;
    for (*out = 0; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(*out, 10u, out) ||
            __builtin_add_overflow(*out, (uint64_t)(*at - '0'), out))
            return false;
    bool any = at != *text;
    *text = at;
    return any;
}

static bool read_bytes(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    if (!take_digits(&text, out))
        return false;
    const char *unit = *text ? strchr(units, *text) : NULL;
    unsigned shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;
    if (text[unit != NULL] || *out > UINT64_MAX >> shift)
        return false;
    *out <<= shift;
    return true;
}

/* "25%" or "12.5%"; by hand, because strtod's decimal point is the locale's. */
static bool read_percent(const char *text, double *out)
{
    uint64_t whole, part = 0;
    double scale = 1;
    if (!take_digits(&text, &whole))
        return false;
    if (*text == '.') {
        const char *from = ++text;
        if (!take_digits(&text, &part))
            return false;
        for (; from < text; from++)
            scale *= 10;
    }
    *out = (double)whole + (double)part / scale;
    return !strcmp(text, "%") && *out > 0 && *out <= 100;
}

static moepage_status read_budget(const option *o, const char *value, mp_engine_settings *s)
{
    uint64_t bytes = 0;
    double percent = 0;
    if (!strcmp(value, "auto")) {
        s->budget_bytes = MOEPAGE_BUDGET_AUTO;
        s->budget_percent = 0;
        return MOEPAGE_OK;
    }
    if (!(strchr(value, '%') ? read_percent(value, &percent) : read_bytes(value, &bytes)) ||
        (!bytes && percent == 0))
        return refuse(
            o, value,
            "bytes, such as 8G, or a percentage of the experts above 0, such as 25%; or auto");
    s->budget_bytes = bytes;
    s->budget_percent = percent;
    return MOEPAGE_OK;
}

static moepage_status read_number(const option *o, const char *value, uint64_t most, uint64_t *out)
{
    const char *end = value;
    if (take_digits(&end, out) && !*end && *out <= most)
        return MOEPAGE_OK;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "a whole number up to %llu", (unsigned long long)most);
    return refuse(o, value, wanted);
}

static moepage_status read_choice(const option *o, const char *value, uint32_t *out)
{
    const size_t n = strlen(value);
    uint32_t position = 0;
    for (const char *word = o->words; word; position++) {
        const char *end = strchr(word, '|');
        size_t length = end ? (size_t)(end - word) : strlen(word);
        if (length == n && !memcmp(word, value, n)) {
            *out = o->first + position;
            return MOEPAGE_OK;
        }
        word = end ? end + 1 : NULL;
    }
    return refuse(o, value, o->words);
}

static moepage_status read_value(const option *o, const char *value, mp_engine_settings *s)
{
    void *field = (char *)s + o->offset;
    uint64_t number;
    moepage_status status = MOEPAGE_OK;
    switch (o->kind) {
    case OPTION_BUDGET: return read_budget(o, value, s);
    case OPTION_BYTES:
        return read_bytes(value, field) ? MOEPAGE_OK
                                        : refuse(o, value, "bytes, such as 4096, 512M or 8G");
    case OPTION_U64: return read_number(o, value, UINT64_MAX, field);
    case OPTION_U32:
        status = read_number(o, value, UINT32_MAX, &number);
        if (!status)
            *(uint32_t *)field = (uint32_t)number;
        return status;
    case OPTION_NAME: *(const char **)field = value; return MOEPAGE_OK;
    case OPTION_CHOICE: return read_choice(o, value, field);
    }
    return status;
}

/* ---- The text ------------------------------------------------------------------------------ */

static moepage_status refuse_key(const char *key)
{
    char known[440] = "";
    for (size_t i = 0, at = 0; i < N_OPTIONS && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, " %s", options_known[i].key);
    return mp_fail(MOEPAGE_E_ARGUMENT, "options: there is no \"%.32s\"; there are:%s", key, known);
}

static moepage_status read_pair(char *pair, uint64_t *seen, mp_engine_settings *s)
{
    char *value = strchr(pair, '=');
    if (!value)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "options: \"%.64s\" is not key=value, such as budget=8G: pairs are separated "
            "by spaces",
            pair);
    *value++ = '\0';
    size_t i = 0;
    while (i < N_OPTIONS && strcmp(options_known[i].key, pair) != 0)
        i++;
    if (i == N_OPTIONS)
        return refuse_key(pair);
    if (*seen & 1ull << i)
        return mp_fail(MOEPAGE_E_ARGUMENT, "options: %s is given twice", pair);
    *seen |= 1ull << i;
    if (!*value)
        return refuse(&options_known[i], value, "a value behind the equals sign");
    return read_value(&options_known[i], value, s);
}

moepage_status mp_engine_options_read(const char *options, mp_engine_settings *s)
{
    _Static_assert(N_OPTIONS <= 64, "one bit for each key");
    uint64_t seen = 0;
    moepage_status status = MOEPAGE_OK;
    s->text = mp_strdup(options);
    if (!s->text)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the options");
    char *rest = s->text;
    for (char *pair; !status && (pair = strtok_r(NULL, SEPARATORS, &rest));)
        status = read_pair(pair, &seen, s);
    if (!s->sessions)
        s->sessions = 1;
    s->has_predictor |= s->predictor.name != NULL;
    return status;
}
