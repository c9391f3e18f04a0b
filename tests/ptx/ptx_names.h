/* ptx_names.h — the registers, parameters and labels that an entry declares, while it is parsed. */
#ifndef PTX_NAMES_H
#define PTX_NAMES_H

#include "ptx_inside.h"

typedef struct ptx_name {
    char text[PTX_NAME];
    char letter;    /* p, h, w, x: a register; s: a symbol's address; L: a label */
    uint32_t count; /* registers text0 .. text<count - 1>; 0: one of just this name */
    uint32_t depth; /* of the braces that it is declared in */
    uint16_t id;
    uint32_t at;
    uint64_t value; /* an address, or the instruction that a label is before */
} ptx_name;

typedef struct ptx_names {
    ptx_name *names;
    uint32_t n, cap;
} ptx_names;

/* A name that is a register: its operand. */
typedef struct ptx_register {
    char letter;
    uint16_t id;
    uint32_t at;
} ptx_register;

/* Adds `count` registers, or one with count 0, to the entry's. */
void ptx_names_declare(ptx_names *names, ptx_entry *entry, const char *text, char letter,
                       uint32_t count, uint32_t depth);
void ptx_names_symbol(ptx_names *names, const char *text, char letter, uint64_t value);
/* The end of the braces of that depth. */
void ptx_names_leave(ptx_names *names, uint32_t depth);
bool ptx_names_register(const ptx_names *names, const char *text, ptx_register *out);
const ptx_name *ptx_names_find(const ptx_names *names, const char *text, char letter);
/* Where the constant is among the entry's registers. */
uint32_t ptx_names_constant(ptx_entry *entry, char letter, uint64_t value);
/* Memory for one more of an array's elements. */
void *ptx_more(void *array, uint32_t n, uint32_t *cap, size_t bytes);

#endif
