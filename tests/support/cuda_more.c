/* Symbols of libcuda.so.1 by name. */
#include "cuda_more.h"

#include <dlfcn.h>
#include <string.h>

const cuda_more *cuda_more_load(const char **why)
{
    static cuda_more table;
    static int found; /* 1: all of them */
    *why = NULL;
    if (found)
        return &table;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        *why = "libcuda.so.1";
        return NULL;
    }
    void *symbol;
#define CUDA_MORE_FIND(field, name, parameters)   \
    symbol = dlsym(library, name);                \
    memcpy(&table.field, &symbol, sizeof symbol); \
    if (!symbol)                                  \
        *why = name;
    CUDA_MORE(CUDA_MORE_FIND)
    if (*why)
        return NULL;
    found = 1;
    return &table;
}
