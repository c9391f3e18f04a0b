/* csv.h — comma-separated files with a header line, read row by row. */
#ifndef SIM_CSV_H
#define SIM_CSV_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SIM_CSV_COLUMNS 32

typedef struct sim_csv {
    const char *path;
    FILE *file;
    uint64_t line; /* number of the current row, from 1 */
    char *text;
    size_t room;
    uint32_t columns;
    char *fields[SIM_CSV_COLUMNS]; /* of the current row, until the next one is read */
} sim_csv;

/* Opens the file and finds the columns of these names: at[i] is the index of names[i], or
 * UINT32_MAX. The first `required` of them must exist. One line and RUN_REFUSED on failure;
 * sim_csv_close is safe after it. */
int sim_csv_open(sim_csv *csv, const char *path, const char *const *names, uint32_t n,
                 uint32_t required, uint32_t *at);

/* Reads the next row; *more is false at the end. Rows have as many fields as the header; empty
 * lines are skipped. Fields may be in double quotes. */
int sim_csv_next(sim_csv *csv, bool *more);

/* Reads the row's field as a whole number of at most `most`. */
int sim_csv_number(const sim_csv *csv, uint32_t column, uint64_t most, uint64_t *out);

/* Reports "PATH, line N: ..." and returns RUN_REFUSED. */
int sim_csv_refuse(const sim_csv *csv, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void sim_csv_close(sim_csv *csv);

#endif
