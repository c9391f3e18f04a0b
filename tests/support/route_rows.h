/* route_rows.h — the recorded routes of gpt-oss-20b: the excerpt in tests/data, and the whole trace
 * where MOEPAGE_SHARED (default ../shared) has it. */
#ifndef ROUTE_ROWS_H
#define ROUTE_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#define ROUTE_LAYERS 24u
#define ROUTE_EXPERTS 32u
#define ROUTE_TOP_K 4u
#define ROUTE_KEYS (ROUTE_LAYERS * ROUTE_EXPERTS)
#define ROUTE_ROW_USES (ROUTE_LAYERS * ROUTE_TOP_K)

typedef struct route_rows {
    uint32_t n;     /* rows: one token each */
    uint64_t uses;  /* n * ROUTE_ROW_USES */
    uint32_t *keys; /* [uses] layer * ROUTE_EXPERTS + expert, in the file's order */
} route_rows;

/* At most `most` rows. The excerpt is always there. The whole trace may not be: false, after saying
 * for which test. */
void route_rows_excerpt(route_rows *rows, uint32_t most);
bool route_rows_whole(route_rows *rows, uint32_t most, const char *test);
void route_rows_free(route_rows *rows);

#endif
