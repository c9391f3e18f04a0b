/* Writes the JSON object. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/json_out.h"
#include "common/tokenizer.h"
#include "serve/serve_report.h"

static json_t *spread_json(const spread *s)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:I}", "mean", s->mean, "p50", s->p50, "p90", s->p90,
                     "p99", s->p99, "n", (json_int_t)s->n);
}

static int set_counters(json_t *object, const server_result *r)
{
    const put_count_row counters[] = {
        {"requests", r->requests},
        {"arrived", r->arrived},
        {"done", r->done},
        {"refused", r->refused},
        {"preemptions", r->preemptions},
        {"steps", r->steps},
        {"prefill_steps", r->prefill_steps},
        {"mixed_steps", r->mixed_steps},
        {"prompt_tokens", r->prompt_tokens},
        {"output_tokens", r->output_tokens},
        {"wall_ns", r->wall_ns},
        {"idle_ns", r->idle_ns},
        {"real_ns", r->real_ns},
        {"swap_ns", r->swap_ns},
        {"tick_ns", r->tick_ns},
        {"stall_ns", r->session.stall_ns},
        {"expert_compute_ns", r->session.compute_ns},
        {"routed", r->session.routed},
        {"hits", r->session.hits},
        {"misses", r->session.misses},
        {"late", r->session.late},
        {"streamed_layers", r->session.streamed_layers},
        {"host_experts", r->session.host_experts},
        {"slot_bytes", r->experts.slot_bytes},
        {"block_bytes", r->block_bytes},
        {"first_slots", r->first_slots},
        {"last_slots", r->experts.slots},
        {"first_blocks", r->first_blocks},
        {"last_blocks", r->kv.blocks},
        {"peak_blocks", r->kv.peak_blocks},
        {"free_blocks", r->kv.free_blocks},
        {"floor_blocks", r->control.floor_blocks},
        {"bursts", r->control.bursts},
        {"moves", r->control.moves},
        {"moves_refused", r->control.refused},
        {"lent_blocks", r->kv.lent_blocks},
        {"recalls", r->control.recalls},
        {"target_running", r->control.target_running},
        {"predicted_ttft_ns", (uint64_t)r->control.predicted_ttft_ns},
        {"predicted_tpot_ns", (uint64_t)r->control.predicted_tpot_ns},
        {"demand_bytes", r->experts.demand_bytes},
        {"prefetch_bytes", r->experts.prefetch_bytes},
        {"cold_bytes", r->experts.cold_bytes},
        {"swapped_out_blocks", r->kv.swapped_out_blocks},
        {"swapped_in_blocks", r->kv.swapped_in_blocks},
        {"kv_refused", r->kv.refused},
        {"budget_bytes", r->device.budget_bytes},
        {"arena_bytes", r->device.arena_bytes},
        {"peak_bytes", r->device.peak_bytes},
    };
    return PUT_COUNTS(object, counters);
}

static json_t *samples_json(const server_result *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < r->n_samples; i++) {
        const server_sample *s = &r->samples[i];
        json_t *one =
            json_pack("{s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i}", "ns", (json_int_t)s->ns, "slots",
                      (json_int_t)s->slots, "blocks", (json_int_t)s->blocks, "used_blocks",
                      (json_int_t)s->used_blocks, "tokens", (json_int_t)s->tokens, "running",
                      (int)s->running, "waiting", (int)s->waiting, "preempted", (int)s->preempted);
        if (json_array_append_new(list, one)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static const char *state_name(schedule_state state)
{
    switch (state) {
    case SCHEDULE_DONE: return "done";
    case SCHEDULE_REFUSED: return "refused";
    default: return "unfinished"; /* of an interrupted run */
    }
}

static json_t *answers_json(const serve_findings *f, const server_result *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < r->requests; i++) {
        const schedule_request *q = &f->setting->arrivals->requests[i];
        const server_answer *a = &r->answers[i];
        json_t *one =
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "state", state_name(a->state),
                      "prompt_tokens", (json_int_t)q->prompt_tokens, "tokens",
                      (json_int_t)a->times.tokens, "arrival_ns", (json_int_t)a->times.arrival_ns,
                      "first_ns", (json_int_t)a->times.first_ns, "last_ns",
                      (json_int_t)a->times.last_ns, "preempted", (json_int_t)a->preemptions);
        if (json_array_append_new(list, one)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *arm_json(const serve_findings *f, uint32_t i)
{
    const server_result *r = &f->results[i];
    json_t *object = json_object();
    if (!object)
        return NULL;
    int failed = put_text(object, "split", f->setting->options->arms.arms[i].name);
    failed |= json_object_set_new(object, "interrupted", json_boolean(r->interrupted));
    failed |= set_counters(object, r);
    failed |= json_object_set_new(object, "ttft_ms", spread_json(&r->times.ttft));
    failed |= json_object_set_new(object, "tpot_ms", spread_json(&r->times.tpot));
    failed |= json_object_set_new(object, "turn_ms", spread_json(&r->times.turn));
    failed |= json_object_set_new(object, "gap_ms", spread_json(&r->times.gap));
    failed |= json_object_set_new(object, "samples", samples_json(r));
    failed |= json_object_set_new(object, "answers", answers_json(f, r));
    if (f->compared)
        failed |= put_count(object, "same_as_alone", f->compared[i]);
    return put_or_null(failed, object);
}

/* Returns the path as given, except for bytes that are not valid UTF-8. */
static json_t *path_json(const char *path)
{
    size_t n = strlen(path);
    char *text = malloc(3 * n + 1);
    json_t *json =
        text ? json_stringn(text, tokenizer_to_utf8((const unsigned char *)path, n, text)) : NULL;
    free(text);
    return json;
}

/* Lists the requested splits that did not run because of an earlier signal or failure. */
static json_t *missing_json(const serve_findings *f)
{
    const arm_list *arms = &f->setting->options->arms;
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < arms->n; i++)
        if (!f->results[i].ran && json_array_append_new(list, json_string(arms->arms[i].name))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *all_json(const serve_findings *f)
{
    const arm_setting *s = f->setting;
    const serve_options *o = s->options;
    json_t *arms = json_array(), *root = json_object();
    int failed = !arms || !root;
    for (uint32_t i = 0; i < o->arms.n && !failed; i++)
        if (f->results[i].ran)
            failed |= json_array_append_new(arms, arm_json(f, i));
    failed |= json_object_set_new(root, "model", path_json(o->base.model));
    failed |= put_text(root, "policy", o->base.policy);
    failed |= put_text(root, "clock", o->clock == SERVE_CLOCK_VIRTUAL ? "virtual" : "real");
    failed |= put_count(root, "requests", s->arrivals->n);
    failed |= put_count(root, "concurrency", o->concurrency);
    failed |= put_count(root, "step_tokens", o->step_tokens);
    failed |= put_count(root, "bytes", s->estate.bytes);
    failed |= put_count(root, "experts", s->estate.experts);
    failed |= put_count(root, "bus_bytes_per_s", o->base.bus_bytes_per_s);
    failed |= json_object_set_new(root, "length_scale", json_real(s->arrivals->length_scale));
    failed |= json_object_set_new(root, "not_served", missing_json(f));
    failed |= json_object_set_new(root, "arms", arms);
    return put_or_null(failed, root);
}

int serve_json(const serve_findings *f)
{
    const char *path = f->setting->options->json;
    const bool standard = !strcmp(path, "-");
    json_t *root = all_json(f);
    if (!root)
        return fail_memory();
    FILE *out = standard ? stdout : fopen(path, "we");
    if (!out) {
        json_decref(root);
        return fail(RUN_FAILED, "--json %s: %s", path, strerror(errno));
    }
    bool failed = json_dumpf(root, out, JSON_COMPACT) || fputc('\n', out) == EOF;
    failed |= standard ? fflush(out) != 0 : fclose(out) != 0;
    json_decref(root);
    return failed ? fail(RUN_FAILED, "--json %s: cannot be written whole", path) : RUN_OK;
}
