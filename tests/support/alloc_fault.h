/* alloc_fault.h — allocations that fail on purpose, of the thread that asks for it.
 *
 * For programs that are linked with --wrap=mp_alloc,--wrap=mp_realloc (tests/fault). The library's
 * own threads go on as they are. */
#ifndef ALLOC_FAULT_H
#define ALLOC_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct alloc_faults {
    uint64_t countdown; /* 1: the next one fails; 0: none */
    bool for_good;      /* and so do all later ones */
    uint64_t failures;
} alloc_faults;

extern __thread alloc_faults alloc_fault;

/* Whether an allocation of `bytes`, of any thread, fails. `alloc_fault` decides, unless a program puts a
 * count of its own here. */
extern bool (*alloc_fault_strikes)(size_t bytes);

#endif
