/* metrics.h — the library's counters as text for Prometheus (exposition format 0.0.4).
 *
 *   metrics_table.c    every metric: its name, its help, and the field it is read from
 *   metrics_labels.c   the labels that a host puts into every sample
 *   metrics_text.c     text, measured and written by the same calls
 *   metrics.c          the samples
 *
 * No locks are taken here: the caller that fills in the structs (src/api/api_stats.c) has taken
 * them. Numbers are formatted without floating point, so that the locale has no effect. */
#ifndef MP_METRICS_METRICS_H
#define MP_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

/* The structs that metrics are read from; a NULL one is left out. */
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
    const char *labels; /* already checked; NULL or "" for no labels */
} mp_metrics;

/* Text under construction; characters that do not fit are counted but not written. */
typedef struct mp_text {
    char *out; /* or NULL */
    uint64_t capacity;
    uint64_t length; /* the full length, written or not */
} mp_text;

typedef enum mp_field_type { MP_FIELD_U32, MP_FIELD_I32, MP_FIELD_U64, MP_FIELD_F64 } mp_field_type;

typedef enum mp_metric_unit {
    MP_UNIT_PLAIN,
    MP_UNIT_SECONDS, /* of a field in nanoseconds */
    MP_UNIT_RATIO    /* of a field in floating point */
} mp_metric_unit;

/* One sample. Samples of one family are adjacent; only the first of them has a name. */
typedef struct mp_metric {
    const char *name;
    const char *help;
    const char *labels; /* cause="slot", or NULL */
    /* If set, the value is 1 and this function writes the labels. */
    void (*describe)(const void *of, mp_text *text);
    mp_metrics_of of;
    mp_field_type type;
    mp_metric_unit unit;
    bool counter;
    uint16_t at;   /* offset of the field in its struct */
    uint16_t less; /* offset of a field to subtract; 0 = none */
} mp_metric;

extern const mp_metric mp_metric_table[];
extern const uint32_t mp_metric_count;

void mp_text_put(mp_text *text, const char *string);
/* Appends name="value" with the value escaped. */
void mp_text_label(mp_text *text, const char *name, const char *value);

/* Checks labels against the text format: name="value" pairs separated by commas, no name twice, no
 * name that the metrics use themselves. ARGUMENT with a sentence otherwise. */
moepage_status mp_metrics_check_labels(const char *labels);

/* Writes the text and a NUL, truncated if they exceed out[capacity); returns the
 * text's full length. */
uint64_t mp_metrics_render(const mp_metrics *metrics, char *out, uint64_t capacity);

#endif
