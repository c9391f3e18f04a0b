/* arms.h — ways to divide one budget between experts and KV, each served the same requests. */
#ifndef SERVE_ARMS_H
#define SERVE_ARMS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/flags.h"

#define ARMS_MOST 8

typedef enum arm_kind {
    ARM_FIXED,         /* so many percent of the budget for experts */
    ARM_FLUX,          /* the experts' working set, as a rehearsal showed it, and the rest to KV */
    ARM_MV_WSA,        /* least predicted cost, as a rehearsal showed it */
    ARM_MV_WSA_ONLINE, /* moved while serving */
    ARM_DUAL_RESIZE,
    ARM_PLANNER,
    ARM_LAYER_OFFLOAD /* whole layers stay, the others are brought in every step */
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

/* Reader of --split: names with commas between them, into an arm_list. */
int arms_read(const flag *self, const char *text, void *out);

#endif
