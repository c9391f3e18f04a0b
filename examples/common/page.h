/* page.h — one HTML page of plots, each with a table of its numbers below. Self-contained: no
 * script, no other file, no network.
 *
 * Without a path the page is closed from the start, and callers check `out` before they write
 * sections. */
#ifndef EXAMPLE_PAGE_H
#define EXAMPLE_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PAGE_TABLE_ROWS 17 /* of long curves */

typedef struct page {
    FILE *out; /* in memory, so that a failed run leaves no file. NULL = closed */
    char *text;
    size_t size;
    const char *path;
    bool failed; /* out of memory on the way */
} page;

/* The command that made the page: a program and its arguments without argv[0]. */
typedef struct page_command {
    const char *program;
    int argc;
    char **argv;
} page_command;

/* Opens a page about `subject`, with the command line and `about`, a description of the subject. */
int page_open(const char *path, const page_command *command, const char *subject, const char *about,
              page *out);

/* Writes the file if `code` is RUN_OK and frees everything; returns `code`, or RUN_FAILED after a
 * line on stderr. */
int page_close(page *p, int code);

void page_section(page *p, const char *title, const char *text);
void page_figure(page *p);
void page_figure_end(page *p);

/* Begins a table inside a figure; rows consist of a heading and cells. */
void page_table(page *p, const char *const *columns, uint32_t n);
void page_row(page *p, const char *heading);
void page_row_number(page *p, double heading);
void page_cell(page *p, double value); /* a dash for a value that is not finite */
void page_cell_text(page *p, const char *text);
/* Writes n cells and ends the row. */
void page_cells(page *p, const double *values, uint32_t n);
void page_row_end(page *p);
void page_table_end(page *p);

/* Writes a whole table of n columns, each of `length` numbers; the first column heads the rows. A table
 * of more than `most` rows is cut to that many, spread evenly. */
void page_columns(page *p, const char *const *heads, const double *const *columns, uint32_t n,
                  uint32_t length, uint32_t most);

/* `n` doubles, freed by the caller; NULL, with the page failed, if there is no memory. */
double *page_numbers(page *p, size_t n);

/* Returns the i-th of `rows` values spread evenly over 0..last. */
static inline uint64_t page_spread(uint64_t last, uint32_t i, uint32_t rows)
{
    return rows > 1 ? last * i / (rows - 1) : 0;
}

#endif
