/* Setting members, and printing the object. */
#include "common/json_out.h"

#include <math.h>

#include "common/fail.h"

int put_text(json_t *object, const char *key, const char *text)
{
    return json_object_set_new(object, key, json_string(text));
}

int put_count(json_t *object, const char *key, uint64_t value)
{
    return json_object_set_new(object, key, json_integer((json_int_t)value));
}

int put_counts(json_t *object, const put_count_row *rows, size_t n)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        failed |= put_count(object, rows[i].key, rows[i].value);
    return failed;
}

int put_reals(json_t *object, const put_real_row *rows, size_t n)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(rows[i].value))
            failed |= json_object_set_new(object, rows[i].key, json_real(rows[i].value));
    return failed;
}

json_t *put_or_null(int failed, json_t *json)
{
    if (!failed)
        return json;
    json_decref(json);
    return NULL;
}

int put_print(FILE *out, int failed, json_t *root)
{
    if (!root)
        failed = 1;
    if (!failed)
        failed = json_dumpf(root, out, JSON_COMPACT) || fputc('\n', out) == EOF;
    json_decref(root);
    return failed ? fail(RUN_FAILED, "cannot write the JSON output") : RUN_OK;
}
