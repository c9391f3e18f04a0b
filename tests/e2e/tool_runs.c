/* Running tools and reading what they say. */
#include "tool_runs.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "testing.h"

void place_open(place *p)
{
    maker_dir_create(p->dir);
    snprintf(p->path, sizeof p->path, "%s/x.moepack", p->dir);
}

void place_close(place *p)
{
    maker_dir_remove(p->dir);
}

unsigned count_files(const char *dir)
{
    unsigned n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

void run_well(const char *tool, const char *const *arguments, tool_result *out)
{
    tool_run(tool, arguments, out);
    if (out->exit_status)
        fail_msg("%s: exit status %d, \"%s\"", tool, out->exit_status, out->err);
}

json_t *run_json(const char *tool, const char *const *arguments)
{
    tool_result result;
    json_error_t error;
    run_well(tool, arguments, &result);
    json_t *json = json_loads(result.out, 0, &error);
    if (!json)
        fail_msg("%s: %s", result.out, error.text);
    tool_result_free(&result);
    return json;
}

int64_t integer(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_integer(value))
        fail_msg("no integer \"%s\"", key);
    return json_integer_value(value);
}

double real(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_real(value))
        fail_msg("no number \"%s\"", key);
    return json_real_value(value);
}

void pack(const char *const *arguments)
{
    tool_result result;
    run_well("moepage-pack", arguments, &result);
    tool_result_free(&result);
}

void assert_refused(const char *tool, const char *const *arguments, const char *named)
{
    tool_result result;
    tool_run(tool, arguments, &result);
    const char *end = strchr(result.err, '\n');
    if (result.exit_status != 2 || !end || end == result.err || end[1] || *result.out ||
        !strstr(result.err, named))
        fail_msg("%s (%s): exit status %d, standard error \"%s\", standard output \"%s\"", tool,
                 named, result.exit_status, result.err, result.out);
    tool_result_free(&result);
}
