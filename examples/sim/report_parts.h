/* report_parts.h — what sections of a report are made of. */
#ifndef SIM_REPORT_PARTS_H
#define SIM_REPORT_PARTS_H

#include "sim/plot.h"
#include "sim/report.h"

#define SIM_TABLE_ROWS 17 /* of long curves */
#define SIM_GIB ((double)(UINT64_C(1) << 30))

void sim_report_section(sim_report *report, const char *title, const char *text);
void sim_report_figure(sim_report *report);
void sim_report_figure_end(sim_report *report);

/* Inside a figure; rows of a heading and cells between them. */
void sim_report_table(sim_report *report, const char *const *columns, uint32_t n);
void sim_report_row(sim_report *report, const char *heading);
void sim_report_row_number(sim_report *report, double heading);
void sim_report_cell(sim_report *report, double value); /* what is not finite: a dash */
void sim_report_cell_text(sim_report *report, const char *text);
void sim_report_row_end(sim_report *report);
void sim_report_table_end(sim_report *report);

/* `n` doubles, freed by the caller; NULL, with the report failed, if there is no memory. */
double *sim_report_numbers(sim_report *report, size_t n);

/* The i-th of `rows` values spread evenly over 0..last. */
static inline uint64_t sim_report_spread(uint64_t last, uint32_t i, uint32_t rows)
{
    return rows > 1 ? last * i / (rows - 1) : 0;
}

#endif
