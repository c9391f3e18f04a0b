/* Lists of settings. */
#include "eval/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

bool setting_is_lossy(const setting *s)
{
    return s->precision.text || s->remap.alpha > 0 || s->keep_ranks || s->deny_rank ||
           s->miss == MOEPAGE_MISS_LOW;
}

/* ---- Names ------------------------------------------------------------------------------- */

static void add_name(setting *s, const char *format, double a, double b)
{
    size_t used = strlen(s->name);
    snprintf(s->name + used, sizeof s->name - used, "%s", used ? ", " : "");
    used = strlen(s->name);
    snprintf(s->name + used, sizeof s->name - used, format, a, b);
}

static void name(setting *s)
{
    static const char *const phases[] = {"", " in prefill", " in prefill and decode"};
    s->name[0] = '\0';
    if (s->precision.text)
        snprintf(s->name, sizeof s->name, "%s", s->precision.text);
    if (s->high_set)
        add_name(s, s->high_set == HIGH_HOTTEST ? "hottest for good" : "any for good", 0, 0);
    if (s->remap.alpha > 0) {
        add_name(s, "remap %g,%g", s->remap.alpha, s->remap.beta);
        if (s->remap.resident > 0)
            add_name(s, "resident %g", s->remap.resident, 0);
        size_t used = strlen(s->name);
        snprintf(s->name + used, sizeof s->name - used, "%s", phases[s->remap_phase]);
    }
    if (s->keep_ranks)
        add_name(s, "ranks 1 to %g", s->keep_ranks, 0);
    if (s->deny_rank)
        add_name(s, "without rank %g", s->deny_rank, 0);
    if (s->miss == MOEPAGE_MISS_LOW)
        add_name(s, "low on a miss", 0, 0);
    if (s->miss == MOEPAGE_MISS_HOST)
        add_name(s, "misses where they lie", 0, 0);
    if (!s->name[0])
        snprintf(s->name, sizeof s->name, "exact");
}

/* ---- Lists ------------------------------------------------------------------------------- */

static int add(settings *list, const setting *s)
{
    setting *grown = realloc(list->items, (list->n + 1u) * sizeof *grown);
    if (!grown)
        return fail_memory();
    list->items = grown;
    grown[list->n] = *s;
    name(&grown[list->n++]);
    return RUN_OK;
}

static int sweep_precision(const setting *asked, settings *out)
{
    static const char *const texts[] = {"int2",
                                        "dense/int2:10%",
                                        "dense/int2:20%",
                                        "dense/int2:30%",
                                        "int8/int2:20%",
                                        "int4/int2:20%",
                                        "dense/int2@int4-bytes",
                                        "int8/int2@int4-bytes",
                                        "int4/int2@int4-bytes",
                                        "int4",
                                        "int8"};
    int code = RUN_OK;
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !code; i++) {
        setting s = *asked;
        precision_parse(texts[i], &s.precision);
        code = add(out, &s);
    }
    return code;
}

/* Adds the settings of DynaExq figure 3: an increasing number of low experts, coldest first or
 * random. */
static int sweep_demotion(const setting *asked, settings *out)
{
    static const char *const texts[] = {"dense/int2:90%", "dense/int2:80%", "dense/int2:70%",
                                        "dense/int2:50%", "dense/int2:30%", "dense/int2:10%"};
    setting all_low = *asked;
    precision_parse("int2", &all_low.precision);
    int code = add(out, &all_low);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (uint32_t high = HIGH_HOTTEST; high <= HIGH_RANDOM && !code; high++) {
            setting s = *asked;
            precision_parse(texts[i], &s.precision);
            s.high_set = high;
            code = add(out, &s);
        }
    return code;
}

/* Pairs that the library accepts: a last bin of e^-3 or more. */
static int sweep_remap(const setting *asked, const grid *g, settings *out)
{
    int code = RUN_OK;
    for (uint32_t a = 0; a < g->n_alphas; a++)
        for (uint32_t b = 0; b < g->n_betas && !code; b++) {
            setting s = *asked;
            s.remap.alpha = g->alphas[a];
            s.remap.beta = g->betas[b];
            if (s.remap.beta <= 3 * s.remap.alpha)
                code = add(out, &s);
        }
    return code;
}

/* Adds the settings of LYNX figures 6 and 7. */
static int sweep_ranks(const setting *asked, uint32_t top_k, settings *out)
{
    int code = RUN_OK;
    for (uint32_t keep = 1; keep < top_k && !code; keep++) {
        setting s = *asked;
        s.keep_ranks = keep;
        code = add(out, &s);
    }
    for (uint32_t deny = 1; deny <= top_k && !code; deny++) {
        setting s = *asked;
        s.deny_rank = deny;
        code = add(out, &s);
    }
    return code;
}

static int sweep_phases(const setting *asked, settings *out)
{
    int code = RUN_OK;
    for (uint32_t phase = REMAP_DECODE; phase <= REMAP_BOTH && !code; phase++) {
        setting s = *asked;
        s.remap_phase = phase;
        code = add(out, &s);
    }
    return code;
}

int settings_list(const setting *asked, uint32_t sweep, const grid *tried, bool exact,
                  uint32_t top_k, settings *out)
{
    const setting as_it_is = {.miss = MOEPAGE_MISS_WAIT};
    int code = RUN_OK;
    *out = (settings){0};
    if (sweep || (exact && setting_is_lossy(asked)))
        code = add(out, &as_it_is);
    if (code)
        return code;
    switch (sweep) {
    case SWEEP_PRECISION: return sweep_precision(asked, out);
    case SWEEP_DEMOTION: return sweep_demotion(asked, out);
    case SWEEP_REMAP: return sweep_remap(asked, tried, out);
    case SWEEP_RANKS: return sweep_ranks(asked, top_k, out);
    case SWEEP_PHASES: return sweep_phases(asked, out);
    default: return add(out, asked);
    }
}

void settings_free(settings *list)
{
    free(list->items);
}
