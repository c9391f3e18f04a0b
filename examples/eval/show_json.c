/* One JSON object. docs/quality.md describes it. */
#include <jansson.h>
#include <math.h>

#include "common/fail.h"
#include "eval/show.h"

typedef struct integer_member {
    const char *key;
    uint64_t value;
} integer_member;

typedef struct real_member {
    const char *key;
    double value;
} real_member;

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The *_new setters of jansson take ownership and refuse NULL, so one check of each result finds
 * every allocation that failed. */
static int set_integers(json_t *object, const integer_member *list, size_t n)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        failed |= json_object_set_new(object, list[i].key, json_integer((json_int_t)list[i].value));
    return failed;
}

/* Values that are not finite are left out. */
static int set_reals(json_t *object, const real_member *list, size_t n)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(list[i].value))
            failed |= json_object_set_new(object, list[i].key, json_real(list[i].value));
    return failed;
}

static int set_counted(json_t *object, const findings *f, const measure *m)
{
    const counters *c = &m->counted;
    const integer_member integers[] = {
        {"steps", c->steps},
        {"layers", c->layers},
        {"routed", c->routed},
        {"hits", c->hits},
        {"moved_bytes", measure_moved(m)},
        {"demand_bytes", c->demand_bytes},
        {"prefetch_bytes", c->prefetch_bytes},
        {"transition_bytes", c->transition_bytes},
        {"guessed_experts", c->guessed},
        {"right_guesses", c->right},
        {"promotions", c->promotions},
        {"demotions", c->demotions},
        {"low_experts", c->low_experts},
        {"low_rows", c->low_rows},
        {"host_experts", c->host_experts},
        {"remap_layers", c->remap_layers},
        {"remap_before", c->remap_before},
        {"remap_after", c->remap_after},
        {"remap_tokens", c->remap_tokens},
        {"remap_rows", c->remap_rows},
        {"remap_ns", c->remap_ns},
        {"stall_ns", c->stall_ns},
        {"step_ns", c->wall_ns},
    };
    const real_member reals[] = {
        {"experts_per_layer", measure_experts(m)},
        {"experts_per_layer_routed", measure_experts_routed(m)},
        {"low_percent", measure_low_percent(m, f->info->top_k)},
        {"hit_percent", measure_hit_percent(m)},
        {"remap_percent", measure_remap_percent(m)},
    };
    return set_integers(object, integers, COUNT(integers)) | set_reals(object, reals, COUNT(reals));
}

static json_t *measure_json(const findings *f, const char *name, const measure *m,
                            const measure *exact)
{
    json_t *object = json_object();
    const real_member reals[] = {
        {f->corpus->bytes ? "bits_per_byte" : "bits_per_token", measure_bits(m)},
        {"loss", exact ? findings_loss(f, m, exact) : NAN},
    };
    const integer_member scored = {"scored", m->scored};
    int failed = json_object_set_new(object, "name", json_string(name));
    failed |= set_integers(object, &scored, 1) | set_reals(object, reals, COUNT(reals));
    if (m->counted.layers)
        failed |= set_counted(object, f, m);
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}

static int set_setting(json_t *object, const setting *s)
{
    const real_member reals[] = {{"alpha", s->remap.alpha > 0 ? s->remap.alpha : NAN},
                                 {"beta", s->remap.alpha > 0 ? s->remap.beta : NAN},
                                 {"resident", s->remap.alpha > 0 ? s->remap.resident : NAN}};
    const integer_member integers[] = {{"keep_ranks", s->keep_ranks}, {"deny_rank", s->deny_rank}};
    int failed = json_object_set_new(object, "name", json_string(s->name));
    failed |= json_object_set_new(object, "lossy", json_boolean(setting_is_lossy(s)));
    if (s->high_set)
        failed |=
            json_object_set_new(object, "high_set",
                                json_string(s->high_set == HIGH_HOTTEST ? "hottest" : "random"));
    if (s->precision.text)
        failed |= json_object_set_new(object, "precision", json_string(s->precision.text));
    for (size_t i = 0; i < COUNT(integers); i++)
        if (integers[i].value)
            failed |= set_integers(object, &integers[i], 1);
    return failed | set_reals(object, reals, COUNT(reals));
}

static json_t *course_json(const findings *f, const outcome *o)
{
    json_t *list = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < o->n_course; i++) {
        const stretch *s = &o->course[i];
        failed |= json_array_append_new(list, measure_json(f, f->corpus->domains[s->domain].name,
                                                           &s->measure, NULL));
    }
    if (!failed)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *outcome_json(const findings *f, const outcome *o)
{
    const outcome *exact = findings_exact(f);
    const integer_member integers[] = {{"expert_bytes", o->expert_bytes},
                                       {"hi_experts", o->hi_experts},
                                       {"wall_ns", o->wall_ns}};
    json_t *object = json_object(), *domains = json_array();
    int failed = set_setting(object, o->setting) | set_integers(object, integers, COUNT(integers));
    for (uint32_t d = 0; d < f->corpus->n_domains; d++)
        failed |= json_array_append_new(domains,
                                        measure_json(f, f->corpus->domains[d].name, &o->domains[d],
                                                     exact ? &exact->domains[d] : NULL));
    failed |= json_object_set_new(object, "domains", domains);
    if (f->opts->course)
        failed |= json_object_set_new(object, "course", course_json(f, o));
    failed |= json_object_set_new(object, "all",
                                  measure_json(f, "all", &o->all, exact ? &exact->all : NULL));
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}

int show_json(FILE *out, const findings *f)
{
    const eval_options *o = f->opts;
    const integer_member integers[] = {{"window", o->window},
                                       {"batch", o->batch},
                                       {"prompt", o->prompt},
                                       {"warm", o->warm},
                                       {"mix", o->mix},
                                       {"routed_bytes", f->info->routed_bytes},
                                       {"moe_layers", f->info->moe_layers},
                                       {"experts", f->info->experts},
                                       {"top_k", f->info->top_k}};
    json_t *root = json_object(), *list = json_array();
    int failed = json_object_set_new(root, "model", json_string(f->model));
    failed |= set_integers(root, integers, COUNT(integers));
    for (uint32_t i = 0; i < f->n; i++)
        failed |= json_array_append_new(list, outcome_json(f, &f->outcomes[i]));
    failed |= json_object_set_new(root, "settings", list);
    if (!failed)
        failed = json_dumpf(root, out, JSON_COMPACT) || fputc('\n', out) == EOF;
    json_decref(root);
    return failed ? fail(RUN_FAILED, "cannot write the JSON output") : RUN_OK;
}
