/* Names of an entry, and the places of its registers. */
#include "ptx_names.h"

#include <stdlib.h>
#include <string.h>

void *ptx_more(void *array, uint32_t n, uint32_t *cap, size_t bytes)
{
    if (n < *cap)
        return array;
    *cap = *cap ? 2 * *cap : 64;
    array = realloc(array, *cap * bytes);
    if (!array)
        abort();
    return array;
}

/* Predicates are a word of 32 lanes each; others 32 words or double words. */
static uint32_t bytes_of(char letter)
{
    return letter == 'p' ? 4 : letter == 'x' ? 8 * PTX_LANES : 4 * PTX_LANES;
}

static uint32_t place(ptx_entry *entry, char letter, uint32_t count)
{
    const uint32_t at = (entry->register_bytes + 63) / 64 * 64;
    entry->register_bytes = at + count * bytes_of(letter);
    return at;
}

static ptx_name *add(ptx_names *names, const char *text, char letter)
{
    names->names = ptx_more(names->names, names->n, &names->cap, sizeof *names->names);
    ptx_name *name = &names->names[names->n++];
    memset(name, 0, sizeof *name);
    strncpy(name->text, text, PTX_NAME - 1);
    name->letter = letter;
    return name;
}

void ptx_names_declare(ptx_names *names, ptx_entry *entry, const char *text, char letter,
                       uint32_t count, uint32_t depth)
{
    ptx_name *name = add(names, text, letter);
    name->count = count;
    name->depth = depth;
    name->id = (uint16_t)entry->n_ids;
    name->at = place(entry, letter, count ? count : 1);
    entry->n_ids += count ? count : 1;
    if (entry->n_ids > UINT16_MAX)
        abort();
}

void ptx_names_symbol(ptx_names *names, const char *text, char letter, uint64_t value)
{
    add(names, text, letter)->value = value;
}

void ptx_names_leave(ptx_names *names, uint32_t depth)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < names->n; i++) {
        if (names->names[i].depth < depth)
            names->names[kept++] = names->names[i];
    }
    names->n = kept;
}

const ptx_name *ptx_names_find(const ptx_names *names, const char *text, char letter)
{
    for (uint32_t i = names->n; i-- > 0;) {
        if (names->names[i].letter == letter && !strcmp(names->names[i].text, text))
            return &names->names[i];
    }
    return NULL;
}

static bool is_one_of(const ptx_name *name, const char *text, uint32_t *index)
{
    const size_t prefix = strlen(name->text);
    char *end;
    *index = 0;
    if (!name->count)
        return !strcmp(name->text, text);
    if (strncmp(name->text, text, prefix) || text[prefix] < '0' || text[prefix] > '9')
        return false;
    *index = (uint32_t)strtoul(text + prefix, &end, 10);
    return !*end && *index < name->count;
}

bool ptx_names_register(const ptx_names *names, const char *text, ptx_register *out)
{
    for (uint32_t i = names->n; i-- > 0;) {
        const ptx_name *name = &names->names[i];
        uint32_t index;
        if (!strchr("phwx", name->letter) || !is_one_of(name, text, &index))
            continue;
        *out = (ptx_register){name->letter, (uint16_t)(name->id + index),
                              name->at + index * bytes_of(name->letter)};
        return true;
    }
    return false;
}

uint32_t ptx_names_constant(ptx_entry *entry, char letter, uint64_t value)
{
    for (uint32_t i = 0; i < entry->n_constants; i++) {
        if (entry->constants[i].letter == letter && entry->constants[i].value == value)
            return entry->constants[i].at;
    }
    entry->constants = ptx_more(entry->constants, entry->n_constants, &entry->cap_constants,
                                sizeof *entry->constants);
    const uint32_t at = place(entry, letter, 1);
    entry->constants[entry->n_constants++] = (ptx_constant){at, letter, value};
    return at;
}
