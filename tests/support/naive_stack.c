/* Reuse distances from their definition: a list of keys by recency. */
#include "naive_stack.h"

#include <string.h>

#include "testing.h"

static uint32_t place(const naive_stack *stack, uint64_t key)
{
    uint32_t at = 0;
    while (at < stack->depth && stack->keys[at] != key)
        at++;
    return at;
}

uint64_t naive_stack_distance(const naive_stack *stack, uint64_t key)
{
    const uint32_t at = place(stack, key);
    uint64_t units = 0;
    for (uint32_t i = 0; i < at; i++)
        units += stack->sizes[i];
    return at < stack->depth ? units : NAIVE_STACK_FIRST;
}

void naive_stack_forget(naive_stack *stack, uint64_t key)
{
    const uint32_t at = place(stack, key);
    if (at == stack->depth)
        return;
    stack->depth--;
    memmove(stack->keys + at, stack->keys + at + 1, (stack->depth - at) * sizeof *stack->keys);
    memmove(stack->sizes + at, stack->sizes + at + 1, (stack->depth - at) * sizeof *stack->sizes);
}

void naive_stack_use(naive_stack *stack, uint64_t key, uint32_t size)
{
    naive_stack_forget(stack, key);
    assert_true(stack->depth < NAIVE_STACK_KEYS);
    memmove(stack->keys + 1, stack->keys, stack->depth * sizeof *stack->keys);
    memmove(stack->sizes + 1, stack->sizes, stack->depth * sizeof *stack->sizes);
    stack->keys[0] = key;
    stack->sizes[0] = size;
    stack->depth++;
}
