/* json_out.h — the JSON that programs print, put together with jansson.
 *
 * jansson's *_new setters take ownership and refuse NULL, so that one check of all their results finds
 * every allocation that failed. The setters here do too; they return a value other than 0 on failure. */
#ifndef EXAMPLE_JSON_OUT_H
#define EXAMPLE_JSON_OUT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

typedef struct put_count_row {
    const char *key;
    uint64_t value;
} put_count_row;

typedef struct put_real_row {
    const char *key;
    double value;
} put_real_row;

int put_text(json_t *object, const char *key, const char *text);
int put_count(json_t *object, const char *key, uint64_t value);
int put_counts(json_t *object, const put_count_row *rows, size_t n);
/* Leaves out what is not finite. */
int put_reals(json_t *object, const put_real_row *rows, size_t n);

/* put_counts and put_reals of a whole array. */
#define PUT_COUNTS(object, rows) put_counts((object), (rows), sizeof(rows) / sizeof *(rows))
#define PUT_REALS(object, rows) put_reals((object), (rows), sizeof(rows) / sizeof *(rows))

/* Returns `json`; or drops it and returns NULL if making it failed. */
json_t *put_or_null(int failed, json_t *json);

/* Prints `root` on one line and drops it; RUN_FAILED after a line on stderr if that fails, or if making
 * it did (`failed`, or root NULL). */
int put_print(FILE *out, int failed, json_t *root);

#endif
