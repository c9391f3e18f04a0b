/* Mooncake's traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids.
 *
 * A hash id stands for a block of 512 tokens and all before it: whoever has the same id has the
 * same prefix up to there. So the longest common prefix with any earlier request ends at the last of
 * a request's ids that has been seen, and the latest request that had it is taken as its parent:
 * the likeliest to be in memory still. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "sim/jobs_parts.h"

#define HASH_TOKENS 512u
#define MOST_HASH_ID (1u << 24)

/* By hash id: the latest job that had it, as index + 1, and the id before it, as id + 1. */
typedef struct owners {
    uint32_t *job;
    uint32_t *before;
    uint32_t room;
} owners;

static bool make_room(owners *o, uint32_t id)
{
    if (id < o->room)
        return true;
    uint32_t room = o->room ? o->room : 1024;
    while (room <= id)
        room *= 2;
    uint32_t *job = realloc(o->job, room * sizeof *job);
    if (job)
        o->job = job;
    uint32_t *before = realloc(o->before, room * sizeof *before);
    if (before)
        o->before = before;
    if (!job || !before)
        return false;
    memset(job + o->room, 0, (room - o->room) * sizeof *job);
    memset(before + o->room, 0, (room - o->room) * sizeof *before);
    o->room = room;
    return true;
}

/* One request as it stands in the file. */
typedef struct request {
    uint64_t ms, prompt, output;
    json_t *ids; /* borrowed */
} request;

static bool take(const json_t *object, const char *key, uint64_t most, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return *out <= most;
}

static bool read_request(const json_t *object, request *out)
{
    out->ids = json_object_get(object, "hash_ids");
    return take(object, "timestamp", UINT64_MAX / 1000000, &out->ms) &&
           take(object, "input_length", UINT32_MAX / 4, &out->prompt) &&
           take(object, "output_length", UINT32_MAX / 4, &out->output) && json_is_array(out->ids);
}

/* Reads hash id `k` and sees that it stands for one prefix alone. */
static bool read_id(const request *r, size_t k, owners *o, uint32_t before, uint32_t *out)
{
    const json_t *value = json_array_get(r->ids, k);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= MOST_HASH_ID ||
        !make_room(o, (uint32_t)json_integer_value(value)))
        return false;
    *out = (uint32_t)json_integer_value(value);
    if (o->job[*out] && o->before[*out] != before)
        return false;
    o->before[*out] = before;
    return true;
}

static void inherit(sim_jobs *jobs, sim_job *job, uint32_t parent, uint64_t shared)
{
    sim_job *from = &jobs->jobs[parent];
    uint32_t limit = job->prompt_tokens - 1; /* the last one is computed in any case */
    uint64_t whole = from->prompt_tokens / HASH_TOKENS;
    job->parent = parent;
    job->prefix_tokens = shared * HASH_TOKENS < limit ? (uint32_t)shared * HASH_TOKENS : limit;
    job->turn = whole && shared >= whole;
    job->after = job->turn ? parent : SIM_NO_JOB;
    job->session = job->turn ? from->session : jobs->sessions++;
}

/* Adds the request; its ids become its own. */
static int add(const sim_line *line, const request *r, uint64_t first_ms, double time_scale,
               owners *o, sim_jobs *jobs)
{
    sim_job *job = sim_jobs_add(jobs);
    if (!job)
        return fail_memory();
    job->arrival_ns = (uint64_t)((double)(r->ms - first_ms) * 1e6 * time_scale);
    job->prompt_tokens = r->prompt ? (uint32_t)r->prompt : 1;
    job->output_tokens = r->output ? (uint32_t)r->output : 1;
    job->kept = true;
    uint32_t parent = SIM_NO_JOB, before = 0, id;
    uint64_t shared = 0;
    for (size_t k = 0; k < json_array_size(r->ids); k++) {
        if (!read_id(r, k, o, before, &id))
            return sim_line_refuse(line, "hash_ids that stand for one prefix each, below 2^24");
        before = id + 1;
        if (o->job[id]) {
            parent = o->job[id] - 1;
            shared = k + 1;
        }
        o->job[id] = jobs->n;
    }
    if (parent != SIM_NO_JOB)
        inherit(jobs, job, parent, shared);
    else
        job->session = jobs->sessions++;
    return RUN_OK;
}

static int read_line(const sim_line *line, sim_jobs_cut *cut, uint64_t *first_ms, owners *o,
                     sim_jobs *jobs)
{
    json_t *object = json_loads(line->text, 0, NULL);
    request r = {0};
    int code = RUN_OK;
    if (!object || !read_request(object, &r)) {
        code = sim_line_refuse(line, "{\"timestamp\": ms, \"input_length\": n, \"output_length\": "
                                     "n, \"hash_ids\": [...]}");
    } else if (sim_jobs_takes(cut, r.prompt, r.output)) {
        if (!jobs->n)
            *first_ms = r.ms;
        code = r.ms < *first_ms ? sim_line_refuse(line, "requests in the order of their times")
                                : add(line, &r, *first_ms, cut->config->time_scale, o, jobs);
    }
    json_decref(object);
    return code;
}

int sim_jobs_mooncake(FILE *in, sim_line *line, const sim_jobs_config *config, sim_jobs *out)
{
    sim_jobs_cut cut = {.config = config};
    owners o = {0};
    uint64_t first_ms = 0;
    int code;
    do {
        code = read_line(line, &cut, &first_ms, &o, out);
        line->number++;
    } while (!code && !sim_jobs_enough(&cut, out) && getline(&line->text, &line->room, in) >= 0);
    free(o.job);
    free(o.before);
    return code;
}
