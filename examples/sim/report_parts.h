/* report_parts.h — building blocks of a report's sections. */
#ifndef SIM_REPORT_PARTS_H
#define SIM_REPORT_PARTS_H

#include "common/page.h"
#include "common/plot.h"
#include "sim/report.h"

#define SIM_GIB ((double)(UINT64_C(1) << 30))

#endif
