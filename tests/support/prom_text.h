/* prom_text.h — a strict reader of the text that Prometheus scrapes (exposition format 0.0.4), written
 * from the format's description and knowing nothing of this library's metrics. */
#ifndef PROM_TEXT_H
#define PROM_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROM_MOST 256
#define PROM_KEY_BYTES 800
#define PROM_NAME_BYTES 128

typedef struct prom_family {
    char name[PROM_NAME_BYTES];
    bool counter;
} prom_family;

typedef struct prom_sample {
    char key[PROM_KEY_BYTES]; /* name{labels} as it stands; no braces without labels */
    char name[PROM_NAME_BYTES];
    char value[64];
    uint32_t family;
} prom_sample;

typedef struct prom_text {
    prom_family families[PROM_MOST];
    uint32_t n_families;
    prom_sample samples[PROM_MOST];
    uint32_t n_samples;
} prom_text;

/* Reads a whole text, or fails the test with the line and what is wrong: every family has one HELP and
 * one TYPE in front of its samples, which stand together; names, labels, escapes and values are well
 * formed; no sample is there twice; every line ends. Counters end in _total and are not negative. */
void prom_read(const char *text, prom_text *out);

/* The value of the sample that is written so; fails the test if there is none. */
const char *prom_value(const prom_text *text, const char *key);
uint64_t prom_count(const prom_text *text, const char *key);
bool prom_has(const prom_text *text, const char *key);

/* Calls `see` for each label of a key. */
void prom_each_label(const char *key, void (*see)(void *user, const char *name, size_t bytes),
                     void *user);

#endif
