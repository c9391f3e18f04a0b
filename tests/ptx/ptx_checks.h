/* ptx_checks.h — what is kept of global memory while a grid runs. */
#ifndef PTX_CHECKS_H
#define PTX_CHECKS_H

#include "ptx_inside.h"

/* 64 bytes, a bit for each: a table by hash, which grows. */
struct ptx_line {
    uint64_t at;
    uint64_t written, constant, strong, weak;
};

#endif
