/* Reads recorded routes: a byte per expert. */
#include "route_rows.h"

#include <stdio.h>
#include <stdlib.h>

#include "testing.h"

static bool load(route_rows *rows, const char *path, uint32_t most)
{
    unsigned char row[ROUTE_ROW_USES];
    FILE *file = fopen(path, "rb");
    *rows = (route_rows){0};
    if (!file)
        return false;
    while (rows->n < most && fread(row, sizeof row, 1, file) == 1) {
        if (rows->n % 1024 == 0)
            rows->keys =
                realloc(rows->keys, (rows->uses + 1024 * ROUTE_ROW_USES) * sizeof *rows->keys);
        assert_non_null(rows->keys);
        for (uint32_t i = 0; i < ROUTE_ROW_USES; i++) {
            assert_true(row[i] < ROUTE_EXPERTS);
            rows->keys[rows->uses++] = i / ROUTE_TOP_K * ROUTE_EXPERTS + row[i];
        }
        rows->n++;
    }
    fclose(file);
    return true;
}

void route_rows_excerpt(route_rows *rows, uint32_t most)
{
    assert_true(load(rows, "tests/data/gpt-oss-20b-20requests.u8", most));
    assert_true(rows->n > 0);
}

bool route_rows_whole(route_rows *rows, uint32_t most, const char *test)
{
    const char *shared = getenv("MOEPAGE_SHARED");
    char path[4096];
    snprintf(path, sizeof path, "%s/traces/gpt-oss-20b/experts.u8", shared ? shared : "../shared");
    if (load(rows, path, most))
        return true;
    print_message("%s: skipped, %s is not here (set MOEPAGE_SHARED)\n", test, path);
    return false;
}

void route_rows_free(route_rows *rows)
{
    free(rows->keys);
}
