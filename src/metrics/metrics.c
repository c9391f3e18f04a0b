/* Metrics as samples: values, names and labels. */
#include "metrics/metrics.h"

#include <stdio.h>
#include <string.h>

/* ---- values ---- */

/* A value as a sign and a number of 10^-decimals. */
typedef struct fixed {
    bool negative;
    uint64_t units;
    int decimals;
} fixed;

/* What no count can be, nonsense included, is 0. */
static uint64_t whole(double value)
{
    if (!(value > 0))
        return 0;
    return value < 18446744073709549568.0 ? (uint64_t)(value + 0.5) : UINT64_MAX;
}

static fixed read_f64(const mp_metric *metric, const unsigned char *at)
{
    double value;
    memcpy(&value, at, sizeof value);
    if (metric->unit == MP_UNIT_SECONDS)
        return (fixed){.units = whole(value), .decimals = 9};
    return (fixed){.units = whole(value * 1e6), .decimals = 6};
}

static uint64_t read_u64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static fixed read_value(const mp_metric *metric, const unsigned char *of)
{
    const unsigned char *at = of + metric->at;
    fixed value = {.decimals = metric->unit == MP_UNIT_SECONDS ? 9 : 0};
    uint32_t u32;
    int32_t i32;
    switch (metric->type) {
    case MP_FIELD_U32:
        memcpy(&u32, at, sizeof u32);
        value.units = u32;
        break;
    case MP_FIELD_I32:
        memcpy(&i32, at, sizeof i32);
        value.negative = i32 < 0;
        value.units = value.negative ? (uint64_t) - (int64_t)i32 : (uint64_t)i32;
        break;
    case MP_FIELD_U64:
        value.units = read_u64(at) - (metric->less ? read_u64(of + metric->less) : 0);
        break;
    case MP_FIELD_F64: value = read_f64(metric, at); break;
    }
    return value;
}

static void put_fixed(mp_text *text, fixed value)
{
    char digits[48];
    uint64_t scale = 1;
    for (int i = 0; i < value.decimals; i++)
        scale *= 10;
    const char *sign = value.negative ? "-" : "";
    if (scale == 1)
        snprintf(digits, sizeof digits, "%s%llu", sign, (unsigned long long)value.units);
    else
        snprintf(digits, sizeof digits, "%s%llu.%0*llu", sign,
                 (unsigned long long)(value.units / scale), value.decimals,
                 (unsigned long long)(value.units % scale));
    mp_text_put(text, digits);
}

/* ---- samples ---- */

static void put_head(mp_text *text, const mp_metric *metric)
{
    mp_text_put(text, "# HELP ");
    mp_text_put(text, metric->name);
    mp_text_put(text, " ");
    mp_text_put(text, metric->help);
    mp_text_put(text, "\n# TYPE ");
    mp_text_put(text, metric->name);
    mp_text_put(text, metric->counter ? " counter\n" : " gauge\n");
}

static void put_labels(mp_text *text, const mp_metrics *metrics, const mp_metric *metric)
{
    bool given = metrics->labels && *metrics->labels, own = metric->labels || metric->describe;
    if (!given && !own)
        return;
    mp_text_put(text, "{");
    if (given)
        mp_text_put(text, metrics->labels);
    if (given && own)
        mp_text_put(text, ",");
    if (metric->labels)
        mp_text_put(text, metric->labels);
    else if (metric->describe)
        metric->describe(metrics->of[metric->of], text);
    mp_text_put(text, "}");
}

uint64_t mp_metrics_render(const mp_metrics *metrics, char *out, uint64_t capacity)
{
    mp_text text = {.out = out, .capacity = capacity};
    const char *name = ""; /* of the family */
    for (uint32_t i = 0; i < mp_metric_count; i++) {
        const mp_metric *metric = &mp_metric_table[i];
        name = metric->name ? metric->name : name;
        if (!metrics->of[metric->of])
            continue;
        if (metric->name)
            put_head(&text, metric);
        mp_text_put(&text, name);
        put_labels(&text, metrics, metric);
        mp_text_put(&text, " ");
        if (metric->describe)
            mp_text_put(&text, "1");
        else
            put_fixed(&text, read_value(metric, metrics->of[metric->of]));
        mp_text_put(&text, "\n");
    }
    if (out && text.length < capacity)
        out[text.length] = '\0';
    return text.length;
}
