/* Mooncake's traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids.
 *
 * A hash id stands for a block of 512 tokens and all before it: requests with a common id have a
 * common prefix up to there. So the longest common prefix with any earlier request ends at the last
 * of a request's ids seen before. The latest request with that id is taken as the parent: it is the
 * most likely to be still in memory. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/request_parts.h"

#define HASH_TOKENS 512u
#define MOST_HASH_ID (1u << 24)

/* By hash id: the latest request that had it, as index + 1, and the preceding id, as id + 1. */
typedef struct owners {
    uint32_t *owner;
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
    uint32_t *owner = realloc(o->owner, room * sizeof *owner);
    if (owner)
        o->owner = owner;
    uint32_t *before = realloc(o->before, room * sizeof *before);
    if (before)
        o->before = before;
    if (!owner || !before)
        return false;
    memset(owner + o->room, 0, (room - o->room) * sizeof *owner);
    memset(before + o->room, 0, (room - o->room) * sizeof *before);
    o->room = room;
    return true;
}

/* One request as the file gives it. */
typedef struct entry {
    uint64_t ms, prompt, output;
    json_t *ids; /* borrowed */
} entry;

static bool take(const json_t *object, const char *key, uint64_t most, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return *out <= most;
}

static bool read_entry(const json_t *object, entry *out)
{
    out->ids = json_object_get(object, "hash_ids");
    return take(object, "timestamp", UINT64_MAX / 1000000, &out->ms) &&
           take(object, "input_length", UINT32_MAX / 4, &out->prompt) &&
           take(object, "output_length", UINT32_MAX / 4, &out->output) && json_is_array(out->ids);
}

/* Reads hash id `k` and checks that it always stands for the same prefix. */
static bool read_id(const entry *e, size_t k, owners *o, uint32_t before, uint32_t *out)
{
    const json_t *value = json_array_get(e->ids, k);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= MOST_HASH_ID ||
        !make_room(o, (uint32_t)json_integer_value(value)))
        return false;
    *out = (uint32_t)json_integer_value(value);
    if (o->owner[*out] && o->before[*out] != before)
        return false;
    o->before[*out] = before;
    return true;
}

static void inherit(const request_list *list, request_row *r, uint32_t parent, uint64_t shared)
{
    uint32_t limit = r->prompt_tokens - 1; /* the last token is always computed */
    uint64_t whole = list->requests[parent].prompt_tokens / HASH_TOKENS;
    r->parent = parent;
    r->prefix_tokens = shared * HASH_TOKENS < limit ? (uint32_t)shared * HASH_TOKENS : limit;
    r->turn = whole && shared >= whole;
}

/* Adds the request and makes it the owner of its ids. */
static int add(const request_line *line, const entry *e, request_cut *cut, owners *o,
               request_list *list)
{
    request_row *r;
    int code = request_add(line, cut, e->ms * 1000000, list, &r);
    if (code)
        return code;
    r->prompt_tokens = e->prompt ? (uint32_t)e->prompt : 1;
    r->output_tokens = e->output ? (uint32_t)e->output : 1;
    uint32_t parent = REQUEST_NONE, before = 0, id;
    uint64_t shared = 0;
    for (size_t k = 0; k < json_array_size(e->ids); k++) {
        if (!read_id(e, k, o, before, &id))
            return request_refuse(line, "hash_ids that stand for one prefix each, below 2^24");
        before = id + 1;
        if (o->owner[id]) {
            parent = o->owner[id] - 1;
            shared = k + 1;
        }
        o->owner[id] = list->n;
    }
    if (parent != REQUEST_NONE)
        inherit(list, r, parent, shared);
    return RUN_OK;
}

static int read_line(const request_line *line, request_cut *cut, owners *o, request_list *list)
{
    json_t *object = json_loads(line->text, 0, NULL);
    entry e = {0};
    int code = RUN_OK;
    if (!object || !read_entry(object, &e)) {
        code = request_refuse(line, "{\"timestamp\": ms, \"input_length\": n, \"output_length\": "
                                    "n, \"hash_ids\": [...]}");
    } else if (request_takes(cut, e.prompt, e.output)) {
        code = add(line, &e, cut, o, list);
    }
    json_decref(object);
    return code;
}

int request_read_mooncake(FILE *in, request_line *line, const request_file_config *config,
                          request_list *out)
{
    request_cut cut = {.config = config};
    owners o = {0};
    out->prefixes = true;
    int code;
    do {
        code = read_line(line, &cut, &o, out);
        line->number++;
    } while (!code && !request_enough(&cut, out) && getline(&line->text, &line->room, in) >= 0);
    free(o.owner);
    free(o.before);
    return code;
}
