/* naive_stack.h — reuse distances from their definition: a list of keys by recency, searched from
 * its top. */
#ifndef NAIVE_STACK_H
#define NAIVE_STACK_H

#include <stdint.h>

#define NAIVE_STACK_KEYS 1024
#define NAIVE_STACK_FIRST UINT64_MAX

typedef struct naive_stack {
    uint32_t depth;
    uint64_t keys[NAIVE_STACK_KEYS]; /* most recent first */
    uint32_t sizes[NAIVE_STACK_KEYS];
} naive_stack;

/* Sum of the sizes of the keys above this one, or NAIVE_STACK_FIRST. */
uint64_t naive_stack_distance(const naive_stack *stack, uint64_t key);

void naive_stack_use(naive_stack *stack, uint64_t key, uint32_t size);
/* A key that is not there is a no-op. */
void naive_stack_forget(naive_stack *stack, uint64_t key);

#endif
