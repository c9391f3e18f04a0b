/* arms.h — ways to divide one budget between experts and KV, each served the same requests. */
#ifndef SERVE_ARMS_H
#define SERVE_ARMS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/flags.h"

#define ARMS_MOST 8

typedef enum arm_kind {
    ARM_FIXED,         /* a percentage of the budget for experts */
    ARM_FLUX,          /* experts get their working set from a rehearsal, KV the rest */
    ARM_MV_WSA,        /* least predicted cost according to a rehearsal */
    ARM_MV_WSA_ONLINE, /* the split moves while serving */
    ARM_DUAL_RESIZE,
    ARM_PLANNER,
    ARM_LAYER_OFFLOAD /* whole layers stay, the others are loaded in every step */
} arm_kind;

typedef struct serve_arm {
    char name[24];
    arm_kind kind;
    uint32_t percent; /* ARM_FIXED */
} serve_arm;

typedef struct arm_list {
    serve_arm arms[ARMS_MOST];
    uint32_t n;
} arm_list;

/* Reads --split: names separated by commas, into an arm_list. */
int arms_read(const flag *self, const char *text, void *out);

#endif
