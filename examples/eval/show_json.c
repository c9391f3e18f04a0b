/* One JSON object. docs/quality.md describes it. */
#include <jansson.h>
#include <math.h>

#include "common/fail.h"
#include "common/json_out.h"
#include "eval/show.h"

static int set_counted(json_t *object, const findings *f, const measure *m)
{
    const counters *c = &m->counted;
    const put_count_row counts[] = {
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
    const put_real_row reals[] = {
        {"experts_per_layer", measure_experts(m)},
        {"experts_per_layer_routed", measure_experts_routed(m)},
        {"low_percent", measure_low_percent(m, f->info->top_k)},
        {"hit_percent", measure_hit_percent(m)},
        {"remap_percent", measure_remap_percent(m)},
    };
    return PUT_COUNTS(object, counts) | PUT_REALS(object, reals);
}

static json_t *measure_json(const findings *f, const char *name, const measure *m,
                            const measure *exact)
{
    json_t *object = json_object();
    const put_real_row reals[] = {
        {f->corpus->bytes ? "bits_per_byte" : "bits_per_token", measure_bits(m)},
        {"loss", exact ? findings_loss(f, m, exact) : NAN},
    };
    int failed = put_text(object, "name", name);
    failed |= put_count(object, "scored", m->scored) | PUT_REALS(object, reals);
    if (m->counted.layers)
        failed |= set_counted(object, f, m);
    return put_or_null(failed, object);
}

static int set_setting(json_t *object, const setting *s)
{
    const put_real_row reals[] = {{"alpha", s->remap.alpha > 0 ? s->remap.alpha : NAN},
                                  {"beta", s->remap.alpha > 0 ? s->remap.beta : NAN},
                                  {"resident", s->remap.alpha > 0 ? s->remap.resident : NAN}};
    int failed = put_text(object, "name", s->name);
    failed |= json_object_set_new(object, "lossy", json_boolean(setting_is_lossy(s)));
    if (s->high_set)
        failed |= put_text(object, "high_set", s->high_set == HIGH_HOTTEST ? "hottest" : "random");
    if (s->precision.text)
        failed |= put_text(object, "precision", s->precision.text);
    if (s->keep_ranks)
        failed |= put_count(object, "keep_ranks", s->keep_ranks);
    if (s->deny_rank)
        failed |= put_count(object, "deny_rank", s->deny_rank);
    return failed | PUT_REALS(object, reals);
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
    return put_or_null(failed, list);
}

static json_t *outcome_json(const findings *f, const outcome *o)
{
    const outcome *exact = findings_exact(f);
    const put_count_row counts[] = {{"expert_bytes", o->expert_bytes},
                                    {"hi_experts", o->hi_experts},
                                    {"wall_ns", o->wall_ns}};
    json_t *object = json_object(), *domains = json_array();
    int failed = set_setting(object, o->setting) | PUT_COUNTS(object, counts);
    for (uint32_t d = 0; d < f->corpus->n_domains; d++)
        failed |= json_array_append_new(domains,
                                        measure_json(f, f->corpus->domains[d].name, &o->domains[d],
                                                     exact ? &exact->domains[d] : NULL));
    failed |= json_object_set_new(object, "domains", domains);
    if (f->opts->course)
        failed |= json_object_set_new(object, "course", course_json(f, o));
    failed |= json_object_set_new(object, "all",
                                  measure_json(f, "all", &o->all, exact ? &exact->all : NULL));
    return put_or_null(failed, object);
}

int show_json(FILE *out, const findings *f)
{
    const eval_options *o = f->opts;
    const put_count_row counts[] = {{"window", o->window},
                                    {"batch", o->batch},
                                    {"prompt", o->prompt},
                                    {"warm", o->warm},
                                    {"mix", o->mix},
                                    {"routed_bytes", f->info->routed_bytes},
                                    {"moe_layers", f->info->moe_layers},
                                    {"experts", f->info->experts},
                                    {"top_k", f->info->top_k}};
    json_t *root = json_object(), *list = json_array();
    int failed = put_text(root, "model", f->model);
    failed |= PUT_COUNTS(root, counts);
    for (uint32_t i = 0; i < f->n; i++)
        failed |= json_array_append_new(list, outcome_json(f, &f->outcomes[i]));
    failed |= json_object_set_new(root, "settings", list);
    return put_print(out, failed, root);
}
