/* metrics.h — what the library counts, as text that Prometheus scrapes (exposition format 0.0.4).
 *
 *   metrics_table.c    every metric: its name, its help, and the field it is read from
 *   metrics_labels.c   the labels that a host puts into every sample
 *   metrics_text.c     text under way
 *   metrics.c          the samples
 *
 * Pure: who has the structs filled in (src/api/api_stats.c) has taken what locks there are. Numbers are
 * written without floating point, so that no locale changes them. */
#ifndef MP_METRICS_METRICS_H
#define MP_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

/* The structs that metrics are read from; NULL = left out. */
typedef enum mp_metrics_of {
    MP_METRICS_OF_BUILD,
    MP_METRICS_OF_DEVICE,
    MP_METRICS_OF_CUDA,
    MP_METRICS_OF_EXPERTS,
    MP_METRICS_OF_SESSIONS,
    MP_METRICS_OF_KV,
    MP_METRICS_OF_CONTROLLER,
    MP_METRICS_OF_PREDICTOR,
    MP_METRICS_SOURCES
} mp_metrics_of;

typedef struct mp_metrics {
    const void *of[MP_METRICS_SOURCES];
    const char *labels; /* checked; NULL or "" = none */
} mp_metrics;

/* Text under way: what does not fit is counted, not written. */
typedef struct mp_text {
    char *out; /* or NULL */
    uint64_t capacity;
    uint64_t length; /* that it would have */
} mp_text;

typedef enum mp_field_type { MP_FIELD_U32, MP_FIELD_I32, MP_FIELD_U64, MP_FIELD_F64 } mp_field_type;

typedef enum mp_metric_unit {
    MP_UNIT_PLAIN,
    MP_UNIT_SECONDS, /* of a field in nanoseconds */
    MP_UNIT_RATIO    /* of a field in floating point */
} mp_metric_unit;

/* One sample. Those of one name follow each other; all but the first have no name. */
typedef struct mp_metric {
    const char *name;
    const char *help;
    const char *labels; /* cause="slot", or NULL */
    /* Where set, the value is 1, and this writes the labels. */
    void (*describe)(const void *of, mp_text *text);
    mp_metrics_of of;
    mp_field_type type;
    mp_metric_unit unit;
    bool counter;
    uint16_t at;   /* offset of the field in its struct */
    uint16_t less; /* of another that is taken off it; 0 = none */
} mp_metric;

extern const mp_metric mp_metric_table[];
extern const uint32_t mp_metric_count;

void mp_text_put(mp_text *text, const char *string);
/* name="value", the value escaped. */
void mp_text_label(mp_text *text, const char *name, const char *value);

/* ARGUMENT with a sentence unless the labels are what the text format takes: name="value" pairs,
 * separated by commas, none twice, and none of a name that metrics use themselves. */
moepage_status mp_metrics_check_labels(const char *labels);

/* Writes the text and a NUL if they fit into out[capacity), and as much as fits otherwise; returns
 * the text's length. */
uint64_t mp_metrics_render(const mp_metrics *metrics, char *out, uint64_t capacity);

#endif
